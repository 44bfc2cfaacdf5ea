package mds

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
	"github.com/canopyfs/canopy/internal/fserr"
	"github.com/canopyfs/canopy/shard/namespace"
)

// everyCall has one valid operation per call of the protocol.
func everyCall() []*canopyv1.Op {
	place := &canopyv1.Place{Ino: 1}
	calls := []*canopyv1.Op{
		{Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: place}}},
		{Call: &canopyv1.Op_Readlink{Readlink: &canopyv1.ReadlinkCall{Place: place}}},
		{Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: 1}}},
		{Call: &canopyv1.Op_GetXattr{GetXattr: &canopyv1.GetXattrCall{Place: place}}},
		{Call: &canopyv1.Op_ListXattr{ListXattr: &canopyv1.ListXattrCall{Place: place}}},
		{Call: &canopyv1.Op_StatFs{StatFs: &canopyv1.StatFsCall{}}},
		{Call: &canopyv1.Op_Access{Access: &canopyv1.AccessCall{Place: place}}},
		{Call: &canopyv1.Op_Parent{Parent: &canopyv1.ParentCall{Dir: 1}}},
		{Call: &canopyv1.Op_GetLock{GetLock: &canopyv1.GetLockCall{Place: place}}},
		{Call: &canopyv1.Op_WaitLock{WaitLock: &canopyv1.WaitLockCall{Place: place, Lock: &canopyv1.Lock{}}}},
		{Call: &canopyv1.Op_CancelWait{CancelWait: &canopyv1.CancelWaitCall{Ino: 1}}},
		{Call: &canopyv1.Op_GetQuota{GetQuota: &canopyv1.GetQuotaCall{Place: place}}},
		{Call: &canopyv1.Op_ListQuotas{ListQuotas: &canopyv1.ListQuotasCall{}}},
		{Call: &canopyv1.Op_GetPolicy{GetPolicy: &canopyv1.GetPolicyCall{Dir: 1}}},
		{Call: &canopyv1.Op_Locate{Locate: &canopyv1.LocateCall{Ino: 1}}},
		{Call: &canopyv1.Op_MarkNames{MarkNames: &canopyv1.MarkNamesCall{Dir: 1, Token: 2}}},
		{Call: &canopyv1.Op_Create{Create: &canopyv1.CreateCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Mkdir{Mkdir: &canopyv1.MkdirCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Mknod{Mknod: &canopyv1.MknodCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Symlink{Symlink: &canopyv1.SymlinkCall{Dir: 1, Name: []byte("a"), Target: []byte("b")}}},
		{Call: &canopyv1.Op_Link{Link: &canopyv1.LinkCall{Place: place, Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Unlink{Unlink: &canopyv1.UnlinkCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Rmdir{Rmdir: &canopyv1.RmdirCall{Dir: 1, Name: []byte("a")}}},
		{Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{SrcDir: 1, SrcName: []byte("a"), DstDir: 1, DstName: []byte("b")}}},
		{Call: &canopyv1.Op_SetAttr{SetAttr: &canopyv1.SetAttrCall{Place: place}}},
		{Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: place, Name: []byte("user.a")}}},
		{Call: &canopyv1.Op_RemoveXattr{RemoveXattr: &canopyv1.RemoveXattrCall{Place: place}}},
		{Call: &canopyv1.Op_ReportSize{ReportSize: &canopyv1.ReportSizeCall{Place: place}}},
		{Call: &canopyv1.Op_ReserveAppend{ReserveAppend: &canopyv1.ReserveAppendCall{Place: place}}},
		{Call: &canopyv1.Op_FillAppend{FillAppend: &canopyv1.FillAppendCall{Place: place}}},
		{Call: &canopyv1.Op_SetLock{SetLock: &canopyv1.SetLockCall{Place: place, Lock: &canopyv1.Lock{}}}},
		{Call: &canopyv1.Op_DropLocks{DropLocks: &canopyv1.DropLocksCall{Place: place}}},
		{Call: &canopyv1.Op_SetQuota{SetQuota: &canopyv1.SetQuotaCall{Dir: 1, MaxInodes: 9}}},
		{Call: &canopyv1.Op_SetPolicy{SetPolicy: &canopyv1.SetPolicyCall{Dir: 1, Set: &canopyv1.LayoutPolicy{Class: "dataset"}}}},
		{Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{}}},
		{Call: &canopyv1.Op_CloseSession{CloseSession: &canopyv1.CloseSessionCall{}}},
	}
	for i, op := range calls {
		op.Id = uint64(i + 1)
		switch op.Call.(type) {
		case *canopyv1.Op_OpenSession, *canopyv1.Op_CloseSession, *canopyv1.Op_Locate:
		default:
			op.Subtree = 1
		}
		if !namespace.IsRead(op) {
			op.Seq = 1
		}
	}
	return calls
}

