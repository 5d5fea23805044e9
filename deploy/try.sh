#!/bin/sh
# Builds the image and runs it as kubernetes.yaml does, with its own user and without capabilities, and without a network:
# quickstart, a shorter one with MLflow, and one on two nodes with an agent. Verifies all three. Takes the options of `build`:
#   ENGINE=podman deploy/try.sh --build-arg TORCH_INDEX=...
set -eu
engine=${ENGINE:-docker}
image=${IMAGE:-repro}
name=repro-try-$$
safe="--cap-drop ALL --security-opt no-new-privileges --shm-size 1g -v $name:/runs"
short="-o sequential=null -o processes=2 --seeds 2"

cd "$(dirname "$0")/.."
"$engine" build -f deploy/Dockerfile -t "$image" "$@" .

"$engine" volume create "$name" > /dev/null
trap '"$engine" rm -f "$name" > /dev/null 2>&1 || true; "$engine" volume rm -f "$name" > /dev/null' EXIT
trap 'exit 130' INT TERM
# shellcheck disable=SC2086  # they are several words
alone() { "$engine" run --rm --network none $safe "$@"; }

echo "--- user, torch"
test "$(alone --entrypoint id "$image" -u)" = 10001
alone --entrypoint python3 "$image" -c 'import torch; print(torch.__version__)'
echo "--- quickstart"
alone "$image" run quickstart --no-mlflow --out plain
echo "--- quickstart, short, with MLflow"
# shellcheck disable=SC2086
alone "$image" run quickstart $short --out tracked
alone --entrypoint test "$image" -s mlflow.db
echo "--- quickstart, short, on two nodes"
REPRO_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export REPRO_SECRET
# shellcheck disable=SC2086
"$engine" run -d --name "$name" --network none -e REPRO_SECRET $safe "$image" \
  run quickstart $short --launcher '{kind: torchrun, nodes: 2}' --no-mlflow --out two > /dev/null
# shellcheck disable=SC2086
"$engine" run --rm --network "container:$name" -e REPRO_SECRET --cap-drop ALL --security-opt no-new-privileges \
  --shm-size 1g "$image" agent --join 127.0.0.1:29410 || true
code=$("$engine" wait "$name")
"$engine" logs "$name"
test "$code" = 0
echo "--- records"
for run in plain tracked two; do alone "$image" verify "$run"; done
