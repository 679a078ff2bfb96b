#!/usr/bin/env bash
# Ranks as processes: the same bits for any number of them, real kills and signals, errors that are printed
# once, and cases in which some rank has no work. In a session the others continue when one dies; in a fixed
# world, as 'tandem run' starts it, all end. Nothing may hang: every command here has a deadline.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
deadline=150
mkdir tmp
export TMPDIR=$work/tmp # where the launcher's traces go

train() { timeout "$deadline" "$TANDEM" train "$@"; }

# count PART TEXT: lines with this part.
count() { grep -c -- "$1" <<<"$2" || true; }

# The processes of the ranks of the only session, from rank 0 on; or those that a 'tandem run' has started.
ranks_of() {
    if [ -n "$fixed" ]; then pgrep -P "$1" || true; else
        "$TANDEM" ps --json | grep -o '"rank":[0-9][^}]*' | sort -t: -k2n | json_value pid
    fi
}
has_ranks() { [ "$(ranks_of "$1" | wc -l)" -eq "$2" ]; }
has_checkpoint() { [ -n "$(find "$1/checkpoints" -name 'step-*.safetensors' -print -quit 2>/dev/null)" ]; }

# With every number of ranks, then resumed with other numbers. With the digits of the first example, if they
# were downloaded.
test_same_bits_for_any_number() {
    local job=$source_root/examples/01_digits/job.yaml name=digits n first="" hash run=0
    local -a counts=(1 2 3 4)
    if [ ! -e "$source_root/examples/data/digits.csv.gz" ]; then
        printf 'NOT TESTED with digits, which are not there: make data\n'
        job=job.yaml name=tiny
    fi
    [ "$slow" = 0 ] || counts=(1 3)
    for n in "${counts[@]}"; do
        assert_exit 0 train "$job" -q -n "$n" --set train.epochs=2 --set run.dir=same \
            --set data.test_fraction=0.2
        hash=$(hash_in "$out")
        run=$((run + 1))
        [ -n "$first" ] || first=$hash
        assert_equal "$hash" "$first" "the hash with $n ranks"
        assert_equal "$(count 'state hash' "$out")" 1 "summaries"
        steady_metrics "same/$name-$run/metrics.jsonl" >"metrics-$n"
        assert_same_files "metrics-$n" metrics-1
        diff -r "same/$name-$run/checkpoints" "same/$name-1/checkpoints" ||
            fail "checkpoints of $n ranks have other bytes"
    done
    # One epoch with 3, the next with 2.
    assert_exit 0 train "$job" -q -n 3 --set train.epochs=1 --set run.dir=parts \
        --set data.test_fraction=0.2
    assert_exit 0 train "$job" -q -n 2 --set train.epochs=2 --resume parts/$name-1 \
        --set data.test_fraction=0.2
    assert_equal "$(hash_in "$out")" "$first" "the hash in two parts"
}

# The activity of ranks is in the metrics, in the summary and in its JSON.
test_ranks_are_told() {
    assert_exit 0 train job.yaml -n 2 --min 2 --set run.dir=told
    assert_contains "$err" "4 lanes on 2 workers"
    assert_equal "$(count '^ *rank  *host' "$out")" 1 "tables"
    assert_equal "$(grep -cE '^ *[01] +[^ ]+ +2 +[0-9]+ +[0-9]+ %$' <<<"$out")" 2 "rows"
    assert_contains "$(tail -2 told/tiny-1/metrics.jsonl)" '"ranks":[{"lanes":2,'
    assert_exit 0 train job.yaml -n 2 --min 2 --json --set run.dir=told
    assert_equal "$(grep -o '"wait_share"' <<<"$out" | wc -l)" 2 "ranks in $out"
    assert_equal "$err" "" "words beside the JSON"
    assert_exit 0 train job.yaml -n 1 --set run.dir=told
    assert_lacks "$out" "waiting"
    assert_lacks "$(cat told/tiny-3/metrics.jsonl)" '"ranks"'
}

