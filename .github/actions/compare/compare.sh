#!/usr/bin/env bash
# Runs `repro compare` on the runs in REPRO_RUN, puts its Markdown into the job's summary and ends with its exit code.
# Works outside GitHub too: without GITHUB_STEP_SUMMARY and GITHUB_OUTPUT it only writes the file.
set -uo pipefail

markdown=${REPRO_MARKDOWN:-repro-compare.md}
arguments=(--markdown "$markdown")

# each OPTION LINES: the option once for each line that is not empty; without an option, the lines themselves.
each() {
  local line
  while IFS= read -r line; do
    [ -n "$line" ] && arguments+=(${1:+"$1"} "$line")
  done <<<"$2"
}

each --against "${REPRO_AGAINST:-}"
each --fail-if "${REPRO_FAIL_IF:-}"
each --metric "${REPRO_METRIC:-}"
[ "${REPRO_FAIL_ANY:-}" = true ] && arguments+=(--fail-any)
arguments+=(--)
each "" "${REPRO_RUN:-}"

rm -f -- "$markdown"
said=$(mktemp)
repro compare "${arguments[@]}" 2>"$said"
code=$?
cat "$said" >&2
if [ ! -s "$markdown" ]; then
  # Nothing was compared, so nothing passes: the summary says why.
  { echo "### repro compare: nothing was compared"; echo; sed 's/^/    /' "$said" | tail -n 5; } >"$markdown"
  [ "$code" -ne 0 ] || code=2
fi
rm -f -- "$said"

cat -- "$markdown" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
{ echo "markdown=$markdown"; echo "exit-code=$code"; } >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
