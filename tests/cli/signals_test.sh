#!/usr/bin/env bash
# Interruptions: Ctrl-C, SIGTERM and kill -9 at random times, and resuming afterwards. In every case the run
# must end like an undisturbed one: the same state, the same metrics. The times are derived from a seed that
# is printed; TANDEM_TEST_SEED repeats one.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
RANDOM=${TANDEM_TEST_SEED:-$$}
seed=$RANDOM
RANDOM=$seed
printf 'seed: %s\n' "$seed"
make_data 150 data.csv
make_job job.yaml
# 60 epochs of 8 steps with a shorter last batch; a checkpoint every 20 steps, so that a kill can hit a save.
common=(--set train.batch=17 --set run.log_every_steps=7
    --set data.test_fraction=0.1 --set eval.every_epochs=10 --set model.dropout=0.2
    --set checkpoint.every_steps=20 --set checkpoint.every_epochs=50)

begin=$(date +%s%N)
assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set train.epochs=60 --set run.dir=whole
duration_ms=$((($(date +%s%N) - begin) / 1000000 + 1))
whole=$(hash_in "$out")
steady_metrics whole/tiny-1/metrics.jsonl >whole.metrics
[ "$(wc -l <whole.metrics)" -gt 70 ] || fail "too few lines of metrics to tell anything"

# Sleeps for a random part of half the duration of the whole run.
sleep_somewhat() {
    sleep "$(awk -v ms="$duration_ms" -v r="$RANDOM" 'BEGIN { printf "%.4f", r / 65536 * ms / 1000 }')"
}

# disturb SIGNAL RUNS: trains in RUNS/tiny-1, sends the signal at a random time (SIGKILL to all processes, as
# in a power failure), resumes with another number of workers, and repeats this until the end. Counts the
# effective signals in $hits.
hits=0
disturb() {
    local signal=$1 run=$2/tiny-1 words=(job.yaml) code pid tries
    for ((tries = 0; tries < 200; tries++)); do
        : >run.err # otherwise messages of the previous attempt would remain if a signal arrives very early
        "$TANDEM" train "${words[@]}" "${common[@]}" --set train.epochs=60 --set run.dir="$2" -q \
            -n $((RANDOM % 4 + 1)) >run.out 2>run.err &
        pid=$!
        wait_for 60 has_checkpoint_or_ended "$run" "$pid"
        sleep_somewhat
        kill -s "$signal" "$pid" 2>/dev/null || true
        [ "$signal" != KILL ] || end_sessions # workers would continue without their launcher
        code=0
        { wait "$pid" || code=$?; } 2>/dev/null
        [ "$code" -eq 0 ] && break
        hits=$((hits + 1))
        case $signal in
        KILL) [ "$code" -eq 137 ] || fail "ended with $code, not killed: $(cat run.err)" ;;
        TERM) # 143 when it came before the program listened, with nothing started yet
            [ "$code" -eq 130 ] || { [ "$code" -eq 143 ] && [ ! -s run.err ]; } ||
                fail "ended with $code after SIG$signal: $(cat run.err)"
            ;;
        *) [ "$code" -eq 130 ] || fail "ended with $code after SIG$signal: $(cat run.err)" ;;
        esac
        words=(job.yaml --resume "$run")
    done
    [ "$code" -eq 0 ] || fail "no end after 200 times of SIG$signal"
    assert_equal "$(hash_in "$(cat run.out)")" "$whole" "the hash after SIG$signal (seed $seed)"
    steady_metrics "$run/metrics.jsonl" >disturbed.metrics
    assert_same_files disturbed.metrics whole.metrics "metrics after SIG$signal (seed $seed)"
    assert_equal "$(find "$run/checkpoints" -name '*.tmp' -o -name '*.damaged')" "" "leftovers"
}

has_checkpoint_or_ended() {
    [ -n "$(find "$1/checkpoints" -name 'step-*.safetensors' -print -quit 2>/dev/null)" ] ||
        ! kill -0 "$2" 2>/dev/null
}

