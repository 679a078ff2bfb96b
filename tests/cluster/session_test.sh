#!/usr/bin/env bash
# Sessions as users see them: tandem train with workers that join and leave; ps, stop, join, leave; kills of
# launcher, agent and workers; files and processes that remain; invalid arguments. Every command has a deadline,
# so that a hang fails the test; speed is not tested.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
deadline=100
export TANDEM_RUNTIME=$work/runtime TANDEM_ELASTIC=1
# The run continues until it is stopped, and logs few steps.
long=(--set train.epochs=1000000 --set checkpoint.every_epochs=never --set run.log_every_steps=1000)

tandem() { timeout "$deadline" "$TANDEM" "$@"; }

# start WORKERS ARGUMENTS: starts a launcher in the background, $launcher; returns when all workers train.
start() {
    local workers=$1
    shift
    "$TANDEM" train job.yaml -n "$workers" "$@" >launcher.out 2>launcher.err &
    launcher=$!
    wait_for "$deadline" trains "$workers"
}
trains() {
    [[ $("$TANDEM" ps) == *training* ]] && has_ranks "$1" && return 0
    kill -0 "$launcher" 2>/dev/null || fail "the launcher ended: $(cat launcher.err)"
    return 1
}
# end CODE: waits for the launcher, and checks that no files remain.
end() {
    local code=0
    wait "$launcher" || code=$?
    assert_equal "$code" "$1" "the launcher's code, after $(cat launcher.err)"
    wait_for "$deadline" is_clean
}
is_clean() { [ -z "$(ls -A runtime)" ]; }

# Of the only session: the process of rank N, the process of its agent, the number of ranks, the epoch.
pid_of() { "$TANDEM" ps --json | grep -o "\"rank\":$1,[^}]*" | json_value pid; }
agent_pid() { "$TANDEM" ps --json | json_value agent_pid; }
shows() { "$TANDEM" ps -l | grep -q "$1"; }
ranks() { "$TANDEM" ps --json | json_value ranks; }
epoch() { "$TANDEM" ps --json | json_value epoch; }
has_ranks() { [ "$(ranks)" = "$1" ]; }
is_past_epoch() { local now; now=$(epoch) && [ -n "$now" ] && [ "$now" -gt "$1" ]; }
# is_replaced PID COUNT: COUNT ranks train, and none of them is process PID.
is_replaced() {
    local now
    now=$("$TANDEM" ps --json)
    [[ $now == *"\"ranks\":$2,"* && $now != *"\"pid\":$1,"* ]] &&
        [ "$(grep -o '"rank":' <<<"$now" | wc -l)" -eq "$2" ]
}

test_the_result_is_that_of_one_process() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=one
    local want
    want=$(hash_in "$out")
    assert_exit 0 tandem train job.yaml -n 3 --min 3 --set run.dir=three
    assert_equal "$(hash_in "$out")" "$want" "the hash of three"
    assert_contains "$err" "4 lanes on 3 workers"
    assert_equal "$(find three/tiny-1/logs -name '*.log' | wc -l)" 3 "logs of workers"
    grep -q '"rank":0,"step":15,"host":"[^"]*","room":"train","message":"finished' three/tiny-1/log.jsonl ||
        fail "no line with rank, step and host: $(tail -3 three/tiny-1/log.jsonl)"
    grep -q '"room":"agent"' three/tiny-1/log.jsonl || fail "no line of the agent's"
    assert_equal "$(grep -cvE '^\{.*\}$' three/tiny-1/log.jsonl || true)" 0 "torn lines"
    assert_exit 0 tandem train job.yaml -n 2 --json --set run.dir=two
    assert_equal "$(hash_in "$out")" "$want" "the hash of two, in JSON"
    assert_equal "$err" "" "words beside the JSON"
    wait_for "$deadline" is_clean
}

