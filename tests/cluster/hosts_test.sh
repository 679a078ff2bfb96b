#!/usr/bin/env bash
# Sessions on several hosts, by ssh and etcd. The hosts are this one under two names, each with a separate
# runtime directory, and ssh is a script that starts a shell; etcd is a real one on the loopback device.
# Without etcd (make setup-etcd installs it) this test is skipped (77).
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
command -v etcd >/dev/null || skip "etcd is not installed (make setup-etcd)"
[[ $("$TANDEM" doctor 2>/dev/null) == *etcd* ]] || skip "this build knows no etcd"
make_data 150 data.csv
make_job job.yaml
deadline=100
export TANDEM_RUNTIME=$work/runtime TANDEM_ADDRESS=127.0.0.1 ETCD_UNSUPPORTED_ARCH=arm64
long=(--set train.epochs=1000000 --set checkpoint.every_epochs=never --set run.log_every_steps=1000)

# ssh HOST COMMAND
cat >ssh <<'SH'
#!/bin/sh
[ "$1" != nowhere ] || { echo "ssh: nowhere: no such host" >&2; exit 255; }
TANDEM_RUNTIME=$TANDEM_RUNTIME-$1 exec sh -c "$2"
SH
chmod +x ssh
export TANDEM_SSH="$work/ssh"

# Two ports below those that the system assigns, and that no process uses; etcd_test.sh uses those below
# 26000.
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=$((26000 + RANDOM % 3000 * 2))
while is_taken $port || is_taken $((port + 1)); do port=$((26000 + RANDOM % 3000 * 2)); done
url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
etcd --data-dir etcd --logger zap --log-level error --listen-client-urls "$url" \
    --advertise-client-urls "$url" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
    --initial-cluster "default=$peer" >etcd.log 2>&1 &
etcd=$!
store=etcd:$url
answers() {
    kill -0 "$etcd" 2>/dev/null || fail "etcd does not start: $(tail -n 3 etcd.log)"
    "$TANDEM" ps --store "$store" >/dev/null 2>&1
}
wait_for 60 answers

tandem() { timeout "$deadline" "$TANDEM" "$@"; }
there() { "$TANDEM" ps --store "$store" --json; }
# Sessions outlive their launchers: those left by a failed check are ended here.
clean_up() {
    local pid
    for pid in $(there 2>/dev/null | grep -oE '"(agent_)?pid":[0-9]+' | sort | grep -oE '[0-9]+'); do
        kill -9 "$pid" 2>/dev/null || true
    done
}
trains() { [[ $(there) == *'"state":"training"'* ]]; }
has_ranks() { [ "$(there | json_value ranks)" = "$1" ]; }
pid_of() { there | grep -o "\"rank\":$1,[^}]*" | json_value pid; }
is_clean() { [ "$(there)" = "[]" ]; }
hosts_of_ranks() { there | grep -oE '"rank":[0-9]+,"host":"[a-z0-9]*"' | sed 's/.*:"//; s/"//' | sort | tr '\n' ' '; }

test_the_same_bits_on_two_hosts() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=one
    local want
    want=$(hash_in "$out")
    assert_exit 0 tandem train job.yaml -q --hosts alpha:2,beta --store "$store" \
        --remote-tandem "$TANDEM" --set run.dir=two
    assert_equal "$(hash_in "$out")" "$want" "the hash of two hosts"
    wait_for "$deadline" is_clean
}

