package namespace

import (
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// DirectoryInfo is what a subtree has of a directory.
type DirectoryInfo struct {
	Entries   uint64 // names
	Subdirs   uint64
	Fragments shard.FragmentMap // of a split directory, else nil
	Parent    base.Ino          // of "/": itself
	Name      []byte            // in Parent
}

// Directory returns what a subtree has of a directory; found is false if it has
// nothing of it.
func Directory(r shard.Reader, id base.ShardID, subtree base.SubtreeID, dir base.Ino) (info DirectoryInfo, found bool, err error) {
	value, found, err := r.Get(schema.HeaderKey(id, subtree, dir))
	if err != nil || !found {
		return DirectoryInfo{}, false, err
	}
	h, err := schema.DecodeHeader(value)
	if err != nil {
		return DirectoryInfo{}, false, err
	}
	info = DirectoryInfo{Entries: h.Entries, Subdirs: h.Subdirs, Parent: h.Parent, Name: h.Name}
	if h.Fragments.Split() || h.Fragments.Home() != subtree {
		info.Fragments = h.Fragments
	}
	return info, true, nil
}

// Session returns a client's session, if it has one (PROTOCOLS C3).
func Session(r shard.Reader, id base.ShardID, client base.ClientID) (info SessionInfo, found bool, err error) {
	value, found, err := r.Get(schema.SessionKey(id, client))
	if err != nil || !found {
		return SessionInfo{}, false, err
	}
	s, err := schema.DecodeSession(value)
	if err != nil {
		return SessionInfo{}, false, err
	}
	return SessionInfo{client, s.Host, s.PID, s.Mount, s.OpenedNS}, true, nil
}
