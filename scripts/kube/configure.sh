#!/usr/bin/env bash
# configure.sh STATE BUILT SERVICE_IP NODE_IP: write the configuration of a new cluster's programs.
#
# Every cluster gets new certificates, tokens and kubeconfigs; no secret outlives the state folder.
set -euo pipefail
state="$1" built="$2" service_ip="$3" node_ip="$4"
umask 077
mkdir -p "$state"/{pki,cni,etcd,containerd,kubelet,log,pid}
cd "$state/pki"

authority() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt" 2>/dev/null
}
# certificate NAME SUBJECT SERVER_NAMES: make a certificate signed by the cluster's authority
certificate() {
  openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" \
    -extfile <(echo "subjectAltName=$3") 2>/dev/null
}
authority ca
certificate api "/CN=kube-apiserver" \
  "IP:$service_ip,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
certificate api-to-kubelet "/O=system:masters/CN=kube-apiserver" "DNS:kube-apiserver"
certificate kubelet "/O=system:nodes/CN=system:node:node1" "IP:$node_ip,DNS:node1"
certificate controllers "/CN=system:kube-controller-manager" "DNS:controllers"
certificate scheduler "/CN=system:kube-scheduler" "DNS:scheduler"
certificate admin "/O=system:masters/CN=admin-by-certificate" "DNS:admin"
openssl genrsa -out accounts.key 2048 2>/dev/null
openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null

admin_token="$(openssl rand -hex 24)" user_token="$(openssl rand -hex 24)"
cat >tokens.csv <<END
$admin_token,admin,admin,"system:masters"
$user_token,user,user
END

# kubeconfig FILE CREDENTIALS: write a kubeconfig
kubeconfig() {
  cat >"$1" <<END
apiVersion: v1
kind: Config
current-context: tests
contexts:
- name: tests
  context: {cluster: tests, user: tests, namespace: default}
clusters:
- name: tests
  cluster:
    server: https://$service_ip
    certificate-authority-data: $(base64 -w 0 ca.crt)
users:
- name: tests
  user: {$2}
END
}
by_certificate() {
  echo "client-certificate-data: $(base64 -w 0 "$1.crt"), client-key-data: $(base64 -w 0 "$1.key")"
}
kubeconfig ../kubeconfig "token: $admin_token"
kubeconfig ../kubeconfig-user "token: $user_token"
kubeconfig ../kubeconfig-certificate "$(by_certificate admin)"
for name in kubelet controllers scheduler; do
  kubeconfig "$name.conf" "$(by_certificate "$name")"
done

cat >"$state/cni/10-pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "sbkkube0", "isGateway": true, "ipMasq": false, "ipam": {
    "type": "host-local", "dataDir": "$state/ipam", "routes": [{"dst": "0.0.0.0/0"}],
    "ranges": [[{"subnet": "10.99.0.0/16"}]]}}]}
END

# Stack image layers with overlayfs where this folder's file system allows it; else copy them.
snapshotter=native
mkdir -p "$state/try"/{lower,upper,work,merged}
if mount -t overlay -o "lowerdir=$state/try/lower,upperdir=$state/try/upper,workdir=$state/try/work" \
  none "$state/try/merged" 2>/dev/null; then
  umount "$state/try/merged"
  snapshotter=overlayfs
fi
rm -rf "$state/try"
echo "$snapshotter" >"$state/snapshotter"

# Without CAP_SYS_RESOURCE a process must not lower an oom_score_adj, so containerd does not try.
cat >"$state/containerd.toml" <<END
version = 2
root = "$state/containerd/root"
state = "$state/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "$state/containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/sandboxkit/pause:1"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$built/cni"
    conf_dir = "$state/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
END

# On a nearly full disk, image garbage collection would delete the tests' images: turn it off.
cat >"$state/kubelet.yaml" <<END
kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
address: $node_ip
healthzPort: 0
oomScoreAdj: 0
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: $state/pki/ca.crt}
authorization: {mode: AlwaysAllow}
tlsCertFile: $state/pki/kubelet.crt
tlsPrivateKeyFile: $state/pki/kubelet.key
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
maxPods: 250
podPidsLimit: 512
kubeAPIQPS: 100
kubeAPIBurst: 200
END
echo "$built" >"$state/built"