# TANDEM_ELASTIC=0: the same bits and the same launcher, but a worker that dies ends the run.
test_a_fixed_set_of_workers() {
    local TANDEM_ELASTIC=0 want victim
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=single
    want=$(hash_in "$out")
    assert_exit 0 tandem train job.yaml -n 3 --set run.dir=fixed
    assert_equal "$(hash_in "$out")" "$want" "the hash of three"
    assert_contains "$err" "4 lanes on 3 workers"
    wait_for "$deadline" is_clean

    start 2 "${long[@]}" --set checkpoint.every_epochs=10 --set run.dir=fixed
    wait_for "$deadline" has_a_checkpoint fixed/tiny-2
    victim=$(pid_of 1)
    kill -9 "$victim"
    end 6
    assert_equal "$(grep -c 'worker [01] of host .* died (killed by signal 9 (Killed)), and' launcher.err)" 1 \
        "lines that name it in: $(cat launcher.err)"
    assert_contains "$(cat launcher.err)" "to resume      tandem train --resume fixed/tiny-2 -n 2"
    assert_lacks "$(cat fixed/tiny-2/log.jsonl)" "is restarted"
    assert_exit 0 tandem hash fixed/tiny-2
}
has_a_checkpoint() { [ -n "$(find "$1/checkpoints" -name 'step-*.safetensors' -print -quit 2>/dev/null)" ]; }

# Each worker in turn is killed: the others continue, and a replacement joins. Then one leaves and others join.
test_workers_come_and_go() {
    start 3 --max 4 "${long[@]}" --set run.dir=go
    local victim pid joined
    for victim in 1 0; do
        pid=$(pid_of $victim)
        kill -9 "$pid"
        wait_for "$deadline" is_replaced "$pid" 3
    done
    assert_exit 2 tandem leave tiny-1 7
    assert_contains "$err" "has ranks 0 to 2"
    assert_exit 0 tandem leave go/tiny-1 2
    assert_contains "$out" "leaves after its step"
    wait_for "$deadline" has_ranks 2
    "$TANDEM" join tiny-1 -n 2 >join.out 2>join.err &
    joined=$!
    wait_for "$deadline" has_ranks 4
    assert_exit 0 tandem ps -l
    assert_contains "$out" "member"
    assert_equal "$(grep -c 'agent [0-9]' <<<"$out")" 2 "agents in $out"
    kill "$joined" # a guest's workers leave; the others continue
    wait "$joined" || fail "join ended with $?: $(cat join.err)"
    wait_for "$deadline" has_ranks 2
    assert_exit 0 tandem stop tiny-1
    end 130
    assert_contains "$(cat launcher.out)" "to resume      tandem train --resume go/tiny-1"
    assert_contains "$(cat go/tiny-1/log.jsonl)" "killed by signal 9"
    assert_exit 0 tandem hash go/tiny-1
}

test_the_launcher_dies_and_training_goes_on() {
    start 2 "${long[@]}" --set run.dir=alone
    kill -9 "$launcher"
    wait "$launcher" || true
    local pid
    pid=$(pid_of 1)
    kill -9 "$pid" # there is still an agent
    wait_for "$deadline" is_replaced "$pid" 2
    assert_exit 0 tandem stop tiny-1
    wait_for "$deadline" is_clean
    assert_exit 0 tandem hash alone/tiny-1
}

test_the_agent_dies_and_training_goes_on() {
    start 3 "${long[@]}" --set run.dir=orphans
    kill -9 "$(agent_pid)"
    wait_for "$deadline" shows 'agent of [^ ]* is dead, its workers continue'
    local before
    before=$(epoch)
    kill -9 "$(pid_of 2)" # nobody comes in its place
    wait_for "$deadline" has_ranks 2
    is_past_epoch "$before" || fail "the epoch is still $before"
    kill -TERM "$launcher" # through the store
    end 130
    assert_contains "$(cat launcher.err)" "the agent of this host was killed by signal 9"
    assert_exit 0 tandem hash orphans/tiny-1
}

