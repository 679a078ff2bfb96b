#!/usr/bin/env bash
# Three hosts of two ranks each, in network namespaces. Their links are cut, repaired, and made narrow, slow
# and lossy; unauthenticated peers connect to their ports; and ranks are killed and stopped. Afterwards
# nothing may be left: no process, socket, namespace, device, or file in /dev/shm or its replacement.
#   hosts_test.sh TANDEM PROGRAM WIRE KILL [CASE...]
# HOSTS_KILLS and HOSTS_STOPS set how many ranks to kill and to stop (10, 2).
# Needs root, `ip` and the kernel's namespaces; without them the test is skipped (77).
set -euo pipefail
tandem=$1 program=$2 wire=$3 kill=$4
shift 4
skip() {
    echo "SKIPPED: $*; several hosts were not tested"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "this needs root, to make network namespaces"
for tool in ip ss tc unshare; do
    command -v "$tool" >/dev/null || skip "there is no $tool (tools/setup --test installs iproute2)"
done
id=tdm$$
# shellcheck source=tests/net/namespaces.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../net/namespaces.sh"
work=$(mktemp -d)
mkdir "$work/shm" "$work/tmp"
export TMPDIR=$work/tmp
wire_pid=
switch=$id-s

# All our objects have our process id in their names; the ranks end with their launchers, which are child
# processes.
unplug() {
    local name
    for name in "$switch" "$id-1" "$id-2" "$id-3"; do ip netns del "$name" 2>/dev/null || true; done
}
cleanup() {
    local pid
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    unplug
    rm -rf "$work"
}
trap cleanup EXIT
ip netns add "$switch" 2>"$work/why" || skip "no network namespaces here ($(cat "$work/why"))"
ip -n "$switch" link add bridge type bridge 2>"$work/why" ||
    skip "this kernel has no bridge ($(cat "$work/why"))"
ip -n "$switch" link set bridge up

# plug HOST: sets its address, once its device `net` exists.
plug() {
    ip -n "$id-$1" addr add "10.77.0.$1/24" dev net
    ip -n "$id-$1" link set net up
    ip -n "$switch" link set "port$1" master bridge up
}
for host in 1 2 3; do
    ip netns add "$id-$host"
    ip -n "$id-$host" link set lo up
    # The index of the device differs between hosts.
    ip -n "$switch" link add "port$host" type veth peer name net index $((20 + host)) netns "$id-$host"
    plug "$host"
done
# alone COMMAND...: with an empty directory as /dev/shm, and with a mark in the environment by which all its
# processes are found.
# shellcheck disable=SC2016 # the inner shell expands them
alone() {
    HOSTS_TEST=$id unshare -m sh -c 'mount --bind "$0" /dev/shm && exec "$@"' "$work/shm" "$@"
}
failures=0
complain() {
    printf 'not right: %s\n' "$*"
    failures=$((failures + 1))
}
port=20000
export TANDEM_SECRET=hosts-test

# start CASE ARGUMENTS...: two ranks on each host; their output goes to $work/CASE.HOST. They meet at
# $address.
launchers=()
address=10.77.0.1
start() {
    local case=$1 host
    shift
    port=$((port + 1))
    launchers=()
    for host in 1 2 3; do
        alone ip netns exec "$id-$host" timeout -k 5 90 "$tandem" run -n 2 --first $((host * 2 - 2)) --size 6 \
            --rendezvous "${meeting:-$address:$port}" --label --run "$work/run-$case-$host" -- \
            "$program" "$@" >"$work/$case.$host" 2>&1 &
        launchers+=($!)
    done
}
# wait_for CASE PATTERN COUNT SECONDS: waits for COUNT matching lines, from all hosts together.
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
# all_done CASE: six ranks got only correct results, and report that.
all_done() {
    finish "$1"
    local count
    count=$(cat "$work/$1".? | grep -c -E '^\[[0-5]\] done [1-9]') || true
    [ "$count" = 6 ] || { complain "$1: $count of 6 ranks came to the end"; show "$1"; }
}
# reaches HOST HOST: at least the refusal of the connection arrives.
reaches() {
    local said
    said=$(ip netns exec "$id-$1" timeout 3 bash -c ": </dev/tcp/10.77.0.$2/1" 2>&1) || true
    [[ $said == *refused* ]]
}
# settle: waits until all hosts reach each other: a link may take a second until it works, and the neighbour
# tables of the hosts may be outdated.
settle() {
    local from to left=300
    for from in 1 2 3; do ip -n "$id-$from" neigh flush dev net; done
    for from in 1 2 3; do
        for to in 1 2 3; do
            until reaches "$from" "$to"; do
                left=$((left - 1))
                [ $left -gt 0 ] || { complain "host $from does not reach host $to"; return 0; }
                sleep 0.1
            done
        done
    done
}
# shape NAMESPACE DEVICE RATE: limits the rate of outgoing data, with a queue of 10 ms.
shape() {
    ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3" burst 128kb latency 10ms 2>"$work/why" ||
        { echo "NOT TESTED: a link of $3, because of tc: $(cat "$work/why")"; return 1; }
}
cut() { ip -n "$switch" link set "port$1" down; }
mend() { ip -n "$switch" link set "port$1" up; }

# ---- cases -----------------------------------------------------------------------------------------------

case_plain() {
    start plain 2 20
    all_done plain
    [ "$(cat "$work"/plain.? | grep -c -E 'joined shm\+(tcp|ucx|mpi) 3$')" = 6 ] ||
        { complain "plain: not six ranks on three hosts"; show plain; }
}
has_link_local() { [ -n "$(link_local "$1")" ]; }
# Link-local addresses, which are valid only with the name of a device: all hosts call it `net`. Ranks meet at
# one, and through a file on hosts without other addresses.
case_scope() {
    local host address meeting
    for host in 1 2 3; do
        wait_until 30 has_link_local $host || { echo "NOT TESTED: link-local addresses: host $host has none"; return 0; }
    done
    address="[$(link_local 1)%net]"
    start scope 2 20
    all_done scope
    [ "$(cat "$work"/scope.? | grep -c -E 'joined shm\+(tcp|ucx|mpi) 3$')" = 6 ] ||
        { complain "scope: not six ranks on three hosts"; show scope; }
    for host in 1 2 3; do ip -n "$id-$host" addr del "10.77.0.$host/24" dev net; done
    meeting=$work/meeting
    start scope_file 2 20
    all_done scope_file
    for host in 1 2 3; do ip -n "$id-$host" addr add "10.77.0.$host/24" dev net; done
}
# Without a secret no rank may listen at an address that other machines can reach.
case_secret() {
    (
        unset TANDEM_SECRET
        TANDEM_RANK=0 TANDEM_SIZE=2 TANDEM_RENDEZVOUS=10.77.0.1:19999 alone ip netns exec "$id-1" \
            "$program" 1 5 >"$work/secret.1" 2>&1
    ) && complain "secret: it joined without one"
    grep -q 'TANDEM_SECRET' "$work/secret.1" || { complain "secret: not asked for"; show secret; }
}
# Random bytes from another host to every port on which the ranks listen.
case_strangers() {
    start strangers 3 20
    wait_for strangers 'round' 6 60 || complain "strangers: not all began"
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
# A link that is down for a second and a half: all ranks wait, and continue.
case_mended() {
    start mended 3 20
    wait_for mended 'round' 6 60 || complain "mended: not all began"
    cut 3
    sleep 1.5
    mend 3
    all_done mended
}
# A link that stays down: every rank ends with an error of the peer group by the deadline of 3 s (later on a
# busy machine), which names a rank on the other side.
case_cut() {
    start cut 60 3
    wait_for cut 'round' 6 60 || complain "cut: not all began"
    sleep 1 # so that heartbeats have reported rounds
    cut 3
    wait_for cut '^\[[0-5]\] failed peer-' 6 30 || complain "cut: not all six ranks ended with an error"
    finish cut
    mend 3
    settle
    [ "$(cat "$work/cut.1" "$work/cut.2" | grep -E 'failed peer-' | grep -c -E 'ranks? ([0-9]+, )*([0-9]+ and )?[45]')" = 4 ] ||
        { complain "cut: not all ranks here name rank 4 or 5"; show cut; }
    [ "$(cat "$work/cut.1" "$work/cut.2" | grep -c 'last heard')" = 4 ] ||
        { complain "cut: not all ranks here say when the others were last heard"; show cut; }
    [ "$(grep -E 'failed peer-' "$work/cut.3" | grep -c -E 'ranks? [0-3]')" = 2 ] ||
        { complain "cut: not all ranks there name one of ranks 0 to 3"; show cut; }
}
# A narrow link.
case_narrow() {
    shape "$id-2" net 50mbit || return 0
    start narrow 2 30 200000
    all_done narrow
    ip netns exec "$id-2" tc qdisc del dev net root
}
# Links of 1 Gbit/s in both directions, one of which has a delay of 1 ms each way and loses 1 % of the
# packets. tc limits the rate; a program between two TAP devices does the rest, for kernels without netem.
case_shaped() {
    if [ ! -e /dev/net/tun ]; then
        echo "NOT TESTED: a slow link that loses packets, because there is no /dev/net/tun"
        return 0
    fi
    ip -n "$switch" link del port3
    HOSTS_TEST=$id "$wire" "$switch" port3 "$id-3" net 1 10 >"$work/wire" &
    wire_pid=$!
    for _ in $(seq 200); do
        grep -q ready "$work/wire" && break
        sleep 0.1
    done
    plug 3
    settle
    local host
    for host in 1 2 3; do
        shape "$id-$host" net 1gbit || return 0
        shape "$switch" "port$host" 1gbit || return 0
    done
    start shaped 3 30 500000
    all_done shaped
    echo "shaped: $(sed -n 's/^\[0\] done //p' "$work/shaped.1") sums of 2 MB, of all hosts, in about 3 s"
    kill -9 "$wire_pid"
    wait "$wire_pid" 2>/dev/null || true
    ip -n "$switch" link add port3 type veth peer name net netns "$id-3"
    plug 3
    settle
    for host in 1 2; do
        ip netns exec "$id-$host" tc qdisc del dev net root
        ip netns exec "$switch" tc qdisc del dev "port$host" root
    done
}
# Ranks that are killed and stopped in the middle of traffic.
case_kill() {
    alone timeout -k 5 250 "$kill" 10.77.0.1 21000 "${HOSTS_KILLS:-10}" "${HOSTS_STOPS:-2}" 1 \
        "$id-1" "$id-2" "$id-3" 2>&1 || complain "kill: see above"
}

# ---- what is left ------------------------------------------------------------------------------------------

# ours: all processes that were started from here.
ours() {
    { grep -l -z -x "HOSTS_TEST=$id" /proc/[0-9]*/environ 2>/dev/null || true; } | awk -F / '{ print $3 }'
}
# nothing WHAT COMMAND...: the command prints nothing, at the latest after a short time.
nothing() {
    local what=$1 found
    shift
    for _ in $(seq 150); do
        found=$("$@")
        [ -n "$found" ] || return 0
        sleep 0.1
    done
    complain "left behind: $what: $found"
}
# Sockets that accept data. (TCP keeps the ends of closed connections for a while.)
sockets() {
    local host
    for host in 1 2 3; do
        ip netns exec "$id-$host" ss -H -a -x
        ip netns exec "$id-$host" ss -H -t -a state listening state established
    done
}
members() {
    local name
    for name in "$switch" "$id-1" "$id-2" "$id-3"; do ip netns pids "$name"; done
}
[ $# -gt 0 ] || set -- plain scope secret strangers mended cut narrow shaped kill
for name in "$@"; do
    before=$failures
    began=$SECONDS
    "case_$name"
    if [ "$failures" = "$before" ]; then word='ok  '; else word=FAIL; fi
    printf '%s %s (%d s)\n' "$word" "$name" $((SECONDS - began))
done
nothing "processes" ours
nothing "processes in the namespaces" members
nothing "sockets" sockets
nothing "files in /dev/shm" ls -A "$work/shm"
nothing "files in the directory for such" ls -A "$work/tmp"
unplug
nothing "namespaces" sh -c "ip netns list | grep -w -e '$id-[s123]' || true"
# The processes of the namespaces end with them; others on this machine are not checked.
nothing "devices" sh -c "ip -o link | awk '{ print \$2 }' | grep -x -E '(net|bridge|port[123])(@.*)?:' || true"
[ "$failures" = 0 ]
