#!/usr/bin/env bash
# Jobs with logical replicas: sync.kind local and server, and compress. How often a run writes lines, evaluates, stops or saves
# changes no bit of its result; settings that cannot work are refused with what to do.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_data 240 data.csv
cat >job.yaml <<'YAML'
name: tiny
seed: 3
data: {train: data.csv, test_fraction: 0.2}
model: {hidden: [48, 32], dropout: 0.1}
train: {batch: 24, steps: 30}
optim: {lr: 0.002}
parallel: {lanes: 4}
checkpoint: {every_epochs: never}
eval: {every_epochs: never}
YAML
async=(--set sync.kind=server --set sync.mode=async --set sync.replicas=4)

# Updates in order are computed in rounds, which end where a line, an evaluation or a checkpoint is due. Random numbers and
# the warm-up of a compression belong to the update, not to the round.
test_rounds_change_no_bit() {
    local codec lines first
    for codec in quantise=int8 "sparsify=randomk ratio=0.1" "sparsify=topk warmup=20"; do
        local sets=("${async[@]}" --set compress.min_elements=16)
        for key in $codec; do sets+=(--set "compress.$key"); done
        first=
        for lines in 1 7 50; do
            assert_exit 0 "$TANDEM" train job.yaml -q -n 2 "${sets[@]}" --set run.log_every_steps=$lines
            [ -n "$first" ] || first=$(hash_in "$out")
            assert_equal "$(hash_in "$out")" "$first" "the hash with $codec and a line every $lines steps"
        done
    done
}

# parallel.lanes is one for so small a batch.
test_more_replicas_than_lanes() {
    local few="sync.replicas is 8, but each replica needs a lane, and parallel.lanes is 1 for a batch of this size; \
set parallel.lanes to 8 or sync.replicas to 1"
    local sets=(--set sync.kind=local --set sync.replicas=8 --set parallel.lanes=auto)
    assert_exit 2 "$TANDEM" train job.yaml -n 1 "${sets[@]}" --set run.dir=none
    assert_contains "$err" "$few"
    assert_exit 2 "$TANDEM" inspect job.yaml "${sets[@]}"
    assert_contains "$err" "$few"
    assert_exit 2 "$TANDEM" train job.yaml -n 2 "${sets[@]}" --set run.dir=none
    assert_contains "$err" "2 workers need at least as many lanes"
    [ ! -e none ] || fail "a run was created"
}

test_impossible_numbers_of_ranks_and_lanes() {
    local sets=("${async[@]}" --set sync.replicas=64 --set parallel.lanes=2048 --set train.batch=4096)
    local many="each of the 64 replicas has all 2048 lanes, but a job can have 65536 in all; set parallel.lanes to 1024"
    assert_exit 2 "$TANDEM" train job.yaml -n 2 "${sets[@]}" --set run.dir=none
    assert_contains "$err" "$many"
    assert_exit 2 "$TANDEM" inspect job.yaml "${sets[@]}"
    assert_contains "$err" "$many"
    assert_exit 2 "$TANDEM" inspect job.yaml -n 4 --set sync.kind=local --set sync.replicas=2
    assert_contains "$err" "4 ranks cannot share 2 replicas: use at most 2 ranks, or set sync.replicas higher"
    [ ! -e none ] || fail "a run was created"
}

local_sync=(--set sync.kind=local --set sync.replicas=4 --set sync.period=4)

# A round that is not finite changes nothing, and all of its steps are skipped.
test_skipped_rounds() {
    local n first=
    for n in 1 3; do
        assert_exit 0 "$TANDEM" train job.yaml -n "$n" "${local_sync[@]}" --set optim.kind=sgd --set optim.lr=1e12 \
            --set train.bad_numbers=skip --set run.dir=skip
        assert_contains "$err" "steps 1 to 4 are skipped: the loss is NaN"
        assert_contains "$err" "steps 9 to 12 are skipped"
        assert_equal "$(grep -c 'are skipped' <<<"$err")" 3 "rounds that are explained"
        assert_contains "$err" "further ones are only counted"
        assert_contains "$out" "skipped        30 steps with NaN or infinity"
        [ -n "$first" ] || first=$(hash_in "$out")
        assert_equal "$(hash_in "$out")" "$first" "the hash with $n workers"
    done
    assert_exit 3 "$TANDEM" train job.yaml "${local_sync[@]}" --set optim.kind=sgd --set optim.lr=1e12 \
        --set train.bad_numbers=skip --set train.bad_numbers_most=2
    assert_contains "$err" "2 rounds before it failed in the same way and were skipped"
}

# The last period of 18 steps has two steps. It would have four in a longer run, which is another result.
test_a_period_that_the_end_cuts_short() {
    local whole
    assert_exit 0 "$TANDEM" train job.yaml -q "${local_sync[@]}" --set train.steps=24 --set run.dir=whole
    whole=$(hash_in "$out")
    assert_exit 0 "$TANDEM" train job.yaml -q "${local_sync[@]}" --set train.steps=16 --set run.dir=extended
    assert_exit 0 "$TANDEM" train -q --resume extended/tiny-1 --set train.steps=24
    assert_equal "$(hash_in "$out")" "$whole" "the hash of an extended run"
    assert_exit 0 "$TANDEM" train job.yaml -q "${local_sync[@]}" --set train.steps=18 --set run.dir=cut
    assert_exit 4 "$TANDEM" train -q --resume cut/tiny-1 --set train.steps=24
    assert_contains "$err" "train.steps: 24 here, 18 there"
}

# Bad data and a learning rate that is too high look the same; the advice has both.
test_what_is_not_finite() {
    awk 'BEGIN { FS = OFS = "," } NR == 50 { $1 = "3e38"; $2 = "-3e38" } { print }' data.csv >large.csv
    assert_exit 3 "$TANDEM" train job.yaml -q "${local_sync[@]}" --set data.train=large.csv --set data.normalise=none
    assert_contains "$err" "with sync.kind: all_reduce the message names the op and the sample"
    assert_exit 3 "$TANDEM" train job.yaml -q --set data.train=large.csv --set data.normalise=none
    assert_contains "$err" "sample 49 of "
}

test_one_replica_averages_nothing() {
    assert_exit 0 "$TANDEM" train job.yaml --set sync.kind=local --set parallel.lanes=auto
    assert_contains "$err" "the job has one replica, so 'sync.kind: local' averages nothing; set sync.replicas and \
parallel.lanes to the number of models to train"
}

# A run in progress, and what its replicas send.
test_ps_shows_what_replicas_send() {
    local launcher
    "$TANDEM" train job.yaml -q -n 2 "${local_sync[@]}" --set compress.quantise=int8 --set compress.min_elements=16 \
        --set train.steps=10000000 --set run.dir=sending 2>train.err &
    launcher=$!
    wait_for 30 ps_has '"sent_bytes":[1-9][0-9]*,"compression":[0-9.]*'
    wait_for 30 ps_shows 'replicas send .* in a step, .* times less than as f32'
    kill -INT $launcher
    wait $launcher || true
}

ps_has() { "$TANDEM" ps --json | grep -q "$1"; }
ps_shows() { "$TANDEM" ps -l | grep -q "$1"; }

run_tests "$@"