test_signals() {
    start 2 "${long[@]}" --set run.dir=signals
    kill -INT "$launcher"
    end 130
    assert_contains "$(cat launcher.err)" "stopping after this step"
    start 2 --resume signals/tiny-1 "${long[@]}"
    assert_exit 0 tandem stop tiny-1 --now
    end 130
    assert_contains "$(cat launcher.err)" "steps since the newest checkpoint are lost"
    assert_contains "$(cat launcher.err)" "to resume      tandem train --resume signals/tiny-1"
}

# Only the stopped worker is replaced: rank 0 does not wait for it.
test_a_stopped_worker_is_replaced() {
    start 3 "${long[@]}" --set run.dir=stopped
    local first stopped
    first=$(pid_of 0)
    stopped=$(pid_of 1)
    kill -STOP "$stopped"
    wait_for "$deadline" is_replaced "$stopped" 3
    assert_equal "$(pid_of 0)" "$first" "rank 0, after $(cat launcher.err stopped/tiny-1/log.jsonl)"
    kill -CONT "$stopped" 2>/dev/null || true
    assert_exit 0 tandem stop tiny
    end 130
}

# A stopped worker is also replaced if too few workers are left to continue without it.
test_a_stopped_worker_that_is_needed_is_replaced() {
    start 2 --min 2 "${long[@]}" --set run.dir=needed
    local stopped
    stopped=$(pid_of 1)
    kill -STOP "$stopped"
    wait_for "$deadline" is_replaced "$stopped" 2
    kill -CONT "$stopped" 2>/dev/null || true
    assert_exit 0 tandem stop tiny
    end 130
    assert_contains "$(cat needed/tiny-1/log*.jsonl)" "starting a replacement"
}

# With too few workers to begin, a warning is printed, ps shows it, and a request to stop takes effect.
test_too_few() {
    timeout "$deadline" "$TANDEM" train job.yaml -q -n 1 --min 2 "${long[@]}" \
        --set run.dir=few >few.out 2>few.err &
    local few=$!
    wait_for "$deadline" grep -q "1 of at least 2 workers have joined" few.err
    assert_contains "$(tandem ps)" "1 of 2 required ranks"
    assert_exit 0 tandem stop tiny
    local code=0
    wait "$few" || code=$?
    assert_equal "$code" 130 "exit code"
    assert_contains "$(cat few.out)" "stopped at step"
    assert_exit 0 tandem hash few/tiny-1
}

# An error that affects every worker is printed once, and no worker is restarted.
test_errors_are_said_once() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=wrong --set train.epochs=1
    local code
    code=$(timeout "$deadline" "$TANDEM" train job.yaml -n 3 --resume wrong/tiny-1 --set seed=8 \
        >wrong.out 2>wrong.err; echo $?)
    assert_equal "$code" 4 "the code, after $(cat wrong.err)"
    assert_equal "$(grep -c 'seed' wrong.err)" 1 "lines about the seed in $(cat wrong.err)"
    wait_for "$deadline" is_clean
}

test_wrong_words() {
    local command
    for command in stop join; do
        assert_exit 2 tandem $command
        assert_contains "$err" "usage: tandem $command"
        assert_exit 2 tandem $command nothing-1
        assert_contains "$err" "no active run 'nothing-1'"
    done
    assert_exit 2 tandem leave nothing-1
    assert_exit 2 tandem leave nothing-1 0
    assert_contains "$err" "no active run 'nothing-1'"
    assert_exit 2 tandem join nothing-1 -n 0
    assert_exit 2 tandem ps --store ftp://here
    assert_exit 2 tandem agent --session x
    assert_contains "$err" "'--store' is missing"
    assert_exit 2 tandem ps too many
    assert_exit 0 tandem ps
    assert_equal "$out" "no active run"
    assert_exit 0 tandem ps --json
    assert_equal "$out" "[]"
    assert_exit 2 tandem train job.yaml --hosts a,b
    assert_contains "$err" "requires a store that all hosts can reach"
    for command in a:0 a:x a,a '' ',' 'a;b' -x 'u@' a:99999; do
        assert_exit 2 tandem train job.yaml --hosts "$command" --store etcd:http://127.0.0.1:1
    done
    assert_exit 2 tandem train job.yaml --store http://here:1
    assert_contains "$err" "'--store' expects etcd:http://HOST:2379"
    assert_exit 2 tandem train job.yaml -n 2 --min 3 --max 2
    assert_contains "$err" "conflict"
    assert_exit 2 tandem train job.yaml -n 3 --max 2
    assert_exit 2 tandem train job.yaml -n 2 --max 9
    assert_contains "$err" "lanes, but the job has 4"
    assert_exit 2 tandem train job.yaml -n 2 --min 0
    TANDEM_RUNTIME=$work assert_exit 1 tandem ps # others can look into it
    assert_contains "$err" "chmod 700"
    TANDEM_MEMBER=x assert_exit 1 tandem train job.yaml
    assert_contains "$err" "tandem train"
}

