#!/usr/bin/env bash
# Sessions that are started by a real ssh, on hosts that each run a real sshd: alpha, with the launcher and
# etcd, beta and gamma. Workers, connections and agents are killed; keys are rejected or unknown; Ctrl-C ends
# the run.
#   ssh_test.sh TANDEM [CASE...]
# Cases: worker connection agent launcher refused unknown nobody interrupt. Needs root, namespaces, sshd and etcd
# (make setup-launchers setup-etcd); without them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
shift
work=$(mktemp -d /var/tmp/tandem-ssh.XXXXXX)
# shellcheck source=tests/net/hosts.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/hosts.sh"
cleanup() {
    hosts_remove
    rm -rf "$work"
}
trap cleanup EXIT
for tool in ssh ssh-keygen /usr/sbin/sshd script; do
    command -v "$tool" >/dev/null || skip "there is no $tool (make setup-launchers installs it)"
done
limit_s=120 # for one training
hosts_make alpha beta gamma

# ---- keys, and a daemon on each host ---------------------------------------------------------------------------

for host in alpha beta gamma; do
    home=$work/home-$host/.ssh
    mkdir -m 700 "$home"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host-key-$host"
    cat >"$work/sshd-$host" <<CONF
ListenAddress ${host_address[$host]}
HostKey $work/host-key-$host
PidFile /run/sshd.pid
UsePAM no
PermitRootLogin yes
PasswordAuthentication yes
PermitUserEnvironment yes
CONF
done
ssh-keygen -q -t ed25519 -N '' -f "$work/home-alpha/.ssh/id_ed25519"
# knows NAMES...: the hosts whose keys alpha knows.
knows() {
    local host
    for host in "$@"; do echo "$host $(cut -d ' ' -f 1,2 "$work/host-key-$host.pub")"; done \
        >"$work/home-alpha/.ssh/known_hosts"
}
# let_in NAMES...: the hosts that accept alpha's key.
let_in() {
    local host
    rm -f "$work"/home-*/.ssh/authorized_keys
    for host in "$@"; do
        install -m 600 "$work/home-alpha/.ssh/id_ed25519.pub" "$work/home-$host/.ssh/authorized_keys"
    done
}
knows alpha beta gamma
let_in alpha beta gamma
for host in alpha beta gamma; do on "$host" /usr/sbin/sshd -f "$work/sshd-$host" -E "$work/sshd-$host.log"; done
for host in beta gamma; do
    wait_until 30 on alpha ssh -o BatchMode=yes "$host" true 2>"$work/why" ||
        { cat "$work/why" "$work/sshd-$host.log"; echo "sshd does not start on $host"; exit 1; }
done
etcd_start alpha

# ---- training runs
# ---------------------------------------------------------------------------------------------

job_make "$work/job.yaml"
"$tandem" train "$work/job.yaml" -n 1 -q --json --set "run.dir=$work/alone" >"$work/alone.out"
want=$(hash_in "$work/alone.out")
[ -n "$want" ] || { echo "no hash of an undisturbed run"; exit 1; }

