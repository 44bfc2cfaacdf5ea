// Package heat counts what makes a shard busy: which directories, which clients,
// and which client in which directory, in bounded memory, with old counts fading.
// It is pure: time is passed in, as the time since the sketch began. A Sketch or a
// Batch belongs to one goroutine at a time.
//
// Each of three tables (by directory and subtree, by client, by directory and client) keeps the keys with most
// operations, as Space-Saving does (Metwally, Agrawal, El Abbadi: Efficient
// Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005): a key that
// comes in takes over, as what may have been counted of it before, the largest count
// that a key had which went. So a key's operations lie between what was seen of it
// and that plus Over, and a key that is in no table has at most the table's Over. Keys
// go in bulk, not one for each that comes, which costs a constant per operation
// (Anderson et al.: A High-Performance Algorithm for Identifying Frequent Items in
// Data Streams, IMC 2017). Of capacity counters a quarter stays for each window, so
// Over is at most a (capacity/4)-th of all operations.
//
// Counts fade by forward decay (Cormode, Shkapenyuk, Srivastava, Xu: Forward Decay,
// ICDE 2009): what is added is multiplied by a weight that doubles each half-life,
// and a reader divides by the weight of now. Nothing is touched when time passes, and
// the bounds hold for faded counts. There are three half-lives, and a key is kept as
// long as it is among the largest in any of them.
//
// mds feeds it and answers from it; the mds package says what the times mean.
package heat
