#!/usr/bin/env bash
# Run a command as on a newcomer's machine: Debian's required packages, git, make and Python, and nothing else.
#
#     scripts/bare.sh make test
#     scripts/bare.sh setpriv --reuid 1000 --regid 1000 --clear-groups make test
#
# Root gets a mount namespace in which /usr has no other program and nothing answers for Docker, containerd and the
# cluster of scripts/kube.sh; outside it nothing changes, the daemon goes on. Where a namespace is forbidden, and
# for anybody but root, a PATH without the other programs has to do.
set -euo pipefail
shopt -s nullglob

if [[ $EUID -eq 0 && -z ${SANDBOXKIT_BARE:-} ]] && unshare --mount true 2>/dev/null; then
  SANDBOXKIT_BARE=1 exec unshare --mount "${BASH_SOURCE[0]}" "$@"
fi
bare=$(mktemp -d)
trap 'rm -rf --one-file-system "$bare"' EXIT
chmod 755 "$bare"
mkdir "$bare/empty"
mkdir -m 1777 "$bare/home"
programs=(/usr/{,local/}{s,}bin/*)

# kept: print those of the programs that such a machine has; a link counts as what it leads to.
kept() {
  local packages
  packages=$(dpkg-query --show --showformat '${db:Status-Abbrev}${Priority} ${Package}\n' |
    sed -nE 's/^ii (required|\w+ (git$|make$|python3$|python3-venv|python3(\.[0-9]+)?-minimal|python3\.[0-9]+(-venv)?$)) ?/\2/p')
  # shellcheck disable=SC2086  # a list of words
  dpkg -L $packages | sed -nE 's#^(/usr)?(/s?bin/.+)#/usr\2#p' >"$bare/kept"
  paste <(printf '%s\n' "${programs[@]}") <(readlink -m "${programs[@]}") |
    awk -F '\t' 'NR == FNR { kept[$0]; next } $1 in kept || $2 in kept { print $1 }' "$bare/kept" -
}

# hide: take everything but the programs $@ out of this mount namespace.
hide() {
  local layers=$bare/layers
  mkdir "$layers"
  mount -t tmpfs bare "$layers"
  mkdir "$layers/upper" "$layers/work" "$layers/run"
  mount -t overlay -o "lowerdir=/usr,upperdir=$layers/upper,workdir=$layers/work" bare /usr
  comm -23 <(printf '%s\n' "${programs[@]}" | sort) <(printf '%s\n' "$@" | sort) | xargs -d '\n' rm -f
  for path in /run/*; do
    case "$path" in /run/docker* | /run/containerd*) continue ;; esac
    if [[ -L $path ]]; then
      cp -P "$path" "$layers/run"
      continue
    elif [[ -d $path ]]; then mkdir "$layers$path"; else : >"$layers$path"; fi
    mount --rbind "$path" "$layers$path"
  done
  mount --rbind "$layers/run" /run
  umount --lazy "$layers" # what lies on it stays
  [[ ! -d /var/lib/sbk-kube ]] || mount --bind "$bare/empty" /var/lib/sbk-kube
}

mapfile -t found < <(kept)
namespace=${SANDBOXKIT_BARE:-}
unset "${!SANDBOXKIT_@}" "${!DOCKER_@}" "${!XDG_@}" KUBECONFIG PYENV_ROOT VIRTUAL_ENV
if [[ $namespace ]]; then
  hide "${found[@]}"
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  export SANDBOXKIT_KUBE_DIR=$bare/empty
  mkdir "$bare/bin"
  ln -st "$bare/bin" "${found[@]}"
  PATH=$bare/bin
fi
export PATH HOME=$bare/home
"$@"
