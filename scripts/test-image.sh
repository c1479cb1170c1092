#!/usr/bin/env bash
# Build the test suite's sandbox image, sandboxkit/python:3.11, from Debian packages.
#
# The image has python3 with its whole standard library, the name `python`, git, bash and procps, a
# /tmp of mode 1777, and the user `sandbox` with uid 1000. The build takes about a minute and keeps an
# existing image (--force rebuilds it). It uses debootstrap and `docker import`, no image registry.
set -euo pipefail

image="${SANDBOXKIT_TEST_IMAGE:-sandboxkit/python:3.11}"
suite=bookworm

if [[ "${1:-}" != --force ]] && docker image inspect "$image" >/dev/null 2>&1; then
  exit 0
fi
if [[ $EUID -ne 0 ]]; then
  echo "test-image.sh: debootstrap needs root to build $image" >&2
  exit 1
fi
command -v debootstrap >/dev/null || {
  echo "test-image.sh: no debootstrap: install Debian's debootstrap" >&2
  exit 1
}

# Use the mirror of this machine's apt, because a site may reach only its own. If apt names no Debian
# mirror, debootstrap uses its default.
mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
  grep -v '^[[:space:]]*#' | grep -oE '(https?|file)://[^][ ]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]')" || true

root="$(mktemp -d /var/tmp/sandboxkit-image.XXXXXXXX)"
trap 'umount "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT

debootstrap --variant=minbase \
  --include=python3,python-is-python3,git,ca-certificates,procps \
  "$suite" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 || {
  tail -n 30 "$root.log" "$root/debootstrap/debootstrap.log" >&2 2>/dev/null || true
  rm -f "$root.log"
  echo "test-image.sh: debootstrap failed" >&2
  exit 1
}
rm -f "$root.log"

[[ -e "$root/usr/bin/python" ]] || ln -s python3 "$root/usr/bin/python"
chmod 1777 "$root/tmp" "$root/var/tmp"
chroot "$root" useradd --uid 1000 --create-home --shell /bin/bash sandbox
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
  "$root"/usr/share/{doc,man,locale,info}/* "$root"/debootstrap
: >"$root/etc/machine-id"
# A sandbox does not need the build machine's host name and resolver.
: >"$root/etc/hostname"
: >"$root/etc/resolv.conf"

tar --numeric-owner --one-file-system -C "$root" -c . | docker import \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change 'ENV LANG=C.UTF-8' \
  --change 'CMD ["python3"]' \
  --message 'built by scripts/test-image.sh' - "$image" >/dev/null
docker run --rm --network none "$image" python -c 'import ssl, sqlite3, ctypes, json, venv'
echo "test-image.sh: built $image"
