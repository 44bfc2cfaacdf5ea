// Package shard is the vocabulary of ownership: subtrees, epochs, fragments of
// directories, the hash of names, and the ordered key-value view that replicated
// state is built on. It is pure: no clock, no I/O, no goroutine.
package shard
