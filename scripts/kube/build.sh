#!/usr/bin/env bash
# Build Kubernetes 1.20.2 and everything it runs on from Debian's packages, into the given folder.
#
# Debian 12 has the source of Kubernetes but only the client's binary, so this script compiles the
# servers with Debian's Go. It fetches Go, kubectl, etcd, containerd, runc and the network plugins as
# packages and unpacks them in a work folder: it installs nothing and changes no apt list of this
# machine. The build takes about three minutes on two idle cores; the folder appears only when it is
# complete.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
target="$1"
[[ -d "$target" ]] && exit 0
mkdir -p "$(dirname "$target")"
exec 9>"$target.lock"
flock 9
[[ -d "$target" ]] && exit 0

work="$target.building"
rm -rf "$work"
mkdir -p "$work"/{out/bin,out/cni,packages,apt/lists/partial,apt/cache/archives/partial}
trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
log="$target.log"
exec 8>&1 >"$log" 2>&1
say() { echo "build.sh: $*" && echo "build.sh: $*" >&8; }
trap 'echo "build.sh: failed; the end of $log:" >&8; tail -n 20 "$log" >&8' ERR

# Use the mirror of this machine's apt, because a site may reach only its own.
mirror="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
  grep -v '^[[:space:]]*#' | grep -oE '(https?|file)://[^][ ]+/debian/?([[:space:]]|$)' | head -n 1 | tr -d '[:space:]')" || true
mirror="${mirror:-http://deb.debian.org/debian}"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
for kind in deb deb-src; do
  echo "$kind [signed-by=$keys] $mirror bookworm main"
done >"$work/apt/sources.list"
cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
APT::Sandbox::User "root";
END

say "fetching Debian's packages from $mirror"
cd "$work/packages"
export APT_CONFIG="$work/apt.conf"
apt-get update -q
apt-get source -q --download-only kubernetes
apt-get download -q golang-1.19-go golang-1.19-src etcd-server containerd runc \
  containernetworking-plugins kubernetes-client golang-github-modern-go-reflect2-dev
unset APT_CONFIG
for package in *.deb; do
  dpkg -x "$package" "$work/root"
done
(cd "$work/root/usr/bin" && cp etcd containerd containerd-shim-runc-v2 ctr kubectl "$work/out/bin")
cp "$work/root/usr/sbin/runc" "$work/out/bin"
(cd "$work/root/usr/lib/cni" && cp bridge host-local loopback "$work/out/cni")

export GOROOT="$work/root/usr/lib/go-1.19" GOPATH="$work/go" GOCACHE="$work/cache"
export GO111MODULE=off GOFLAGS='' CGO_ENABLED=0
PATH="$GOROOT/bin:$PATH"
source="$GOPATH/src/k8s.io/kubernetes"
mkdir -p "$GOPATH/src/k8s.io"
dpkg-source --no-check -x kubernetes_*.dsc "$source"
cd "$source"

# The reflect2 1.0.1 in the source knows the maps of Go before 1.18: the API server would crash at the first
# object of a custom resource. Debian's package is 1.0.2.
rm -r vendor/github.com/modern-go/reflect2
cp -r "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/

# The source lacks the OpenAPI definitions that the API server needs to start. Like upstream's makefile,
# generate them for the import paths of all packages that are marked for it.
say "generating the API's definitions"
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
marked="$(grep -rl --include='*.go' -E '^// \+k8s:openapi-gen=' pkg staging/src/k8s.io cmd |
  xargs -n 1 dirname | sort -u |
  grep -vE 'sample-|apiserver/pkg/apis/example|apiextensions-apiserver/examples|/test/|testing' |
  sed -E -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^(pkg|cmd)/#k8s.io/kubernetes/\1/#' |
  paste -sd,)"
"$work/openapi-gen" -O zz_generated.openapi --logtostderr -i "$marked" \
  --go-header-file hack/boilerplate/boilerplate.generatego.txt \
  -p k8s.io/kubernetes/pkg/generated/openapi -r "$work/violations" --output-base "$GOPATH/src"

version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
client=k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version
flags="-s -w"
for package in "$version" "$client"; do
  flags+=" -X $package.gitVersion=v1.20.2 -X $package.gitMajor=1 -X $package.gitMinor=20"
done
# Leave out the cloud providers' libraries and dockershim, a third of the work. Build all programs in one
# command, because linking a program uses only one core.
say "compiling"
go build -tags providerless,dockerless -ldflags "$flags" -o "$work/out/bin/" \
  ./cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet}

say "making the image of pause"
gcc -O2 -static -s -o "$work/out/bin/pause" "$here/pause.c"
mv "$work/out" "$target"
say "built $target"