test_random_interruptions() {
    local signal i
    for signal in INT TERM KILL; do
        hits=0
        for ((i = 0; hits < 4; i++)); do
            [ "$i" -lt 50 ] || fail "SIG$signal hit only $hits times in $i runs"
            disturb "$signal" "$signal-$i"
        done
        printf 'SIG%s hit %s times in %s runs\n' "$signal" "$hits" "$i"
    done
}

# The summary in $out reports a stop: its state is that of an undisturbed run of as many steps.
assert_stopped_state() {
    local step hash
    step=$(sed -n 's/^stopped at step \([0-9]*\):.*/\1/p' <<<"$out")
    hash=$(hash_in "$out")
    [ -n "$step" ] || fail "no step in: $out"
    [ "$step" -gt 0 ] || return 0
    assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --set train.steps="$step" \
        --set run.dir=undisturbed --set checkpoint.every_steps=never
    assert_equal "$(hash_in "$out")" "$hash" "the hash of an undisturbed run of $step steps"
}

# A signal that arrives before the first step, or soon after.
test_the_earliest_interruption() {
    assert_exit 130 early_interruption
    assert_contains "$out" "to resume"
    assert_stopped_state
    assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --resume early/tiny-1
}
early_interruption() {
    "$TANDEM" train job.yaml "${common[@]}" --set run.dir=early --set train.epochs=100000 &
    local pid=$!
    wait_for 60 test -e early/tiny-1/log.jsonl
    kill -INT "$pid"
    wait "$pid"
}

# The printed command, executed unchanged by a shell, with names that need quotes.
test_the_way_on() {
    local place="it's a \"place\" with \$HOME" way
    mkdir bin "$place"
    ln -s "$TANDEM" bin/tandem
    cp data.csv job.yaml "$place"
    mv "$place/job.yaml" "$place/my job.yaml"
    assert_exit 130 interrupted_in "$place"
    assert_contains "$err" "stopping after this step"
    way=$(sed -n 's/^to resume  *//p' <<<"$out")
    assert_contains "$way" "tandem train"
    assert_exit 130 interrupted_way "$way"
    assert_contains "$err" "resuming from step"
    assert_equal "$(sed -n 's/^to resume  *//p' <<<"$out")" "$way" "the way on from there"
    assert_stopped_state
}
interrupted_in() {
    "$TANDEM" train "$1/my job.yaml" "${common[@]}" --set run.dir="$1/runs" -n 2 \
        --set train.epochs=100000 &
    local pid=$!
    wait_for 60 has_checkpoint_or_ended "$1/runs/tiny-1" "$pid"
    kill -INT "$pid"
    wait "$pid"
}
interrupted_way() {
    PATH=$work/bin:$PATH bash -c "exec $1" &
    local pid=$!
    wait_for 60 grep -qs "resuming from step" .err
    kill -TERM "$pid"
    wait "$pid"
}

# The second Ctrl-C does not wait for the step.
test_twice_is_at_once() {
    if grep -q __tsan_init "$TANDEM"; then
        printf 'NOT TESTED: ThreadSanitizer holds signals back until the step is over\n'
        return
    fi
    make_data 2000 large.csv
    "$TANDEM" train job.yaml --set data.train=large.csv --set train.batch=2000 --set run.dir=large \
        --set "model.hidden=[1500, 1500, 1500]" --set compute.backend=ref --set train.epochs=100 \
        --set parallel.lanes=1 >large.out 2>large.err &
    local pid=$! code=0
    wait_for 120 grep -qs "100 steps" large.err
    kill -INT "$pid"
    sleep 1
    kill -0 "$pid" 2>/dev/null || fail "the step was too short for this test: $(cat large.err)"
    kill -INT "$pid"
    wait_for 30 is_gone "$pid" # long before its step would end
    wait "$pid" || code=$?
    assert_equal "$code" 130 "the exit code after the second Ctrl-C"
    assert_equal "$(cat large.out)" "" "what it printed after the second Ctrl-C"
}