func TestEveryCallIsKnown(t *testing.T) {
	calls := everyCall()
	fields := (&canopyv1.Op{}).ProtoReflect().Descriptor().Oneofs().ByName("call").Fields().Len()
	if len(calls) != fields || int(opTypes) != fields+1 {
		t.Fatalf("the protocol has %d calls, the test %d, the table %d", fields, len(calls), opTypes-1)
	}
	seen := map[opType]bool{}
	for _, op := range calls {
		kind, err := validate(op)
		if err != nil || seen[kind] || kind.String() == "" {
			t.Errorf("%T: type %v (seen: %v), %v", op.Call, kind, seen[kind], err)
		}
		seen[kind] = true
		if kind.isWrite() == namespace.IsRead(op) {
			t.Errorf("%v: write %v, but namespace says read %v", kind, kind.isWrite(), namespace.IsRead(op))
		}
	}
}

func TestBrokenOperationsAreMalformed(t *testing.T) {
	for _, op := range everyCall() {
		kind, _ := validate(op)
		breakages := map[string]func(*canopyv1.Op){
			"no id": func(o *canopyv1.Op) { o.Id = 0 },
			"seq":   func(o *canopyv1.Op) { o.Seq ^= 1 }, // 0 on a write, 1 on a read
			"subtree": func(o *canopyv1.Op) {
				o.Subtree ^= 1 // none, or one where none may be
			},
			"groups": func(o *canopyv1.Op) { o.Cred = &canopyv1.Credential{Groups: make([]uint32, maxGroups+1)} },
		}
		for name, breakIt := range breakages {
			broken := proto.CloneOf(op)
			breakIt(broken)
			if _, err := validate(broken); fserr.KindOf(err) != fserr.Malformed {
				t.Errorf("%v with %s: %v", kind, name, err)
			}
		}
	}
	if _, err := validate(&canopyv1.Op{Id: 1, Subtree: 1}); fserr.KindOf(err) != fserr.Malformed {
		t.Errorf("no call: %v", err)
	}
}

func TestOversizedOperands(t *testing.T) {
	long := bytes.Repeat([]byte("n"), 256)
	at := &canopyv1.Place{Ino: 1}
	for _, c := range []struct {
		want fserr.Kind
		op   *canopyv1.Op
	}{
		{fserr.NameTooLong, &canopyv1.Op{Id: 1, Subtree: 1, Call: &canopyv1.Op_Lookup{Lookup: &canopyv1.LookupCall{Dir: 1, Name: long}}}},
		{fserr.NameTooLong, &canopyv1.Op{Id: 1, Seq: 1, Subtree: 1, Call: &canopyv1.Op_Rename{Rename: &canopyv1.RenameCall{SrcName: []byte("a"), DstName: long}}}},
		{fserr.NameTooLong, &canopyv1.Op{Id: 1, Seq: 1, Subtree: 1, Call: &canopyv1.Op_Symlink{Symlink: &canopyv1.SymlinkCall{Name: []byte("a"), Target: make([]byte, 4096)}}}},
		{fserr.TooBig, &canopyv1.Op{Id: 1, Seq: 1, Subtree: 1, Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: at, Value: make([]byte, 65537)}}}},
		{fserr.Range, &canopyv1.Op{Id: 1, Seq: 1, Subtree: 1, Call: &canopyv1.Op_SetXattr{SetXattr: &canopyv1.SetXattrCall{Place: at, Name: long}}}},
		{fserr.Malformed, &canopyv1.Op{Id: 1, Subtree: 1, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{}}}},
		{fserr.Malformed, &canopyv1.Op{Id: 1, Subtree: 1, Call: &canopyv1.Op_GetAttr{GetAttr: &canopyv1.GetAttrCall{Place: &canopyv1.Place{Ino: 1, Name: long}}}}},
		{fserr.Malformed, &canopyv1.Op{Id: 1, Seq: 1, Call: &canopyv1.Op_OpenSession{OpenSession: &canopyv1.OpenSessionCall{Mount: string(make([]byte, 5000))}}}},
	} {
		if _, err := validate(c.op); fserr.KindOf(err) != c.want {
			t.Errorf("%T: %v, want %v", c.op.Call, err, c.want)
		}
	}
	page := &canopyv1.Op{Id: 1, Subtree: 1, Call: &canopyv1.Op_ReadDir{ReadDir: &canopyv1.ReadDirCall{Dir: 1, MaxBytes: 1 << 31}}}
	if _, err := validate(page); err != nil || page.GetReadDir().MaxBytes != maxPageBytes {
		t.Errorf("a huge page: %v, %d bytes", err, page.GetReadDir().MaxBytes)
	}
}

// FuzzOperateRequest: whatever bytes come, decoding and validation answer and do
// not panic, and what is let through names a call and an id.
func FuzzOperateRequest(f *testing.F) {
	whole, err := (&canopyv1.OperateRequest{Shard: 1, Ops: everyCall()}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	for _, op := range everyCall() {
		b, err := (&canopyv1.OperateRequest{Shard: 1, Floor: 1, Ops: []*canopyv1.Op{op}}).MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var request canopyv1.OperateRequest
		if request.UnmarshalVT(b) != nil {
			return
		}
		for _, op := range request.Ops {
			kind, err := validate(op)
			if err == nil && (kind == opUnknown || op.Id == 0 || kind.isWrite() != (op.Seq != 0)) {
				t.Errorf("let through: %v", op)
			}
			if err != nil && fserr.KindOf(err) == fserr.Internal {
				t.Errorf("an unclassified refusal: %v", err)
			}
		}
	})
}
