#!/usr/bin/env bash
# Threads of workers: the same bits for any number of them, in training, in a run that is resumed with another
# number, in evaluation, prediction and generation; and no large slowdown with more threads than CPUs.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_data 60 test.csv 2
make_job job.yaml
# Wide enough for kernels to use threads.
wide=(--set 'model.hidden=[600, 600]' --set train.batch=128 --set parallel.lanes=2 --set data.test=test.csv)

# A text and a small model of it.
make_text() {
    awk 'BEGIN { for (i = 0; i < 400; i++) printf "the cat sat on mat %d.\n", i % 7 }' >text.txt
    cat >gpt.yaml <<'YAML'
name: words
seed: 3
data: {train: text.txt}
model: {kind: gpt, layers: 2, width: 192, heads: 4, context: 32}
train: {batch: 16, steps: 4}
parallel: {lanes: 2}
YAML
}

# one_cpu COMMAND...: with one CPU available to the process, auto is one thread.
one_cpu() {
    taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')" "$@"
}

test_same_bits_for_any_threads() {
    local threads n first="" metrics="" run=0
    for n in 1 2; do
        for threads in 1 2 3 auto; do
            assert_exit 0 "$TANDEM" train job.yaml "${wide[@]}" -n "$n" --set "compute.threads=$threads"
            run=$((run + 1))
            [ -n "$first" ] || first=$(hash_in "$out")
            [ -n "$metrics" ] || metrics=$(steady_metrics "runs/tiny-$run/metrics.jsonl")
            assert_equal "$(hash_in "$out")" "$first" "state hash of $n workers with $threads threads"
            assert_equal "$(steady_metrics "runs/tiny-$run/metrics.jsonl")" "$metrics" \
                "metrics of $n workers with $threads threads"
        done
    done
    cmp runs/tiny-1/checkpoints/step-000000000006.safetensors \
        runs/tiny-7/checkpoints/step-000000000006.safetensors || fail "checkpoints differ"
    rm -r runs
}

test_resumed_with_others() {
    assert_exit 0 "$TANDEM" train job.yaml "${wide[@]}" -n 1 --set compute.threads=1
    local whole
    whole=$(hash_in "$out")
    assert_exit 0 "$TANDEM" train job.yaml "${wide[@]}" -n 1 --set compute.threads=2 --set train.steps=2
    assert_exit 0 "$TANDEM" train --resume runs/tiny-2 -n 2 --set train.steps=4 --set compute.threads=3
    assert_exit 0 "$TANDEM" train --resume runs/tiny-2 -n 1 --set train.steps=6 --set compute.threads=auto
    assert_equal "$(hash_in "$out")" "$whole" "state hash"
    rm -r runs
}

test_a_vendor_counts_them() {
    "$TANDEM" doctor | grep 'vendor kernels *oneDNN' >/dev/null || return 0
    assert_exit 0 "$TANDEM" train job.yaml -n 1 --set compute.numerics=vendor --set compute.threads=2 \
        --set train.steps=2
    assert_exit 4 "$TANDEM" train --resume runs/tiny-1 -n 1 --set compute.threads=1 --set train.steps=4
    assert_contains "$err" "compute.threads: 1 here, 2 there"
    assert_exit 0 "$TANDEM" train --resume runs/tiny-1 -n 1 --set train.steps=4
    rm -r runs
}

test_looking_at_models() {
    make_text
    assert_exit 0 "$TANDEM" train job.yaml "${wide[@]}" -n 1
    assert_exit 0 "$TANDEM" train gpt.yaml -n 1
    local command all
    for command in "eval runs/tiny-1 --json" "predict runs/tiny-1 test.csv --top 3" \
        "generate runs/words-1 --prompt the --tokens 40 --seed 5"; do
        # shellcheck disable=SC2086 # words
        assert_exit 0 "$TANDEM" $command
        all=$out
        # shellcheck disable=SC2086
        assert_exit 0 one_cpu "$TANDEM" $command
        assert_equal "$out" "$all" "$command on one CPU"
    done
    rm -r runs
}

# cpu_of COMMAND...: the CPU time in milliseconds of the command and its child processes.
cpu_of() {
    local TIMEFORMAT='%U %S'
    { time "$@" >/dev/null 2>&1; } 2>&1 | awk '{ printf "%d", 1000 * ($1 + $2) }'
}

# Three workers with two threads each, on two CPUs or fewer: libgomp's threads take 60 times as long.
test_more_threads_than_cpus() {
    local numerics alone crowded
    for numerics in portable vendor; do
        if [ $numerics = vendor ]; then
            "$TANDEM" doctor | grep 'vendor kernels *oneDNN' >/dev/null || continue
        fi
        local train=("$TANDEM" train job.yaml "${wide[@]}" --set parallel.lanes=4 -n 3
            --set "compute.numerics=$numerics")
        [ "$(nproc)" -le 2 ] || train=(taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')" "${train[@]}")
        alone=$(cpu_of "${train[@]}" --set compute.threads=1)
        crowded=$(cpu_of "${train[@]}" --set compute.threads=2)
        [ "$crowded" -le $((4 * alone + 1000)) ] ||
            fail "$numerics: two threads took $crowded ms of CPU time, one $alone ms"
        assert_exit 0 "${train[@]}" --set compute.threads=2
        assert_contains "$err" "3 workers with 2 threads each share the "
        assert_exit 0 "${train[@]}" --set compute.threads=auto
        assert_lacks "$err" "threads each share"
    done
    rm -r runs
}

if [ $slow = 1 ]; then
    test_more_threads_than_cpus() { :; }
fi
run_tests "${1:-}"
