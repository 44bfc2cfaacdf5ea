//go:build race

package client

// manyClients is how many clients find something out at once. The race detector knows
// no more than 8,128 goroutines, and a client with its side of the servers has twenty.
const manyClients = 250
