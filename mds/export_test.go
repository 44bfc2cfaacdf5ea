package mds

// SetHeat switches counting on or off in a running node, so that a benchmark can compare
// the two within one run.
func (s *Server) SetHeat(on bool) { s.heat.Store(on) }
