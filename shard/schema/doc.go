// Package schema is the one place where the keys and values of a shard's state
// are built and parsed. It is pure. Whoever needs a key or a value of the
// replicated state takes it from here; nobody else knows the bytes.
//
// Every key is
//
//	shard (8 bytes) | subtree (8 bytes) | kind (1 byte) | what follows
//
// with numbers in big-endian order, so that a shard is one range and a subtree is
// one range (PROTOCOLS A8). What follows the shard is the same on every shard.
// The map in sort order:
//
//	shard 0: node-local, neither replicated nor checksummed
//	  0 e0..e3                          replica.go
//	subtree 0: of the shard itself
//	  01 shard state                    ShardState: id counters, time, cluster
//	  10 session    client              Session (C3)
//	  11 ended      client              Ended: what an ended session had used up (C3)
//	  20 import     subtree             Import: a subtree that comes, or came (E1)
//	  21 join       subtree             Import: names that come from it to others that are here
//	  28 decision   txn                 Decision: to be committed in other shards (D1, D4)
//	  40 mended     subtree             Mended: how often its counters were repaired
//	  f0 applied, f1 lease              replica.go
//	any other subtree:
//	  01 subtree state                  Subtree: epoch, state, root
//	  02 counters                       Counters
//	  10 header     dir part            Header; part 1: its xattrs, by name
//	  20 dentry     dir cookie part     Dentry with its embedded inode; part 1: xattrs, part 2: Locks by owner
//	  30 inode      ino part            Inode, de-inlined (A9); parts 1 and 2 as of a dentry
//	  40 orphan     ino part            Orphan (H2); parts 1 and 2 as of a dentry
//	  50 relocation ino                 Relocation (H1)
//	  60 results    client seq          Results of one entry (C2)
//	  70 append     ino                 Locator: a file with reservations (J2)
//	  80 deletion   data id             Deletion (H3)
//	  88 cut        ino                 Locator: a file with cuts (J1)
//	  90 lock of    client ino          Empty: the client has locks there
//	  91 locked     ino                 Locator: a file with locks
//	  92 quota      dir                 Quota: what lies below a directory, and bounds
//	  93 names      ino                 Names: where a de-inlined inode has names
//	  98 policy     dir                 Policy: what new files below get
//	  a0 forward    dir                 Forward: the subtree that a carve puts, or put, the directory into (E7)
//	  a1 move                           Move: the subtree, or a part of it, goes to another shard (E2)
//	  a2 split      dir                 Empty: the directory was split, and may be (its header tells)
//	  a8 prepared   txn                 Prepared: what a transaction has locked here (D2)
//	  a9 intent     dir cookie name     Intent on a name
//	  aa home lock  ino                 Intent on a directory's header or a file's record (D5)
//	  ab no moves   txn                 Intent: directories stay where they are (D6)
//	  ac move lock                      Intent: the cluster's lock of directory moves (D6)
//
// The cookie of a dentry (63 bits, shard.Hash and 7 collision bits) belongs to one
// name at a time, so the name itself stands in the value: one Get of (dir, hash,
// collision 0) answers whether a name is there, is not, or shares its hash.
//
// Values start with a version byte. Integers are varints, times are nanoseconds.
// Decoders accept any bytes: they fail, they never panic.
package schema

// FormatVersion is the version of all keys and values, and of the name hash. A
// store of a newer version is refused; each change of the bytes raises it. What
// an older version wrote is read as it is.
//
//   - 2: ACLs of inodes and headers; file locks.
//   - 3: quotas; the names of de-inlined inodes; layout policies.
//   - 4: forwards of carved directories; moves and imports of subtrees; transactions
//     over them.
//   - 5: directories that are split over subtrees, and moves of ranges of names.
//   - 6: repairs.
const FormatVersion = 6
