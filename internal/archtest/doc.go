// Package archtest holds the architecture by test: which package may import
// which, what a pure package may not touch, who alone uses Pebble, Dragonboat
// and etcd, and how large a file and a function may grow. It reads the source
// tree and imports nothing of ours.
package archtest
