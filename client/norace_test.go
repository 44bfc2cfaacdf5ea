//go:build !race

package client

// manyClients is how many clients find something out at once.
const manyClients = 1000
