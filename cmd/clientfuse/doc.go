// Command clientfuse mounts a Canopy cluster.
//
//	clientfuse [flags] MOUNTPOINT
//
// runs in the foreground until the mount is unmounted or it gets SIGINT or
// SIGTERM, which unmount it. Without --cluster it finds the `canopy up` of this
// machine. Options behind -o, separated by commas:
//
//	ro, rw              refuse changes
//	noatime, nodiratime, relatime, strictatime, sync, dirsync
//	nodev, nosuid, noexec (and dev, suid, exec)
//	allow_other         let other users in (always so when root mounts, unless allow_root_only)
//	consistency=strict  every question goes to the cluster (the default)
//	consistency=relaxed=1s  names and attributes may be that old
//	acl                 show POSIX ACLs; the server enforces them in any case
//	cache_inodes=65536  about how many unused inodes are kept, 1 KiB of memory each
//	subdir=/path        mount a directory of the namespace
//
// open_by_handle_at(2) and NFS export are not supported.
//
// # mount(8)
//
// With links to this binary under the names mount.fuse.canopy and
// umount.fuse.canopy in /sbin,
//
//	mount -t fuse.canopy HOST:PORT[,HOST:PORT...][:/path] MOUNTPOINT -o ...
//	umount MOUNTPOINT
//
// work, also from /etc/fstab (use _netdev): mount(8) executes
// "/sbin/mount.fuse.canopy SOURCE MOUNTPOINT [-sfnv] [-o options]", which starts
// the mount in the background and returns when it is there (exit status 32 if it
// failed). Beside the options above it takes http=HOST:PORT, log-level=LEVEL and
// log=FILE. (Without the link, mount(8) hands over to mount.fuse3 of libfuse,
// which runs the command `canopy`, and that is no mount program.)
//
// A umount by umount(2) alone sends nothing to a FUSE daemon. What close(2) has
// acknowledged is with the servers by then and visible to everyone, but maybe
// not on their disks yet. umount.fuse.canopy waits for the end of the mount's
// process, which makes everything durable before it ends.
package main
