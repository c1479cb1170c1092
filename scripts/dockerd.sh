#!/usr/bin/env bash
# Make sure that a Docker daemon answers on this machine; start one if necessary.
#
# The daemon keeps running and logs to /var/log/sandboxkit-dockerd.log. The script does nothing if
# `docker info` already answers, whatever daemon DOCKER_HOST or the docker context points to, except that
# root's own daemon offers gVisor where `runsc` is installed.
set -euo pipefail

# gvisor: have the daemon offer gVisor as the runtime runsc, where runsc is installed; with our seccomp profile.
#
# On new kernels (6.18 is one) each network namespace has a file that gVisor of 2022 and 2024 takes as a sign of
# the machine's own, in which it refuses to start; with this flag its sandboxes have a loopback alone.
gvisor() {
  command -v runsc >/dev/null && [[ $EUID -eq 0 ]] && is_local || return 0
  local file=/etc/docker/daemon.json flags=(--oci-seccomp)
  grep -qs '"runsc"' "$file" && return 0
  if unshare --net test -e /proc/sys/net/core/rmem_default; then
    flags+=(--network=none)
  fi
  mkdir -p "${file%/*}"
  runsc install -- "${flags[@]}"
}

# is_local: whether the docker command talks to the daemon that this script would start.
is_local() {
  [[ "${DOCKER_HOST:-$(docker context inspect --format '{{.Endpoints.docker.Host}}')}" == unix:///var/run/docker.sock ]]
}

# reload: have a daemon that runs read which runtimes there are.
reload() {
  local pid=/var/run/docker.pid
  if grep -qs '"runsc"' /etc/docker/daemon.json && is_local && [[ -r $pid ]] &&
    ! docker info --format '{{json .Runtimes}}' | grep -q '"runsc"'; then
    kill -HUP "$(cat "$pid")"
    for _ in $(seq 1 50); do
      docker info --format '{{json .Runtimes}}' | grep -q '"runsc"' && return 0
      sleep 0.1
    done
    echo "dockerd.sh: the daemon does not take up the runtime runsc; see its log" >&2
    return 1
  fi
}

answers() { timeout 10 docker info >/dev/null 2>&1; }

command -v docker >/dev/null || {
  echo "dockerd.sh: no docker command: install Debian's docker.io" >&2
  exit 1
}
gvisor
if answers; then
  reload
  exit 0
fi
if [[ -n "${DOCKER_HOST:-}" && "$DOCKER_HOST" != unix:///var/run/docker.sock ]]; then
  echo "dockerd.sh: DOCKER_HOST=$DOCKER_HOST does not answer, and only a local daemon can be started" >&2
  exit 1
fi
if [[ $EUID -ne 0 ]]; then
  echo "dockerd.sh: no daemon answers; run this as root, or start Docker yourself" >&2
  exit 1
fi
command -v dockerd >/dev/null || {
  echo "dockerd.sh: no dockerd: install Debian's docker.io" >&2
  exit 1
}

# The daemon needs the memory, pids and other controllers; containers and minimal machines often
# mount none of them.
if ! mountpoint -q /sys/fs/cgroup; then
  mount -t cgroup2 none /sys/fs/cgroup
fi

log=/var/log/sandboxkit-dockerd.log
launch() {
  echo "== $(date -u +%FT%TZ) dockerd $*" >>"$log"
  # The daemon gets a session of its own and none of our descriptors, so that a caller that waits
  # for our output does not wait for the daemon.
  setsid dockerd "$@" >>"$log" 2>&1 </dev/null &
  local pid=$!
  for _ in $(seq 1 120); do
    if answers; then
      return 0
    fi
    kill -0 "$pid" 2>/dev/null || return 1
    sleep 0.5
  done
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  return 1
}

# dockerd refuses to start if a pid file has outlived its process (after a power-off or a snapshot).
if [[ -f /var/run/docker.pid ]] && ! kill -0 "$(cat /var/run/docker.pid)" 2>/dev/null; then
  rm -f /var/run/docker.pid
fi

# Never use `--bridge=none`: without any bridge, `network="internet"` could not even be tried. Without
# a working iptables the bridge exists but leads nowhere.
if command -v iptables >/dev/null && iptables -t nat -L -n >/dev/null 2>&1; then
  attempts=("" "--iptables=false --ip6tables=false --ip-masq=false"
    "--iptables=false --ip6tables=false --ip-masq=false --storage-driver=vfs")
else
  attempts=("--iptables=false --ip6tables=false --ip-masq=false"
    "--iptables=false --ip6tables=false --ip-masq=false --storage-driver=vfs")
fi
for flags in "${attempts[@]}"; do
  # shellcheck disable=SC2086  # each attempt is a list of flags
  if launch $flags; then
    echo "dockerd.sh: started dockerd $flags"
    exit 0
  fi
done
echo "dockerd.sh: dockerd does not start; the end of $log:" >&2
tail -n 30 "$log" >&2
exit 1
