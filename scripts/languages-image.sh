#!/usr/bin/env bash
# Build an image with the toolchains of `Program`'s languages, from Debian packages.
#
#   scripts/languages-image.sh                 all languages, as the image sandboxkit/languages:trixie
#   scripts/languages-image.sh cpp17 java      these languages
#   --from IMAGE                               adds them to this Debian image's files, instead of debootstrap
#   --keep                                     does nothing if the image is there and has these languages
#   --image NAME                               another name; --image '' builds no image
#   --root FOLDER                              also leaves a root folder, for Session("local", image=FOLDER)
#
# It uses debootstrap, apt in a chroot and `docker import`, no image registry, and needs root.
set -euo pipefail

image=sandboxkit/languages:trixie
suite=trixie
base=
keep=
folder=
languages=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --image) image="$2"; shift 2 ;;
    --root) folder="$2"; shift 2 ;;
    --from) base="$2"; shift 2 ;;
    --keep) keep=1; shift ;;
    *) languages+=("$1"); shift ;;
  esac
done
if [[ $EUID -ne 0 ]]; then
  echo "languages-image.sh: debootstrap needs root" >&2
  exit 1
fi
if [[ -n "$folder" && -e "$folder" ]]; then
  echo "languages-image.sh: $folder is there already: remove it, or name another folder" >&2
  exit 1
fi
here="$(cd "$(dirname "$0")/.." && pwd)"
packages="$(cd "$here" && "${PYTHON:-python3}" -m sandboxkit.integrations.rewards.programs packages "${languages[@]}")"

say() { echo "languages-image.sh: $*" >&2; }
has() { docker run --pull never --rm --network none "$image" dpkg --status "$@" >/dev/null 2>&1; }
# shellcheck disable=SC2086 # words
if [[ -n "$keep" ]] && has $packages; then
  say "kept $image"
  exit 0
fi

mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
  grep -v '^[[:space:]]*#' | grep -oE '(https?|file)://[^][ ]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]')" || true

root="$(mktemp -d /var/tmp/sandboxkit-languages.XXXXXXXX)"
unmount() { umount "$root/proc" "$root/dev/null" 2>/dev/null || true; }
trap 'unmount; rm -rf --one-file-system "$root" "$root.log"' EXIT

if [[ -n "$base" ]]; then
  made="$(docker create "$base" true)"
  docker export "$made" | tar --numeric-owner -C "$root" -x --exclude='dev/*'
  docker rm "$made" >/dev/null
else
  debootstrap --variant=minbase --include=ca-certificates,procps,python3,python-is-python3 \
    "$suite" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 || {
    tail -n 30 "$root.log" >&2
    say "debootstrap failed"
    exit 1
  }
fi
[[ -e "$root/dev/null" ]] || mknod -m 666 "$root/dev/null" c 1 3
mount -t proc proc "$root/proc" # Java's packages read it
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
[[ -d /etc/apt/apt.conf.d ]] && cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
export DEBIAN_FRONTEND=noninteractive
chroot "$root" sh -c "apt-get -q update && apt-get -q install -y --no-install-recommends $packages" \
  >>"$root.log" 2>&1 || {
  tail -n 30 "$root.log" >&2
  say "apt failed"
  exit 1
}
unmount
chmod 1777 "$root/tmp" "$root/var/tmp"
chroot "$root" id sandbox >/dev/null 2>&1 || chroot "$root" useradd --uid 1000 --create-home --shell /bin/bash sandbox
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{doc,man,locale,info}/* "$root"/debootstrap "$root"/etc/apt/apt.conf.d/*proxy*
: >"$root/etc/machine-id"
: >"$root/etc/hostname"
: >"$root/etc/resolv.conf"

if [[ -n "$image" ]]; then
  tar --numeric-owner --one-file-system -C "$root" -c . | docker import \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV LANG=C.UTF-8' \
    --change 'CMD ["bash"]' \
    --message 'built by scripts/languages-image.sh' - "$image" >/dev/null
  say "built $image"
fi
if [[ -n "$folder" ]]; then
  mv "$root" "$folder"
  chmod 755 "$folder"
  say "left $folder"
fi
