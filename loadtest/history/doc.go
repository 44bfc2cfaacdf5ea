// Package history records what clients asked of a namespace, when they asked, when
// they had the answer and what it was, so that it can be checked, now or later by
// another process (package check), whether the answers are those of a linearizable
// file system. Package work is the load that makes such histories.
//
// A history is a file of JSON lines: a [Header], then an [Op] each, in the order in
// which they returned. Times are nanoseconds of one clock, from the beginning of the
// run, so all clients of a history run in one process.
//
// An operation whose answer was not seen (a time-out, a connection that was cut off)
// is [Unknown]: it may take effect at any time after its call, or never.
package history