# The files of a session whose processes were all killed are removed by the next command that lists sessions.
test_stale_sessions_are_removed() {
    start 2 "${long[@]}" --set run.dir=stale
    local -a pids
    pids=("$(agent_pid)" "$launcher" "$(pid_of 0)" "$(pid_of 1)") # the agent first: it would start others
    kill -9 "${pids[@]}"
    wait "$launcher" || true
    [ -n "$(ls -A runtime)" ] || fail "there is nothing to remove"
    wait_for "$deadline" shows_nothing
    is_clean || fail "left: $(ls runtime)"
}
# The rates of the ranks count from the last change of the membership: the parts of a rank's time (lanes, updates,
# waiting) add up to most of it, however long other ranks trained before.
test_rates_are_those_since_the_last_change() {
    start 2 --json "${long[@]}" --set run.dir=rates # one line at the end
    local pid
    pid=$(pid_of 1)
    sleep 5
    kill -9 "$pid"
    wait_for "$deadline" is_past_epoch 2 # one is left at first, then there are two again
    wait_for "$deadline" has_ranks 2
    sleep 1
    assert_exit 0 tandem stop tiny-1
    end 130
    grep -o '"lane_share":[^}]*' launcher.out | sed 's/"[a-z_]*"://g; s/,/ /g' |
        awk '{ if ($1 + $2 + $3 < 0.4) bad = 1; n++ } END { exit bad || n != 2 }' ||
        fail "shares of the time that are too small: $(cat launcher.out)"
}

# The last process of a session removes the store while 'tandem ps' reads it: ps does not create a new one. A store
# without a lock, which earlier versions of ps created, is removed.
test_looking_makes_no_files() {
    mkdir -p -m 700 runtime
    exec 9>runtime/ends-1.lock
    flock -s 9
    printf 'local:%s' "$work/runtime/ends-1.store" >runtime/ends-1.url
    assert_exit 0 tandem ps
    assert_equal "$out" "no active run"
    assert_equal "$(cd runtime && echo *)" "ends-1.lock ends-1.url" "the files"
    exec 9>&-
    (umask 077 && head -c 8388608 /dev/zero >runtime/leaked-2.store)
    assert_exit 0 tandem ps
    assert_equal "$(ls -A runtime)" "" "files of sessions that have ended"
}

shows_nothing() { [ "$("$TANDEM" ps)" = "no active run" ]; }

# as_tasks COUNT ARGUMENTS...: starts the tasks that srun would start on one node, in the background ($tasks), and
# keeps their output. Slurm itself is not needed, only its variables.
as_tasks() {
    local count=$1 i
    shift
    tasks=()
    slurm_job=$((slurm_job + 1))
    for ((i = 0; i < count; i++)); do
        env SLURM_JOB_ID="$$.$slurm_job" SLURM_STEP_ID=0 SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NODEID=0 \
            SLURM_STEP_NUM_TASKS="$count" SLURM_STEP_TASKS_PER_NODE="$count" SLURM_NNODES=1 \
            "$TANDEM" train job.yaml "$@" >task.$i.out 2>task.$i.err &
        tasks+=($!)
    done
    launcher=${tasks[0]}
}
slurm_job=0
# tasks_end CODE: waits until all tasks have exited with that code, and checks that no files remain.
tasks_end() {
    wait_for_tasks "$1"
    wait_for "$deadline" is_clean
}

