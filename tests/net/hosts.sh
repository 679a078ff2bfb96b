# shellcheck shell=bash disable=SC2154 # tandem and work are the test's
# hosts.sh: hosts for tests of real launchers, on one machine; to be sourced. $tandem is the program, and
# $work the directory of the test, which is not below /tmp.
#
# A host is a set of namespaces: network (10.79.0.N, behind a bridge), processes, host name and mounts. It has
# a separate /tmp, /run and /dev/shm, an /etc/hosts with all names, and an /etc/passwd in which root's home is
# a directory of the test, $work/home-NAME: so daemons and clients run as packaged, with their usual paths,
# and do not change the machine's own files. Everything else, including $work, is shared, as by a network file
# system.

id=tdmh$$
hosts_names=()
declare -A host_address
# shellcheck source=tests/net/namespaces.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/namespaces.sh"

# pause_request CASE: stops a worker before its step 45, so that training cannot end before the worker is killed.
pause_request() { echo "forward:step=45:signal=STOP:file=$work/$1.there"; }

skip() {
    echo "SKIPPED: $*; real launchers were not tested"
    exit 77
}
failures=0
complain() {
    printf 'not right: %s\n' "$*"
    failures=$((failures + 1))
}

# on NAME COMMAND...: runs it on that host.
on() {
    local name=$1
    shift
    nsenter --target "${host_init[$name]}" --root --wd --net --mount --uts --pid -- "$@"
}

# The first process of a host: it adopts orphans, and all others of the host end with it.
# shellcheck disable=SC2016 # the inner shell expands them
hosts_init='
    set -e
    mount --make-rprivate /
    mkdir -p "$1/tmp-$2"
    mount -t tmpfs -o mode=1777 tmpfs "$1/tmp-$2"
    case $3 in /tmp/*) # the path of the program does not change
        mkdir -p "$1/tmp-$2/${3#/tmp/}"
        mount --bind "$3" "$1/tmp-$2/${3#/tmp/}"
        ;;
    esac
    mount --rbind "$1/tmp-$2" /tmp
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount --bind "$1/etc-hosts" /etc/hosts
    mount --bind "$1/passwd-$2" /etc/passwd
    mkdir /run/sshd /run/munge
    hostname "$2"
    ip link set lo up
    : >"$1/up-$2"
    trap : TERM
    while :; do
        sleep 1000 &
        wait $! || true
    done'
host_start() {
    local name=$1 unshare left=500
    rm -f "$work/up-$name"
    ip netns exec "$id-$name" unshare --mount --uts --pid --fork --kill-child --mount-proc \
        bash -c "$hosts_init" "host-$name" "$work" "$name" "$(dirname "$tandem")" >"$work/init-$name.log" 2>&1 </dev/null &
    unshare=$!
    until [ -e "$work/up-$name" ]; do
        left=$((left - 1))
        if [ $left -le 0 ] || ! kill -0 $unshare 2>/dev/null; then
            skip "cannot make a host of namespaces ($(tail -n 1 "$work/init-$name.log"))"
        fi
        sleep 0.02
    done
    host_init[$name]=$(cat "/proc/$unshare/task/$unshare/children")
    host_init[$name]=${host_init[$name]%% *}
}
# host_kill NAME: kills all its processes at once, like a power failure; waits until they have ended.
host_kill() {
    kill -9 "${host_init[$1]}" 2>/dev/null || true
    while [ -n "$(ip netns pids "$id-$1" 2>/dev/null)" ]; do sleep 0.02; done
}

# hosts_make NAMES...: links and hosts.
hosts_make() {
    local name number=0 switch=$id-s
    for name in ip unshare nsenter; do
        command -v "$name" >/dev/null || skip "there is no $name (make setup-launchers installs it)"
    done
    [ "$(id -u)" = 0 ] || skip "this needs root, to make namespaces"
    ip netns add "$switch" 2>"$work/why" || skip "no network namespaces here ($(cat "$work/why"))"
    ip -n "$switch" link add bridge type bridge 2>"$work/why" ||
        skip "this kernel has no bridge ($(cat "$work/why"))"
    ip -n "$switch" link set bridge up
    echo '127.0.0.1 localhost' >"$work/etc-hosts"
    for name in "$@"; do
        number=$((number + 1))
        hosts_names+=("$name")
        host_address[$name]=10.79.0.$number
        echo "10.79.0.$number $name" >>"$work/etc-hosts"
        mkdir -p "$work/home-$name"
        awk -F : -v OFS=: -v home="$work/home-$name" '$1 == "root" { $6 = home; $7 = "/bin/bash" } { print }' \
            /etc/passwd >"$work/passwd-$name"
        ip netns add "$id-$name"
        ip -n "$switch" link add "port$number" type veth peer name net netns "$id-$name"
        ip -n "$id-$name" addr add "10.79.0.$number/24" dev net
        ip -n "$id-$name" link set net up
        ip -n "$switch" link set "port$number" master bridge up
    done
    for name in "$@"; do host_start "$name"; done
}
hosts_remove() {
    local name
    for name in "${hosts_names[@]}"; do
        [ -z "${host_init[$name]:-}" ] || host_kill "$name"
        ip netns del "$id-$name" 2>/dev/null || true
    done
    ip netns del "$id-s" 2>/dev/null || true
}

# ---- etcd ----------------------------------------------------------------------------------------------------

# etcd_start NAME: one member, on that host: $store.
etcd_start() {
    local at=http://${host_address[$1]}
    command -v etcd >/dev/null || skip "etcd is not installed (make setup-etcd)"
    # shellcheck disable=SC2034 # for the tests
    store=etcd:$at:2379
    on "$1" etcd --data-dir "$work/etcd" --logger zap --log-level error --listen-client-urls "$at:2379" \
        --advertise-client-urls "$at:2379" --listen-peer-urls "$at:2380" \
        --initial-advertise-peer-urls "$at:2380" --initial-cluster "default=$at:2380" >"$work/etcd.log" 2>&1 &
    wait_until 60 etcd_answers "$1" || { tail -n 5 "$work/etcd.log"; echo "etcd does not start"; exit 1; }
}
etcd_answers() { on "$1" "$tandem" ps --store "$store" >/dev/null 2>&1; }

# ---- training runs
# ---------------------------------------------------------------------------------------------

# job_make FILE: a small job of 350 steps, and its data.
job_make() {
    awk 'BEGIN { srand(4); for (i = 0; i < 300; i++) { line = ""
        for (k = 0; k < 5; k++) line = line sprintf("%.3f,", (k == i % 3 ? 1.5 : 0) + rand())
        print line i % 3 } }' >"$work/data.csv"
    cat >"$1" <<YAML
name: net
seed: 7
data: {train: $work/data.csv}
model: {hidden: [64, 64]}
train: {batch: 24, steps: 350}
optim: {kind: adamw, lr: 0.003}
parallel: {lanes: 8, zero: 1}
checkpoint: {every_epochs: never, every_steps: 20, ledger: true}
run: {log_every_steps: 1}
YAML
}
hash_in() { sed -n 's/.*"hash":"\([0-9a-f]\{64\}\)".*/\1/p' "$1"; }

# shown_in SECRET NAMES...: processes of these hosts with the text in their command line.
shown_in() {
    local secret=$1 name pid
    shift
    for name in "$@"; do
        for pid in $(pids "$name"); do
            if { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -- "$secret"; then
                printf '%s on %s: %s\n' "$pid" "$name" "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
            fi
        done
    done
}