# A worker of each host is killed and replaced; another host joins, and leaves; then all stop.
test_hosts_come_and_go() {
    TANDEM_SECRET=of-this-test "$TANDEM" train job.yaml --hosts alpha:1,beta:1 --max 3 --store "$store" --remote-tandem "$TANDEM" \
        "${long[@]}" --set run.dir=go >launcher.out 2>launcher.err &
    local launcher=$! victim joined
    wait_for "$deadline" trains
    assert_equal "$(hosts_of_ranks)" "alpha beta " "hosts of the ranks"
    for victim in 0 1; do
        local pid
        pid=$(pid_of $victim)
        kill -9 "$pid"
        wait_for "$deadline" is_replaced "$pid"
    done
    # The secret is not in the store: a host without it, or with another one, gets an error.
    assert_lacks "$(ETCDCTL_API=3 etcdctl --endpoints "$url" get --prefix tandem/)" of-this-test
    assert_exit 1 env TANDEM_RUNTIME="$work/runtime-gamma" "$TANDEM" join tiny-1 --host gamma --store "$store"
    assert_contains "$err" "does not have the secret of session"
    assert_exit 1 env TANDEM_RUNTIME="$work/runtime-gamma" TANDEM_SECRET=another "$TANDEM" join tiny-1 \
        --host gamma --store "$store"
    assert_contains "$err" "the secret of this host differs from the secret of session"
    echo of-this-test >secret
    assert_exit 1 env TANDEM_RUNTIME="$work/runtime-gamma" TANDEM_SECRET_FILE=secret "$TANDEM" join tiny-1 \
        --host gamma --store "$store"
    assert_contains "$err" "chmod 600 secret"
    chmod 600 secret
    TANDEM_RUNTIME=$work/runtime-gamma TANDEM_SECRET_FILE=secret "$TANDEM" join tiny-1 --host gamma \
        --store "$store" 2>join.err &
    joined=$!
    wait_for "$deadline" has_ranks 3
    assert_contains "$(hosts_of_ranks)" gamma
    kill "$joined"
    wait "$joined" || fail "join ended with $?: $(cat join.err)"
    wait_for "$deadline" has_ranks 2
    assert_exit 0 tandem stop tiny-1 --store "$store"
    local code=0
    wait "$launcher" || code=$?
    assert_equal "$code" 130 "the launcher's code, after $(cat launcher.err)"
    wait_for "$deadline" is_clean
}
# Two ranks train again, and neither of them is that process.
is_replaced() {
    local now
    now=$(there)
    [[ $now == *'"ranks":2'* && $now == *'"state":"training"'* ]] || return 1
    [[ $now != *"\"pid\":$1,"* ]] && [ "$(grep -o '"rank":' <<<"$now" | wc -l)" -eq 2 ]
}

# as_tasks WORDS...: the processes that srun would start on two nodes, two tasks on the first and one on the
# second, in the background: $tasks. Slurm itself is not needed, only its variables.
as_tasks() {
    local i node
    tasks=()
    slurm_job=$((slurm_job + 1))
    for i in 0 1 2; do
        node=$((i / 2))
        env SLURM_JOB_ID="$$.$slurm_job" SLURM_STEP_ID=0 SLURM_PROCID=$i SLURM_LOCALID=$((i % 2)) \
            SLURM_NODEID=$node SLURMD_NODENAME="node$node" SLURM_STEP_NUM_TASKS=3 SLURM_NNODES=2 \
            SLURM_STEP_TASKS_PER_NODE="2,1" TANDEM_SECRET=of-slurm TANDEM_RUNTIME="$work/runtime-node$node" "${around[@]}" \
            "$TANDEM" train job.yaml --store "$store" "$@" >task.$i.out 2>task.$i.err &
        tasks+=($!)
    done
}
slurm_job=0 around=()
# tasks_end CODE: all tasks end with that code, and leave nothing behind.
tasks_end() {
    local node
    wait_for_tasks "$1"
    wait_for "$deadline" is_clean
    for node in 0 1; do
        [ -z "$(ls -A "runtime-node$node")" ] || fail "left on node $node: $(ls "runtime-node$node")"
    done
}

# Tasks of two nodes: a worker is killed, and replaced by its agent; then the same is repeated in the same
# Slurm step; then all tasks get a signal.
test_tasks_of_two_nodes() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=nodes
    local want
    want=$(hash_in "$out")
    # shellcheck disable=SC2016 # for the inner shell
    around=(sh -c '"$0" "$@" && exec "$0" "$@"')
    TANDEM_TEST_KILL=backward:step=7:rank=2:file=$work/killed as_tasks --min 3 \
        --set run.dir=nodes
    tasks_end 0
    around=()
    [ -e killed ] || fail "nobody was killed"
    assert_equal "$(hash_in "$(cat task.*.out)")" "$want