# A rank that is slow (by a test control) is named, and has fewer lanes if feedback places them; the bits do
# not change.
test_a_slow_rank_is_named() {
    local steps=60 words
    assert_exit 0 train job.yaml -q -n 1 --set run.dir=slow --set parallel.lanes=16 --set train.steps=$steps
    local hash
    hash=$(hash_in "$out")
    assert_exit 0 env TANDEM_TEST_SLOW=1:20 timeout "$deadline" "$TANDEM" train job.yaml -n 2 \
        --set run.dir=slow --set parallel.lanes=16 --set train.steps=$steps --set parallel.balance=feedback
    assert_equal "$(hash_in "$out")" "$hash" "the hash with a slow rank"
    words=$(cat slow/tiny-2/log.jsonl)
    assert_contains "$words" "rank 1 on $(hostname) takes"
    assert_contains "$words" "times as long per lane as the others"
    [[ $words =~ "lanes have moved; lanes per rank: "([0-9]+)", "([0-9]+) ]] || fail "no move in: $words"
    [ "${BASH_REMATCH[1]}" -gt "${BASH_REMATCH[2]}" ] || fail "the wrong way: ${BASH_REMATCH[0]}"
}

# long DIR N [ARGUMENT...]: a run that does not end by itself, as job $pid; waits for its first
# checkpoint. With $fixed set, it is a fixed world.
fixed=""
long() {
    local dir=$1 n=$2
    shift 2
    local -a world=("$TANDEM" train job.yaml -n "$n")
    [ -z "$fixed" ] || world=("$TANDEM" run -n "$n" --run "$work/$dir.traces" -- "$TANDEM" train job.yaml)
    timeout -s KILL "$deadline" "${world[@]}" --set run.dir="$dir" \
        --set train.epochs=1000000 --set checkpoint.every_steps=50 --set checkpoint.every_epochs=100000 \
        "$@" >"$dir.out" 2>"$dir.err" &
    wait_for "$deadline" has_checkpoint "$dir/tiny-1"
    pid=$(pgrep -P $! -x tandem) # timeout's child, the launcher
    wait_for "$deadline" has_ranks "$pid" "$n"
    mapfile -t ranks < <(ranks_of "$pid")
}
end_of() { # CODE DIR
    local code=0
    wait %% 2>/dev/null || code=$?
    assert_equal "$code" "$1" "the exit code; it said $(cat "$2.err"); that"
    out=$(cat "$2.out") err=$(cat "$2.err")
}

# A session that has ended leaves neither processes nor files.
nobody_is_left() {
    assert_equal "$(test_processes)" "" "processes that are left"
    assert_equal "$(ls "$TANDEM_RUNTIME")" "" "files that sessions left"
}

# The state of the newest checkpoint of a run equals that of an undisturbed run after the same number of
# steps.
assert_good_state() {
    local step
    step=$(find "$1/checkpoints" -name 'step-*.safetensors' | sort | tail -1 |
        sed 's/.*step-0*\([0-9]*\)\.safetensors/\1/')
    assert_exit 0 "$TANDEM" hash "$1"
    local hash=${out:0:64}
    # Only the last state is wanted: a checkpoint of each epoch would take longer than the training.
    assert_exit 0 train job.yaml -q -n 1 --set run.dir=undisturbed --set train.steps="$step" \
        --set checkpoint.every_epochs=never
    assert_equal "$(hash_in "$out")" "$hash" "the state after $step steps without a disturbance"
}

# Any rank dies in the middle of a step: the others continue, and the result is that of an undisturbed run.
test_training_goes_on_without_a_killed_rank() {
    local victim hash
    assert_exit 0 train job.yaml -q -n 1 --set run.dir=alive
    hash=$(hash_in "$out")
    for victim in 0 2; do
        assert_exit 0 env TANDEM_TEST_KILL="forward:step=7:rank=$victim:file=$work/hit-$victim" \
            timeout "$deadline" "$TANDEM" train job.yaml -n 3 --set run.dir=alive
        [ -e "hit-$victim" ] || fail "rank $victim was not killed"
        assert_equal "$(hash_in "$out")" "$hash" "the hash without rank $victim"
        # (Two ranks, or three if the replacement is ready before the others have agreed.)
        assert_equal "$(count "warning: epoch [0-9]*: training continues with [23] ranks, previously 3; left: rank $victim (\
member [^,]*, host [^,]*, process [0-9]*): killed by signal 9" "$err")" 1 "who died, in: $err"
        assert_equal "$(count 'lanes on' "$err")" 1 "beginnings in: $err"
        assert_equal "$(count 'state hash' "$out")" 1 "summaries in: $out"
        [ "$slow" = 0 ] || break
    done
}

