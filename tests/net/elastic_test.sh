#!/usr/bin/env bash
# Three hosts in network namespaces, each with an etcd member, and agents that are started as by ssh: hosts
# die, links are cut, etcd's leader dies. Training continues and ends with the bits of an undisturbed run;
# workers on the smaller side of a partition stop by themselves.
#   elastic_test.sh TANDEM [CASE...]
# Cases: plain scope mirror back full cut etcd lineage. Needs root, `ip`, the kernel's namespaces and etcd (make setup-etcd);
# without them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
shift
skip() {
    echo "SKIPPED: $*; several hosts that die were not tested"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "this needs root, to make network namespaces"
command -v ip >/dev/null || skip "ip is not installed (tools/setup --test installs iproute2)"
command -v etcd >/dev/null || skip "etcd is not installed (make setup-etcd)"
id=tdme$$
switch=$id-s
work=$(mktemp -d)
limit_s=${ELASTIC_LIMIT:-90} # for one training

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/net/namespaces.sh
source "$here/namespaces.sh"
cleanup() {
    local host
    for host in 1 2 3; do kill_host "$host"; done
    for host in s 1 2 3; do ip netns del "$id-$host" 2>/dev/null || true; done
    umount -l "$work/full" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$switch" 2>"$work/why" || skip "no network namespaces here ($(cat "$work/why"))"
ip -n "$switch" link add bridge type bridge 2>"$work/why" || skip "this kernel has no bridge ($(cat "$work/why"))"
ip -n "$switch" link set bridge up
for host in 1 2 3; do
    ip netns add "$id-$host"
    ip -n "$id-$host" link set lo up
    # The index of the device differs between hosts.
    ip -n "$switch" link add "port$host" type veth peer name net index $((20 + host)) netns "$id-$host"
    ip -n "$id-$host" addr add "10.78.0.$host/24" dev net
    ip -n "$id-$host" link set net up
    ip -n "$switch" link set "port$host" master bridge up
done
cut_off() { ip -n "$switch" link set "port$1" down; }
mend() {
    ip -n "$switch" link set "port$1" up
    local host
    for host in 1 2 3; do ip -n "$id-$host" neigh flush dev net; done
}

NET_HOSTS=$(for host in 1 2 3; do printf '10.78.0.%s=%s-%s ' $host "$id" $host; done)
export NET_HOSTS TANDEM_SSH=$here/as-ssh TANDEM_RUNTIME=$work/runtime

lineage_steps=${ELASTIC_LINEAGE_STEPS:-6000}
failures=0
complain() {
    printf 'not right: %s\n' "$*"
    failures=$((failures + 1))
}

# ---- etcd --------------------------------------------------------------------------------------------------

declare -A etcd_pid
members=h1=http://10.78.0.1:2380,h2=http://10.78.0.2:2380,h3=http://10.78.0.3:2380
endpoints=http://10.78.0.1:2379,http://10.78.0.2:2379,http://10.78.0.3:2379
# start_etcd HOST [new | existing]
start_etcd() {
    local at=http://10.78.0.$1
    ip netns exec "$id-$1" etcd --name "h$1" --data-dir "$work/etcd-$1" --listen-peer-urls "$at:2380" \
        --initial-advertise-peer-urls "$at:2380" --listen-client-urls "$at:2379,http://127.0.0.1:2379" \
        --advertise-client-urls "$at:2379" --initial-cluster "$members" --initial-cluster-state "${2:-new}" \
        --initial-cluster-token "$id" --log-level error >"$work/etcd-$1.log" 2>&1 &
    etcd_pid[$1]=$!
}
# etcd_answers HOST: its member is healthy.
# shellcheck disable=SC2016 # the inner shell expands it
etcd_answers() {
    ip netns exec "$id-1" timeout 5 bash -c '
        exec 3<>"/dev/tcp/$0/2379" && printf "GET /health HTTP/1.0\r\n\r\n" >&3 && grep -q "\"true\"" <&3' "10.78.0.$1" 2>/dev/null
}
# leads HOST: its member is the leader.
# shellcheck disable=SC2016 # the inner shell expands it
leads() {
    local said
    said=$(ip netns exec "$id-$1" timeout 5 bash -c '
        exec 3<>"/dev/tcp/127.0.0.1/2379" &&
            printf "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}" >&3 && cat <&3' 2>/dev/null) || true
    [ "$(sed -n 's/.*"leader":"\([0-9]*\)".*/\1/p' <<<"$said")" = \
        "$(sed -n 's/.*"member_id":"\([0-9]*\)".*/\1/p' <<<"$said")" ] && [[ $said == *leader* ]]
}
wait_for_etcd() {
    local left=600
    until etcd_answers "$1"; do
        left=$((left - 1))
        [ $left -gt 0 ] || { tail -n 5 "$work/etcd-$1.log"; echo "etcd does not start"; exit 1; }
        sleep 0.1
    done
}
start_all() {
    local host
    for host in 1 2 3; do
        if ! pids "$host" | grep -x -- "${etcd_pid[$host]:-none}" >/dev/null; then
            start_etcd "$host" "${1:-existing}"
        fi
    done
    for host in 1 2 3; do wait_for_etcd "$host"; done
}

# ---- training runs
# -------------------------------------------------------------------------------------------

awk 'BEGIN { srand(4); for (i = 0; i < 300; i++) { line = ""
    for (k = 0; k < 5; k++) line = line sprintf("%.3f,", (k == i % 3 ? 1.5 : 0) + rand()); print line i % 3 } }' >"$work/data.csv"
cat >"$work/job.yaml" <<YAML
name: net
seed: 7
data: {train: $work/data.csv}
model: {hidden: [64, 64]}
train: {batch: 24, steps: ${ELASTIC_STEPS:-350}}
optim: {kind: adamw, lr: 0.003}
parallel: {lanes: 8, zero: 1}
checkpoint: {every_epochs: never, every_steps: 40, ledger: true}
run: {log_every_steps: 1}
store: etcd
etcd: {endpoints: "$endpoints"}
YAML
hash_of() { sed -n 's/.*"hash":"\([0-9a-f]\{64\}\)".*/\1/p' "$1"; }
"$tandem" train "$work/job.yaml" -n 1 -q --json --set "run.dir=$work/alone" >"$work/alone.out"
want=$(hash_of "$work/alone.out")
[ -n "$want" ] || { echo "no hash of an undisturbed run"; exit 1; }

# start CASE HOST SETS...: two workers on each host; the launcher is on host 1. If a host is named, a worker
# there stops before its step 45, so that training cannot end before the fault.
launcher=
start() {
    local case=$1 sets=() set
    export NET_STRUCK=10.78.0.$2 NET_WISH=forward:step=45:signal=STOP:file=$work/$1.there
    shift 2
    for set in "$@"; do sets+=(--set "$set"); done
    ip netns exec "$id-1" timeout -k 5 "$limit_s" "$tandem" train "$work/job.yaml" -q --json \
        --hosts "${hosts:-10.78.0.1:2,10.78.0.2:2,10.78.0.3:2}" --remote-tandem "$tandem" \
        --set "run.dir=$work/$case" "${sets[@]}" >"$work/$case.out" 2>"$work/$case.err" &
    launcher=$!
}
# reach CASE: waits until that worker has stopped.
reach() {
    local left=$((limit_s * 20))
    until [ -e "$work/$1.there" ]; do
        left=$((left - 1))
        if [ $left -le 0 ] || ! kill -0 "$launcher" 2>/dev/null; then return 1; fi
        sleep 0.05
    done
    # It writes the file just before it stops; a SIGCONT before that would be lost.
    until grep -qs ') T ' "/proc/$(cat "$work/$1.there")/stat"; do
        left=$((left - 1))
        if [ $left -le 0 ] || ! kill -0 "$(cat "$work/$1.there")" 2>/dev/null; then return 0; fi
        sleep 0.05
    done
}
go_on() {
    local pid
    for pid in $(pids "$1"); do kill -CONT "$pid" 2>/dev/null || true; done
}
show() {
    tail -n 20 "$work/$1.err"
    tail -n 40 "$work/$1"/net-1/log*.jsonl 2>/dev/null || true
}
# ends_well CASE LEAST: checks the launcher's exit code, the hash, the ledger, and that at least LEAST epochs
# followed the first one: otherwise the fault had no effect.
ends_well() {
    local code=0 got epochs
    wait "$launcher" || code=$?
    got=$(hash_of "$work/$1.out")
    if [ $code != 0 ] || [ "$got" != "$want" ]; then
        complain "$1: ended with $code and the hash ${got:-(none)}, not $want"
        show "$1"
        return 0
    fi
    "$tandem" ledger "$work/$1/net-1" >"$work/ledger" 2>&1 || { complain "$1: $(cat "$work/ledger")"; return 0; }
    epochs=$(grep -c '"message":"epoch [0-9]' "$work/$1/net-1/log.jsonl" || true)
    [ "$epochs" -ge "$2" ] || { complain "$1: $epochs epochs after the first, not $2"; return 0; }
    echo "ok   $1: $epochs epochs after the first; $(head -n 1 "$work/ledger")"
}
no_worker_on() { [ -z "$(worker_on "$1")" ]; }
# empties HOST SECONDS: all workers there exit by themselves.
empties() { wait_until "$2" no_worker_on "$1"; }

# ---- cases ---------------------------------------------------------------------------------------------------

# one_log CASE: the messages of the agents of all hosts are in the one log of the run, to the last line.
one_log() {
    local host said
    for host in 1 2 3; do
        for said in started 'ended after step'; do
            said=$(grep -c "\"host\":\"10.78.0.$host\",\"room\":\"agent\",\"message\":\"worker .* $said" \
                "$work/$1/net-1/log.jsonl" || true)
            [ "$said" -ge 2 ] || complain "$1: $said lines of two workers of host $host in the log"
        done
    done
}
case_plain() {
    start plain none
    ends_well plain 0
    one_log plain
}
has_link_local() { [ -n "$(link_local "$1")" ]; }
# Workers reach each other at link-local addresses.
case_scope() {
    local host
    for host in 1 2 3; do
        wait_until 30 has_link_local $host || { echo "NOT TESTED: link-local addresses: host $host has none"; return 0; }
    done
    export NET_ENVIRONMENT=$work/environment
    mkdir "$NET_ENVIRONMENT"
    for host in 1 2 3; do echo "TANDEM_ADDRESS=$(link_local $host)%net" >"$NET_ENVIRONMENT/10.78.0.$host"; done
    start scope none
    ends_well scope 0
    unset NET_ENVIRONMENT
}
# strike CASE COMMAND...: executes the command in the middle of the training.
strike() {
    local case=$1
    shift
    reach "$case" || { complain "$case: it never came to step 45"; show "$case"; return 1; }
    "$@"
}
case_mirror() {
    start mirror 3 elastic.mirror=true
    strike mirror kill_host 3 && ends_well mirror 1
    if grep -q 'goes back to\|going back to' "$work/mirror/net-1/log.jsonl" 2>/dev/null; then
        complain "mirror: it went back to a checkpoint"
    fi
    start_all
}
case_back() {
    start back 2 parallel.zero=3
    strike back kill_host 2 && ends_well back 1
    start_all
}
# The disk is full when the death of a host makes the others return to a checkpoint: they wait for the disk.
case_full() {
    mkdir "$work/full"
    mount -t tmpfs -o size=16M tandem-test "$work/full" 2>"$work/why" ||
        { echo "NOT TESTED: a full disk: $(cat "$work/why")"; return 0; }
    start full 2 parallel.zero=3
    if strike full fill_and_kill full 2; then
        wait_until 60 says_waiting full || complain "full: nobody says that training waits for the disk"
        rm -f "$work/full/filler"
        ends_well full 1
    fi
    rm -f "$work/full/filler"
    start_all
    umount -l "$work/full"
}
fill_and_kill() {
    cat /dev/zero >"$work/$1/filler" 2>/dev/null || true
    kill_host "$2"
}
says_waiting() { grep -qs "training waits for up to" "$work/$1.err"; }
case_cut() {
    start cut 3
    if strike cut cut_off 3; then
        go_on 3
        empties 3 60 || complain "cut: the workers on the smaller side are still there"
        ends_well cut 1
    fi
    mend 3
    kill_host 3
    start_all
}
kill_leader() {
    local host until=$((SECONDS + 30))
    while [ "$SECONDS" -lt $until ]; do # etcd may just be electing a leader on a busy host
        for host in 1 2 3; do
            leads "$host" || continue
            kill -9 "${etcd_pid[$host]}"
            wait "${etcd_pid[$host]}" 2>/dev/null || true
            return 0
        done
        sleep 0.1
    done
    complain "etcd: no member says that it leads"
}
case_etcd() {
    start etcd 2
    strike etcd kill_leader && go_on 2 && ends_well etcd 0
    start_all
}

# Hosts 1 and 2 with a worker each. If both are killed at about the same time, the one that returns first may
# have the older state: it waits for the other one, and no step is lost.
other_worker() { # other_worker HOST PID: waits for another one there
    local left=600 pid
    while [ $left -gt 0 ]; do
        pid=$(worker_on "$1")
        if [ -n "$pid" ] && [ "$pid" != "$2" ]; then return 0; fi
        left=$((left - 1))
        sleep 0.05
    done
    return 1
}
kill_worker() { # kill_worker HOST: and waits until another one has been started
    local pid
    pid=$(worker_on "$1")
    [ -n "$pid" ] && kill -9 "$pid" && other_worker "$1" "$pid"
}
case_lineage() {
    local big=(parallel.zero=0 checkpoint.every_steps=never "model.hidden=[384, 384]" train.batch=96
        "train.steps=$lineage_steps") sets=() set was=$want
    for set in "${big[@]}"; do sets+=(--set "$set"); done
    "$tandem" train "$work/job.yaml" -n 1 -q --json --set "run.dir=$work/long" "${sets[@]}" >"$work/long.out"
    want=$(hash_of "$work/long.out")
    local hosts=10.78.0.1:1,10.78.0.2:1
    start lineage none "${big[@]}"
    other_worker 1 none && other_worker 2 none && sleep 1
    kill_worker 2 && sleep 0.5 && kill_worker 2 && sleep 0.5
    kill_worker 1 && sleep 0.5 && kill_worker 1 && sleep 0.5 && kill_worker 1 && sleep 0.3
    kill_worker 2 || complain "lineage: a worker did not come back"
    grep -q 'has the newest state in memory' "$work/lineage/net-1/log.jsonl" ||
        sleep 2 # the message may still be written
    ends_well lineage 5
    if grep -q 'training goes back' "$work/lineage/net-1/log.jsonl"; then complain "lineage: it went back"; fi
    want=$was
}

start_all new
for name in "${@:-plain scope mirror back full cut etcd lineage}"; do
    # shellcheck disable=SC2086 # a list
    for case in $name; do "case_$case"; done
done
for host in 1 2 3; do empties "$host" 30 || complain "workers are left on host $host"; done
[ $failures -eq 0 ]
