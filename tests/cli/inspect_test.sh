#!/usr/bin/env bash
# `tandem inspect`: of a job, a run, a checkpoint, and of other files.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml --json --set checkpoint.every_steps=5
summary=$out run=runs/tiny-1
last=$run/checkpoints/step-000000000015.safetensors

test_a_job() {
    assert_exit 0 "$TANDEM" inspect job.yaml
    assert_contains "$out" "parameters  147" # 5 * 16 + 16 + 16 * 3 + 3
    assert_contains "$out" "batch       32 rows in 4 lanes of 8"
    assert_contains "$out" "150 of shape [5], 3 classes; no test samples"
    # A lane's product: 2 * 8 * 5 * 16, the bias, and ReLU.
    [[ $out =~ fc1\.matmul\+relu\ +matmul\ +\[8,\ 16\]\ +product\ +1,536\ +512\ B\ +arena ]] ||
        fail "no such line for fc1.matmul+relu: $out"
    [[ $out =~ input\.normalise\ +normalise\ +\[8,\ 5\]\ +(ref|cpu)\ +[0-9]+\ +160\ B\ +in\ place ]] ||
        fail "no such line for input.normalise: $out"
    [[ $out =~ fc1\.weight\ +\[16,\ 5\]\ +80\ +trained ]] || fail "no fc1.weight: $out"
    [[ $out =~ input\.shift\ +\[5\]\ +5\ +buffer ]] || fail "no input.shift: $out"
    local forward=${out#*forward, of one lane (8 rows)} backward=${out#*$'\nbackward\n'}
    forward=${forward%%$'\nbackward\n'*}
    assert_contains "$forward" "fc2.matmul "
    assert_lacks "$forward" "_grad"
    assert_contains "$backward" "relu_grad"
    assert_lacks "$backward" "fc1.matmul+relu "
    assert_contains "$out" "without sharing"
    awk '/[ ]$/ { exit 1 }' <<<"$out" || fail "lines end in blanks"
}

# FLOPs and bytes in JSON, against the sums of the ops.
test_totals() {
    assert_exit 0 "$TANDEM" inspect job.yaml --json --set data.test_fraction=0.2
    local forward backward
    forward=$(json_value forward_flops_per_sample <<<"$out")
    backward=$(json_value backward_flops_per_sample <<<"$out")
    assert_equal "$(json_value flops_per_step <<<"$out")" $((32 * (forward + backward))) "FLOPs a step"
    local sums
    sums=$(grep -o '"backward":[a-z]*,[^}]*"flops":[0-9]*' <<<"$out" |
        sed 's/"backward":\([a-z]*\).*:/\1 /' |
        awk '{ s[$1] += $2 } END { print s["false"] / 8, s["true"] / 8 }')
    assert_equal "$forward $backward" "$sums" "FLOPs of the ops"
    local arena unshared
    arena=$(json_value arena_bytes_per_worker <<<"$out")
    unshared=$(json_value unshared_bytes_per_worker <<<"$out")
    [ "$arena" -gt 0 ] || fail "an arena of $arena bytes"
    [ "$arena" -lt "$unshared" ] || fail "arena $arena, without sharing $unshared"
    [ "$(json_value evaluation_bytes <<<"$out")" -gt 0 ] || fail "no memory to evaluate"
    assert_equal "$(json_value data_bytes <<<"$out")" $((150 * (5 * 4 + 4))) "bytes of the data"
}

test_memory_depends_on_workers_and_optimiser() {
    assert_exit 0 taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" \
        "$TANDEM" inspect job.yaml --json --set optim.kind=adamw
    local bytes
    bytes=$(json_value parameter_bytes <<<"$out")
    # One worker with 4 lanes holds a pair, a lone lane and the next one: 3 buffers.
    assert_equal "$(json_value workers <<<"$out") $(json_value gradient_buffers <<<"$out")" "1 3" "buffers"
    assert_equal "$(json_value gradient_bytes <<<"$out")" $((3 * bytes)) "bytes of gradients"
    assert_equal "$(json_value optimiser_bytes <<<"$out")" $((2 * bytes)) "bytes of AdamW"
    assert_exit 0 "$TANDEM" inspect job.yaml --json --set optim.kind=sgd
    assert_equal "$(json_value optimiser_bytes <<<"$out")" "$bytes" "bytes of SGD"
}

# -n and --hosts: a line for each stage, and the formula's figure; more ranks than lanes are refused.
test_ranks() {
    assert_exit 0 "$TANDEM" inspect job.yaml -n 4 --hosts 2 --set optim.kind=adamw
    assert_contains "$out" "each of 4 ranks on 2 hosts"
    # 147 numbers: parameters, gradients and two states of 588 bytes, all or a quarter of them.
    local zero bytes
    while read -r zero bytes; do
        [[ $out =~ $'\n'$zero\ .*\ $bytes\ KB ]] || fail "no stage $zero with $bytes KB: $out"
    done <<<$'0 2.35\n1 1.47\n2 1.03'
    assert_exit 0 "$TANDEM" inspect job.yaml -n 4 --hosts 2 --json --set optim.kind=adamw
    assert_contains "$out" '"zero":3,"this_job":false'
    assert_contains "$out" '"formula_bytes":588}'
    assert_equal "$(json_value workers <<<"$out") $(json_value hosts <<<"$out")" "4 2" "the world"
    assert_exit 2 "$TANDEM" inspect job.yaml -n 5
    assert_contains "$err" "5 ranks cannot share 4 lanes"
    assert_exit 2 "$TANDEM" inspect job.yaml -n 0
    assert_exit 2 "$TANDEM" inspect "$last" -n 2
    assert_contains "$err" "a job file, but"
    assert_exit 2 "$TANDEM" inspect job.yaml -n 2 --hosts 3
    assert_contains "$err" "2 ranks cannot be spread over 3 hosts"
}

test_the_plain_kernels() {
    assert_exit 0 "$TANDEM" inspect job.yaml --set compute.backend=ref
    assert_lacks "$out" " product "
}

# Inspecting needs no memory for the model: 65536 * 65536 parameters are 17 GB.
test_a_model_that_does_not_fit() {
    assert_exit 0 "$TANDEM" inspect job.yaml --set "model.hidden=[65536, 65536]"
    assert_contains "$out" "parameters  4,295,622,659"
}

test_a_checkpoint() {
    assert_exit 0 "$TANDEM" inspect "$last"
    assert_contains "$out" "position    step 15, epoch 3 at 0, 450 samples trained, seed 7"
    assert_contains "$out" "state hash  $(json_value hash <<<"$summary")"
    [[ $out =~ job\ hash\ +[0-9a-f]{64} ]] || fail "no job hash: $out"
    [[ $out =~ data\ hash\ +[0-9a-f]{64} ]] || fail "no data hash: $out"
    [[ $out =~ fc2\.weight\ +f32\ +\[3,\ 16\]\ +192\ B ]] || fail "no fc2.weight: $out"
    assert_lacks "$out" "checkpoints"$'\n'
    assert_exit 0 "$TANDEM" inspect "$last" --json
    assert_contains "$out" '"kind":"checkpoint"'
    assert_contains "$out" '"position":{"step":15,"epoch":3,"position":0,"samples":450,"seed":7}'
    assert_contains "$out" '{"name":"fc2.weight","dtype":"f32","shape":[3,16],"bytes":192}'
    assert_contains "$out" '"format":"tandem-checkpoint-2"'
    cp "$last" plainly-named # the bytes determine the kind, not the name
    assert_exit 0 "$TANDEM" inspect plainly-named
    assert_contains "$out" "position    step 15"
}

test_a_run() {
    assert_exit 0 "$TANDEM" inspect "$run"
    assert_contains "$out" "run         $run"
    assert_contains "$out" "checkpoint  $last"
    assert_equal "$(grep -c '^step-0000000000[01][05].safetensors ' <<<"$out")" 3 "checkpoints listed"
    assert_exit 0 "$TANDEM" inspect "$run" --json
    assert_contains "$out" '"kind":"run"'
    assert_contains "$out" "\"checkpoints\":[{\"path\":\"$last\",\"bytes\":$(stat -c %s "$last")}"
}

test_damage() {
    cp -r "$run" damaged
    local file=damaged/checkpoints/step-000000000015.safetensors
    printf '\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 3)) conv=notrunc status=none
    assert_exit 1 "$TANDEM" inspect "$file"
    assert_contains "$err" "damaged or changed"
    assert_exit 0 "$TANDEM" inspect damaged
    assert_contains "$err" "skipping a checkpoint"
    assert_contains "$out" "position    step 10"
    head -c 100 "$last" >short.safetensors
    assert_exit 1 "$TANDEM" inspect short.safetensors
    assert_contains "$err" "short.safetensors"
    rm damaged/checkpoints/*
    assert_exit 1 "$TANDEM" inspect damaged
    assert_contains "$err" "has no checkpoint"
}

test_bad_input() {
    assert_exit 2 "$TANDEM" inspect
    assert_exit 2 "$TANDEM" inspect nowhere
    assert_contains "$err" "nowhere: there is no such run or checkpoint"
    assert_exit 2 "$TANDEM" inspect nowhere.yaml
    assert_contains "$err" "nowhere.yaml"
    assert_exit 2 "$TANDEM" inspect "$last" --set seed=2
    assert_contains "$err" "a job file, but"
    assert_exit 2 "$TANDEM" inspect job.yaml --set train.batch=0
    assert_contains "$err" "train.batch"
    assert_exit 2 "$TANDEM" inspect data.csv
    mkdir empty-directory
    assert_exit 2 "$TANDEM" inspect empty-directory
    assert_contains "$err" "not a run"
    if "$TANDEM" inspect "$run" >/dev/full 2>err.txt; then fail "a full disk went unnoticed"; fi
    assert_contains "$(cat err.txt)" "cannot write the output"
}

run_tests "$@"
