#!/bin/sh
# Builds every distribution as a wheel into FOLDER: python/dist.sh FOLDER. Zig links against the glibc of manylinux_2_28,
# so that a wheel built on a new system installs on one of 2018.
set -eu
folder=$1 here=$(cd "$(dirname "$0")" && pwd)
tools=$folder/tools wheels=$folder/wheels
[ -x "$tools/bin/maturin" ] || {
	python3 -m venv --clear "$tools"
	"$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin[zig]>=1.16,<2' 'setuptools>=77' build
}
rm -rf "$wheels"
mkdir -p "$wheels"
export PATH="$tools/bin:$PATH"
for project in "$here" "$here/command"; do
	(cd "$project" && maturin build --release --zig --compatibility manylinux_2_28 --out "$wheels")
done
# Setuptools leaves its work beside the sources: a copy of them.
rm -rf "$folder/adaptdl"
cp -r "$here/adaptdl" "$folder/adaptdl"
python -m build --wheel --no-isolation --outdir "$wheels" "$folder/adaptdl"
ls -sh "$wheels"
