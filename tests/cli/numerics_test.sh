#!/usr/bin/env bash
# What affects bits besides job and data: it is in checkpoints and logs, resuming with other numerics is
# reported, and ranks that differ in it do not train together.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_data 60 test.csv 2
make_job job.yaml

# A vendor's kernels, at two levels that this CPU has.
has_levels() {
    "$TANDEM" doctor | grep 'vendor kernels *oneDNN' >/dev/null &&
        [ "$(uname -m)" = x86_64 ] && grep -q ' avx2 .*' /proc/cpuinfo
}

test_it_is_written_down() {
    assert_exit 0 "$TANDEM" train job.yaml -n 2
    local last=runs/tiny-1/checkpoints/step-000000000015.safetensors
    assert_exit 0 "$TANDEM" inspect "$last"
    assert_contains "$out" $'\nnumerics    portable '
    assert_exit 0 "$TANDEM" inspect "$last" --json
    assert_contains "$out" '"numerics":"portable '
    assert_exit 0 "$TANDEM" checkpoint ls runs/tiny-1 --json
    assert_contains "$out" '"numerics":"portable '
    grep -q "numerics 'portable [0-9]" runs/tiny-1/log.jsonl || fail "the log does not have it"
    # The same on both sides: no message.
    assert_exit 0 "$TANDEM" eval runs/tiny-1 --data test.csv
    assert_equal "$err" ""
    assert_exit 0 "$TANDEM" train --resume runs/tiny-1 --set train.epochs=4
    assert_lacks "$err" numerics
    rm -r runs
}

# The files of portable training runs contain neither the level, nor the threads, nor the number of workers.
test_the_same_files() {
    local level first=""
    for level in v2 v3; do
        [ $level = v2 ] || has_levels || continue
        rm -rf runs
        assert_exit 0 env TANDEM_ISA=$level "$TANDEM" train job.yaml -n 2
        [ -n "$first" ] || first=$(sha256sum <runs/tiny-1/checkpoints/step-000000000015.safetensors)
        assert_equal "$(sha256sum <runs/tiny-1/checkpoints/step-000000000015.safetensors)" "$first" \
            "the checkpoint of TANDEM_ISA=$level"
    done
    rm -r runs
}

test_other_numerics_are_told() {
    has_levels || return 0
    assert_exit 0 env TANDEM_ISA=v3 "$TANDEM" train job.yaml -n 1 --set compute.numerics=vendor
    assert_exit 0 "$TANDEM" inspect runs/tiny-1
    assert_contains "$out" $'\nnumerics    vendor '
    assert_contains "$out" ", x86-64-v3, oneDNN "
    assert_exit 0 env TANDEM_ISA=v2 "$TANDEM" train --resume runs/tiny-1 -n 1 --set train.epochs=4
    assert_contains "$err" ", x86-64-v3, oneDNN "
    assert_contains "$err" ", x86-64-v2, oneDNN "
    assert_contains "$err" "not with the bits of a run that was never interrupted"
    assert_equal "$(grep -c 'computed with numerics' <<<"$err")" 1 "it is told once"
    assert_exit 0 env TANDEM_ISA=v3 "$TANDEM" eval runs/tiny-1 --data test.csv
    assert_contains "$err" "results may differ in their last digits"
    # Another kind of numerics is another job.
    assert_exit 4 "$TANDEM" train --resume runs/tiny-1 -n 1 --set compute.numerics=portable --set train.epochs=5
    assert_contains "$err" "compute.numerics: portable here, vendor there"
    rm -r runs
}

# mixed NUMERICS: two ranks, each with a different level.
mixed() {
    # shellcheck disable=SC2016 # each rank's own
    "$TANDEM" run -n 2 -- sh -c 'TANDEM_ISA=v$((3 - TANDEM_RANK)) exec "$0" train job.yaml "$@"' "$TANDEM" \
        --set "compute.numerics=$1"
}

test_mixed_levels() {
    has_levels || return 0
    local code=0
    mixed vendor >out.txt 2>err.txt || code=$?
    [ $code -ne 0 ] || fail "ranks of different levels train together: $(cat out.txt)"
    assert_contains "$(cat err.txt)" "x86-64-v2"
    assert_contains "$(cat err.txt)" "rank 0 on host "
    assert_contains "$(cat err.txt)" "start all with TANDEM_ISA=v3 and the same oneDNN, or set compute.numerics: portable"
    [ ! -e runs ] || fail "it left a run behind"
    mixed portable >out.txt 2>err.txt || fail "mixed levels: $(cat err.txt)"
    local hash
    hash=$(hash_in "$(cat out.txt)")
    assert_exit 0 "$TANDEM" train job.yaml -n 1
    assert_equal "$(hash_in "$out")" "$hash" "state hash of mixed levels"
    rm -r runs
}

run_tests "${1:-}"
