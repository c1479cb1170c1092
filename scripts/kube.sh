#!/usr/bin/env bash
# Run a real Kubernetes cluster of one node on this Debian 12 machine, for the tests: 1.20.2, or yours.
#
#   kube.sh build                 compile Kubernetes once (scripts/kube/build.sh) and keep it
#   kube.sh up                    start each program that does not run (none runs: begin with a new
#                                 cluster); wait until the node is ready
#   kube.sh status                show which programs run, and whether API server and node are ready
#   kube.sh down                  end everything; remove its pods, state and addresses
#   kube.sh stop|start|restart|kill|freeze|thaw PROGRAM
#   kube.sh kubectl ...           run kubectl as the administrator, or with SANDBOXKIT_KUBECONFIG
#
# With SANDBOXKIT_KUBE_BIN=FOLDER `up` runs the programs of that folder, such as those of a newer server:
# kube-apiserver, kube-controller-manager, kube-scheduler and kubelet, and if they are there kubectl, etcd,
# containerd and what it starts. The others are those of the build. An agent-sandbox-controller of the folder
# is started as well, with the kinds of its agent-sandbox.yaml. Nothing is downloaded. One cluster runs at a
# time, and keeps its programs until `down`.
#
# PROGRAM is etcd, api, controllers, scheduler, containerd, kubelet or sandboxes. `up` prints the path of the
# administrator's kubeconfig. Beside it are kubeconfig-user, for a user without any rights, and
# kubeconfig-certificate. The cluster has addresses of its own on the loopback device and runs its own
# containerd. It does not touch a Docker daemon on the same machine.
set -euo pipefail

state="${SANDBOXKIT_KUBE_DIR:-/var/lib/sbk-kube}"
cache="${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sandboxkit/kubernetes"
newest="$cache/v1.20.2-3" # increase the last number when build.sh's output changes
service_ip=10.97.0.1 # the first address of the service range, at which pods find the API server
node_ip=10.98.0.1
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/kube"
export PATH="$PATH:/usr/sbin:/sbin"
wanted="${SANDBOXKIT_KUBE_BIN:+$(readlink -m "$SANDBOXKIT_KUBE_BIN")}"
use() {
  built="$1" given="$2" PATH="${2:+$2:}$1/bin:$PATH"
  programs=(etcd containerd api controllers scheduler kubelet)
  [[ -z "$2" || ! -x "$2/agent-sandbox-controller" ]] || programs+=(sandboxes)
}
if [[ -e "$state/built" ]]; then # a cluster keeps the programs it was made with
  use "$(cat "$state/built")" "$(cat "$state/given" 2>/dev/null || true)"
else
  use "$newest" "$wanted"
fi

fail() {
  echo "kube.sh: $*" >&2
  exit 1
}
kubectl() { command kubectl --kubeconfig "$state/kubeconfig" "$@"; }
ctr() { command ctr --address "$state/containerd/socket" --namespace k8s.io "$@"; }

binary() {
  local name="$1"
  case "$1" in
    etcd | containerd | kubelet) ;;
    api) name=kube-apiserver ;;
    controllers) name=kube-controller-manager ;;
    scheduler) name=kube-scheduler ;;
    sandboxes) name=agent-sandbox-controller ;;
    *) fail "no program $1: it is one of ${programs[*]}" ;;
  esac
  if [[ -n "$given" && -x "$given/$name" ]]; then readlink -f "$given/$name"; else echo "$built/bin/$name"; fi
}

# older MINOR PROGRAM: whether a program of Kubernetes is older than version 1.MINOR
older() {
  local version
  version="$("$(binary "$2")" --version)"
  [[ "$version" =~ v1\.([0-9]+) ]] || fail "$2 calls itself $version, which is no version of Kubernetes"
  ((BASH_REMATCH[1] < $1))
}

