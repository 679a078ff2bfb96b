#!/usr/bin/env bash
# `tandem hash`: equal for equal states wherever they are stored, different for different ones.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml --json -n 1 --set checkpoint.every_steps=5
hash=$(json_value hash <<<"$out") run=runs/tiny-1
last=$run/checkpoints/step-000000000015.safetensors

test_a_run_and_its_checkpoint() {
    assert_exit 0 "$TANDEM" hash "$run"
    assert_equal "$out" "$hash  $last" "the hash of the run"
    assert_exit 0 "$TANDEM" hash "$last"
    assert_equal "$out" "$hash  $last" "the hash of the checkpoint"
    assert_exit 0 "$TANDEM" hash "$run" --json
    assert_equal "$out" "{\"path\":\"$last\",\"hash\":\"$hash\",\"checkpoint\":true,\"step\":15}" "JSON"
}

test_several() {
    assert_exit 0 "$TANDEM" train job.yaml -q -n 4
    assert_exit 0 "$TANDEM" train job.yaml -q --set seed=8
    assert_exit 0 "$TANDEM" hash "$run" runs/tiny-2 runs/tiny-3 "$run"/checkpoints/*
    assert_equal "$(wc -l <<<"$out")" 6 "lines"
    # Four workers give the same state as one; another seed and every other step give other states.
    assert_equal "$(cut -c 1-64 <<<"$out" | sort -u | wc -l)" 4 "different states"
    assert_equal "$(sed -n 2p <<<"$out" | cut -c 1-64)" "$hash" "the hash with four workers"
}

test_only_the_state_counts() {
    cp "$last" elsewhere.bin
    assert_exit 0 "$TANDEM" hash elsewhere.bin
    assert_equal "$out" "$hash  elsewhere.bin" "the hash of a copy"
}

test_failures_do_not_stop_the_others() {
    cp "$last" damaged.safetensors
    printf '\377' | dd of=damaged.safetensors bs=1 conv=notrunc status=none \
        seek=$(($(stat -c %s "$last") - 3))
    assert_exit 1 "$TANDEM" hash nowhere damaged.safetensors "$last"
    assert_equal "$out" "$hash  $last" "the good one"
    assert_contains "$err" "nowhere: there is no such run"
    assert_contains "$err" "damaged.safetensors: the state hash"
    sed 's/tandem-checkpoint-2/tandem-checkpoint-9/' "$last" >future.safetensors
    assert_exit 1 "$TANDEM" hash future.safetensors
    assert_contains "$err" "format tandem-checkpoint-9"
    assert_exit 2 "$TANDEM" hash job.yaml
    assert_contains "$err" "job.yaml: neither a run nor a checkpoint"
    assert_exit 2 "$TANDEM" hash
    if "$TANDEM" hash "$run" >/dev/full 2>err.txt; then fail "a full disk went unnoticed"; fi
    assert_contains "$(cat err.txt)" "cannot write the output"
}

# The hash of the file's bytes does not depend on who wrote the file or where it is.
test_the_same_file() {
    local way i=0
    for way in "-n 1" "-n 2 --set parallel.zero=1 --set checkpoint.every_steps=3" \
        "-n 3 --set parallel.zero=3 --set parallel.balance=feedback" \
        "-n 2 --set comm.transport=ucx --set parallel.zero=2"; do
        i=$((i + 1))
        # shellcheck disable=SC2086 # several words
        assert_exit 0 "$TANDEM" train job.yaml --quiet --set run.dir="same-$i" $way
        cmp "same-1/tiny-1/checkpoints/step-000000000015.safetensors" \
            "same-$i/tiny-1/checkpoints/step-000000000015.safetensors" || fail "another file with $way"
    done
}

# Computed by hand: the smallest safetensors file, and one tensor of two numbers.
test_a_file_from_elsewhere() {
    printf '\2\0\0\0\0\0\0\0{}' >none.safetensors
    assert_exit 0 "$TANDEM" hash none.safetensors
    local header='{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    # 54 bytes are \66.
    { printf '\66\0\0\0\0\0\0\0%s' "$header"; printf '\0\0\200\77\0\0\0\100'; } >one.safetensors
    { printf '\66\0\0\0\0\0\0\0%s' "$header"; printf '\0\0\200\77\0\0\0\101'; } >other.safetensors
    assert_exit 0 "$TANDEM" hash none.safetensors one.safetensors other.safetensors
    assert_equal "$(cut -c 1-64 <<<"$out" | sort -u | wc -l)" 3 "different states"
    assert_exit 0 "$TANDEM" hash one.safetensors --json
    assert_contains "$out" '"checkpoint":false}'
    assert_exit 0 "$TANDEM" inspect one.safetensors
    [[ $out =~ x\ +f32\ +\[2\]\ +8\ B ]] || fail "no tensor x: $out"
    assert_exit 1 "$TANDEM" eval one.safetensors
    assert_contains "$err" "not a checkpoint of Tandem"
}

run_tests "$@"