# The process that is rank 0 at the end prints the one line of JSON.
test_a_kill_and_nothing_but_json() {
    assert_exit 0 env TANDEM_TEST_KILL="forward:step=7:rank=0:file=$work/hit-json" \
        timeout "$deadline" "$TANDEM" train job.yaml -n 2 --json --set run.dir=json
    [ -e hit-json ] || fail "rank 0 was not killed"
    assert_equal "$(wc -l <<<"$out")" 1 "lines of $out"
    assert_equal "$(hash_in "$out" | wc -c)" 65 "characters of the hash in $out"
    assert_contains "$(cat json/tiny-1/log.jsonl)" "killed by signal 9"
}

# In a fixed world, no rank can continue alone.
test_a_killed_rank_of_a_fixed_world_is_named() {
    local victim victims=(0 2) begin fixed=1
    for victim in "${victims[@]}"; do
        long "killed-$victim" 3
        begin=$SECONDS
        kill -9 "${ranks[victim]}"
        end_of 137 "killed-$victim"
        # The deadline of the ranks themselves would be half a minute.
        [ $((SECONDS - begin)) -lt 25 ] || fail "it took $((SECONDS - begin)) s to end"
        all_gone "${ranks[@]}" || fail "ranks are left"
        assert_equal "$(count "rank $victim was killed by signal 9" "$err")" 1 "naming in: $err"
        assert_equal "$(count 'to resume .*--resume' "$err")" 1 "the way on in: $err"
        assert_equal "$(count "tandem trace" "$err")" 1 "traces in: $err"
        assert_good_state "killed-$victim/tiny-1"
        assert_exit 0 train job.yaml -q -n 2 --resume "killed-$victim/tiny-1" --set train.epochs=1
        assert_contains "$out" "nothing to do"
        [ "$slow" = 0 ] || break
    done
}

# Once: a checkpoint, the command to resume, and no process left; whether only the launcher gets the signal
# or, as from a batch system, every process including the agents.
test_stopping() {
    local who signal
    local -a agents
    for who in launcher all; do
        signal=INT
        [ "$who" = launcher ] || signal=TERM
        long "stopped-$who" 3
        if [ "$who" = all ]; then
            mapfile -t agents < <(pgrep -P "$pid")
            kill -s "$signal" "$pid" "${agents[@]}" "${ranks[@]}"
        else
            kill -s "$signal" "$pid"
        fi
        end_of 130 "stopped-$who"
        nobody_is_left
        assert_equal "$(count 'stopping after this step' "$err")" 1 "announcements in: $err"
        assert_equal "$(count 'to resume' "$out")" 1 "ways on in: $out"
        assert_equal "$(count 'stopped at step' "$out")" 1 "summaries in: $out"
        assert_lacks "$err" "rank 0 ended"
        assert_lacks "$err" "tandem trace"
        assert_good_state "stopped-$who/tiny-1"
    done
}

test_twice_is_at_once() {
    make_data 2000 large.csv
    timeout -s KILL "$deadline" "$TANDEM" train job.yaml -n 2 --set data.train=large.csv \
        --set train.batch=2000 --set run.dir=twice --set "model.hidden=[1500, 1500, 1500]" \
        --set compute.backend=ref --set train.epochs=100 >twice.out 2>twice.err &
    wait_for "$deadline" grep -qs "100 steps" twice.err
    pid=$(pgrep -P $! -x tandem)
    kill -INT "$pid"
    sleep 0.5 # so that they count as two
    kill -0 "$pid" || fail "the step was too short for this test: $(cat twice.err)"
    kill -INT "$pid"
    end_of 130 twice
    nobody_is_left
    assert_equal "$out" "" "what it printed after the second Ctrl-C"
}

