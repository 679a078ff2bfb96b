#!/usr/bin/env bash
# golden.sh detects another hash, another digit of a loss, a job without a line and another version, and
# reports which job, at which level, and what to do; and --update does not write changed bits under the same
# version.
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/../cli/lib.sh"
export GOLDEN_HASHES=$work/hashes
"$here/golden.sh" --update mlp-momentum mlp-lion >/dev/null
cp hashes good
golden() { assert_exit "$1" "$here/golden.sh" "${@:2}" mlp-momentum mlp-lion; }

golden 0
assert_contains "$out" "2 golden training runs"

sed 's/^\(mlp-lion [0-9a-f]*\)[0-9a-f] /\1z /' good >hashes
golden 1
assert_contains "$out" "FAIL mlp-lion at level of this CPU, 1 thread(s), 1 rank(s)"
assert_contains "$out" "state hash"
assert_lacks "$out" "test loss"
assert_contains "$out" "raise TDM_NUMERICS_VERSION"
assert_contains "$out" "ok   mlp-momentum"
golden 1 --update
assert_contains "$err" "the bits of mlp-lion have changed"
golden 0 --update --force
assert_same_files hashes good "what --update --force writes"

sed '/^mlp-momentum/s/.$/x/' good >hashes
golden 1
assert_contains "$out" "test loss"
assert_lacks "$out" "state hash"

sed '/^mlp-lion/d' good >hashes
golden 1
assert_contains "$err" "mlp-lion has no line"

sed 's/^# numerics version .*/# numerics version 999999/' good >hashes
golden 1
assert_contains "$err" "of numerics version 999999"
echo "ok   what differs is noticed"