# While a run is active, no other process can train in it; the active one is not affected.
test_a_run_in_use() {
    "$TANDEM" train job.yaml "${common[@]}" --set run.dir=used --set train.epochs=100000 -q \
        >used.out 2>used.err &
    local pid=$! code=0
    wait_for 60 has_checkpoint_or_ended used/tiny-1 "$pid"
    assert_exit 5 "$TANDEM" train job.yaml "${common[@]}" --resume used/tiny-1
    assert_contains "$err" "another process is training in this run"
    kill -0 "$pid" || fail "the first one is gone: $(cat used.err)"
    kill -INT "$pid"
    wait "$pid" || code=$?
    assert_equal "$code" 130
    assert_exit 0 "$TANDEM" train job.yaml "${common[@]}" --resume used/tiny-1
}

# has_saved RUN COUNT: the run has COUNT checkpoints.
has_saved() { [ "$(find "$1/checkpoints" -name 'step-*.safetensors' 2>/dev/null | wc -l)" -ge "$2" ]; }

# save_by COUNT COMMAND...: it makes the run in saves/tiny-1 write its checkpoint number COUNT.
save_by() {
    local count=$1
    shift
    has_saved saves/tiny-1 "$count" && fail "a checkpoint too many before '$*'"
    "$@"
    wait_for 60 has_saved saves/tiny-1 "$count"
}
saving_run() { # saving_run COUNT: workers
    rm -rf saves
    "$TANDEM" train job.yaml --set run.dir=saves --set train.epochs=1000000 -n "$1" \
        --set checkpoint.every_epochs=never --set checkpoint.keep=all --set eval.every_epochs=never \
        >saves.out 2>saves.err &
}
# is_past STEP: training has passed it.
is_past() { [ "$(tail -1 saves/tiny-1/metrics.jsonl | json_value step)" -gt "$1" ]; }
# The run has trained more steps since its newest checkpoint; it ends with another one.
end_saving_run() { # end_saving_run PID
    local code=0 newest step
    newest=$(find saves/tiny-1/checkpoints -name 'step-*.safetensors' | sort | tail -1)
    step=${newest##*/step-}
    wait_for 60 is_past "$((10#${step%.safetensors}))"
    kill -INT "$1"
    wait "$1" || code=$?
    assert_equal "$code" 130 "the exit code"
    assert_exit 0 "$TANDEM" checkpoint verify saves/tiny-1
    assert_contains "$out" "$newest"
    [[ $(grep -c '^good' <<<"$out") -gt $2 ]] || fail "it has not continued after $newest"
}

# SIGUSR1 to any process of a run, or 'checkpoint now': a checkpoint, and training continues.
test_save_and_go_on() {
    local pid list
    saving_run 1
    pid=$!
    wait_for 60 grep -qs "resuming\|steps" saves.err
    save_by 1 kill -USR1 "$pid"
    end_saving_run "$pid" 1

    saving_run 2
    pid=$!
    wait_for 60 test -e saves/tiny-1/metrics.jsonl
    list=$("$TANDEM" ps -l --json)
    save_by 1 kill -USR1 "$(grep -o '"rank":1,[^}]*' <<<"$list" | sed 's/.*"pid":\([0-9]*\).*/\1/')"
    save_by 2 kill -USR1 "$(grep -o '"agent_pid":[0-9]*' <<<"$list" | cut -d : -f 2)"
    save_by 3 kill -USR1 "$pid"
    assert_exit 0 "$TANDEM" checkpoint now tiny-1
    has_saved saves/tiny-1 4 || fail "'checkpoint now' has not waited"
    [[ $out =~ ^step\ [0-9]+:\ saves/tiny-1/checkpoints/step-[0-9]+\.safetensors$ ]] ||
        fail "'checkpoint now' says: $out"
    assert_exit 0 "$TANDEM" checkpoint now tiny --json
    has_saved saves/tiny-1 5 || fail "'checkpoint now --json' has not waited"
    end_saving_run "$pid" 5
    assert_exit 2 "$TANDEM" checkpoint now tiny-1
    assert_contains "$err" "no active run 'tiny-1'"
}

run_tests "$@"