# Messages that all ranks would print are printed once, and nothing is left behind.
test_errors_are_said_once() {
    local alone
    printf '\x1f\x8bgarbage' >broken.csv
    assert_exit 1 train job.yaml -n 3 --set data.train=broken.csv --set run.dir=never
    assert_equal "$(wc -l <<<"$err")" 1 "lines of $err"
    assert_contains "$err" "broken.csv"
    [ ! -e never ] || fail "a job that cannot start left a directory"
    assert_exit 2 train job.yaml -n 3 --set optim.lr=fast
    assert_equal "$(count 'nothing was started' "$err")" 1 "refusals in: $err"
    assert_exit 2 train job.yaml -n 5
    assert_contains "$err" "5 workers need at least as many lanes, but the job has 4"
    assert_contains "$err" "parallel.lanes"
    assert_exit 2 train job.yaml -n 2 --set comm.transport=mpi --set run.dir=never
    assert_contains "$err" "mpirun or srun"
    assert_exit 2 train job.yaml -n 2 --set data.last_batch=drop --set train.batch=151
    assert_equal "$(count 'are fewer than one batch of 151' "$err")" 1 "refusals in: $err"
    assert_exit 1 train job.yaml -n 2 --set parallel.offload=nowhere --set run.dir=never
    assert_equal "$(wc -l <<<"$err")" 1 "lines of $err"
    [[ $err == *"parallel.offload: cannot create "*": its directory does not exist; create it"* ]] || fail "$err"
    assert_exit 3 train job.yaml -n 1 --set optim.lr=1e30 --set run.dir=diverged
    alone=$err
    assert_exit 3 train job.yaml -n 3 --set optim.lr=1e30 --set run.dir=diverged
    assert_equal "$(grep '^tandem:' <<<"$err")" "$(grep '^tandem:' <<<"$alone")" "what 3 ranks say"
    [ ! -e never ] || fail "jobs that cannot start left a directory"
    nobody_is_left
}

# For ranks that were started with different settings, the error names the setting before they wait for each
# other.
test_ranks_that_differ() {
    local -a world=(timeout "$deadline" "$TANDEM" run -n 2 --run "$work/traces" -- bash -c)
    # shellcheck disable=SC2016 # each rank has its own number
    assert_exit 4 "${world[@]}" '"$0" train job.yaml --set run.dir=differ --set train.epochs=$((TANDEM_RANK + 1))' "$TANDEM"
    assert_contains "$err" "ranks disagree on 'train.epochs', which is 1 on rank 0; start all"
    # shellcheck disable=SC2016
    assert_exit 4 "${world[@]}" '"$0" train job.yaml --set run.dir=differ --set parallel.zero=$TANDEM_RANK' "$TANDEM"
    assert_equal "$(count "disagree on 'parallel.zero'" "$err")" 1 "complaints in: $err"
    [ ! -e differ ] || fail "ranks that differ left a directory"
    # Settings in which hosts may differ.
    # shellcheck disable=SC2016
    assert_exit 0 "${world[@]}" '"$0" train job.yaml --set run.dir=differ-$TANDEM_RANK -q --set memory.limit=$((TANDEM_RANK + 8))GiB' "$TANDEM"
}

# Ranks that wait for each other at the start have no step to finish.
test_stopped_while_ranks_meet() {
    local launcher begin
    "$TANDEM" run -n 1 --size 2 --rendezvous "$work/meet" -- "$TANDEM" train job.yaml \
        >meet.out 2>meet.err &
    launcher=$!
    wait_for "$deadline" test -e meet
    begin=$SECONDS
    kill -TERM "$launcher"
    wait "$launcher" && fail "nobody came, and it went well"
    [ $((SECONDS - begin)) -lt 30 ] || fail "it took $((SECONDS - begin)) s to stop"
    assert_equal "$(count 'after this step' "$(cat meet.err)")" 0 "promises in: $(cat meet.err)"
}

# Under another kind of launcher, each process is the rank that the launcher assigned.
test_other_launchers() {
    assert_exit 0 train job.yaml -q -n 1 --set run.dir=other
    local hash
    hash=$(hash_in "$out")
    assert_exit 0 timeout "$deadline" "$TANDEM" run -n 3 -- "$TANDEM" train job.yaml --set run.dir=other
    assert_equal "$(hash_in "$out")" "$hash" "the hash under tandem run"
    assert_equal "$(count 'lanes on 3 workers' "$err")" 1 "beginnings in: $err"
    assert_exit 2 timeout "$deadline" "$TANDEM" run -n 2 -- "$TANDEM" train job.yaml -n 3 --set run.dir=other
    assert_contains "$err" "rank 0 of 2"
    assert_exit 2 timeout "$deadline" "$TANDEM" run -n 5 -- "$TANDEM" train job.yaml --set run.dir=other
    assert_equal "$(count '5 workers need at least as many lanes, but the job has 4' "$err")" 1 "refusals in: $err"
    # Slurm also numbers batch scripts, which are not ranks.
    assert_exit 0 env SLURM_PROCID=0 SLURM_NTASKS=4 timeout "$deadline" "$TANDEM" train job.yaml -q -n 2 \
        --set run.dir=other
    assert_equal "$(hash_in "$out")" "$hash" "the hash in a batch script"
}

