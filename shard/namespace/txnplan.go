package namespace

import (
	"fmt"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/base"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard"
	"github.com/canopyfs/canopy/shard/schema"
)

// TxnPlan is what one operation over several subtrees wants to know, and what it
// then does: the same checks in the same order as those of an operation within one
// subtree, on facts that prepares have locked. It is a pure function of them: Step
// asks for what is missing until there is a verdict.
type TxnPlan struct {
	op       *canopyv1.Op
	who      identity
	shard    base.ShardID // the coordinator
	hash     func([]byte) shard.Hash
	choose   func(spread bool, pin base.ShardID, dir base.Ino, name []byte) base.ShardID
	forwards TxnForwards
	facts    map[string]*canopyv1.TxnFact
	missing  []TxnAsk
	edits    []TxnEdits
	gathered map[base.Ino][]base.SubtreeID // of split directories: the fragments beside home
	decides  *canopyv1.Op                  // the decision carries it out
	split    bool                          // names of a split directory are in it
}

// TxnAsk is one want and where it is to be asked: in a subtree, or of a shard.
type TxnAsk struct {
	Shard   base.ShardID // 0: the subtree's
	Subtree base.SubtreeID
	Want    *canopyv1.TxnWant
	key     string
}

// TxnEdits are the changes in one subtree.
type TxnEdits struct {
	Shard   base.ShardID // 0: the subtree's
	Subtree base.SubtreeID
	Edits   []*canopyv1.TxnEdit
}

// TxnVerdict is how a transaction ends: with changes, or as a failure with none.
type TxnVerdict struct {
	Kind   fserr.Kind
	Result *canopyv1.Result
	Edits  []TxnEdits
	Split  bool // names of split directories are in it
	// Op, instead of Result and Edits: what the decision carries out, for Fragments, the
	// subtrees beside the coordinator's that have a part of the directory.
	Op        *canopyv1.Op
	Fragments []base.SubtreeID
}

// TxnCall reports whether an operation can run as a transaction.
func TxnCall(op *canopyv1.Op) bool { return txnHandler(op) != nil }

// Crosses reports whether an operation itself says that it touches two subtrees.
func Crosses(op *canopyv1.Op) bool {
	other := op.GetRename().GetDstSubtree()
	if l := op.GetLink(); l != nil {
		other = l.DirSubtree
	}
	return other != 0 && other != op.Subtree
}

func txnHandler(op *canopyv1.Op) func(*TxnPlan) (*canopyv1.Result, error) {
	switch op.GetCall().(type) {
	case *canopyv1.Op_Rename:
		return (*TxnPlan).rename
	case *canopyv1.Op_Link:
		return (*TxnPlan).link
	case *canopyv1.Op_Unlink:
		return (*TxnPlan).unlink
	case *canopyv1.Op_Rmdir:
		return (*TxnPlan).rmdir
	case *canopyv1.Op_Mkdir:
		return (*TxnPlan).mkdir
	case *canopyv1.Op_SetAttr, *canopyv1.Op_SetXattr, *canopyv1.Op_RemoveXattr, *canopyv1.Op_SetPolicy:
		return (*TxnPlan).change
	}
	return nil
}

// NewTxnPlan returns the plan of op, which the shard at coordinates. choose picks the
// shard of a new subtree. forwards, which stays the caller's, is what redirects said.
func NewTxnPlan(op *canopyv1.Op, at base.ShardID, forwards TxnForwards, choose func(spread bool, pin base.ShardID, dir base.Ino, name []byte) base.ShardID) *TxnPlan {
	return &TxnPlan{op: op, who: identityOf(op.Cred), shard: at, hash: shard.NameHash, choose: choose, forwards: forwards, facts: map[string]*canopyv1.TxnFact{}}
}

// errMissing ends a step that lacks facts.
const errMissing = missingFacts("a fact is missing")

type missingFacts string

func (e missingFacts) Error() string { return string(e) }

// Step returns what is to be asked next, or the verdict.
func (p *TxnPlan) Step() ([]TxnAsk, *TxnVerdict, error) {
	p.missing, p.edits, p.gathered = nil, nil, map[base.Ino][]base.SubtreeID{}
	result, err := txnHandler(p.op)(p)
	if len(p.missing) > 0 {
		return p.missing, nil, nil
	}
	if err == nil {
		v := &TxnVerdict{Result: result, Edits: p.edits, Split: p.split, Op: p.decides}
		if v.Op != nil {
			v.Fragments = p.gathered[base.Ino(v.Op.Dir())]
		}
		return nil, v, nil
	}
	kind, ok := err.(fserr.Kind)
	if !ok {
		return nil, nil, err
	}
	return nil, &TxnVerdict{Kind: kind, Result: &canopyv1.Result{Error: uint32(kind)}}, nil
}

// Tell takes in the answer to an ask.
func (p *TxnPlan) Tell(a TxnAsk, f *canopyv1.TxnFact) { p.facts[a.key] = f }

// ask returns a fact, nil if it has to be asked for first.
func (p *TxnPlan) ask(shard base.ShardID, subtree base.SubtreeID, w *canopyv1.TxnWant) *canopyv1.TxnFact {
	key := fmt.Sprintf("%d %d %d %d %d %t %t %q %v", shard, subtree, w.Kind, w.Dir, w.Ino, w.Closing, w.Fragment, w.Name, w.Place)
	f := p.facts[key]
	if f == nil {
		p.missing = append(p.missing, TxnAsk{shard, subtree, w, key})
	}
	return f
}

// edit adds a change in a subtree.
func (p *TxnPlan) edit(subtree base.SubtreeID, e *canopyv1.TxnEdit) {
	for i := range p.edits {
		if p.edits[i].Subtree == subtree {
			p.edits[i].Edits = append(p.edits[i].Edits, e)
			return
		}
	}
	p.edits = append(p.edits, TxnEdits{Subtree: subtree, Edits: []*canopyv1.TxnEdit{e}})
}

