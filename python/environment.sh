#!/bin/sh
# Makes FOLDER an interpreter that has this package, its modules as they are here, and all that its tests need:
# python/environment.sh EXTENSION FOLDER REQUIREMENTS. What they need is installed once for each list of requirements and
# version of Python, in the user's cache, where every checkout finds it.
set -eu
extension=$1 folder=$2 requirements=$3 here=$(cd "$(dirname "$0")" && pwd)
name=$(python3 -c 'import hashlib, sys
digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
print("python-%d.%d-%s" % (*sys.version_info[:2], digest[:12]))' "$requirements")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pollux/$name

installed() {
	[ -e "$cache/complete" ] && "$cache/bin/python" -c '' 2>/dev/null
}

site() {
	"$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

if ! installed; then
	mkdir -p "$cache"
	# Two that start at once must not install into the same folder.
	exec 9>"$cache.lock"
	if command -v flock >/dev/null; then flock 9; fi
	if ! installed; then
		echo "installing $(basename "$requirements") into $cache: once, a few minutes, $(sed -n 's/^# Takes //p' "$requirements")"
		python3 -m venv --clear "$cache"
		"$cache/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir -r "$requirements"
		# Last: what was interrupted before is installed anew.
		: >"$cache/complete"
	fi
	exec 9>&-
fi

python3 -m venv --clear --without-pip "$folder"
packages=$(site "$folder")
echo "import site; site.addsitedir('$(site "$cache")')" >"$packages/requirements.pth"
# Nothing is left beside the sources.
echo 'import sys; sys.dont_write_bytecode = True' >"$packages/bytecode.pth"
mkdir "$packages/pollux"
ln -s "$here"/pollux/* "$packages/pollux/"
ln -s "$extension" "$packages/pollux/_native.abi3.so"
ln -s "$here/adaptdl/adaptdl" "$packages/adaptdl"
