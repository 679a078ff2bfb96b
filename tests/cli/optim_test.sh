#!/usr/bin/env bash
# Optimisers, schedules, averages and early stopping from the command line: the same bits for any number of
# workers, exact continuation, and errors.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
groups='optim.groups=[{match: "*.bias", weight_decay: 0}, {match: "fc1.*", lr_scale: 0.5}]'
# Tensors of several pieces: 300 x 64 numbers are five of them.
wide=(--set "model.hidden=[300, 64]" --set data.test_fraction=0.2)

# Trains in a fresh directory and leaves the state's hash in $hash: hash_of ARGUMENTS...
hash_of() {
    assert_exit 0 "$TANDEM" train job.yaml "$@" --json --set run.dir=hashes
    hash=$(json_value hash <<<"$out")
    [[ $hash =~ ^[0-9a-f]{64}$ ]] || fail "no hash in: $out"
}

# same_bits WHAT ARGUMENTS...: 1 to 4 workers end in the same state, and no other setting so far did.
declare -A seen
same_bits() {
    local what=$1 n first
    shift
    hash_of -n 1 "${wide[@]}" "$@"
    first=$hash
    for n in 2 3 4; do
        hash_of -n "$n" "${wide[@]}" "$@"
        assert_equal "$hash" "$first" "$what: the hash with $n workers"
    done
    [ -z "${seen[$first]:-}" ] || fail "$what: the same state as ${seen[$first]}"
    seen[$first]=$what
}

test_the_same_bits() {
    local kind
    same_bits "the plain job"
    for kind in sgd adagrad rmsprop adam lamb lion; do
        same_bits "$kind" --set optim.kind=$kind
    done
    same_bits "sgd without momentum" --set optim.kind=sgd --set optim.momentum=0
    same_bits "centred rmsprop" --set optim.kind=rmsprop --set optim.centred=true
    same_bits "clipping by norm" --set optim.clip_norm=0.1
    same_bits "clipping by value" --set optim.clip_value=0.001
    same_bits "both clippings" --set optim.clip_norm=0.1 --set optim.clip_value=0.01
    same_bits groups --set "$groups"
    same_bits averages --set optim.ema=0.9
    same_bits "all at once" --set optim.kind=lamb --set "$groups" --set optim.ema=0.9 \
        --set optim.clip_norm=0.1 --set train.batch=37
    same_bits warm-up --set schedule.warmup=5
    same_bits cosine --set schedule.kind=cosine --set schedule.warmup=3
    same_bits one_cycle --set schedule.kind=one_cycle
    same_bits inverse_sqrt --set schedule.kind=inverse_sqrt --set schedule.warmup=2
    same_bits "smoothed labels" --set train.label_smoothing=0.1
    same_bits "an l1 penalty" --set train.l1=1e-3
    same_bits "an l2 penalty" --set train.l2=1e-3
    same_bits "all that is added to a loss" --set train.label_smoothing=0.1 --set train.l1=1e-3 \
        --set train.l2=1e-3 --set train.batch=37
}

# The training loss includes smoothing and penalties, once for any number of lanes; the test loss does not.
test_what_is_added_to_a_loss() {
    local lanes plain plain_test added with=(--set train.label_smoothing=0.2 --set train.l2=1 --set train.l1=0.5)
    local common=(--json --set run.dir=added --set optim.lr=1e-9 --set train.steps=1 --set data.test_fraction=0.2)
    for lanes in 1 2 8; do
        assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set parallel.lanes=$lanes
        plain=$(json_value loss <<<"$out")
        plain_test=$(json_value test_loss <<<"$out")
        assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set parallel.lanes=$lanes "${with[@]}"
        awk -v a="$plain_test" -v b="$(json_value test_loss <<<"$out")" \
            'BEGIN { exit !(a - b < 1e-5 && b - a < 1e-5) }' || fail "the test loss changes: $out"
        [ "$lanes" -ne 1 ] || added=$(json_value loss <<<"$out")
        awk -v a="$added" -v b="$(json_value loss <<<"$out")" -v p="$plain" \
            'BEGIN { exit !(b > p + 1 && a - b < 1e-4 && b - a < 1e-4) }' ||
            fail "the loss with $lanes lanes: $out, with one: $added, without additions: $plain"
    done
}