# strikes HOST REQUESTS: test controls (src/os/test_control.h) of workers that ssh starts on that host from
# now on.
struck=
strikes() {
    struck=$1
    rm -f "$work"/home-*/.ssh/environment
    [ "$1" = none ] || echo "TANDEM_TEST_KILL=$2" >"$work/home-$1/.ssh/environment"
}
# start CASE HOSTS OPTIONS...: the launcher is on alpha.
launcher=
start() {
    local case=$1 hosts=$2
    shift 2
    on alpha timeout -k 5 "$limit_s" "$tandem" train "$work/job.yaml" --store "$store" --hosts "$hosts" \
        --remote-tandem "$tandem" --set "run.dir=$work/$case" "$@" >"$work/$case.out" 2>"$work/$case.err" </dev/null &
    launcher=$!
}
launcher_ended() { ! kill -0 "$launcher" 2>/dev/null; }
is_there() { [ -n "$(stopped "$struck")" ] || launcher_ended; }
# reach CASE: waits until the worker on $struck has stopped.
reach() {
    wait_until "$limit_s" is_there && ! launcher_ended && return
    complain "$1: it never came to step 45"
    show "$1"
    return 1
}
show() {
    tail -n 20 "$work/$1.err"
    tail -qn 8 "$work/$1"/net-1/log*.jsonl 2>/dev/null || true
}
# stopped HOST: its worker that has stopped.
stopped() {
    local pid
    for pid in $(worker_pids "$1"); do
        if grep -q '^State:.T' "/proc/$pid/status" 2>/dev/null; then echo "$pid"; fi
    done | head -n 1
}
# let_go_on: continues the worker that has stopped, unless another one has taken its place.
let_go_on() {
    local pid
    for pid in $(stopped "$struck"); do kill -CONT "$pid"; done
}
# ends_well CASE [CODE]: with that exit code (0), the bits of the undisturbed run, every sample once, no
# process left.
ends_well() {
    local code=0 got
    wait "$launcher" || code=$?
    nobody_left "$1"
    got=$("$tandem" hash "$work/$1/net-1" 2>&1 | grep -o '[0-9a-f]\{64\}' | head -n 1) || true
    if [ $code != "${2:-0}" ] || [ "$got" != "$want" ]; then
        complain "$1: ended with $code and the hash ${got:-(none)}, not $want"
        show "$1"
    elif ! "$tandem" ledger "$work/$1/net-1" >"$work/ledger" 2>&1; then
        complain "$1: $(cat "$work/ledger")"
    else
        echo "ok   $1: $(head -n 1 "$work/ledger")"
    fi
}
nobody_left() {
    local host
    for host in alpha beta gamma; do
        wait_until 60 no_tandem_on "$host" ||
            complain "$1: left on $host: $(for pid in $(tandem_pids "$host"); do tr '\0' ' ' <"/proc/$pid/cmdline"; done)"
        wait_until 30 no_session_on "$host" || complain "$1: a process of ssh is left on $host"
    done
}
# no_session_on HOST: no ssh, and of sshd only the daemon.
no_session_on() {
    local pid count=0
    for pid in $(pids "$1"); do
        case $(cat "/proc/$pid/comm" 2>/dev/null) in
        sshd) count=$((count + 1)) ;;
        ssh) return 1 ;;
        esac
    done
    [ "$count" = 1 ]
}
# says CASE TEXT: the launcher or rank 0 has printed it, or does so soon.
said() { grep -qsF -- "$2" "$work/$1.err" "$work/$1.out"; }
says() { wait_until "${3:-1}" said "$1" "$2" || { complain "$1: it did not say '$2'"; show "$1"; }; }
# starts_of CASE HOST: how often a worker was started there.
starts_of() {
    grep -c "\"host\":\"$2\",\"room\":\"agent\",\"message\":\"worker .* started" "$work/$1/net-1/log.jsonl" || true
}

# ---- cases -----------------------------------------------------------------------------------------------------

