#!/usr/bin/env bash
# Jobs whose replicas keep state (local steps, gossip, top-k, sign, random-k, DGC, PowerSGD, asynchronous updates) on one, two and three hosts in network
# namespaces, with agents that are started as by ssh: each ends with the state hash of one rank, also if a worker is
# killed on the way, and if the whole session is killed and resumed with another number of ranks.
#   replicas_test.sh TANDEM [JOB...]
# Jobs: local gossip topk sign randomk dgc power async live. With async and live, two of three hosts die as well; the order of a live
# run is then repeated on one rank. Needs root, `ip`, the kernel's namespaces and etcd (make setup-etcd); without
# them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
shift
work=$(mktemp -d /var/tmp/tandem-replicas.XXXXXX)
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/net/hosts.sh
source "$here/hosts.sh"
skip() {
    echo "SKIPPED: $*; replicas on several hosts were not tested"
    exit 77
}
cleanup() {
    hosts_remove
    rm -rf "$work"
}
trap cleanup EXIT
limit_s=90 # for one training
hosts_make alpha beta gamma
etcd_start alpha
NET_HOSTS=$(for host in "${hosts_names[@]}"; do printf '%s=%s ' "${host_address[$host]}" "$id-$host"; done)
export NET_HOSTS TANDEM_SSH=$here/as-ssh TANDEM_RUNTIME=$work/runtime NET_RUNTIME=$work/runtimes
for host in "${hosts_names[@]}"; do
    mkdir -p "$work/runtimes/$id-$host"
    chmod 700 "$work/runtimes/$id-$host"
done

# ---- jobs: 360 steps, with a checkpoint every 20 ------------------------------------------------------------------

declare -A more
more[local]='optim: {kind: adamw, lr: 0.003}
sync: {kind: local, replicas: 8, period: 4, outer: nesterov}
compress: {quantise: bf16, min_elements: 100}'
more[gossip]='optim: {kind: adamw, lr: 0.003}
sync: {kind: gossip, replicas: 8, period: 4, graph: random, degree: 2}'
more[topk]='optim: {kind: adamw, lr: 0.003}
sync: {replicas: 8}
compress: {sparsify: topk, ratio: 0.02, min_elements: 100}'
more[sign]='optim: {kind: adamw, lr: 0.003}
sync: {replicas: 8}
compress: {quantise: sign, min_elements: 100}'
more[randomk]='optim: {kind: sgd, lr: 0.02, momentum: 0.9}
sync: {replicas: 8}
compress: {sparsify: randomk, ratio: 0.1, quantise: f16, min_elements: 100}'
more[dgc]='optim: {kind: sgd, lr: 0.05, momentum: 0}
sync: {replicas: 8}
compress: {sparsify: topk_sampled, ratio: 0.01, momentum: 0.9, clip_norm: 1, warmup: 100, min_elements: 100}'
more[power]='optim: {kind: sgd, lr: 0.02, momentum: 0.9}
sync: {replicas: 8}
compress: {rank: 2, start_step: 20, min_elements: 100}'
more[async]='optim: {kind: adamw, lr: 0.003}
sync: {kind: server, mode: async, replicas: 8, compensation: 0.04, jitter: 0.5}'
more[live]="${more[async]}"
more[live]="${more[live]/jitter: 0.5/order: live}"
# Phases of a step in which a worker is killed, and in which one stops; all ranks take part in a round of updates.
declare -A stops=([async]=reduce [live]=reduce)
declare -A phase=([async]=reduce [local]=replica [gossip]=replica [topk]=replica [sign]=reduce [randomk]=update [dgc]=torn [power]=factor)

job_make "$work/plain.yaml"
for job in "${!more[@]}"; do
    keys='/^optim:/d'
    # Updates in order need the whole state on each host; those of a round end where a line is due.
    [[ $job != @(async|live) ]] || keys+='; s/zero: 1/zero: 0/; s/log_every_steps: 1/log_every_steps: 20/'
    [ "$job" != gossip ] || keys+='; s/zero: 1/zero: 0/'
    [ "$job" != live ] || keys+='; s/ledger: true/ledger: false/'
    sed -e "$keys" -e "s/^name: .*/name: $job/" -e 's/steps: 350/steps: 360/' "$work/plain.yaml" >"$work/$job.yaml"
    printf '%s\n' "${more[$job]}" >>"$work/$job.yaml"
