#!/usr/bin/env bash
# `tandem train --resume`: from which checkpoint it resumes, which resumes are errors, and how it handles
# damaged files. signals_test.sh tests that it ends with the same bits after real interruptions.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
common=(--set run.dir=runs --set checkpoint.every_steps=5 --set run.log_every_steps=1
    --set data.test_fraction=0.2)

# The undisturbed run: 12 steps, checkpoints at 5 and 10 and (epochs) 4, 8, 12.
assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set checkpoint.keep=all
whole=$(hash_in "$out")
steady_metrics runs/tiny-1/metrics.jsonl >whole.metrics
assert_equal "$(ls runs/tiny-1/checkpoints)" "index.json
step-000000000004.safetensors
step-000000000005.safetensors
step-000000000008.safetensors
step-000000000010.safetensors
step-000000000012.safetensors" "checkpoints"
newest=checkpoints/step-000000000012.safetensors

# A copy of the finished run to work on: copy NAME
copy() {
    rm -rf "runs/$1"
    cp -a runs/tiny-1 "runs/$1"
}

# The run in $1 has the end of the undisturbed one.
assert_whole() {
    assert_equal "$(hash_in "$out")" "$whole" "the hash after resuming"
    steady_metrics "$1/metrics.jsonl" >"$1.metrics"
    assert_same_files "$1.metrics" whole.metrics "metrics after resuming"
}

# Overwrites the four bytes at the middle of a file.
flip() {
    local size
    size=$(stat -c %s "$1")
    printf '\xde\xad\xbe\xef' | dd of="$1" bs=1 seek=$((size / 2)) conv=notrunc status=none
}

test_a_finished_run() {
    copy finished
    assert_exit 0 "$TANDEM" train --resume runs/finished
    assert_contains "$out" "nothing to do"
    assert_contains "$out" "test accuracy"
    assert_whole runs/finished
    # Half a file of a process that was killed during a save, and whose process id is not in use any more.
    : >runs/finished/checkpoints/.index.json.999999999.tmp
    assert_exit 0 "$TANDEM" train --resume runs/finished
    assert_equal "$(find runs/finished/checkpoints -name '*.tmp')" "" "leftovers"
    assert_whole runs/finished
}

# Keys that only affect where a run ends need tensors that this checkpoint does not have.
test_a_finished_run_with_other_keys() {
    copy keys
    local set
    for set in train.bad_numbers=skip 'train.early_stop={metric: test_loss, patience: 3}'; do
        assert_exit 0 "$TANDEM" train --resume runs/keys --set "$set"
        assert_contains "$out" "nothing to do"
        assert_whole runs/keys
    done
    assert_exit 0 "$TANDEM" hash runs/keys
    assert_contains "$out" "$whole"
}

test_every_checkpoint_leads_to_the_same_end() {
    local step n=0
    for step in 4 5 8 10; do
        copy from
        find runs/from/checkpoints -name 'step-*' | sort | awk -F '[-.]' -v s="$step" \
            '$2 + 0 > s' | xargs rm
        n=$((n % 4 + 1))
        assert_exit 0 "$TANDEM" train --resume runs/from -n "$n"
        assert_contains "$err" "resuming from step $step of 12"
        assert_whole runs/from
    done
}

test_the_job_may_be_given_or_not() {
    copy given
    rm runs/given/$newest
    assert_exit 0 "$TANDEM" train job.yaml -r runs/given "${common[@]}"
    assert_whole runs/given
}