# A worker on beta is killed and replaced: the others wait for it (--min). During training the session's
# secret is in the environment of workers, and in no command line; nor is it in a log.
case_worker() {
    local secret shown
    strikes beta "$(pause_request worker)"
    start worker alpha:1,beta:2 -q --json --min 3
    reach worker || return 0
    secret=$(tr '\0' '\n' <"/proc/$(stopped beta)/environ" | sed -n 's/^TANDEM_SECRET=//p')
    [ ${#secret} -ge 16 ] || complain "worker: no secret of the session was found"
    if on alpha env ETCDCTL_API=3 etcdctl --endpoints "${store#etcd:}" get --prefix tandem/ | grep -F -- "$secret"; then
        complain "worker: the store has the secret"
    fi
    shown=$(shown_in "$secret" alpha beta gamma)
    [ -z "$shown" ] || complain "worker: the secret is among the words of $shown"
    kill -9 "$(stopped beta)"
    ends_well worker
    if grep -rlF -- "$secret" "$work"/worker* "$work"/sshd-*.log; then complain "worker: the files above have the secret"; fi
    [ "$(starts_of worker beta)" -ge 3 ] || complain "worker: it was not started again"
}

# The connection to beta, where rank 0 is, breaks: its agent continues, and restarts a worker that dies later.
case_connection() {
    local pid
    strikes beta "$(pause_request connection),forward:step=120:file=$work/connection.later"
    start connection beta:2,gamma:1 -q --min 3
    reach connection || return 0
    for pid in $(pids beta); do
        if grep -qz '^sshd: root@notty' "/proc/$pid/cmdline" 2>/dev/null; then kill -9 "$pid"; fi
    done
    says connection "the ssh connection to beta was closed" 60
    let_go_on
    ends_well connection
    [ -e "$work/connection.later" ] || complain "connection: no worker was killed after it broke"
    [ "$(starts_of connection beta)" -ge 3 ] || complain "connection: the worker was not started again"
}

# The agent of beta is killed: its worker and ssh continue. (The kernel continues stopped children of a
# process that dies, so the worker that stops is on gamma.)
case_agent() {
    strikes gamma "$(pause_request agent)"
    start agent beta:1,gamma:1 -q --min 2
    reach agent || return 0
    kill -9 "$(agent_pids beta)"
    wait_until 30 no_agent_on beta || complain "agent: it does not die"
    let_go_on
    ends_well agent
    [ "$(starts_of agent beta)" -le 1 ] || complain "agent: without an agent a worker was started on beta"
}

no_agent_on() { [ -z "$(agent_pids "$1")" ]; }
# launcher_pid: with this machine's process id.
launcher_pid() {
    local pid
    for pid in $(tandem_pids alpha); do
        if grep -qz '^--hosts' "/proc/$pid/cmdline"; then echo "$pid"; fi
    done
}
# The launcher is killed: agents and workers of all hosts continue to the end.
case_launcher() {
    strikes beta "$(pause_request launcher)"
    start launcher alpha:1,beta:2 -q --min 3
    reach launcher || return 0
    kill -9 "$(launcher_pid)"
    let_go_on
    ends_well launcher 137
}

# gamma rejects the key, and would accept a password: ssh does not ask for one, and the others train.
case_refused() {
    let_in alpha beta
    strikes none
    start refused beta:2,gamma:1 -q
    ends_well refused
    says refused "Permission denied"
    says refused "cannot reach gamma by ssh"
    says refused "'ssh -o BatchMode=yes gamma true' must succeed without a prompt"
    let_in alpha beta gamma
}

# gamma has a key that alpha does not know, and there is a terminal on which ssh could ask.
case_unknown() {
    knows alpha beta
    strikes none
    on alpha timeout -k 5 "$limit_s" script -qfec "'$tandem' train '$work/job.yaml' --store '$store' \
        --hosts beta:2,gamma:1 --remote-tandem '$tandem' --set 'run.dir=$work/unknown' -q" /dev/null \
        >"$work/unknown.err" 2>&1 </dev/null &
    launcher=$!
    ends_well unknown
    says unknown "Host key verification failed"
    says unknown "cannot reach gamma by ssh"
    knows alpha beta gamma
}

# No host can be reached, or none has the program.
case_nobody() {
    local code=0
    let_in
    start nobody beta:2,gamma:1
    wait "$launcher" || code=$?
    [ $code = 6 ] || complain "nobody: it ended with $code, not 6"
    says nobody "no host could start an agent: nothing was trained"
    let_in alpha beta gamma
    code=0
    start nobody beta:2 --remote-tandem "$work/no-such-program"
    wait "$launcher" || code=$?
    [ $code = 6 ] || complain "nobody: without the program it ended with $code, not 6"
    says nobody "beta cannot run '$work/no-such-program' (exit code 127)"
    nobody_left nobody
    echo "ok   nobody"
}

# ends_with CASE CODE
ends_with() {
    local code=0
    wait "$launcher" || code=$?
    [ $code = "$2" ] || { complain "$1: it ended with $code, not $2"; show "$1"; }
}
# Ctrl-C once: a checkpoint, no process is left, and the run can be resumed later; twice: no process is left,
# although a worker has stopped and does not complete a step.
case_interrupt() {
    strikes beta "$(pause_request interrupt)"
    start interrupt alpha:1,beta:2 --min 3
    reach interrupt || return 0
    kill -INT "$(launcher_pid)"
    let_go_on
    ends_with interrupt 130
    says interrupt "to resume "
    nobody_left interrupt
    strikes none
    start interrupt beta:1,gamma:1 -q --resume "$work/interrupt/net-1"
    ends_well interrupt
    strikes beta "$(pause_request twice)"
    start twice alpha:1,beta:2 --min 3
    reach twice || return 0
    kill -INT "$(launcher_pid)"
    wait_until 60 grep -q 'stopping after this step' "$work/twice.err" || complain "twice: no word of the first Ctrl-C"
    sleep 1.5 # signals within one second count once
    kill -INT "$(launcher_pid)"
    ends_with twice 130
    nobody_left twice
    echo "ok   twice"
}

for name in "${@:-worker connection agent launcher refused unknown nobody interrupt}"; do
    # shellcheck disable=SC2086 # a list
    for case in $name; do "case_$case"; done
done
[ $failures -eq 0 ]
