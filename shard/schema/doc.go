// Package schema is the one place where the keys and values of a shard's state
// are built and parsed.
package schema
