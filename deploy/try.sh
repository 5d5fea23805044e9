#!/bin/sh
# Builds the image and runs it as kubernetes.yaml does: with its own user, without capabilities; and without a network.
# quickstart, a short one with MLflow, and the commands of the manifest on two nodes, where node 0 is drained and comes back.
# All three records are verified. Takes the options of `build`:
#   ENGINE=podman deploy/try.sh --build-arg TORCH_INDEX=...
set -eu
engine=${ENGINE:-docker}
image=${IMAGE:-repro}
name=repro-try-$$
short="quickstart -o sequential=null --seeds 3"
safe="--cap-drop ALL --security-opt no-new-privileges --shm-size 1g"

cd "$(dirname "$0")/.."
"$engine" build -f deploy/Dockerfile -t "$image" "$@" .

"$engine" volume create "$name" > /dev/null
tidy() {
  for each in "$name-1" "$name-0" "$name"; do "$engine" rm -f "$each" > /dev/null 2>&1 || true; done
  "$engine" volume rm -f "$name" > /dev/null
}
trap tidy EXIT
trap 'exit 130' INT TERM
# shellcheck disable=SC2086  # $safe and $short are several words
alone() { "$engine" run --rm --network none $safe -v "$name:/runs" "$@"; }

echo "--- user, torch"
test "$(alone --entrypoint id "$image" -u)" = 10001
alone --entrypoint python3 "$image" -c 'import torch; print(torch.__version__)'
echo "--- quickstart"
alone "$image" run quickstart --no-mlflow --out plain
echo "--- quickstart, short, with MLflow"
# shellcheck disable=SC2086
alone "$image" run $short -o processes=2 --out tracked
alone --entrypoint test "$image" -s .state/repro/mlflow.db

echo "--- the manifest on two nodes, which share a network of their own"
script() { # NAME OF THE JOB: what its container runs, with a shorter suite
  alone -i --entrypoint python3 "$image" -c "import sys, yaml
for item in yaml.safe_load_all(sys.stdin):
    if (item['kind'], item['metadata']['name']) == ('Job', '$1'):
        print(item['spec']['template']['spec']['containers'][0]['args'][0])" < deploy/kubernetes.yaml \
    | sed "s/repro-0.repro/127.0.0.1/; s/run engines/run $short/; s/nodes: 4/nodes: 2/; s/processes=4/processes=2/"
}
REPRO_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export REPRO_SECRET
"$engine" run -d --name "$name" --network none --entrypoint sleep "$image" infinity > /dev/null
# shellcheck disable=SC2086
node() { # NUMBER JOB [OPTIONS]
  number=$1 job=$2; shift 2
  "$engine" run -d --name "$name-$number" --network "container:$name" -e REPRO_SECRET $safe "$@" --entrypoint sh \
    "$image" -c "$(script "$job")" > /dev/null
}
node 1 repro-agents
node 0 repro -v "$name:/runs"
# Ended in its third trial, it comes back with the same commands and the same volume.
until "$engine" logs "$name-0" 2>&1 | grep '\[ *2/'; do
  test "$("$engine" inspect -f '{{.State.Running}}' "$name-0")" = true
  sleep 1
done
"$engine" stop -t 120 "$name-0" > /dev/null
test "$("$engine" wait "$name-0")" = 130
"$engine" rm "$name-0" > /dev/null
node 0 repro -v "$name:/runs"
code=$("$engine" wait "$name-0")
"$engine" logs "$name-0"
"$engine" logs "$name-1"
test "$code" = 0
echo "--- records"
for run in plain tracked mine; do alone "$image" verify "$run"; done
