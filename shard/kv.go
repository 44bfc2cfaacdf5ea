package shard

// Reader reads ordered keys of one shard at one point in time. Not for
// concurrent use unless the implementation says so.
type Reader interface {
	// Get returns the key's value. The slice is valid until the next call on the
	// Reader; decode or copy it at once and do not change it.
	Get(key []byte) (value []byte, found bool, err error)
	// GetNew is Get for a key that is most likely not there, as a name about to be
	// made: filters answer for it where Get would read a block.
	GetNew(key []byte) (value []byte, found bool, err error)
	// Scan calls fn for the keys in [lo, hi) in order until it returns false or
	// an error, which Scan returns. Key and value are valid during the call.
	Scan(lo, hi []byte, fn func(key, value []byte) (more bool, err error)) error
}

// Writer is a Reader that sees its own writes, which become visible to others
// and durable together or not at all.
type Writer interface {
	Reader
	// Set and Delete copy what they are given.
	Set(key, value []byte) error
	Delete(key []byte) error
	// DeleteRange removes the keys in [lo, hi).
	DeleteRange(lo, hi []byte) error
}

// Snapshot is a Reader of one point in time. It must be closed.
type Snapshot interface {
	Reader
	Close() error
}

// Batch is a Writer whose changes Commit makes visible at once and together.
// It must be closed, committed or not. Commit returns the store's sequence
// number of the batch: what was committed up to a number becomes durable
// together, in order (PROTOCOLS A4, A5).
type Batch interface {
	Writer
	Commit() (seq uint64, err error)
	Close() error
}