# A key with its default value is not part of the hash, so that older runs can resume; with another value, it
# is.
test_losses_on_resume() {
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=losses --set train.epochs=1
    assert_exit 4 "$TANDEM" train job.yaml -q --resume losses/tiny-1 --set train.label_smoothing=0.1
    assert_contains "$err" "train.label_smoothing: 0.1"
    assert_exit 0 "$TANDEM" train job.yaml -q --resume losses/tiny-1 --set train.label_smoothing=0
    assert_exit 2 "$TANDEM" train job.yaml -q --set train.label_smoothing=1
}

# Ends a run after $1 steps and resumes it; the state and the metrics must be those of the run
# that never ended: goes_on STEPS ARGUMENTS...
goes_on() {
    local stop=$1 expected
    shift
    rm -rf whole parts
    assert_exit 0 "$TANDEM" train job.yaml --json --set run.dir=whole --set run.log_every_steps=1 "$@"
    expected=$(json_value hash <<<"$out")
    assert_exit 0 "$TANDEM" train job.yaml --json --set run.dir=parts --set run.log_every_steps=1 \
        "$@" --set checkpoint.every_steps=1 --set checkpoint.keep=all
    find parts/tiny-1/checkpoints -name 'step-*' | sort | awk -F '[-.]' -v s="$stop" \
        '$(NF - 1) + 0 > s' | xargs rm
    assert_exit 0 "$TANDEM" train job.yaml --resume parts/tiny-1 --json -n 3 \
        --set run.log_every_steps=1 "$@"
    assert_equal "$(json_value hash <<<"$out")" "$expected" "the hash after resuming from step $stop"
    steady_metrics whole/tiny-1/metrics.jsonl >whole.metrics
    steady_metrics parts/tiny-1/metrics.jsonl >parts.metrics
    assert_same_files parts.metrics whole.metrics "metrics after resuming from step $stop"
}

test_going_on_with_averages_and_schedules() {
    goes_on 7 "${wide[@]}" --set train.epochs=3 --set optim.ema=0.9 --set optim.kind=lamb \
        --set "$groups" --set optim.clip_norm=0.5
    goes_on 7 "${wide[@]}" --set train.epochs=3 --set schedule.kind=cosine --set schedule.warmup=3 \
        --set optim.kind=rmsprop --set optim.centred=true
}

test_going_on_with_a_plateau() {
    local step plateau=(--set data.test_fraction=0.2 --set train.epochs=12
        --set schedule.kind=reduce_on_plateau --set schedule.patience=0 --set schedule.gamma=0.5
        --set schedule.threshold=0.4 --set schedule.cooldown=1)
    for step in 3 8 21 30; do goes_on $step "${plateau[@]}"; done
    [ "$(grep -o '"lr":[0-9.e-]*' whole.metrics | sort -u | wc -l)" -ge 4 ] ||
        fail "the learning rate was never lowered: $(cat whole.metrics)"
}

test_a_plateau_may_not_be_measured_otherwise() {
    local plateau=(--set data.test_fraction=0.2 --set schedule.kind=reduce_on_plateau)
    rm -rf runs
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=runs "${plateau[@]}"
    assert_exit 4 "$TANDEM" train job.yaml --resume runs/tiny-1 "${plateau[@]}" --set eval.batch=3
    assert_contains "$err" "eval.batch: 3 here, 256 there"
    assert_exit 0 "$TANDEM" train job.yaml --resume runs/tiny-1 "${plateau[@]}" --set train.epochs=4
}

test_a_schedule_as_long_as_the_training() {
    rm -rf runs
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=runs --set schedule.kind=linear
    assert_exit 4 "$TANDEM" train job.yaml --resume runs/tiny-1 --set schedule.kind=linear \
        --set train.epochs=4
    assert_contains "$err" "train.epochs: 4 here, 3 there"
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=runs --set schedule.kind=linear \
        --set schedule.steps=20
    assert_exit 0 "$TANDEM" train job.yaml --resume runs/tiny-2 --set schedule.kind=linear \
        --set schedule.steps=20 --set train.epochs=4
}

