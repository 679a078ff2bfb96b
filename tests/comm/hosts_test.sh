#!/usr/bin/env bash
# Three hosts of two ranks each, in network namespaces, whose links are cut, mended, made narrow, slow and
# lossy, and at whose ports strangers knock.
#   hosts_test.sh TANDEM PROGRAM WIRE [CASE...]
# Needs root, `ip` and the kernel's namespaces; without them it says so and is skipped (77).
set -euo pipefail
tandem=$1 program=$2 wire=$3
shift 3
skip() {
    echo "SKIPPED: $*; several hosts were not tested"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "this needs root, to make network namespaces"
for tool in ip ss; do
    command -v "$tool" >/dev/null || skip "there is no $tool (tools/setup --test installs iproute2)"
done
id=tdm$$
work=$(mktemp -d)
wire_pid=
switch=$id-s

# Everything of ours has our id in its name; the ranks die with their launchers, which are our children.
cleanup() {
    local pid name
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for name in "$switch" "$id-1" "$id-2" "$id-3"; do ip netns del "$name" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$switch" 2>"$work/why" || skip "no network namespaces here ($(cat "$work/why"))"
ip -n "$switch" link add bridge type bridge 2>"$work/why" ||
    skip "this kernel has no bridge ($(cat "$work/why"))"
ip -n "$switch" link set bridge up

# plug HOST: its address, once its device `net` is there.
plug() {
    ip -n "$id-$1" addr add "10.77.0.$1/24" dev net
    ip -n "$id-$1" link set net up
    ip -n "$switch" link set "port$1" master bridge up
}
for host in 1 2 3; do
    ip netns add "$id-$host"
    ip -n "$id-$host" link set lo up
    ip -n "$switch" link add "port$host" type veth peer name net netns "$id-$host"
    plug "$host"
done
failures=0
complain() {
    printf 'not right: %s\n' "$*"
    failures=$((failures + 1))
}
port=20000
export TANDEM_SECRET=hosts-test

# start CASE ARGUMENTS...: two ranks on each host; their words go to $work/CASE.HOST.
launchers=()
start() {
    local case=$1 host
    shift
    port=$((port + 1))
    launchers=()
    for host in 1 2 3; do
        ip netns exec "$id-$host" timeout -k 5 90 "$tandem" run -n 2 --first $((host * 2 - 2)) --size 6 \
            --rendezvous "10.77.0.1:$port" --label --run "$work/run-$case-$host" -- \
            "$program" "$@" >"$work/$case.$host" 2>&1 &
        launchers+=($!)
    done
}
# wait_for CASE PATTERN COUNT SECONDS: so many lines of it, from all hosts together.
wait_for() {
    local left=$(($4 * 10))
    until [ "$(cat "$work/$1".? 2>/dev/null | grep -c -E "$2")" -ge "$3" ]; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.1
    done
}
finish() { # CASE: waits for the launchers
    local pid
    for pid in "${launchers[@]}"; do wait "$pid" || true; done
    launchers=()
}
show() { tail -n 30 "$work/$1".?; }
# all_done CASE: six ranks that got only right results, and say so.
all_done() {
    finish "$1"
    local count
    count=$(cat "$work/$1".? | grep -c -E '^\[[0-5]\] done [1-9]') || true
    [ "$count" = 6 ] || { complain "$1: $count of 6 ranks came to the end"; show "$1"; }
}
cut() { ip -n "$switch" link set "port$1" down; }
mend() { ip -n "$switch" link set "port$1" up; }

# ---- cases -----------------------------------------------------------------------------------------------

case_plain() {
    start plain 2 20
    all_done plain
    [ "$(cat "$work"/plain.? | grep -c -E 'joined shm\+(ucx|mpi) 3$')" = 6 ] ||
        { complain "plain: not six ranks on three hosts"; show plain; }
}
# Without a secret nobody may listen where other machines can knock.
case_secret() {
    (
        unset TANDEM_SECRET
        TANDEM_RANK=0 TANDEM_SIZE=2 TANDEM_RENDEZVOUS=10.77.0.1:19999 ip netns exec "$id-1" \
            "$program" 1 5 >"$work/secret.1" 2>&1
    ) && complain "secret: it joined without one"
    grep -q 'TANDEM_SECRET' "$work/secret.1" || { complain "secret: not asked for"; show secret; }
}
# Bytes at random to every port that the ranks listen at, from another host.
case_strangers() {
    start strangers 6 20
    wait_for strangers 'round' 6 30 || complain "strangers: not all began"
    local host listening count=0
    for host in 1 2 3; do
        for listening in $(ip netns exec "$id-$host" ss -Hltn | awk '{ sub(/.*:/, "", $4); print $4 }' | sort -u); do
            for _ in 1 2 3; do
                ip netns exec "$id-$((host % 3 + 1))" timeout 2 bash -c \
                    "head -c 3000 /dev/urandom >/dev/tcp/10.77.0.$host/$listening" 2>/dev/null || true
                ip netns exec "$id-$((host % 3 + 1))" timeout 2 bash -c \
                    "printf 'GET / HTTP/1.1\r\n\r\n' >/dev/tcp/10.77.0.$host/$listening" 2>/dev/null || true
                count=$((count + 2))
            done
        done
    done
    [ $count -ge 6 ] || complain "strangers: found no port to knock at"
    echo "strangers: knocked $count times"
    all_done strangers
}
# A link that is away for a second and a half: everybody waits, and goes on.
case_mended() {
    start mended 6 20
    wait_for mended 'round' 6 30 || complain "mended: not all began"
    cut 3
    sleep 1.5
    mend 3
    all_done mended
}
# A link that stays away: every rank ends with an error of the peer group within the deadline of 4 s (and
# something for a busy machine), and names a rank on the other side of the cut.
case_cut() {
    start cut 60 4
    wait_for cut 'round' 6 30 || complain "cut: not all began"
    sleep 1 # so that heartbeats have told of rounds
    cut 3
    local before=$SECONDS
    wait_for cut '^\[[0-5]\] failed peer-' 6 20 || complain "cut: not all six ranks ended with an error"
    [ $((SECONDS - before)) -le 10 ] || complain "cut: it took $((SECONDS - before)) s"
    finish cut
    mend 3
    [ "$(cat "$work/cut.1" "$work/cut.2" | grep -E 'failed peer-' | grep -c -E 'ranks? ([0-9]+, )*([0-9]+ and )?[45]')" = 4 ] ||
        { complain "cut: not all ranks here name rank 4 or 5"; show cut; }
    [ "$(cat "$work/cut.1" "$work/cut.2" | grep -c 'last heard')" = 4 ] ||
        { complain "cut: not all ranks here say when the others were last heard"; show cut; }
    [ "$(grep -E 'failed peer-' "$work/cut.3" | grep -c -E 'ranks? [0-3]')" = 2 ] ||
        { complain "cut: not all ranks there name one of ranks 0 to 3"; show cut; }
}
# A narrow link.
case_narrow() {
    if ! ip netns exec "$id-2" tc qdisc add dev net root tbf rate 50mbit burst 64kb latency 50ms 2>"$work/why"; then
        echo "NOT TESTED: a narrow link, because of tc: $(cat "$work/why")"
        return 0
    fi
    start narrow 3 30 200000
    all_done narrow
    ip netns exec "$id-2" tc qdisc del dev net root
}
# A link of 5 ms each way that loses 1 % of what it carries.
case_slow() {
    if [ ! -e /dev/net/tun ]; then
        echo "NOT TESTED: a slow link, because there is no /dev/net/tun"
        return 0
    fi
    ip -n "$switch" link del port3
    "$wire" "$switch" port3 "$id-3" net 5 10 >"$work/wire" &
    wire_pid=$!
    for _ in $(seq 50); do
        grep -q ready "$work/wire" && break
        sleep 0.1
    done
    plug 3
    start slow 5 30
    all_done slow
    kill -9 "$wire_pid"
    wait "$wire_pid" 2>/dev/null || true
    ip -n "$switch" link add port3 type veth peer name net netns "$id-3"
    plug 3
}

[ $# -gt 0 ] || set -- plain secret strangers mended cut narrow slow
for name in "$@"; do
    before=$failures
    began=$SECONDS
    "case_$name"
    if [ "$failures" = "$before" ]; then word='ok  '; else word=FAIL; fi
    printf '%s %s (%d s)\n' "$word" "$name" $((SECONDS - began))
done
left=$(for host in 1 2 3; do ip netns pids "$id-$host"; done)
[ -z "$left" ] || complain "processes are left: $left"
[ "$failures" = 0 ]
