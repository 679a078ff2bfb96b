# shellcheck shell=bash disable=SC2154 # tandem and id are the test's
# namespaces.sh: processes and addresses of hosts that are network namespaces; to be sourced. $tandem is the program,
# and $id-HOST the namespace of a host.

# A process of a host that is not counted, because it keeps the host alive; by the host's name.
declare -A host_init

# pids HOST: all processes there, with this machine's process ids.
pids() { ip netns pids "$id-$1" 2>/dev/null | grep -vx -- "${host_init[$1]:-none}" || true; }
# kill_host HOST: kills all of them, and waits until they have ended.
kill_host() {
    local pid left=500
    while [ -n "$(pids "$1")" ] && [ $left -gt 0 ]; do
        for pid in $(pids "$1"); do kill -9 "$pid" 2>/dev/null || true; done
        left=$((left - 1))
        sleep 0.02
    done
}
# tandem_pids HOST: of the program under test.
tandem_pids() {
    local pid
    for pid in $(pids "$1"); do
        if [ "/proc/$pid/exe" -ef "$tandem" ]; then echo "$pid"; fi
    done
}
# worker_pids HOST: those that an agent has started.
worker_pids() {
    local pid
    for pid in $(tandem_pids "$1"); do
        if { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -q '^TANDEM_MEMBER='; then echo "$pid"; fi
    done
}
# worker_on HOST: one of them, or an empty text.
worker_on() { worker_pids "$1" | sed -n 1p; }
# agent_pids HOST: those without such a mark whose first argument is "agent".
agent_pids() {
    local pid
    for pid in $(tandem_pids "$1"); do
        if [ "$({ tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | sed -n 2p)" = agent ]; then echo "$pid"; fi
    done
}
no_tandem_on() { [ -z "$(tandem_pids "$1")" ]; }

# link_local HOST: the link-local address of its device `net`, once the host may use it.
link_local() { ip -n "$id-$1" -6 -o addr show dev net scope link -tentative | awk '{ sub(/\/.*/, "", $4); print $4 }'; }

# wait_until SECONDS COMMAND...: until it succeeds; fails after that time.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}