test_early_stopping() {
    local early=(--set data.test_fraction=0.2 --set train.epochs=60
        --set "train.early_stop={patience: 2, min_delta: 0.05}")
    rm -rf runs
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=runs "${early[@]}"
    assert_contains "$out" "stopped early, without improvement, at step"
    local expected steps
    expected=$(hash_in "$out")
    steps=$(sed -n 's/.*at step \([0-9]*\):.*/\1/p' <<<"$out")
    [ "$steps" -lt 240 ] || fail "it did not end early"
    assert_exit 0 "$TANDEM" train --resume runs/tiny-1
    assert_contains "$out" "nothing to do: early stopping ended the run"
    assert_equal "$(hash_in "$out")" "$expected" "the hash of a run that was ended"
    # A run that resumes from an earlier step stops at the same step; more patience lets it continue.
    goes_on 9 "${early[@]}"
    assert_contains "$out" '"ended_early":true'
    assert_exit 0 "$TANDEM" train job.yaml --resume runs/tiny-1 "${early[@]}" \
        --set "train.early_stop={patience: 5, min_delta: 0.05}" --json
    [ "$(json_value steps <<<"$out")" -gt "$steps" ] || fail "more patience made no difference: $out"
    # Resumed with early stopping that was not set before.
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=runs --set data.test_fraction=0.2
    assert_exit 0 "$TANDEM" train job.yaml --resume runs/tiny-2 "${early[@]}"
    assert_contains "$out" "stopped early"
}

test_averages_are_measured_and_predict() {
    rm -rf runs
    local args=(--set run.dir=runs --set data.test_fraction=0.2 --set optim.ema=0.95)
    assert_exit 0 "$TANDEM" train job.yaml --json "${args[@]}"
    local averaged raw
    averaged=$(json_value test_loss <<<"$out")
    assert_exit 0 "$TANDEM" train job.yaml --json "${args[@]}" --set eval.weights=raw
    raw=$(json_value test_loss <<<"$out")
    [ "$averaged" != "$raw" ] || fail "the average was not measured: both give $raw"
    assert_exit 0 "$TANDEM" hash runs/tiny-1 runs/tiny-2
    assert_equal "$(cut -d' ' -f1 <<<"$out" | sort -u | wc -l)" 1 "what is measured decides no bits"
    # Measured again from the checkpoint, each with its own weights.
    assert_exit 0 "$TANDEM" eval runs/tiny-1 --json
    assert_equal "$(json_value loss <<<"$out")" "$averaged" "the loss of the average"
    assert_exit 0 "$TANDEM" eval runs/tiny-2 --json
    assert_equal "$(json_value loss <<<"$out")" "$raw" "the loss of the weights"
    assert_exit 0 "$TANDEM" inspect runs/tiny-1
    assert_contains "$out" "ema.fc1.weight"
}

test_groups_that_match_nothing() {
    assert_exit 2 "$TANDEM" train job.yaml --set run.dir=none \
        --set 'optim.groups=[{match: "conv*", lr_scale: 2}]'
    assert_contains "$err" "optim.groups: entry 1 ('conv*') matches no parameter of this model"
    assert_contains "$err" "fc1.weight, fc1.bias"
    [ ! -e none ] || fail "a run was begun"
}

test_metrics() {
    rm -rf runs
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=runs --set run.log_every_steps=1 \
        --set schedule.kind=step --set schedule.every_steps=5 --set optim.clip_norm=1
    assert_equal "$(grep -c '"lr":0.01,' runs/tiny-1/metrics.jsonl)" 5 "steps at the first rate"
    assert_equal "$(grep -c '"lr":0.001,' runs/tiny-1/metrics.jsonl)" 5 "steps at the second rate"
    assert_equal "$(grep -c '"grad_norm":' runs/tiny-1/metrics.jsonl)" 15 "norms"
}

run_tests "$@"