# The tasks are not the workers: when a worker dies, no task exits.
test_tasks_of_srun() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=srun
    local want
    want=$(hash_in "$out")
    TANDEM_TEST_KILL=backward:step=7:rank=1:file=$work/killed-srun as_tasks 3 --min 3 \
        --set run.dir=srun
    tasks_end 0
    [ -e killed-srun ] || fail "nobody was killed"
    assert_equal "$(hash_in "$(cat task.0.out)")" "$want" "the hash under srun"
    assert_contains "$(cat task.0.err)" "4 lanes on 3 workers"
    assert_equal "$(cat task.1.out task.1.err task.2.out task.2.err)" "" "words of sleeping tasks"
    assert_contains "$(cat srun/tiny-2/log.jsonl)" "killed by signal 9"
}

# scancel and srun send their signals to all tasks.
test_signals_to_tasks() {
    as_tasks 2 "${long[@]}" --set run.dir=cancelled --max 3
    wait_for "$deadline" trains 2
    kill -TERM "${tasks[@]}"
    tasks_end 130
    assert_contains "$(cat task.0.out)" "stopped at step"
    assert_exit 0 tandem hash cancelled/tiny-1
}

# The workers of a host continue without its first task; the other tasks forward a signal to them.
test_the_first_task_is_killed() {
    as_tasks 2 "${long[@]}" --set run.dir=headless
    wait_for "$deadline" trains 2
    kill -9 "${tasks[0]}"
    wait "${tasks[0]}" || true
    wait_for "$deadline" grep -q "the first task of host" task.1.err
    wait_for "$deadline" has_ranks 2
    tasks=("${tasks[1]}")
    kill -TERM "${tasks[0]}"
    tasks_end 130
    assert_exit 0 tandem hash headless/tiny-1
}

# Tasks that cannot be a session are a fixed world, and the first one prints the reason if the user can change it.
test_tasks_that_are_ranks() {
    local variables=(SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0
        SLURM_NODEID=0 SLURM_STEP_NODELIST="localhost,b" TANDEM_SECRET=x TANDEM_DEADLINE=1)
    assert_exit 2 env "${variables[@]}" SLURM_STEP_TASKS_PER_NODE="1(x2)" timeout "$deadline" "$TANDEM" \
        train job.yaml --min 2
    assert_contains "$err" "requires 'store: etcd'"
    assert_contains "$err" "'--min' applies only if this command starts the workers"
    assert_exit 2 env "${variables[@]}" SLURM_STEP_TASKS_PER_NODE="2" TANDEM_ELASTIC=0 \
        TANDEM_TRANSPORT=mpi timeout "$deadline" "$TANDEM" train job.yaml --max 2
    assert_equal "$(grep -c . <<<"$err")" 1 "lines of $err"
}

# The same bits under a real mpirun, although a worker is killed.
test_mpirun() {
    if ! mpirun --version 2>/dev/null | grep 'Open MPI' >/dev/null; then
        echo "NOT TESTED: a session under mpirun, because mpirun is not installed (tools/setup --test)"
        return
    fi
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=mpi
    local want
    want=$(hash_in "$out")
    TANDEM_TEST_KILL=update:step=5:rank=2:file=$work/killed-mpi assert_exit 0 timeout "$deadline" mpirun \
        --allow-run-as-root --oversubscribe -n 3 "$TANDEM" train job.yaml --min 3 \
        --set run.dir=mpi
    [ -e killed-mpi ] || fail "nobody was killed"
    assert_equal "$(hash_in "$out")" "$want" "the hash under mpirun"
    wait_for "$deadline" is_clean
}

chmod 755 "$work"
run_tests "$@"
