#!/bin/sh
# Builds Kubernetes 1.20 from Debian's source package into a folder: kubelet, kube-apiserver,
# kube-scheduler, kube-controller-manager. About five minutes of two cores, once.
#   build.sh FOLDER
# Debian's own lists of packages stay as they are: the sources are asked for with lists of their own.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
export GOPATH="$folder/go" GOCACHE="$folder/cache" GO111MODULE=off CGO_ENABLED=0
bin="$folder/bin" work="$folder/sources"
mkdir -p "$bin" "$work/lists/partial" "$GOPATH/src/k8s.io"

kubernetes="$GOPATH/src/k8s.io/kubernetes"
if [ ! -d "$kubernetes" ]; then
    # Debian 12's, whichever release this is: from the mirror that this machine has.
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -n 1)
    printf 'Types: deb-src\nURIs: %s\nSuites: bookworm\nComponents: main\nSigned-By: %s\n' \
        "$mirror" /usr/share/keyrings/debian-archive-keyring.gpg > "$work/debian.sources"
    set -- -o "Dir::Etc::SourceList=$work/debian.sources" -o "Dir::Etc::SourceParts=/dev/null" \
        -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root
    apt-get "$@" update
    cd "$work"
    apt-get "$@" source kubernetes
    mv "$work"/kubernetes-*/ "$kubernetes"
fi
cd "$kubernetes"

# The API server's OpenAPI file is made, not shipped.
if [ ! -e "$folder/openapi" ]; then
    go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=true' pkg staging/src/k8s.io |
        grep -vE '_examples|sample-apiserver|/testdata/|/test/' | xargs -n1 dirname | sort -u |
        sed -e 's,^staging/src/,k8s.io/kubernetes/vendor/,' -e '/^k8s.io/!s,^,k8s.io/kubernetes/,' | paste -sd,)
    "$work/openapi-gen" -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt \
        -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -r "$work/violations" \
        --output-base "$GOPATH/src"
    touch "$folder/openapi"
fi

version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20"
for program in kubelet kube-apiserver kube-scheduler kube-controller-manager; do
    [ -x "$bin/$program" ] && continue
    go build -ldflags "$flags" -o "$bin/$program.new" "./cmd/$program"
    mv "$bin/$program.new" "$bin/$program"
done
# What only the build needed.
rm -rf "$GOPATH" "$folder/cache" "$work"