// txnName is one name that a transaction is about.
type txnName struct {
	subtree base.SubtreeID
	d       *directory
	name    []byte
	fact    *canopyv1.TxnFact
	dentry  *schema.Dentry // nil: absent
}

// nameAsk asks for a name.
func (p *TxnPlan) nameAsk(subtree base.SubtreeID, dir uint64, name []byte, parts bool) *canopyv1.TxnFact {
	return p.ask(0, subtree, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_NAME, Dir: dir, Name: name, Parts: parts})
}

// nameOf decodes what is known of a name, and checks that it may be looked for:
// the directory is there, and who may search it.
func (p *TxnPlan) nameOf(subtree base.SubtreeID, name []byte, f *canopyv1.TxnFact) (*txnName, error) {
	if f == nil {
		return nil, errMissing
	}
	if f.Error != 0 {
		return nil, fserr.Kind(f.Error)
	}
	h, err := schema.DecodeHeader(f.Header)
	if err != nil {
		return nil, err
	}
	n := &txnName{subtree: subtree, d: &directory{Header: *h, subtree: subtree}, name: name, fact: f}
	p.split = p.split || n.d.split()
	if len(f.Dentry) > 0 {
		if n.dentry, err = schema.DecodeDentry(f.Dentry); err != nil {
			return nil, err
		}
	}
	return n, p.who.accessDir(n.d, mayExec)
}

// valid returns what is wrong with the name itself, as view.named does.
func (n *txnName) valid() error {
	err := checkName(n.name)
	if err != nil && n.d.Removed {
		return fserr.NotFound
	}
	return err
}

// object returns what a name has, which may be in a third subtree; nil object and
// errMissing if that has to be asked first.
func (p *TxnPlan) object(n *txnName, closing bool) (*object, error) {
	e := n.dentry
	at := entry{Dentry: e, dir: n.d.Ino}
	switch e.Kind {
	case schema.Embedded:
		return &object{home: inDentry, inode: e.Inode, entry: at, size: e.Inode.SizeBytes}, nil
	case schema.Directory:
		e.Subtree = p.home(e.Subtree, e.Ino)
		d, err := p.homeAsk(e.Subtree, &canopyv1.TxnWant{Ino: uint64(e.Ino), Closing: closing})
		if err == nil && closing && d.split() && d.Entries == 0 {
			err = p.gather(d, true)
		}
		if err != nil {
			return nil, err
		}
		return &object{home: inHeader, dir: d, entry: at}, nil
	}
	f := p.ask(0, e.Subtree, &canopyv1.TxnWant{Kind: canopyv1.TxnWantKind_TXN_WANT_RECORD, Ino: uint64(e.Ino)})
	if f == nil {
		return nil, errMissing
	}
	if f.Error != 0 {
		return nil, fserr.Kind(f.Error)
	}
	i, err := schema.DecodeInode(f.Inode)
	if err != nil {
		return nil, err
	}
	return &object{home: inRecord, inode: i, entry: at}, nil
}

// changedAttr returns what stat shows of o after a change, whose time is not known
// yet; links are added to its count. The subtree is where it lives then.
func (p *TxnPlan) changedAttr(o *object, embeddedIn base.SubtreeID, epoch uint64, links int) *canopyv1.Attr {
	v := &view{subtree: embeddedIn, epoch: base.Epoch(epoch)}
	switch {
	case o.home == inRecord:
		v.subtree, v.epoch = o.entry.Subtree, 0
	case o.isDir() && links < 0:
		o.dir.Fragments = shard.Whole(o.dir.subtree)
	}
	a := v.attr(o)
	a.Nlink = uint32(int(a.Nlink) + links)
	if o.isDir() && links < 0 {
		a.Nlink = 0
	}
	a.CtimeNs = 0
	a.Version++
	return a
}

// lose adds the changes of an inode that loses a name in dir, beyond the name's own.
func (p *TxnPlan) lose(o *object, dir base.Ino) {
	switch o.home {
	case inRecord:
		p.edit(o.entry.Subtree, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_RECORD, Ino: uint64(o.inode.Ino), Links: -1, FromDir: uint64(dir)})
	case inHeader:
		remove := &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_REMOVE, Ino: uint64(o.dir.Ino)}
		p.edit(o.dir.subtree, remove)
		if o.dir.split() {
			remove.Header = o.dir.Header.Append(nil)
		}
		for _, at := range p.gathered[o.dir.Ino] {
			p.edit(at, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_FRAGMENT, Ino: uint64(o.dir.Ino)})
		}
	}
}

// follow adds the changes of an inode or a directory whose name moves, beyond the
// names' own.
func (p *TxnPlan) follow(o *object, from, to *txnName) {
	switch o.home {
	case inRecord:
		p.edit(o.entry.Subtree, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_RECORD, Ino: uint64(o.inode.Ino),
			FromDir: uint64(from.d.Ino), Parent: uint64(to.d.Ino)})
	case inHeader:
		p.edit(o.dir.subtree, &canopyv1.TxnEdit{Kind: canopyv1.TxnEditKind_TXN_EDIT_HOME, Ino: uint64(o.dir.Ino),
			Parent: uint64(to.d.Ino), ParentSubtree: uint64(to.subtree), Name: to.name})
	}
}

// renamedDentry returns the dentry of o under another name.
func renamedDentry(o *object, to []byte) []byte {
	e := renamed(o.entry.Dentry, to)
	if e.Inode != nil {
		n := *e.Inode
		n.CtimeNS = 0 // the decision's
		n.Version++
		e.Inode = &n
	}
	return e.Append(nil)
}
