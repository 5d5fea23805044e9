#!/usr/bin/env bash
# Builds the sdist and the wheel of the commit that is checked out into OUT, the same bytes each time:
#   tools/build.sh PYTHON OUT
# PYTHON has the packages `build` and `setuptools`, in the versions of constraints.txt.
set -euo pipefail
python=$1
mkdir -p "$2"
out=$(realpath "$2")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
umask 022
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
git archive --prefix=source/ HEAD | tar -x -C "$place"
"$python" -m build --no-isolation --outdir "$place/built" "$place/source" > "$place/log" 2>&1 || { cat "$place/log"; exit 1; }
# setuptools keeps the times of the build in an sdist, and of files that it makes.
sdist=$(basename "$place"/built/*.tar.gz)
tar -xz -C "$place" -f "$place/built/$sdist"
tar -c -C "$place" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  --mtime="@$SOURCE_DATE_EPOCH" "${sdist%.tar.gz}" | gzip -n -9 > "$out/$sdist"
cp "$place"/built/*.whl "$out"
(cd "$out" && sha256sum "$sdist" ./*.whl)
