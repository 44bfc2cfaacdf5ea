package clientfuse

import "sync"

// handle is an open file of the kernel.
type handle struct {
	file   file
	node   *node
	flags  uint32 // of open(2)
	append bool   // WRITE goes to the end, wherever that is (K8)
}

// handleTable numbers the open files. A number is used again after its release.
type handleTable struct {
	mu   sync.RWMutex
	open []*handle // by number - 1
	free []uint64
}

// add returns the handle's number, from 1.
func (t *handleTable) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		fh := t.free[n-1]
		t.free = t.free[:n-1]
		t.open[fh-1] = h
		return fh
	}
	t.open = append(t.open, h)
	return uint64(len(t.open))
}

// get returns the handle, nil if there is none with that number.
func (t *handleTable) get(fh uint64) *handle {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if fh == 0 || fh > uint64(len(t.open)) {
		return nil
	}
	return t.open[fh-1]
}

// remove takes the handle out.
func (t *handleTable) remove(fh uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fh == 0 || fh > uint64(len(t.open)) || t.open[fh-1] == nil {
		return nil
	}
	h := t.open[fh-1]
	t.open[fh-1] = nil
	t.free = append(t.free, fh)
	return h
}

// clear takes all out and returns them.
func (t *handleTable) clear() []*handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*handle
	for _, h := range t.open {
		if h != nil {
			all = append(all, h)
		}
	}
	t.open, t.free = nil, nil
	return all
}

// len returns how many files are open.
func (t *handleTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.open) - len(t.free)
}
