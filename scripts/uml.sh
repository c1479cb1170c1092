#!/usr/bin/env bash
# Run a command in User-Mode Linux: Linux 6.1 as a program, with control groups of version 2 alone, and root of its own.
# It boots in seconds. Its files are this machine's, read-only, and copies in memory of what programs write to.
#
#     scripts/uml.sh FOLDER root|delegated|plain COMMAND...
#
# FOLDER is the one that the command can write to on this machine. `delegated` is a user with subordinate ids in a
# control group of the user's own, as `systemd-run --user --scope -p Delegate=yes` makes; `plain` has neither. Needs
# root, and Debian's package user-mode-linux. What the command prints, and its status, are those of this script.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [[ $$ != 1 ]]; then
  folder=$(realpath "$1")
  python=$("$top/.venv/bin/python" -c 'import sys; print(sys.base_prefix)')
  printf 'python=%q who=%q command=(%s)\n' "$python" "$2" "$(printf ' %q' "${@:3}")" >"$folder/given"
  truncate --size 4G "$folder/disk"
  PATH=$PATH:/sbin:/usr/sbin mke2fs -q -t ext4 "$folder/disk"
  memory=$(mktemp --directory /dev/shm/sandboxkit-uml.XXXXXX) # its memory is a file there
  trap 'rm -rf "$memory" "$folder/disk" "$folder/given" "$folder/status" "$folder/console"' EXIT
  # All of its processes end with this one.
  TMPDIR=$memory HOME=$memory setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc \
    linux.uml mem=3G ubd0="$folder/disk" root=none rootfstype=hostfs rootflags=/ ro \
    init="$top/scripts/uml.sh" FOLDER="$folder" con=null con0=null,fd:1 loglevel=1 </dev/null >"$folder/console" 2>&1 || true
  if [[ ! -e $folder/status ]]; then
    sed '/^Kernel panic/,$d' "$folder/console" >&2
    exit 125
  fi
  cat "$folder/output"
  exit "$(<"$folder/status")"
fi

# In User-Mode Linux, as its first process.
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
in_memory() { mount -t tmpfs -o "mode=$1" none "$2"; }
shared() { mount -t hostfs -o "$1,$2" none "$1"; }

reveal() { # PATH: cover the highest folder above it that others may not enter
  local above=$1 hidden=
  mkdir -p "$1"
  while above=$(dirname "$above") && [[ $above != / ]]; do
    if ! (($(stat --format %a "$above") % 2)); then hidden=$above; fi
  done
  [[ ! $hidden ]] || in_memory 755 "$hidden"
  mkdir -p "$1"
  shared "$1" ro
}

mount -t proc none /proc
mount -t sysfs none /sys
mountpoint --quiet /dev || mount -t devtmpfs none /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
in_memory 1777 /dev/shm
in_memory 755 /run
in_memory 755 /mnt
cp -a /etc /mnt/etc
mount --bind /mnt/etc /etc
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
ln -sfn /proc/self/fd /dev/fd
mknod /dev/ubda b 98 0 2>/dev/null || true
chmod 666 /dev/{null,zero,full,random,urandom,tty,ptmx}
in_memory 1777 /tmp
mount /dev/ubda /var/tmp
chmod 1777 /var/tmp
mkdir -p "$FOLDER"
shared "$FOLDER" rw
# shellcheck disable=SC1091  # what this script has written
. "$FOLDER/given"
reveal "$top"
reveal "$python"
"$python/bin/python3" - /usr/lib/uml/modules/"$(uname -r)"/kernel/fs/overlayfs/overlay.ko <<'EOF'
import ctypes, os, sys
sys.exit(ctypes.CDLL(None).syscall(313, os.open(sys.argv[1], os.O_RDONLY), b"", 0))  # finit_module
EOF
for name in /usr/bin/runsc; do # gVisor does not start here
  [[ ! -e $name ]] || mount --bind /dev/null "$name"
done

ulimit -n 65536
above=/sys/fs/cgroup/user.slice group=/sys/fs/cgroup/user.slice/run.scope
mkdir -p "$group"
for each in /sys/fs/cgroup "$above"; do echo '+cpu +memory +pids' >"$each/cgroup.subtree_control"; done
as=()
if [[ $who != root ]]; then
  echo 'sandboxkit-uml:x:4711:4711::/tmp/home:/bin/bash' >>/etc/passwd
  echo 'sandboxkit-uml:x:4711:' >>/etc/group
  mkdir --mode 755 /tmp/home
  chown 4711:4711 /tmp/home
  as=(setpriv --reuid 4711 --regid 4711 --clear-groups env HOME=/tmp/home)
fi
if [[ $who == delegated ]]; then
  echo 'sandboxkit-uml:100000:65536' | tee -a /etc/subuid >>/etc/subgid
  chown 4711:4711 {"$above","$group"}{,/cgroup.{procs,threads,subtree_control}}
fi
export TMPDIR=/var/tmp HYPOTHESIS_STORAGE_DIRECTORY=/var/tmp/hypothesis PYTHONDONTWRITEBYTECODE=1
cd "$top"
status=0
(echo $BASHPID >"$group/cgroup.procs" && exec "${as[@]}" "${command[@]}") </dev/null >"$FOLDER/output" 2>&1 || status=$?
echo "$status" >"$FOLDER/status"
sync
echo o >/proc/sysrq-trigger
sleep 60