arguments() {
  case "$1" in
    etcd)
      # A snapshot every 2,000 writes: without one the log of a long run grows to gigabytes.
      echo --data-dir="$state/etcd" --unsafe-no-fsync --snapshot-count=2000
      echo --listen-client-urls=http://127.0.0.1:12379 --advertise-client-urls=http://127.0.0.1:12379
      echo --listen-peer-urls=http://127.0.0.1:12380
      ;;
    containerd) echo --config="$state/containerd.toml" ;;
    api)
      # etcd keeps a minute of history, so that watches and continued lists do expire in tests.
      echo --etcd-servers=http://127.0.0.1:12379 --etcd-compaction-interval=1m
      echo --bind-address=$service_ip --secure-port=443 --advertise-address=$service_ip
      echo --service-cluster-ip-range=10.97.0.0/24
      echo --tls-cert-file="$state/pki/api.crt" --tls-private-key-file="$state/pki/api.key"
      echo --client-ca-file="$state/pki/ca.crt" --token-auth-file="$state/pki/tokens.csv"
      echo --service-account-key-file="$state/pki/accounts.pub"
      echo --service-account-signing-key-file="$state/pki/accounts.key"
      echo --service-account-issuer=https://kubernetes.default.svc
      echo --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
      echo --allow-privileged=true --kubelet-preferred-address-types=InternalIP
      echo --kubelet-certificate-authority="$state/pki/ca.crt"
      echo --kubelet-client-certificate="$state/pki/api-to-kubelet.crt"
      echo --kubelet-client-key="$state/pki/api-to-kubelet.key"
      ;;
    controllers)
      echo --kubeconfig="$state/pki/controllers.conf" --leader-elect=false --secure-port=0
      if older 22 controllers; then echo --port=0; fi # later there is no such port
      echo --use-service-account-credentials=true --root-ca-file="$state/pki/ca.crt"
      echo --service-account-private-key-file="$state/pki/accounts.key"
      echo --kube-api-qps=100 --kube-api-burst=200
      ;;
    scheduler)
      echo --kubeconfig="$state/pki/scheduler.conf" --leader-elect=false --secure-port=0
      if older 22 scheduler; then echo --port=0; fi
      ;;
    kubelet)
      echo --config="$state/kubelet.yaml" --kubeconfig="$state/pki/kubelet.conf"
      echo --root-dir="$state/kubelet" --hostname-override=node1 --node-ip=$node_ip
      if older 24 kubelet; then echo --container-runtime=remote; fi
      echo --container-runtime-endpoint="unix://$state/containerd/socket"
      ;;
    sandboxes)
      echo --kubeconfig="$state/kubeconfig" --extensions --leader-elect=false --enable-webhook=false
      echo --metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:12381
      ;;
  esac
}

# Print the process id of a program; fail if the program does not run.
running() {
  local pid
  pid="$(cat "$state/pid/$1" 2>/dev/null)" && [[ "$(readlink "/proc/$pid/exe")" == "$(binary "$1")" ]] && echo "$pid"
}

any_runs() {
  for program in "${programs[@]}"; do
    if running "$program" >/dev/null; then return 0; fi
  done
  return 1
}

start() {
  local pid flags
  if pid="$(running "$1")"; then
    kill -s CONT "$pid"
    return
  fi
  flags="$(arguments "$1")"
  # Inherit nothing from the caller: with a test's environment and folder it would count as the test's.
  # shellcheck disable=SC2086  # no flag has a space in it
  (
    cd "$state"
    renice -n 0 -p "$BASHPID" >/dev/null 2>&1 || true
    exec env -i PATH="$PATH" HOME=/root setsid "$(binary "$1")" $flags \
      >>"$state/log/$1.log" 2>&1 </dev/null 8>&- 9>&-
  ) &
  echo $! >"$state/pid/$1"
}

# end SIGNAL PROGRAM: send the signal, wait until the program has ended, and kill it after 20 s
end() {
  local pid
  pid="$(running "$2")" || return 0
  kill -s CONT "$pid" 2>/dev/null || true
  kill -s "$1" "$pid" 2>/dev/null || true
  for _ in $(seq 200); do
    running "$2" >/dev/null || return 0
    sleep 0.1
  done
  kill -s KILL "$pid" 2>/dev/null || true
}

