// Command mdsctl shows and checks a Canopy cluster.
//
//	mdsctl status             one look at nodes, shards, layout services, data servers, capacity; problems in words
//	mdsctl node ls            metadata nodes: address, pid where local, shards led and held
//	mdsctl node drain NODE    hand over the shards that a node holds, and move its replicas away; --leases-only, --stop
//	mdsctl node resume NODE   end what drain began (also: node uncordon)
//	mdsctl node remove NODE   forget a node that has no replicas
//	mdsctl node replace NODE  make the replicas of a lost node anew on others, and forget it
//	mdsctl shard ls           shards with holder, leader and replicas
//	mdsctl shard create       make a shard: --replicas N, or --nodes N1,N2,N3
//	mdsctl shard replica add|remove|move|cancel SHARD [NODE...]
//	                          which nodes have its replicas
//	mdsctl subtree ls         subtrees with owner, epoch, files and directories
//	mdsctl session ls         clients' sessions at every shard
//	mdsctl pool ls            pools, placement groups in short, data servers
//	mdsctl dataserver ls      data servers; dataserver drain, resume, forget SERVER
//	mdsctl scrub              read and compare all stored bytes: --start, --stop, else how far it is
//	mdsctl lock ls PATH       who has locked what in a file, on all mounts
//	mdsctl key ls             keys that capabilities are signed with; key rotate [--revoke] makes a new one
//	mdsctl stat PATH          all attributes, and where the metadata lives
//	mdsctl layout PATH        which stripe of a file lies on which data servers
//	mdsctl quota set PATH     bound the bytes and inodes below a directory; quota get, ls, rm, check
//	mdsctl policy set PATH NAME|KEY=VALUE...
//	                          layout of new files below a directory; policy show, unset, ls
//	mdsctl checksum SHARD     compare the replicas of a shard: equal or DIFFERENT
//	mdsctl fsck [--data]      check all shards, and that stored bytes and files agree
//	mdsctl fsck --repair      mend what can be mended without a guess; --dry-run shows it
//	mdsctl completion SHELL   completion for bash, zsh, fish or powershell
//
// The cluster is --cluster HOST:PORT[,HOST:PORT...] (metadata nodes), else
// CANOPY_CLUSTER, else the `canopy up` of this machine; a PATH below a mount of
// this machine means that mount's cluster. PATH is otherwise a path of the
// namespace, such as /data.
//
// -o json prints one JSON value with stable field names: lists for the `ls`
// commands, an object for the others. --timeout bounds how long one process may
// take to answer.
//
// Exit code 0: all is well. 1: the command failed, or status, checksum or fsck
// found something wrong. One line on standard error says what.
package main