done

# ---- runs ---------------------------------------------------------------------------------------------------------

# start JOB CASE HOSTS WORDS...: the launcher is on alpha, and $1 is the job or has --resume before a run.
launcher=
start() {
    local name=$1 hosts=$2
    shift 2
    ip netns exec "$id-alpha" timeout -k 5 "$limit_s" "$tandem" train "$@" -q --json --store "$store" \
        --hosts "$hosts" --remote-tandem "$tandem" >"$work/$name.out" 2>"$work/$name.err" &
    launcher=$!
}
# on_hosts COUNTS...: for --hosts, with as many workers on alpha, beta and gamma.
on_hosts() {
    local number=0 list='' count
    for count in "$@"; do
        number=$((number + 1))
        list+=,10.79.0.$number:$count
    done
    echo "${list#,}"
}
show() {
    tail -n 20 "$work/$1.err"
    tail -n 40 "$work/$1"/*/log*.jsonl 2>/dev/null || true
}
# ends_well JOB CASE RANKS RUNS: the exit code, the hash, the ranks and the ledger of the run in that directory. A worker
# that replaces a killed one may come too late to be among the RANKS: then they are `some`.
ends_well() {
    local job=$1 name=$1-$2 ranks=$3 directory=$4 code=0 got
    wait "$launcher" || code=$?
    got=$(hash_in "$work/$name.out")
    if [ $code != 0 ] || [ "$got" != "$want" ]; then
        complain "$name: ended with $code and the hash ${got:-(none)}, not $want"
        show "$name"
        return 0
    fi
    got=$(grep -o '"lane_share"' "$work/$name.out" | wc -l)
    [ "$ranks" = some ] || [ "$got" = "$ranks" ] || complain "$name: $got ranks, not $ranks"
    "$tandem" ledger "$directory/$job-1" >"$work/ledger" 2>&1 || complain "$name: $(cat "$work/ledger")"
    echo "ok   $name: $(head -n 1 "$work/ledger")"
}
reached() { [ -e "$1" ]; }
reached_or_ended() { reached "$1" || ! kill -0 "$launcher" 2>/dev/null; }

one_host() {
    start "$1-one" "$(on_hosts 3)" "$work/$1.yaml" --set "run.dir=$work/$1-one"
    ends_well "$1" one 3 "$work/$1-one"
}
# point JOB STEP: the number by which a point of TANDEM_TEST_KILL knows this step; with local steps that of the round, and
# with asynchronous updates that of the first one of the round after it.
point() {
    case $1 in
    local | gossip) echo $(($2 / 4)) ;;
    async | live) echo $(($2 + 1)) ;;
    *) echo "$2" ;;
    esac
}
# A worker of beta kills itself while it executes a step.
two_hosts() {
    export NET_STRUCK=${host_address[beta]} NET_WISH
    NET_WISH=${phase[$1]}:step=$(point "$1" 100):file=$work/$1-killed
    start "$1-two" "$(on_hosts 2 2)" "$work/$1.yaml" --set "run.dir=$work/$1-two"
    ends_well "$1" two some "$work/$1-two"
    unset NET_STRUCK NET_WISH
    reached "$work/$1-killed" || complain "$1-two: no worker was killed"
    grep -q '"message":"epoch [0-9]' "$work/$1-two/$1-1/log.jsonl" || complain "$1-two: the kill had no effect"
}
# A worker of gamma stops in step 200; then all processes of all hosts but etcd are killed.
three_hosts() {
    local host pid step
    export NET_STRUCK=${host_address[gamma]} NET_WISH
    NET_WISH=${stops[$1]:-forward}:step=$(point "$1" 200):signal=STOP:file=$work/$1-stopped
    start "$1-three" "$(on_hosts 2 1 2)" "$work/$1.yaml" --set "run.dir=$work/$1-three"
    wait_until "$limit_s" reached_or_ended "$work/$1-stopped" || true
    reached "$work/$1-stopped" || complain "$1-three: it never came to step 200"
    unset NET_STRUCK NET_WISH
    for host in gamma beta alpha; do
        while [ -n "$(tandem_pids "$host")" ]; do
            for pid in $(tandem_pids "$host"); do kill -9 "$pid" 2>/dev/null || true; done
            sleep 0.02
        done
    done
    wait "$launcher" 2>/dev/null || true
    step=$("$tandem" hash "$work/$1-three/$1-1" --json | sed -n 's/.*"step": *\([0-9]*\).*/\1/p')
    if [ "${step:-0}" -lt 20 ] || [ "${step:-0}" -gt 200 ]; then
        complain "$1-three: the newest checkpoint is that of step ${step:-(none)}"
        show "$1-three"
        return 0
    fi
    start "$1-resumed" "$(on_hosts 1 2)" --resume "$work/$1-three/$1-1"
    ends_well "$1" resumed 3 "$work/$1-three"
}