# Two ranks on two hosts, each in its own directory.
on_hosts() {
    # shellcheck disable=SC2016 # for the rank's own shell
    timeout "$deadline" "$TANDEM" run -n 2 --run failed -- sh -c \
        'cd "host-$TANDEM_RANK" && TANDEM_HOST=host-$TANDEM_RANK exec "$0" train job.yaml -q "$@"' \
        "$TANDEM" "$@"
}

# Hosts with different files. An error of the second host is printed once, by the first one, with the second
# host's message.
test_hosts_that_differ() {
    if [ ! -e "$(dirname "$TANDEM")/libtandem-ucx.so" ]; then
        echo "NOT TESTED: ucx is not there"
        return
    fi
    local i
    for i in 0 1; do
        mkdir "host-$i"
        cp job.yaml data.csv "host-$i"
        make_data $((40 + i)) "host-$i/test.csv"
    done
    mkdir host-0/states
    assert_exit 4 on_hosts --set data.test=test.csv
    assert_equal "$(count 'rank 1 read different data from .*test.csv than rank 0' "$err")" 1 "in: $err"
    cp host-0/test.csv host-1/
    assert_exit 1 on_hosts --set data.test=test.csv --set parallel.offload=states --set parallel.zero=1
    assert_equal "$(count 'rank 1: .*host-1/states/.*: its directory does not exist' "$err")" 1 "in: $err"
    assert_exit 2 on_hosts --set parallel.balance=weights --set 'parallel.weights=[1, 2, 3]'
    assert_equal "$(count 'tandem: parallel.weights has 3 numbers, but there are 2 ranks' "$err")" 1 \
        "in: $err"
    mkdir host-1/states
    assert_exit 0 on_hosts --set data.test=test.csv --set parallel.offload=states --set parallel.zero=1
}

# More ranks than CPUs; batches with fewer rows than lanes, so that some ranks have none; a shorter last
# batch; data smaller than the batch. Each has the same result as with one rank.
test_little_to_do() {
    local n hash i sets
    make_data 5 five.csv
    make_data 13 more.csv
    local -a cases=("data.train=more.csv train.batch=9 parallel.lanes=8"
        "data.train=five.csv train.batch=64 parallel.lanes=8"
        "train.batch=149 parallel.lanes=8 data.test_fraction=0.05 eval.batch=2")
    for i in "${!cases[@]}"; do
        sets=()
        for n in ${cases[i]}; do sets+=(--set "$n"); done
        assert_exit 0 train job.yaml -q -n 1 "${sets[@]}" --set run.dir="little-$i"
        hash=$(hash_in "$out")
        steady_metrics "little-$i/tiny-1/metrics.jsonl" >little.1
        assert_exit 0 train job.yaml -q -n 8 "${sets[@]}" --set run.dir="little-$i"
        assert_equal "$(hash_in "$out")" "$hash" "the hash with 8 ranks for ${cases[i]}"
        steady_metrics "little-$i/tiny-2/metrics.jsonl" >little.8
        assert_same_files little.8 little.1
        [ "$slow" = 0 ] || break
    done
}

# A store without a server is reported by the first call, after 2 s, and not by each call again. Port 1 of
# this host refuses connections.
test_store_without_a_server() {
    local command
    for command in 'train job.yaml -n 2' ps 'stop nothing' 'checkpoint now nothing'; do
        # shellcheck disable=SC2086 # several words
        if "$TANDEM" $command --store etcd:http://127.0.0.1:1 >"$work/.out" 2>"$work/.err"; then
            fail "'$command' found a store where there is none"
        fi
        assert_contains "$(cat "$work/.err")" 'no etcd server answered within 2 s'
    done
}

test_nothing_is_left() {
    nobody_is_left
    assert_equal "$(ls "$TMPDIR")" "" "directories of traces"
}

run_tests "$@"
