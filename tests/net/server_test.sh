#!/usr/bin/env bash
# Parameter servers on three hosts in network namespaces, with etcd: one host is cut off and comes back, another one
# is killed. A worker that is killed as well (tests/server/kill_test.c) finds what its predecessor had flushed.
#   server_test.sh TANDEM KILL-TEST
# Needs root, `ip`, the kernel's namespaces and etcd (make setup-etcd); without them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
worker=$(realpath "$2")
work=$(mktemp -d /var/tmp/tandem-servers.XXXXXX)
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source=tests/net/hosts.sh
source "$here/hosts.sh"
skip() {
    echo "SKIPPED: $*; servers on several hosts were not tested"
    exit 77
}
cleanup() {
    hosts_remove
    rm -rf "$work"
}
trap cleanup EXIT
hosts_make alpha beta gamma
etcd_start alpha
export TANDEM_SECRET=only-for-this-test TANDEM_RUNTIME=$work/runtime
state=$work/worker # a struct of kill_test.c: it begins with the number of flushed pushes

server_start() { # HOST
    on "$1" "$tandem" server lab --width 1 --shards 4 --replication 2 --store "$store" \
        --listen "${host_address[$1]}:0" >"$work/$1.out" 2>&1 &
}
group() { on alpha "$tandem" server lab --show --store "$store"; }
# complete N: the group has N servers, and each shard is on two of them.
complete() {
    group >"$work/group" 2>/dev/null || return 1
    [ "$(grep -c '^server' "$work/group")" -eq "$1" ] || return 1
    [ "$(grep -cE '^shard [0-9]+: servers [0-9]+ [0-9]+$' "$work/group")" -eq 4 ]
}
flushed() { od -An -tu8 -N8 "$state" | tr -d ' '; }
problem() { tail -c +17 "$state" | tr -d '\0'; }
worker_start() {
    TANDEM_MORTAL=$state TANDEM_LAB=$store on alpha "$worker" &
    worker_pid=$!
}
# grows WHAT: pushes are flushed, and more than a few.
grows() {
    local before
    before=$(flushed)
    wait_until 30 more_than $((before + 50)) || complain "$1: no push is flushed any more: $(problem)"
}
more_than() { [ "$(flushed)" -gt "$1" ]; }

head -c 4096 /dev/zero >"$state"
for host in alpha beta gamma; do server_start $host; done
wait_until 30 complete 3 || complain "the group does not begin: $(cat "$work"/*.out)"
worker_start
grows "three hosts"
sockets=$(on alpha ss -tn 2>/dev/null | grep -c "${host_address[beta]}" || true)
[ "$sockets" -gt 0 ] || complain "no connection between hosts"

ip -n "$id-s" link set port2 down # beta
grows "beta is cut off"
wait_until 30 complete 2 || complain "the group does not continue on two hosts: $(cat "$work/group")"
ip -n "$id-s" link set port2 up
wait_until 60 complete 3 || complain "beta does not come back: $(cat "$work/group" "$work/beta.out")"
grows "beta is back"

host_kill gamma
grows "gamma is dead"
wait_until 30 complete 2 || complain "gamma is not replaced: $(cat "$work/group")"

kill -9 "$worker_pid" 2>/dev/null || true
for pid in $(pids alpha); do
    if [ "/proc/$pid/exe" -ef "$worker" ]; then kill -9 "$pid"; fi
done
worker_start # it checks what is stored
grows "another worker"
[ -z "$(problem)" ] || complain "$(problem)"
[ "$failures" -eq 0 ] || exit 1
echo "$(flushed) pushes were flushed, and all of them are stored"
