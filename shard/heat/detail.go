package heat

// Buckets is how many equal ranges of names' hashes the creates of a directory are
// counted by: as many as the fragments of a split into that many.
const Buckets = 16

const (
	// detailAfter operations a directory gets names and creates by hash.
	detailAfter = 32
	// maxNames and maxNameBytes bound the names that a directory shows.
	maxNames     = 4
	maxNameBytes = 64
)

// detail is what is kept of directories that are not quite cold.
type detail struct {
	created [Windows][Buckets]float32 // faded
	// names are a sample in which new ones count more (Aggarwal: On Biased Reservoir
	// Sampling in the Presence of Stream Evolution, VLDB 2006).
	names []string
}

func (d *detail) scale(w int, f float64) {
	for b := range d.created[w] {
		d.created[w][b] *= float32(f)
	}
}

// see takes a name into the sample.
func (d *detail) see(name string, random uint64) {
	if name == "" {
		return
	}
	if len(name) > maxNameBytes {
		name = name[:maxNameBytes-3] + "..."
	}
	for _, known := range d.names {
		if known == name {
			return
		}
	}
	if len(d.names) < maxNames {
		d.names = append(d.names, name)
		return
	}
	d.names[random%maxNames] = name
}
