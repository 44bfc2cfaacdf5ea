package loadtest

import "fmt"

// Names of floors.
const (
	FloorRaft      = "bare Dragonboat group commit"
	FloorStream    = "bare gRPC stream"
	FloorAppend    = "fdatasync of a 4 KiB append"
	FloorOverwrite = "fdatasync of a 4 KiB overwrite"
	FloorTwice     = "local disk, every byte written twice"
	FloorDiskRead  = "local disk, read"
)

// What Canopy aims for (docs/benchmarks.md).
const (
	aimLibraryCreate    = 0.5 // of the bare log with one replica
	aimLibraryReplicas  = 0.4 // with three
	aimLibraryStat      = 0.5 // of the bare stream
	aimMountCreate      = 0.5 // of the file system in memory
	aimMountStat        = 0.6
	aimSharedLatency    = 1.5 // p50, of fdatasync + the file system in memory
	aimListing          = 0.5
	enoughEntriesPerSec = 100_000 // a listing that fast needs no ratio
	aimWrite            = 0.4
	aimRead             = 0.5
	aimSmall            = 0.5 // of go-fuse's loopback over the local disk
	aimOneFile          = 0.9 // of a file for each rank
)

// CompareMount adds the ratios of the target's phases to those of the file
// system in memory, and of the latency of a create in a shared directory.
func (r *Report) CompareMount(target, memory *Series) {
	for _, p := range target.Phases {
		m := memory.Find(p.Dirs, p.Phase)
		if m == nil || m.OpsPerSec == 0 {
			continue
		}
		ratio := Ratio{What: p.Dirs + ", " + p.Phase + " /s, of memory's", Value: p.OpsPerSec / m.OpsPerSec}
		switch p.Dirs + " " + p.Phase {
		case "own create":
			ratio.Target = aimMountCreate
		case "own stat":
			ratio.Target = aimMountStat
		case "own ls -l", "shared ls -l":
			if p.EntriesPerSec < enoughEntriesPerSec {
				ratio.Target = aimListing
			}
		}
		r.Ratios = append(r.Ratios, ratio)
	}
	p, m, sync := target.Find("shared", "create"), memory.Find("shared", "create"), r.Floor(FloorAppend)
	if p == nil || m == nil || sync == nil || sync.Latency == nil {
		return
	}
	r.Ratios = append(r.Ratios, Ratio{
		What:  "shared, create p50, of fdatasync's + memory's",
		Value: p.Latency.P50US / max(sync.Latency.P50US+m.Latency.P50US, 1), Target: aimSharedLatency, AtMost: true,
	})
}

// CompareLibrary adds the ratios of the target's phases to the bare log
// (changes) and the bare stream (questions).
func (r *Report) CompareLibrary(target *Series, replicas int) {
	raft, stream := r.Floor(FloorRaft), r.Floor(FloorStream)
	for _, p := range target.Phases {
		ratio := Ratio{}
		switch p.Phase {
		case "mkdir", "create", "rename", "unlink", "rmdir":
			if raft == nil || raft.Rate == 0 {
				continue
			}
			ratio.What = fmt.Sprintf("%s, %s /s, of the bare log's", p.Dirs, p.Phase)
			ratio.Value = p.OpsPerSec / raft.Rate
			if p.Phase == "create" && p.Dirs == "shared" {
				ratio.Target = aimLibraryCreate
				if replicas > 1 {
					ratio.Target = aimLibraryReplicas
				}
			}
		case "stat", "open+close":
			if stream == nil || stream.Rate == 0 {
				continue
			}
			ratio.What = fmt.Sprintf("%s, %s /s, of the bare stream's", p.Dirs, p.Phase)
			ratio.Value = p.OpsPerSec / stream.Rate
			if p.Phase == "stat" && p.Dirs == "shared" {
				ratio.Target = aimLibraryStat
			}
		default:
			continue
		}
		r.Ratios = append(r.Ratios, ratio)
	}
}

// CompareData adds the ratios of large files to the local disk's.
func (r *Report) CompareData(writeMB, readMB float64) {
	if f := r.Floor(FloorTwice); f != nil && f.Rate > 0 {
		r.Ratios = append(r.Ratios, Ratio{What: "write + fsync MB/s, of the disk's twice", Value: writeMB / f.Rate, Target: aimWrite})
	}
	if f := r.Floor(FloorDiskRead); f != nil && f.Rate > 0 {
		r.Ratios = append(r.Ratios, Ratio{What: "read MB/s, of the disk's", Value: readMB / f.Rate, Target: aimRead})
	}
}

// CompareSmall adds the ratios of small files to those on go-fuse's loopback.
func (r *Report) CompareSmall(target, loopback *Series) {
	for _, p := range target.Phases {
		m := loopback.Find(p.Dirs, p.Phase)
		if m == nil || m.OpsPerSec == 0 {
			continue
		}
		r.Ratios = append(r.Ratios, Ratio{What: p.Phase + " of small files /s, of the loopback's", Value: p.OpsPerSec / m.OpsPerSec, Target: aimSmall})
	}
}

// CompareCheckpoint adds the ratio of all ranks in one file to a file for each.
func (r *Report) CompareCheckpoint(oneMB, filesMB float64) {
	if filesMB > 0 {
		r.Ratios = append(r.Ratios, Ratio{What: "write MB/s into one file, of a file for each rank", Value: oneMB / filesMB, Target: aimOneFile})
	}
}
