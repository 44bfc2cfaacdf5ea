// Package policy decides what a balancer does: from what is known of a cluster at
// one moment (View) and the settings (Settings) it makes a plan of few, small steps
// (Decide), each with a reason in words, what it is expected to bring and what it
// costs. DESIGN.md beside this file has the model, the rules P1 to P14 with the
// failure that each prevents, and the table of settings.
//
// It is pure: no clock, no randomness, no order of maps, no I/O. The same view and
// settings give the same plan, in the simulator (balancer/sim) and in a cluster. What
// has to be remembered from view to view is a value of the caller's (Memory).
package policy
