#!/usr/bin/env bash
# Boot an arm64 machine of Debian 12, in qemu, whose first process is the agent: stdin and stdout are its stream.
# Without an arm64 processor to help, it boots in half a minute.
#
#     scripts/arm64.sh build              make the kernel and the files, if they are not there yet
#     scripts/arm64.sh AGENT FLAGS...     start the agent's binary with these flags
#
# The kernel and the files are kept below ~/.cache/sandboxkit. They are Debian's packages, which debootstrap fetches
# as root, and installs none. Needs Debian's packages qemu-system-arm, debootstrap and busybox.
set -euo pipefail
cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandboxkit/arm64-1" # increase the number when the output changes

archive() { # the files that stdin names, in the form that the kernel unpacks
  busybox cpio -o -H newc 2>/dev/null
}

build() {
  local mirror root="$cache.building"
  # Use the mirror of this machine's apt, because a site may reach only its own.
  mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
    grep -v '^[[:space:]]*#' | grep -oE '(https?|file)://[^][ ]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]')" || true
  rm -rf "$root"
  mkdir -p "$root"/{files,done}
  debootstrap --foreign --arch=arm64 --variant=minbase --include=linux-image-arm64,python3 \
    bookworm "$root/files" ${mirror:+"$mirror"} >"$cache.log" 2>&1 || {
    tail -n 20 "$cache.log" >&2
    exit 1
  }
  cd "$root/files"
  # What is not required has been fetched, and is to be unpacked.
  for name in $(<debootstrap/base); do
    dpkg-deb --fsys-tarfile ".$(grep "^$name " debootstrap/debpaths | cut -d' ' -f2)" | tar -x --keep-directory-symlink
  done
  mv boot/vmlinuz-* "$root/done/kernel"
  find lib/modules/ \( -name virtio_mmio.ko -o -name virtio_console.ko \) -exec mv {} . \;
  for name in passwd group; do cp "usr/share/base-passwd/$name.master" "etc/$name"; done
  rm -rf proc boot debootstrap lib/modules usr/share/{doc,man,locale,info,zoneinfo} usr/lib/*/gconv var/{lib,cache}/apt
  mkdir proc
  cat >init <<'END'
#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir /dev/pts
mount -t devpts none /dev/pts
insmod /virtio_mmio.ko
insmod /virtio_console.ko
until [ -e /sys/class/virtio-ports/vport0p1/name ]; do sleep 0.1; done
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
exec /agent-linux-arm64 "$@" <>/dev/vport0p1 >&0
END
  chmod +x init
  find . | archive >"$root/done/files"
  rm -rf "$cache"
  mv "$root/done" "$cache"
  rm -rf "$root"
}

mkdir -p "$(dirname "$cache")"
exec 9>"$cache.lock"
flock 9
[[ -d $cache ]] || build
exec 9>&-
[[ $1 != build ]] || exit 0
files=$(mktemp)
cat "$cache/files" >"$files"
(cd "$(dirname "$1")" && basename "$1" | archive) >>"$files"
exec 3<"$files"
rm "$files"
exec qemu-system-aarch64 -M virt -cpu cortex-a72 -m 1G -nodefaults -display none -no-reboot -kernel "$cache/kernel" \
  -initrd /dev/fd/3 -append "console=ttyAMA0 quiet panic=-1 -- ${*:2}" \
  -chardev file,id=console,path=/dev/stderr,append=on -serial chardev:console \
  -chardev stdio,id=stream -device virtio-serial-device -device virtserialport,nr=1,name=agent,chardev=stream