# 'auto': the run with the highest number that has a checkpoint; a new one if there is none, or no directory.
test_the_newest_run() {
    local auto=(job.yaml "${common[@]}" --set run.dir=newest --resume auto)
    assert_exit 0 "$TANDEM" train "${auto[@]}" -q
    assert_equal "$(hash_in "$out")" "$whole" "the hash of a new run"
    for run in 2 10; do cp -a newest/tiny-1 "newest/tiny-$run"; done
    rm newest/tiny-10/checkpoints/step-00000000001*.safetensors # it resumes from step 8
    mkdir -p newest/tiny-11/checkpoints newest/tinytiny-12/checkpoints newest/other-13
    cp newest/tiny-1/job.yaml newest/tiny-11
    assert_exit 0 "$TANDEM" train "${auto[@]}"
    assert_contains "$err" "newest/tiny-10"
    assert_contains "$err" "resuming from step 8"
    assert_whole newest/tiny-10
    assert_exit 0 "$TANDEM" train "${auto[@]}" -n 2
    local found=(newest/tiny-*/)
    assert_equal ${#found[@]} 4 "the number of runs"
    assert_exit 2 "$TANDEM" train --resume auto
    assert_contains "$err" "'--resume auto' needs a job"
}

test_another_job() {
    copy other
    rm runs/other/$newest
    cp -a runs/other before
    assert_exit 4 "$TANDEM" train --resume runs/other --set optim.lr=0.02
    assert_contains "$err" "optim.lr: 0.02 here, 0.01 there"
    assert_lacks "$err" "optim.momentum"
    assert_exit 4 "$TANDEM" train --resume runs/other --set parallel.lanes=8 --set seed=8
    assert_contains "$err" "parallel.lanes"
    assert_contains "$err" "seed"
    # A rejected resume changes nothing, except the log.
    rm -f before/log.jsonl runs/other/log.jsonl
    diff -r before runs/other || fail "a refused resume changed the run"
    # Keys that do not affect the result may differ.
    assert_exit 0 "$TANDEM" train --resume runs/other --set checkpoint.every_steps=1 \
        --set name=else --set eval.batch=3
    assert_equal "$(hash_in "$out")" "$whole" "the hash with other things that decide nothing"
}

test_other_data() {
    copy data
    rm runs/data/$newest
    cp data.csv good.csv
    sed '7s/^[0-9.]*/0.123/' good.csv >data.csv
    cmp -s good.csv data.csv && fail "the data did not change"
    assert_exit 4 "$TANDEM" train --resume runs/data
    assert_contains "$err" "other data"
    # The same bytes at another path are the same data.
    cp good.csv elsewhere.csv
    assert_exit 0 "$TANDEM" train --resume runs/data --set data.train=elsewhere.csv
    assert_whole runs/data
    mv good.csv data.csv
}

test_no_run_at_all() {
    mkdir nothing
    assert_exit 2 "$TANDEM" train --resume nothing
    assert_contains "$err" "it has no job.yaml"
    assert_exit 2 "$TANDEM" train job.yaml --resume nothing
    assert_contains "$err" "it has no job.yaml"
    assert_exit 2 "$TANDEM" train --resume runs/no-such
    assert_contains "$err" "does not exist"
    assert_exit 2 "$TANDEM" train --resume data.csv
    assert_contains "$err" "is a file, not a run directory"
    assert_exit 2 "$TANDEM" train --resume ""
    assert_exit 2 "$TANDEM" train --resume
    assert_contains "$err" "'--resume' requires a value"
    assert_equal "$(ls nothing)" "" "what a refused resume left"
    cp job.yaml nothing
    assert_exit 1 "$TANDEM" train job.yaml --resume nothing --set data.train=data.csv
    assert_contains "$err" "no checkpoint"
}

# The message names the key by which the job ends.
test_the_key_that_ends_it() {
    assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=by-steps --set train.steps=7
    assert_exit 0 "$TANDEM" train --resume by-steps/tiny-1
    assert_contains "$out" "at its last step, 7; to train further, increase train.steps"
    assert_lacks "$out" "train.epochs"
    assert_exit 0 "$TANDEM" train --resume by-steps/tiny-1 --set train.steps=3
    assert_contains "$out" "after its last step 3; to train further, increase train.steps"
    assert_exit 1 "$TANDEM" replay by-steps/tiny-1 --step 9
    assert_contains "$err" "raise train.steps with --set"
    assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=by-epochs
    assert_exit 0 "$TANDEM" train --resume by-epochs/tiny-1
    assert_contains "$out" "increase train.epochs"
}

# For a run that is training, and for one that was killed, before the first checkpoint.
test_no_checkpoint_yet() {
    local ranks pid
    for ranks in 1 2; do
        "$TANDEM" train job.yaml -q -n $ranks --set run.dir="early-$ranks" --set train.epochs=10000000 \
            --set checkpoint.every_epochs=never >/dev/null 2>&1 &
        pid=$!
        wait_for 60 test -s "early-$ranks/tiny-1/metrics.jsonl"
        assert_exit 1 "$TANDEM" hash "early-$ranks/tiny-1"
        assert_contains "$err" "it is training now"
        assert_exit 1 "$TANDEM" eval "early-$ranks/tiny-1"
        assert_contains "$err" "it is training now"
        kill -0 "$pid" || fail "the training has ended"
        if [ $ranks -eq 1 ]; then kill -9 "$pid"; else end_sessions; fi
        wait "$pid" 2>/dev/null || true
        assert_exit 1 "$TANDEM" hash "early-$ranks/tiny-1"
        assert_contains "$err" "was stopped before its first one"
        assert_exit 1 "$TANDEM" train --resume "early-$ranks/tiny-1" -n 1 # another process holds its lock
        assert_contains "$err" "was stopped before its first one"
    done
}

test_training_further() {
    copy further
    assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set train.epochs=5 --set run.dir=long
    local long
    long=$(hash_in "$out")
    assert_exit 0 "$TANDEM" train --resume runs/further --set train.epochs=5 -n 3
    assert_contains "$out" "done at step 20"
    assert_equal "$(hash_in "$out")" "$long" "the hash of a run that was made longer"
    steady_metrics runs/further/metrics.jsonl >further.metrics
    steady_metrics long/tiny-1/metrics.jsonl >long.metrics
    assert_same_files further.metrics long.metrics "metrics of a run that was made longer"
    # A run that is already beyond its new end trains no step.
    assert_exit 0 "$TANDEM" train --resume runs/further --set train.steps=3
    assert_contains "$out" "nothing to do: the run is at step 20, after its last step 3"
    assert_contains "$err" "at step 20, which is after the last step 3"
}

# damaged HOW: the newest checkpoint was damaged; the previous one is used, with a warning.
damaged() {
    assert_exit 0 "$TANDEM" train --resume runs/damaged
    assert_contains "$err" "warning: skipping a checkpoint"
    assert_contains "$err" "step-000000000012.safetensors"
    assert_contains "$err" "resuming from step 10 of 12"
    assert_whole runs/damaged
    assert_equal "$(find runs/damaged/checkpoints -name '*.damaged' | wc -l)" 1 "files set aside"
    assert_exit 0 "$TANDEM" train --resume runs/damaged
    assert_lacks "$err" warning
}

test_damage() {
    copy damaged
    flip runs/damaged/$newest
    damaged
    local size
    size=$(stat -c %s runs/tiny-1/$newest)
    for size in 0 7 8 100 $((size / 2)) $((size - 1)); do
        copy damaged
        truncate -s "$size" runs/damaged/$newest
        damaged
    done
}

# An intact file of another program, or of a future version: skipping it would lose work.
test_a_checkpoint_of_another_kind() {
    copy kind
    LC_ALL=C sed -i 's/tandem-checkpoint-2/tandem-checkpoint-9/' runs/kind/$newest
    assert_exit 1 "$TANDEM" train --resume runs/kind
    assert_contains "$err" "step-000000000012.safetensors"
    [ -e runs/kind/$newest ] || fail "it was moved"
}

test_damage_of_two() {
    copy two
    flip runs/two/$newest
    truncate -s 50 runs/two/checkpoints/step-000000000010.safetensors
    assert_exit 0 "$TANDEM" train --resume runs/two
    assert_equal "$(grep -c 'skipping' <<<"$err")" 2 "warnings"
    assert_contains "$err" "resuming from step 8 of 12"
    assert_whole runs/two
}

test_damage_of_all() {
    copy all
    local file
    for file in runs/all/checkpoints/*; do flip "$file"; done
    assert_exit 1 "$TANDEM" train --resume runs/all
    assert_contains "$err" "none of its 5 checkpoints can be read"
    assert_equal "$(find runs/all/checkpoints -name '*.safetensors' | wc -l)" 5 "checkpoints left"
}

# A damaged file of a later step must not count as one to keep, or the good one would be removed.
test_damage_is_not_kept_instead_of_good_ones() {
    copy keep
    flip runs/keep/$newest
    assert_exit 0 "$TANDEM" train --resume runs/keep --set checkpoint.keep=1 --set train.steps=11
    assert_exit 0 "$TANDEM" train --resume runs/keep --set train.steps=12
    assert_contains "$err" "resuming from step 11 of 12"
    assert_equal "$(hash_in "$out")" "$whole" "the hash after resuming twice"
}

# A checkpoint that cannot be read, but is not damaged, must not be replaced by an older one.
test_a_checkpoint_out_of_reach() {
    copy reach
    mkdir runs/reach/checkpoints/step-000000000099.safetensors
    assert_exit 1 "$TANDEM" train --resume runs/reach
    assert_contains "$err" "step-000000000099.safetensors"
    [ -d runs/reach/checkpoints/step-000000000099.safetensors ] || fail "it was renamed"
    rmdir runs/reach/checkpoints/step-000000000099.safetensors
    sed 's/tandem-checkpoint-2/tandem-checkpoint-9/' runs/reach/$newest >newer
    cp newer runs/reach/checkpoints/step-000000000099.safetensors
    assert_exit 1 "$TANDEM" train --resume runs/reach
    assert_contains "$err" "use the version of Tandem that wrote it"
}

test_foreign_names_are_left_alone() {
    copy foreign
    rm runs/foreign/$newest
    local name
    for name in step-99999.safetensors 'step- 5000.safetensors' step-+5001.safetensors note.txt; do
        echo mine >"runs/foreign/checkpoints/$name"
    done
    assert_exit 0 "$TANDEM" train --resume runs/foreign
    assert_whole runs/foreign
    for name in step-99999.safetensors 'step- 5000.safetensors' step-+5001.safetensors note.txt; do
        assert_equal "$(cat "runs/foreign/checkpoints/$name")" mine "$name"
    done
}

test_a_longer_run_is_longer_for_good() {
    copy longer
    assert_exit 0 "$TANDEM" train --resume runs/longer --set train.epochs=4
    assert_contains "$(cat runs/longer/job.yaml)" "epochs: 4"
    assert_exit 0 "$TANDEM" train --resume runs/longer
    assert_contains "$out" "last step, 16"
}

# A kill in the middle of a line of metrics, and garbage.
test_metrics_cut_short() {
    copy cut
    rm runs/cut/$newest
    local size
    size=$(stat -c %s runs/cut/metrics.jsonl)
    truncate -s $((size - 9)) runs/cut/metrics.jsonl
    assert_exit 0 "$TANDEM" train --resume runs/cut
    assert_whole runs/cut
    rm runs/cut/$newest
    printf '{"step":1' >>runs/cut/metrics.jsonl
    assert_exit 0 "$TANDEM" train --resume runs/cut
    assert_whole runs/cut
    rm runs/cut/$newest runs/cut/metrics.jsonl
    assert_exit 0 "$TANDEM" train --resume runs/cut
    assert_equal "$(hash_in "$out")" "$whole" "the hash without the old metrics"
}

test_a_run_in_use() {
    copy busy
    rm runs/busy/$newest
    exec 9>runs/busy/lock
    flock -n 9 || fail "the lock of a run that nobody uses is taken"
    assert_exit 5 "$TANDEM" train --resume runs/busy
    assert_contains "$err" "another process is training in this run"
    exec 9>&-
    assert_exit 0 "$TANDEM" train --resume runs/busy
    assert_whole runs/busy
}

run_tests "$@"
