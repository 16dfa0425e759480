#!/usr/bin/env bash
# Breaks the code as each patch under tests/faults/ledger says, in a copy of the tree,
# and sees that the instrument the patch names turns red. A patch that does not apply, a
# tree that does not build, a mutation that nothing catches, one that is not caught within
# ENTRY_LIMIT (10m), and an instrument that is red without it, too, fail.
#
# Each line says after how long the entry was caught, and at which seed where seeds were
# tried: the column of tests/faults/ledger.md.
#
# Usage: tests/faults/ledger.sh [entry...]   without names: all entries
set -euo pipefail

limit=${ENTRY_LIMIT:-10m}
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/ledger.XXXXXX")
trap 'rm -rf "$copy"' EXIT

cd "$root"
# What is tracked, as it is in the working tree.
git ls-files -z | while IFS= read -r -d '' f; do [ -f "$f" ] && printf '%s\0' "$f"; done |
	tar --null --files-from=- -cf - | tar -xf - -C "$copy"

# Those that run seeds come last: what takes a moment tells first.
if [ $# -eq 0 ]; then
	set -- $(cd tests/faults/ledger && { grep -L '^Run: tests|' -- *.patch; grep -l '^Run: tests|' -- *.patch; } | sed 's/\.patch$//')
fi

tried=0
bad=0
failed() {
	echo "FAILED  $1: $2"
	bad=$((bad + 1))
}
for entry in "$@"; do
	tried=$((tried + 1))
	patch="$root/tests/faults/ledger/$entry.patch"
	line=$(sed -n 's/^Run: //p' "$patch")
	dir=${line%%|*}
	run=${line#*|}
	began=$SECONDS
	if ! (cd "$copy" && git apply --whitespace=nowarn "$patch") 2>"$copy/.apply"; then
		failed "$entry" "the patch does not apply any more: $(head -n 1 "$copy/.apply")"
		continue
	fi
	code=0
	(cd "$copy/$dir" && timeout --kill-after=10s "$limit" bash -c "$run") >"$copy/.out" 2>&1 || code=$?
	if [ "$code" -eq 0 ] && grep -q 'no tests to run' "$copy/.out"; then
		failed "$entry" "there is no such test any more: $run"
	elif [ "$code" -eq 0 ]; then
		failed "$entry" "nothing caught it: $run"
	elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
		failed "$entry" "not caught within $limit: $run"
	elif grep -qE '\[(build|setup) failed\]|cannot find|no test files' "$copy/.out"; then
		failed "$entry" "the tree does not build: $(grep -m 1 -E '^[^#].*\.go:' "$copy/.out" || true)"
	else
		took=$((SECONDS - began))
		seed=$(sed -nE 's/.*\.go:[0-9]+: seed ([0-9]+):.*/\1/p' "$copy/.out" | head -n 1)
		said=$(grep -m 1 -E '\.go:[0-9]+: ' "$copy/.out" | sed 's/^ *//' | cut -c1-160 || true)
		# What is red without the mutation, too, has caught nothing.
		(cd "$copy" && git apply -R --whitespace=nowarn "$patch")
		if [ -n "$seed" ]; then
			run=$(sed -E "s/-sim\.seeds=[0-9]+/-sim.seed=$seed/" <<<"$run")
		fi
		if (cd "$copy/$dir" && timeout --kill-after=10s "$limit" bash -c "$run") >"$copy/.out" 2>&1; then
			echo "caught  $entry${seed:+ at seed $seed} in $took s: $said"
		else
			failed "$entry" "without it this is red, too: $run"
		fi
		continue
	fi
	(cd "$copy" && git apply -R --whitespace=nowarn "$patch")
done
echo "$tried mutations tried, $((tried - bad)) caught, $bad not"
[ "$bad" -eq 0 ]
