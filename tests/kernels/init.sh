#!/bin/sh
# First process of a test machine, run by busybox: another machine's files, read-only, below a file system in memory;
# then the script that /job names.
{ read -r repository && read -r script; } </job
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
  insmod "/modules/$module"
done </modules/order

# share TAG FOLDER OPTIONS: mount a folder of the host.
share() {
  mkdir -p "$2"
  mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2" || poweroff -f
}
mkdir /memory /new
mount -t tmpfs tmpfs /memory
mkdir /memory/upper /memory/work
share root /host ro,cache=loose
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /new

cd /new || poweroff -f
mkdir -p proc sys dev run
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs devtmpfs dev
mkdir -p dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t devpts devpts dev/pts
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
mount -t tracefs tracefs sys/kernel/tracing
share modules "/new/lib/modules/$(uname -r)" ro,cache=loose
share results /new/mnt/results rw
if [ ! -e "/new$repository/Makefile" ]; then # the root file system is not that of the host
  share repository "/new$repository" ro,cache=loose
fi
ip link set lo up
cp /bin/busybox run/busybox
exec switch_root /new /run/busybox sh "$repository/$script" "$repository"
