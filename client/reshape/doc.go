// Package reshape brings a directory into the shape that somebody wants, a step at a
// time: its names in so many fragments, on these shards, or all together again. Each
// step is a move that the shards' holders make (docs/design/0011); who began it may die,
// and whoever comes with the same wish goes on.
//
// mdsctl uses it for an operator.
package reshape
