#!/bin/sh
# Installs a wheel into an empty environment and takes it through the first five minutes, outside of any checkout:
#   deploy/try_wheel.sh dist/repro_harness-*.whl TORCH
# TORCH is what pip is to install as torch: a file, a requirement (torch==2.13.0), or an option with it
# ("--index-url URL torch"). Needs python3 with venv; PYTHON names another.
set -eu
wheel=$(realpath "$1")
torch=$2
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
trap 'exit 130' INT TERM
cd "$place"
"${PYTHON:-python3}" -m venv env
began=$(date +%s)
# shellcheck disable=SC2086  # an option and a name
env/bin/pip install --quiet $torch
env/bin/pip install --quiet "$wheel"
env/bin/pip check
echo "installed in $(($(date +%s) - began)) s, $(du -sm env | cut -f1) MB; the wheel has $(du -k "$wheel" | cut -f1) kB"
mkdir empty
cd empty
../env/bin/repro
../env/bin/repro run quickstart --out run
../env/bin/repro verify run
../env/bin/repro bundle run --out run.zip
../env/bin/repro verify run.zip
echo "first verdict $(($(date +%s) - began)) s after the beginning of the installation"
