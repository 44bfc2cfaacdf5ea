package dataserver

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/canopyfs/canopy/internal/base"
)

const (
	benchFileBytes = 128 << 20
	benchPartBytes = 1 << 20
	benchParallel  = 16
)

// BenchmarkFile writes, syncs and reads one striped file with two replicas on
// three servers of this process, and two plain files with the same bytes, and
// reports both rates and their ratio.
func BenchmarkFile(b *testing.B) {
	c := newCluster(b, clusterOptions{servers: 3, replicas: 2, lease: 3 * time.Second, pgs: 32})
	d := c.client(1)
	part := randomBytes(1, benchPartBytes)
	mb := float64(benchFileBytes) / 1e6
	var write, read, diskWrite, diskRead time.Duration
	for i := range b.N {
		f := testFile(base.DataID(1000 + i))
		write += timed(b, func() error {
			err := inParallel(func(at int64) error { _, err := d.WriteAt(testContext(b), f, part, at); return err })
			if err != nil {
				return err
			}
			return d.Sync(testContext(b), f, nil)
		})
		read += timed(b, func() error {
			return inParallel(func(at int64) error {
				_, err := d.ReadAt(testContext(b), f, make([]byte, benchPartBytes), at)
				return err
			})
		})
		w, r := plainFiles(b, filepath.Join(c.dir, fmt.Sprintf("plain%d", i)), part)
		diskWrite, diskRead = diskWrite+w, diskRead+r
	}
	n := float64(b.N)
	b.ReportMetric(mb*n/write.Seconds(), "write-MB/s")
	b.ReportMetric(mb*n/read.Seconds(), "read-MB/s")
	b.ReportMetric(diskWrite.Seconds()/write.Seconds(), "write/disk")
	b.ReportMetric(diskRead.Seconds()/read.Seconds(), "read/disk")
	b.ReportMetric(mb*n/diskWrite.Seconds(), "disk-write-MB/s")
}

func timed(b *testing.B, do func() error) time.Duration {
	b.Helper()
	started := time.Now()
	if err := do(); err != nil {
		b.Fatal(err)
	}
	return time.Since(started)
}

func inParallel(do func(at int64) error) error {
	var g errgroup.Group
	g.SetLimit(benchParallel)
	for at := int64(0); at < benchFileBytes; at += benchPartBytes {
		g.Go(func() error { return do(at) })
	}
	return g.Wait()
}

// plainFiles writes every byte twice, to two files, syncs them, and reads one.
func plainFiles(b *testing.B, name string, part []byte) (write, read time.Duration) {
	files := make([]*os.File, 2)
	for i := range files {
		f, err := os.Create(fmt.Sprintf("%s.%d", name, i))
		if err != nil {
			b.Fatal(err)
		}
		defer os.Remove(f.Name())
		defer f.Close()
		files[i] = f
	}
	write = timed(b, func() error {
		var g errgroup.Group
		for _, f := range files {
			g.Go(func() error {
				for at := int64(0); at < benchFileBytes; at += benchPartBytes {
					if _, err := f.WriteAt(part, at); err != nil {
						return err
					}
				}
				return unix.Fdatasync(int(f.Fd()))
			})
		}
		return g.Wait()
	})
	read = timed(b, func() error {
		p := make([]byte, benchPartBytes)
		for at := int64(0); at < benchFileBytes; at += benchPartBytes {
			if _, err := files[0].ReadAt(p, at); err != nil {
				return err
			}
		}
		return nil
	})
	return write, read
}

// BenchmarkSmallFiles writes new files of 100 KB, which is what data sets
// consist of; the CPU time of an operation is that of client and both replicas.
func BenchmarkSmallFiles(b *testing.B) {
	const smallBytes = 100_000
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			c := newCluster(b, clusterOptions{servers: 3, replicas: 2, lease: 3 * time.Second, pgs: 32})
			d := c.client(1)
			p := randomBytes(1, smallBytes)
			mustWrite(b, d, testFile(1), p, 0)
			var next atomic.Uint64
			each := func(do func(id base.DataID) error) error {
				var g errgroup.Group
				for range parallel {
					g.Go(func() error {
						for {
							i := next.Add(1)
							if i > uint64(b.N) {
								return nil
							}
							if err := do(base.DataID(1000 + i)); err != nil {
								return err
							}
						}
					})
				}
				next.Store(0)
				return g.Wait()
			}
			before := cpuTime(b)
			b.ResetTimer()
			write := timed(b, func() error {
				return each(func(id base.DataID) error { _, err := d.WriteAt(b.Context(), testFile(id), p, 0); return err })
			})
			between := cpuTime(b)
			read := timed(b, func() error {
				return each(func(id base.DataID) error {
					_, err := d.ReadAt(b.Context(), testFile(id), make([]byte, smallBytes), 0)
					return err
				})
			})
			b.StopTimer()
			n := float64(b.N)
			b.ReportMetric(write.Seconds()*1e6/n, "write-us")
			b.ReportMetric((between-before).Seconds()*1e6/n, "write-cpu-us")
			b.ReportMetric(read.Seconds()*1e6/n, "read-us")
			b.ReportMetric((cpuTime(b)-between).Seconds()*1e6/n, "read-cpu-us")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