send() {
  local pid
  pid="$(running "$2")" || fail "$2 does not run"
  kill -s "$1" "$pid"
}

# wait_for SECONDS WHAT COMMAND...: wait until the command succeeds
wait_for() {
  local end=$((SECONDS + $1)) what="$2"
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > end)); then
      tail -n 5 "$state"/log/*.log >&2 || true
      fail "$what did not come; the logs are in $state/log"
    fi
    sleep 0.1
  done
}

etcd_ready() { : </dev/tcp/127.0.0.1/12379; }
api_ready() { [[ "$(kubectl --request-timeout=5s get --raw /readyz)" == ok ]]; }
node_ready() {
  [[ "$(kubectl --request-timeout=5s get node node1 -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" == True ]]
}
accounts_ready() {
  if ! older 24 api; then # later accounts have no secrets
    kubectl --request-timeout=5s get serviceaccount default
    return
  fi
  [[ -n "$(kubectl --request-timeout=5s get serviceaccount default -o 'jsonpath={.secrets[*].name}')" ]]
}

tunables=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops
  kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

prepare() {
  if ! mountpoint -q /sys/fs/cgroup; then
    mount -t cgroup2 none /sys/fs/cgroup
  fi
  # Without this file the configuration was interrupted: make it again.
  if [[ ! -f "$state/configured" ]]; then
    "$here/configure.sh" "$state" "$built" $service_ip $node_ip
    older 31 kubelet || echo "failCgroupV1: false" >>"$state/kubelet.yaml"
    echo "$given" >"$state/given"
    touch "$state/configured"
  fi
  # The kubelet sets these for the whole machine: save them for `down` to restore.
  if [[ ! -f "$state/tunables" ]]; then
    for name in "${tunables[@]}"; do
      echo "$name $(cat "/proc/sys/$name" 2>/dev/null)"
    done >"$state/tunables"
  fi
  for address in $service_ip $node_ip; do
    ip address add "$address/32" dev lo 2>/dev/null || true
  done
}

# Let the server have the kinds of agent-sandbox.
kinds() {
  local file="$here/agent-sandbox.yaml"
  [[ -z "$given" || ! -f "$given/agent-sandbox.yaml" ]] || file="$given/agent-sandbox.yaml"
  kubectl apply --server-side -f "$file" >/dev/null
  kubectl wait --for=condition=Established --timeout=60s -f "$file" >/dev/null
}

# Import the tests' images. An image that was rebuilt replaces the imported one.
images() {
  local known="$state/images" id import=(images import --snapshotter "$(cat "$state/snapshotter")")
  mkdir -p "$known"
  if [[ ! -f "$known/own" ]]; then
    python3 "$here/image.py" sandboxkit/pause:1 "$known/pause.tar" /pause="$built/bin/pause"
    python3 "$here/image.py" sandboxkit/scratch:1 "$known/scratch.tar"
    ctr "${import[@]}" "$known/pause.tar" >/dev/null
    ctr "${import[@]}" "$known/scratch.tar" >/dev/null
    touch "$known/own"
  fi
  for image in ${SANDBOXKIT_KUBE_IMAGES:-sandboxkit/python:3.11}; do
    id="$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null)" || {
      echo "kube.sh: docker has no image $image (scripts/dockerd.sh, scripts/test-image.sh): the cluster is without it" >&2
      continue
    }
    if [[ "$(cat "$known/${image//\//_}" 2>/dev/null)" != "$id" ]]; then
      docker save "$image" | ctr "${import[@]}" - >/dev/null
      echo "$id" >"$known/${image//\//_}"
    fi
  done
}

build() {
  any_runs || use "$newest" "$wanted" # no running cluster needs an earlier one
  "$here/build.sh" "$built"
}

up() {
  for program in ${wanted:+kube-apiserver kube-controller-manager kube-scheduler kubelet}; do
    [[ -x "$wanted/$program" ]] || fail "SANDBOXKIT_KUBE_BIN: $wanted has no $program"
  done
  build
  [[ -z "$wanted" || "$given" == "$wanted" ]] || fail "another cluster runs; run kube.sh down first"
  # The machine was restarted: the pods are gone, so is what the state says of them.
  any_runs || [[ ! -e "$state/configured" ]] || down
  prepare
  start etcd
  start containerd
  wait_for 60 "etcd's answer" etcd_ready # the API server ends when etcd does not answer for 20 s
  start api
  wait_for 60 "containerd's answer" ctr version
  images
  wait_for 120 "an answer of the API server" api_ready
  [[ "$built" != "$newest" ]] || kinds # an earlier build may crash at their first object
  start controllers
  start scheduler
  start kubelet
  [[ "${programs[*]}" != *sandboxes* ]] || start sandboxes
  wait_for 120 "a node that is ready" node_ready
  wait_for 60 "the default service account" accounts_ready
  echo "$state/kubeconfig"
}

status() {
  local pid ok=0
  for program in "${programs[@]}"; do
    if pid="$(running "$program")"; then
      echo "$program: $(awk '/^State/ {print $3}' "/proc/$pid/status") $pid"
    else
      echo "$program: ended"
      ok=1
    fi
  done
  if api_ready 2>/dev/null; then echo "API server: ready"; else echo "API server: not ready" && ok=1; fi
  if node_ready 2>/dev/null; then echo "node: ready"; else echo "node: not ready" && ok=1; fi
  return $ok
}

shims() { pgrep -f -- "containerd-shim-runc-v2 .*-address $state/containerd/socket" || true; }

down() {
  [[ -d "$state" ]] || return 0
  for program in sandboxes kubelet controllers scheduler api etcd; do
    end TERM "$program"
  done
  # A shim ends its container when asked to, but not when it is killed: delete the tasks first.
  if running containerd >/dev/null; then
    send CONT containerd
    for task in $(timeout 20 ctr --address "$state/containerd/socket" -n k8s.io tasks list -q || true); do
      timeout 20 ctr --address "$state/containerd/socket" -n k8s.io tasks delete --force "$task" >/dev/null 2>&1 || true
    done
  fi
  end TERM containerd
  for pid in $(shims); do
    for child in $(pgrep -P "$pid" || true); do
      kill -s KILL "$child" 2>/dev/null || true
    done
    kill -s KILL "$pid" 2>/dev/null || true
  done
  for _ in 1 2 3; do
    awk -v state="$state/" 'index($5, state) == 1 {print $5}' /proc/self/mountinfo | sort -r |
      xargs -r -n 1 umount 2>/dev/null || true
  done
  ip link delete sbkkube0 2>/dev/null || true
  for address in $service_ip $node_ip; do
    ip address delete "$address/32" dev lo 2>/dev/null || true
  done
  while read -r name value; do
    [[ -z "$value" ]] || echo "$value" 2>/dev/null >"/proc/sys/$name" || true
  done < <(cat "$state/tunables" 2>/dev/null)
  for _ in $(seq 20); do
    find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null || true
    [[ -n "$(find /sys/fs/cgroup -type d -name kubepods -print -quit)" ]] || break
    sleep 0.2
  done
  rm -rf --one-file-system "$state"
}

command="${1:-}"
[[ $EUID -eq 0 || "$command" == kubectl ]] || fail "only root can run a cluster"
case "$command" in
  up | down | start | restart)
    exec 8>"/run/lock/$(basename "$state").lock"
    flock 8
    ;;
esac
case "$command" in
  build | up | down | status) "$command" ;;
  kubectl) command kubectl --kubeconfig "${SANDBOXKIT_KUBECONFIG:-$state/kubeconfig}" "${@:2}" ;;
  stop) end TERM "${2:?which program}" ;;
  kill) end KILL "${2:?which program}" ;;
  start) start "${2:?which program}" ;;
  restart)
    end TERM "${2:?which program}"
    start "$2"
    ;;
  freeze) send STOP "${2:?which program}" ;;
  thaw) send CONT "${2:?which program}" ;;
  *) fail "usage: kube.sh build|up|status|down|kubectl ...|stop|start|restart|kill|freeze|thaw PROGRAM" ;;
esac
