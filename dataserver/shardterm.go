package dataserver

// deactivate stops service as primary until the group has been activated anew.
func (g *group) deactivate() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active = 0
	g.wakeLocked()
}

func (g *group) shardTerm() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.term
}

// activeTerm returns the term in which this server serves as primary. What is read of
// several members, and what is made of that, is of one term.
func (g *group) activeTerm() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.active != g.current.Epoch || g.quit == g.current.Epoch || !g.leads(g.current) {
		return 0, errDeposed
	}
	return g.term, nil
}

// during runs a read of several members. If the term ended meanwhile its outcome says
// nothing.
func (g *group) during(read func() error) error {
	term, err := g.activeTerm()
	if err != nil {
		return err
	}
	err = read()
	if now, ended := g.activeTerm(); ended != nil || now != term {
		return errDeposed
	}
	return err
}