$want" "the hashes of two nodes"
    as_tasks "${long[@]}" --set run.dir=nodes-stop
    wait_for "$deadline" has_ranks 3
    assert_equal "$(hosts_of_ranks)" "node0 node0 node1 " "hosts of the ranks"
    kill -TERM "${tasks[@]}"
    tasks_end 130
    assert_exit 0 tandem hash nodes-stop/tiny-1
}

# A launcher that was disconnected while its session ended, and was removed from the store, ends nevertheless:
# here it is stopped, and its record is removed.
test_a_launcher_that_missed_the_end() {
    "$TANDEM" train job.yaml -q --hosts alpha:1,beta:1 --store "$store" --remote-tandem "$TANDEM" \
        "${long[@]}" --set run.dir=late >late.out 2>late.err &
    local launcher=$! code=0
    wait_for "$deadline" trains
    session=$(there | json_value session)
    kill -STOP "$launcher"
    etcdctl --endpoints "$url" del "tandem/$session/launcher" >/dev/null
    assert_exit 0 tandem stop tiny-1 --store "$store"
    wait_for "$deadline" is_removed
    kill -CONT "$launcher"
    wait_for "$deadline" has_ended "$launcher"
    wait "$launcher" || code=$?
    assert_equal "$code" 130 "the launcher's code, after $(cat late.err)"
}
# The store does not respond when the last checkpoint is to be renamed: it is renamed later.
test_a_silent_store_at_the_end() {
    assert_exit 0 tandem train job.yaml -q -n 1 --set run.dir=quiet-one
    local want worker launcher code=0
    want=$(hash_in "$out")
    TANDEM_TEST_KILL=commit:step=15:signal=STOP:file=$work/at-end "$TANDEM" train job.yaml -q \
        --hosts alpha:1,beta:1 --store "$store" --remote-tandem "$TANDEM" --set run.dir=quiet \
        --set checkpoint.every_epochs=never >quiet.out 2>quiet.err &
    launcher=$!
    wait_for "$deadline" test -s at-end
    worker=$(cat at-end)
    wait_for "$deadline" is_stopped "$worker"
    kill -STOP "$etcd"
    wait_for "$deadline" is_stopped "$etcd" # its threads stop one after the other, and one alone may still respond
    kill -CONT "$worker"
    wait_for "$deadline" grep -qs 'leaves epoch .* no etcd server' quiet/tiny-1/log.jsonl
    kill -CONT "$etcd"
    wait "$launcher" || code=$?
    assert_equal "$code" 0 "the launcher's code, after $(cat quiet.err)"
    assert_exit 0 tandem hash quiet/tiny-1
    assert_contains "$out" "$want"
    wait_for "$deadline" is_clean
}
is_removed() { [ -z "$(etcdctl --endpoints "$url" get --prefix --keys-only "tandem/$session/")" ]; }
has_ended() { ! kill -0 "$1" 2>/dev/null || [[ $(ps -o stat= -p "$1") == Z* ]]; }

test_a_host_that_is_not_there() {
    local code=0
    timeout "$deadline" "$TANDEM" train job.yaml -q --hosts alpha:1,nowhere:1 --store "$store" \
        --remote-tandem "$TANDEM" --set run.dir=nowhere >nowhere.out 2>nowhere.err || code=$?
    assert_contains "$(cat nowhere.err)" "cannot reach nowhere by ssh"
    assert_equal "$code" 0 "the code of the others, after $(cat nowhere.err)"
    assert_exit 6 tandem train job.yaml -q --hosts alpha --store "$store" --set run.dir=nowhere \
        --remote-tandem "$work/no-such-program"
    assert_contains "$err" "no-such-program"
}

run_tests "$@"