# A worker of gamma stops in step 200; then all processes of beta and gamma are killed. Every update is on all hosts, so
# alpha continues without a step back.
two_die() {
    local host pid
    export NET_STRUCK=${host_address[gamma]} NET_WISH
    NET_WISH=${stops[$1]}:step=$(point "$1" 200):signal=STOP:file=$work/$1-died
    start "$1-rest" "$(on_hosts 2 1 2)" "$work/$1.yaml" --set "run.dir=$work/$1-rest" --set checkpoint.every_steps=1000
    wait_until "$limit_s" reached_or_ended "$work/$1-died" || true
    reached "$work/$1-died" || complain "$1-rest: it never came to step 200"
    unset NET_STRUCK NET_WISH
    for host in gamma beta; do
        while [ -n "$(tandem_pids "$host")" ]; do
            for pid in $(tandem_pids "$host"); do kill -9 "$pid" 2>/dev/null || true; done
            sleep 0.02
        done
    done
    if [ "$1" = live ]; then is_repeated "$work/$1-rest/$1-1"; else ends_well "$1" rest some "$work/$1-rest"; fi
    if grep -q 'training goes back' "$work/$1-rest/$1-1/log.jsonl"; then complain "$1-rest: updates were lost"; fi
}

# is_repeated RUN: the live run ends well, and its order gives the same bits on one rank.
is_repeated() {
    local code=0 live
    wait "$launcher" || code=$?
    live=$(hash_in "$work/live-rest.out")
    if [ $code != 0 ] || [ -z "$live" ]; then
        complain "live-rest: it ended with $code"
        show live-rest
        return 0
    fi
    "$tandem" train "$work/live.yaml" -n 1 -q --json --set "run.dir=$work/repeated" --set sync.order=recorded \
        --set "sync.order_from=$1" >"$work/repeated.out" || complain "its order cannot be repeated"
    [ "$(hash_in "$work/repeated.out")" = "$live" ] || complain "its order gives other bits on one rank"
    echo "ok   live-rest: $(wc -l <"$1/order.jsonl") updates, repeated on one rank"
}

[ $# -gt 0 ] || set -- local gossip topk sign randomk dgc power async live
for job in "$@"; do
    if [ "$job" = live ]; then
        two_die live
        continue
    fi
    "$tandem" train "$work/$job.yaml" -n 1 -q --json --set "run.dir=$work/$job-alone" >"$work/$job-alone.out"
    want=$(hash_in "$work/$job-alone.out")
    [ -n "$want" ] || { echo "$job: no hash of one rank"; exit 1; }
    one_host "$job"
    two_hosts "$job"
    three_hosts "$job"
    if [ "$job" = async ]; then two_die "$job"; fi
done
[ $failures -eq 0 ]
