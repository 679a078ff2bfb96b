#!/usr/bin/env bash
# NaN and infinity during training: `train.bad_numbers: stop` names the op that produced them, `skip` skips
# the step; both with the same result for any number of workers and across interruptions. And the output of
# eval and predict for a model whose results are not finite.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 good.csv
# Samples 49 and 103 overflow in the first product, with any weights.
awk 'BEGIN { FS = OFS = "," } NR == 50 { $1 = "3e38"; $2 = "-3e38" }
     NR == 104 { $1 = "-3e38"; $2 = "3e38" } { print }' good.csv >data.csv
make_job job.yaml
sets=(--set data.normalise=none --set run.log_every_steps=1 --set checkpoint.every_steps=1
    --set checkpoint.keep=all)

test_stop_names_the_op_and_the_sample() {
    local first
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" -n 1
    first=$err
    assert_contains "$first" "the loss is NaN"
    assert_contains "$first" "an infinity was first produced by fc1.matmul+relu (matmul, forward) in lane"
    assert_contains "$first" "for sample "
    [[ $first =~ sample\ (49|103)\ of ]] || fail "another sample is blamed: $first"
    assert_contains "$first" "train.bad_numbers: skip"
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" -n 3
    assert_equal "$(grep '^tandem: step' <<<"$err")" "$(grep '^tandem: step' <<<"$first")" \
        "what three workers say"
    assert_contains "$(cat runs/tiny-1/log.jsonl)" "fc1.matmul"
}

test_a_learning_rate_that_is_absurd() {
    assert_exit 3 "$TANDEM" train job.yaml --set data.train=good.csv --set optim.lr=1e38 -q
    assert_contains "$err" "step 2: the loss is NaN: 'fc1.weight' contained an infinity"
    # Skipping cannot help if the parameters are not finite.
    assert_exit 3 "$TANDEM" train job.yaml --set data.train=good.csv --set optim.lr=1e38 -q \
        --set train.bad_numbers=skip
    assert_contains "$err" "is no longer finite, so no later step can be"
}

# A gradient that is finite, and whose square is not.
test_a_gradient_too_large_to_be_squared() {
    awk 'BEGIN { FS = OFS = "," } NR == 50 { $1 = "1e28" } { print }' good.csv >large.csv
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" --set data.train=large.csv -n 2
    assert_contains "$err" "the gradient is so large that its square is not finite: that of 'fc1.weight' \
reaches 9.2e18 (2^63)"
    assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set data.train=large.csv \
        --set train.bad_numbers=skip --set run.dir=large
    assert_contains "$out" "skipped        1 step "
}

test_skip_passes_over_the_step() {
    local n first="" # in one of three epochs, both samples are in one batch
    for n in 1 3 4; do
        assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set train.bad_numbers=skip \
            --set run.dir="skip$n" -n "$n"
        assert_contains "$out" "skipped        5 steps with NaN or infinity"
        assert_equal "$(grep -c 'is skipped: the loss is NaN: an infinity was first produced by fc1.matmul' \
            <<<"$err")" 3 "steps that are explained"
        assert_contains "$err" "further ones are only counted"
        assert_contains "$err" "5 skipped"
        assert_equal "$(grep -c '"loss":null' "skip$n/tiny-1/metrics.jsonl")" 5 "lines without a loss"
        assert_contains "$(tail -n 1 "skip$n/tiny-1/metrics.jsonl")" '"skipped":5'
        [ -n "$first" ] || first=$(hash_in "$out")
        assert_equal "$(hash_in "$out")" "$first" "the state with $n workers"
        diff <(steady_metrics skip1/tiny-1/metrics.jsonl) \
            <(steady_metrics "skip$n/tiny-1/metrics.jsonl") || fail "other metrics"
    done
    # A skipped step changes nothing but the position and the count.
    local step
    step=$(sed -n 's/.*"step":\([0-9]*\),.*"loss":null.*/\1/p' skip1/tiny-1/metrics.jsonl | sed -n 2p)
    [ "$step" -gt 1 ] || fail "the second step skipped is step $step"
    weights skip1/tiny-1 "$step" >after
    weights skip1/tiny-1 $((step - 1)) >before
    cmp before after || fail "a skipped step has changed weights"
    weights skip1/tiny-1 15 >last
    ! cmp -s before last || fail "the weights never change"
}

# What the weights of a run after a step predict for good data, in all digits: weights RUN STEP
weights() {
    "$TANDEM" predict "$1/checkpoints/$(printf 'step-%012d.safetensors' "$2")" good.csv --json
}

test_resume_after_a_skip() {
    local whole step
    assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set train.bad_numbers=skip --set run.dir=whole -q
    whole=$(hash_in "$out")
    for step in 1 4 9 14; do
        rm -rf cut
        mkdir cut
        cp -r whole/tiny-1 cut/tiny-1
        find cut/tiny-1/checkpoints -name 'step-*' |
            awk -v s="$step" '{ n = $0; gsub(/.*step-0*|\.safetensors/, "", n); if (n + 0 > s) print }' |
            xargs rm
        assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set train.bad_numbers=skip --set run.dir=cut \
            --resume cut/tiny-1 -q -n 2
        assert_equal "$(hash_in "$out")" "$whole" "the state after resuming at step $step"
        assert_contains "$out" "skipped        5 steps"
    done
}

