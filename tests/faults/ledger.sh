#!/usr/bin/env bash
# Breaks the code as each patch under tests/faults/ledger says, in a copy of the tree,
# and sees that the instrument the patch names turns red. A patch that does not apply, a
# tree that does not build, and a mutation that nothing catches fail.
#
# Usage: tests/faults/ledger.sh [entry...]   without names: all entries
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/ledger.XXXXXX")
trap 'rm -rf "$copy"' EXIT

cd "$root"
# What is tracked, as it is in the working tree.
git ls-files -z | while IFS= read -r -d '' f; do [ -f "$f" ] && printf '%s\0' "$f"; done |
	tar --null --files-from=- -cf - | tar -xf - -C "$copy"

if [ $# -eq 0 ]; then
	set -- $(cd tests/faults/ledger && ls -- *.patch | sed 's/\.patch$//')
fi

tried=0
bad=0
for entry in "$@"; do
	tried=$((tried + 1))
	patch="$root/tests/faults/ledger/$entry.patch"
	line=$(sed -n 's/^Run: //p' "$patch")
	dir=${line%%|*}
	run=${line#*|}
	began=$SECONDS
	if ! (cd "$copy" && git apply --whitespace=nowarn "$patch") 2>"$copy/.apply"; then
		echo "FAILED  $entry: the patch does not apply any more: $(head -n 1 "$copy/.apply")"
		bad=$((bad + 1))
		continue
	fi
	if (cd "$copy/$dir" && bash -c "$run") >"$copy/.out" 2>&1; then
		echo "FAILED  $entry: nothing caught it: $run"
		bad=$((bad + 1))
	elif grep -qE '\[(build|setup) failed\]|cannot find|no test files' "$copy/.out"; then
		echo "FAILED  $entry: the tree does not build: $(grep -m 1 -E '^[^#].*\.go:' "$copy/.out" || true)"
		bad=$((bad + 1))
	else
		echo "caught  $entry in $((SECONDS - began)) s: $(grep -m 1 -E '\.go:[0-9]+: ' "$copy/.out" | sed 's/^ *//' | cut -c1-160)"
	fi
	(cd "$copy" && git apply -R --whitespace=nowarn "$patch")
done
echo "$tried mutations tried, $((tried - bad)) caught, $bad not"
[ "$bad" -eq 0 ]
