// Package shard is the vocabulary of ownership: subtrees, epochs, fragments of
// directories, the hash of names, and the ordered key-value view that replicated
// state is built on. It is pure: no clock, no I/O, no goroutine.
//
// Anyone may import it. What it fixes for ever (the hash and the list of
// decorations, PROTOCOLS F2) belongs to the format version of shard/schema.
package shard
