// Package sim simulates clusters of metadata nodes under seeded workloads, to see what a
// balancer does before it does it to anybody: the policy is the same code that decides in
// a cluster (balancer/policy), the cluster is a model.
//
// Time goes in ticks of a second. Work is a fluid: each directory, or each subtree for
// all of its many directories that are not of interest by themselves, wants a rate of
// operations, or has workers that wait for each answer. A node is a queue with one server:
// with utilisation u an operation takes 1/(1-u) times its service. Moves of names and of
// replicas copy at a rate, take a share of both nodes, pause what moves, and fail with
// their nodes; split and merge move one range after the other (docs/design/0011). Writes
// cost followers a part of what they cost the holder; a directory whose parent is on another
// shard costs more. What that is per operation is in costs.go.
//
// The package is pure: the same workload, balancer and seed give the same run.
package sim
