#!/usr/bin/env bash
# `tandem replay`: replaying a step of finished, dead and active runs: its numbers are those of the run, lanes
# add up to the whole, it finds the right checkpoint to start from; and its errors.
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml

# Plain gradient descent, so that a step can be computed by hand: five steps per epoch, the last with 22 rows.
common=(--set run.log_every_steps=1 --set optim.kind=sgd --set optim.momentum=0 --set optim.weight_decay=0
    --set optim.lr=0.125
    --set optim.clip_norm=1000 --set checkpoint.keep=all)
assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set checkpoint.every_steps=4 -q -n 3
run=runs/tiny-1 # checkpoints at 4, 5, 8, 10, 12 and 15

# numbers FILE TENSOR: the f32 numbers of a tensor of a safetensors file, one per line.
numbers() {
    local header range
    header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    range=$(dd if="$1" bs=1 skip=8 count="$header" status=none |
        sed -n 's|.*"'"$2"'":{[^}]*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*|\1 \2|p')
    tail -c "+$((9 + header + ${range% *}))" "$1" | head -c "$((${range#* } - ${range% *}))" |
        od -An -v -t f4 -w4 | tr -d ' '
}

# Field NAME of replay's JSON in $out, where it occurs first.
field() {
    local text=${out%%\"lanes\"*}
    text=${text#*\""$1"\":}
    printf '%s\n' "${text%%[,\}]*}"
}

# The directory with times: a replay must not change it.
listing() {
    find "$1" -printf '%p %s %T@\n' | sort
}

test_every_step_is_what_the_run_did() {
    local step before
    before=$(listing $run)
    for step in 1 2 4 5 6 9 15; do
        assert_exit 0 "$TANDEM" replay $run --step "$step" --json
        assert_equal "$(field agrees)" true "step $step agrees"
        assert_equal "$(field loss)" "$(field recorded_loss)" "the loss of step $step"
    done
    assert_equal "$(field from_step)" 12 "where it began"
    assert_exit 0 "$TANDEM" replay $run --step 6
    assert_contains "$out" "step           6 of 15, in epoch 1, 32 rows in 4 lanes"
    assert_contains "$out" "step-000000000005.safetensors, 0 steps later"
    assert_contains "$out" "recorded       the same"
    assert_contains "$out" "fc2.weight"
    assert_contains "$err" "0 steps to train before"
    assert_equal "$(listing $run)" "$before" "the run's directory"
}

test_gradients_are_those_of_the_run() {
    local g=grad/fc1.weight
    # Step 5 has 22 rows: lanes of 6, 5, 6 and 5.
    assert_exit 0 "$TANDEM" replay $run --step 5 -q --out dump.st \
        --dump "fc1.weight,$g,lane.0/$g,lane.1/$g,lane.2/$g,lane.3/$g,lane.2/fc2.matmul"
    assert_contains "$out" "7 tensors written to dump.st"
    paste <(numbers dump.st fc1.weight) <(numbers dump.st $g) <(numbers dump.st lane.0/$g) \
        <(numbers dump.st lane.1/$g) <(numbers dump.st lane.2/$g) <(numbers dump.st lane.3/$g) \
        <(numbers $run/checkpoints/step-000000000004.safetensors fc1.weight) \
        <(numbers $run/checkpoints/step-000000000005.safetensors fc1.weight) >columns
    assert_equal "$(wc -l <columns)" 80 "numbers of fc1.weight"
    awk 'function off(a, b) { return a > b ? a - b : b - a }
        $1 != $7 { print "before the step: " $0; bad = 1 }
        off($3 + $4 + $5 + $6, $2) > 1e-7 { print "the sum of the lanes: " $0; bad = 1 }
        off($1 - 0.125 * $2, $8) > 1e-6 { print "after the step: " $0; bad = 1 }
        $2 != 0 { some = 1 }
        END { exit bad || !some }' columns || fail "the gradients are not those of the run"
    assert_equal "$(numbers dump.st lane.2/fc2.matmul | wc -l)" 18 "6 rows of 3 logits"
    # The losses of the lanes add up to that of the step in the metrics of the run.
    assert_exit 0 "$TANDEM" replay $run --step 5 --json
    grep -o '"share":[0-9.e-]*' <<<"$out" | awk -F : -v loss="$(field recorded_loss)" '
        { sum += $2 } END { exit !(NR == 4 && sum - loss < 1e-9 && loss - sum < 1e-9) }' ||
        fail "the losses of the lanes do not add up: $out"
}

# is_past STEP: the active run is beyond it.
is_past() {
    local last
    last=$(tail -n 1 dead/tiny-1/metrics.jsonl 2>/dev/null | grep -o '"step":[0-9]*' | sed 's/.*://') || return 1
    [ "$last" -gt "$1" ]
}
test_a_run_that_was_killed() {
    # The whole run would take minutes; the first checkpoint is written soon.
    "$TANDEM" train job.yaml "${common[@]}" --set train.epochs=100000 --set checkpoint.every_steps=50 \
        --set checkpoint.keep=3 --set run.dir=dead -q -n 1 &
    local pid=$!
    wait_for 60 is_past 100 # so that there is a checkpoint before the last step
    # While it runs, and checkpoints are written and removed.
    assert_exit 0 "$TANDEM" replay dead/tiny-1 --step 3 --json
    assert_equal "$(field agrees)" true "a step of a run in progress agrees"
    kill -9 $pid
    wait $pid 2>/dev/null || true
    local last
    last=$(grep -o '"step":[0-9]*' dead/tiny-1/metrics.jsonl | tail -n 1 | sed 's/.*://')
    assert_exit 0 "$TANDEM" replay dead/tiny-1 --step "$last" --json
    assert_equal "$(field agrees)" true "the last step of a dead run agrees"
    [ "$(field from_step)" -gt 0 ] || fail "it began anew, and not from a checkpoint"
}

test_a_damaged_checkpoint_is_passed_over() {
    cp -a $run damaged
    truncate -s 500 damaged/checkpoints/step-000000000012.safetensors
    assert_exit 0 "$TANDEM" replay damaged --step 13 --json
    assert_equal "$(field from_step)" 10 "where it began"
    assert_equal "$(field agrees)" true "step 13 agrees"
    assert_contains "$err" "skipping a checkpoint"
    rm -r damaged/checkpoints
    assert_exit 0 "$TANDEM" replay damaged --step 13 --json
    assert_equal "$(field from_step)" 0 "without checkpoints it begins anew"
    assert_equal "$(field agrees)" true "step 13 agrees"
    # The metrics of the run were changed.
    sed -i 's/^{"step":13,\(.*\)"loss":[0-9.]*/{"step":13,\1"loss":7.5/' damaged/metrics.jsonl
    assert_exit 0 "$TANDEM" replay damaged --step 13 -q
    assert_contains "$out" "recorded       loss 7.5,"
    assert_contains "$out" "NOT the same"
    printf '{"step":14,"lo' >damaged/metrics.jsonl
    assert_exit 0 "$TANDEM" replay damaged --step 14 -q
    assert_contains "$out" "recorded       no metrics for this step"
}

test_evaluations_that_decide_the_learning_rate() {
    assert_exit 0 "$TANDEM" train job.yaml --set run.log_every_steps=1 --set run.dir=plateau -q \
        --set schedule.kind=reduce_on_plateau --set schedule.patience=0 --set schedule.threshold=0.9 \
        --set data.test_fraction=0.2 --set eval.every_steps=2 --set optim.ema=0.9
    assert_exit 0 "$TANDEM" replay plateau/tiny-1 --step 12 --json
    assert_equal "$(field agrees)" true "the last step agrees"
    [ "$(field lr)" != 0.01 ] || fail "the schedule never lowered the learning rate"
}

test_steps_with_bad_numbers() {
    local step
    awk 'BEGIN { FS = OFS = "," } NR == 50 { $1 = "3e38"; $2 = "-3e38" } { print }' data.csv >bad.csv
    assert_exit 3 "$TANDEM" train job.yaml --set data.train=bad.csv --set data.normalise=none -q \
        --set run.dir=bad --set run.log_every_steps=1
    [[ $err =~ step\ ([0-9]+): ]] || fail "no step is named: $err"
    step=${BASH_REMATCH[1]}
    assert_exit 0 "$TANDEM" replay bad/tiny-1 --step "$step" -q
    assert_contains "$out" "non-finite     an infinity was first produced by fc1.matmul+relu"
    assert_contains "$out" "sample 49 of"
    assert_exit 3 "$TANDEM" replay bad/tiny-1 --step "$((step + 1))" -q
    assert_contains "$err" "replay that step: --step $step"
    # If such steps are skipped, the replay skips them as well.
    assert_exit 0 "$TANDEM" train job.yaml --set data.train=bad.csv --set data.normalise=none -q \
        --set run.dir=skips --set run.log_every_steps=1 --set train.bad_numbers=skip
    assert_exit 0 "$TANDEM" replay skips/tiny-1 --step 15 --json
    assert_equal "$(field agrees)" true "the last step agrees"
    assert_exit 0 "$TANDEM" replay skips/tiny-1 --step "$step" --json
    assert_equal "$(field finite)" false "the skipped step is bad"
    assert_equal "$(field agrees)" true "and was recorded as such"
}

test_one_lane() {
    assert_exit 0 "$TANDEM" replay $run --step 2 --lane 3 -q
    assert_contains "$out" "   3  24 to 31"
    assert_lacks "$out" "   2  16 to 23"
}

test_mistakes() {
    assert_exit 2 "$TANDEM" replay $run
    assert_contains "$err" "--step is missing"
    assert_exit 2 "$TANDEM" replay $run --step 0
    assert_exit 2 "$TANDEM" replay $run --step 1 -n 2
    assert_exit 2 "$TANDEM" replay $run --step 1 --lane 4
    assert_contains "$err" "lane 4 does not exist: the job has lanes 0 to 3"
    assert_exit 2 "$TANDEM" replay $run --step 1 --dump fc1.weight
    assert_contains "$err" "must be given together"
    assert_exit 2 "$TANDEM" replay runs --step 1
    assert_contains "$err" "is not a run"
    assert_exit 1 "$TANDEM" replay $run --step 16
    assert_contains "$err" "the job ends with step 15"
    assert_exit 1 "$TANDEM" replay $run --step 15 --dump fc1.wieght --out no.st
    assert_contains "$err" "did you mean 'fc1.weight'?"
    assert_exit 1 "$TANDEM" replay $run --step 15 --dump lane.1/fc1.matmul --out no.st
    assert_contains "$err" "'lane.1/fc1.matmul+relu'"
    assert_exit 1 "$TANDEM" replay $run --step 15 --dump lane.4/grad/fc1.bias --out no.st
    assert_contains "$err" "from 0 to 3"
    assert_exit 1 "$TANDEM" replay $run --step 15 --dump grad/input.shift --out no.st
    [ ! -e no.st ] || fail "a mistake has left a file"
    mv data.csv moved.csv
    assert_exit 2 "$TANDEM" replay $run --step 15
    assert_contains "$err" "data.csv"
    assert_exit 0 "$TANDEM" replay $run --step 15 --set data.train=moved.csv --json
    assert_equal "$(field agrees)" true "with the data elsewhere"
    make_data 150 data.csv 2
    assert_exit 4 "$TANDEM" replay $run --step 15
    assert_contains "$err" "other data"
    mv moved.csv data.csv
}

run_tests "$@"