# A step that ended a run can be skipped when the run resumes: up to there both runs are equal.
test_stop_then_skip() {
    local step
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" --set data.shuffle=false \
        --set run.dir=stopped -q
    step=$(sed -n 's/^tandem: step \([0-9]*\):.*/\1/p' <<<"$err")
    assert_equal "$step" 2 "the step of sample 49"
    assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set data.shuffle=false --set run.dir=stopped \
        --set train.bad_numbers=skip --resume stopped/tiny-1 -q
    assert_contains "$out" "skipped        6 steps"
    assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" --set data.shuffle=false --set run.dir=unstopped \
        --set train.bad_numbers=skip -q --json
    assert_contains "$out" '"skipped":6'
    assert_equal "$(hash_in "$out")" "$("$TANDEM" hash stopped/tiny-1 | grep -o '[0-9a-f]\{64\}')" \
        "the state"
}

# Three skipped steps in a row are allowed, the fourth is too many; resuming does not reset the count.
test_too_many_in_a_row() {
    awk 'BEGIN { FS = OFS = "," } NR > 32 { $1 = "3e38"; $2 = "-3e38" } { print }' good.csv >many.csv
    local more=(--set data.train=many.csv --set data.shuffle=false --set train.bad_numbers=skip)
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" "${more[@]}" --set run.dir=many -q \
        --set train.bad_numbers_most=3
    assert_contains "$err" "tandem: step 5: the loss is"
    assert_contains "$err" "3 steps before it failed in the same way and were skipped"
    assert_contains "$err" "a higher train.bad_numbers_most"
    assert_exit 3 "$TANDEM" train job.yaml "${sets[@]}" "${more[@]}" --set run.dir=many -q \
        --set train.bad_numbers_most=3 --resume many/tiny-1
    assert_contains "$err" "tandem: step 5: the loss is"
    assert_exit 0 "$TANDEM" train job.yaml "${sets[@]}" "${more[@]}" --set run.dir=many -q \
        --set train.bad_numbers_most=4 --resume many/tiny-1
    assert_contains "$out" "skipped        12 steps"
}

# Batch norm turns an overflowing variance into finite numbers; but the running variance must not follow it.
test_statistics() {
    awk 'BEGIN {
        srand(3)
        for (i = 0; i < 24; i++) {
            for (k = 0; k < 16; k++) printf "%.3f,", rand() * (i == 20 ? 1e25 : 1)
            print i % 2
        }
    }' >images.csv
    local more=(--set data.train=images.csv --set "data.shape=[4,4]" --set model.kind=resnet -q
        --set data.normalise=none --set data.shuffle=false --set train.batch=8 --set train.epochs=1
        --set run.dir=images --set parallel.lanes=2)
    assert_exit 3 "$TANDEM" train job.yaml "${more[@]}" -n 2
    assert_contains "$err" "step 3: the gradient or a statistic is not finite: an infinity was first \
produced by bn1.batch_norm (batch_norm, forward) in lane 1"
    assert_exit 0 "$TANDEM" train job.yaml "${more[@]}" -n 1 --set train.bad_numbers=skip
    assert_contains "$out" "skipped        1 step with"
}

test_eval_and_predict_say_it() {
    assert_exit 0 "$TANDEM" train job.yaml --set data.train=good.csv --set data.normalise=none \
        --set run.dir=fine -q
    assert_exit 0 "$TANDEM" eval fine/tiny-1 --data data.csv
    assert_contains "$err" "output is NaN or infinity for 2 of 150 samples"
    assert_contains "$out" "loss        nan"
    assert_exit 0 "$TANDEM" eval fine/tiny-1 --data data.csv --json
    assert_contains "$out" '"loss":null'
    assert_contains "$out" '"not_finite":2'
    assert_exit 0 "$TANDEM" predict fine/tiny-1 data.csv --top 2
    assert_contains "$err" "for 2 samples, the first of which is sample 49"
    assert_contains "$out" "49,,,,,1"
    assert_exit 0 "$TANDEM" predict fine/tiny-1 data.csv --json
    assert_contains "$out" '{"sample":103,"class":null,"probability":null,"truth":"1"}'
    assert_exit 0 "$TANDEM" predict fine/tiny-1 good.csv
    assert_equal "$err" "" "warnings about good data"
    assert_exit 0 "$TANDEM" train job.yaml --set data.train=good.csv --set data.test=data.csv \
        --set data.normalise=none --set run.dir=measured --set train.steps=1 -q
    assert_contains "$err" "the model gives NaN or infinity for 2 of 150 test samples"
}

run_tests "$@"
