// Package capability signs and checks what allows access to the bytes of files
// (PROTOCOLS J4; docs/design/0005-capabilities.md says why it is so). A metadata
// node grants a client rights on one data id for a short time; a data server checks
// them by itself. Services show each other, and operators' tools show data servers,
// capabilities of a service.
//
// A capability is TokenBytes long and says: its scope, its rights, the id of its
// key, the period with which it ends, and a MAC over these, the client and the data
// id. The last two are in the request that it comes with.
//
// Time is counted in periods, which the leader of the layout services writes to
// etcd beside the keys: no two clocks have to agree.
//
// Metadata nodes, data servers and layout services use it. Clients carry
// capabilities and look at nothing in them but Rights.
package capability
