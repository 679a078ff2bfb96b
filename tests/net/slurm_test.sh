#!/usr/bin/env bash
# Training runs that a real Slurm starts: munged and slurmd on the hosts n1 and n2, slurmctld and etcd on the
# host head. Workers and a node are killed, jobs are requeued; the script is examples/10_slurm/train.sbatch.
#   slurm_test.sh TANDEM [CASE...]
# Cases: worker requeue node survive cancel fixed. Needs root, namespaces, Slurm, munge and etcd (make
# setup-launchers setup-etcd); without them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
shift
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d /var/tmp/tandem-slurm.XXXXXX)
# shellcheck source=tests/net/hosts.sh
source "$here/hosts.sh"
cleanup() {
    hosts_remove
    rm -rf "$work"
}
trap cleanup EXIT
for tool in slurmctld slurmd srun sbatch scontrol munged; do
    command -v "$tool" >/dev/null || skip "there is no $tool (make setup-launchers installs it)"
done
limit_s=120 # for one job

# ---- Slurm -----------------------------------------------------------------------------------------------------

hosts_make head n1 n2
(umask 077 && head -c 128 /dev/urandom >"$work/munge.key")
mkdir "$work/state" "$work/jobs"
echo 'CgroupPlugin=cgroup/v1' >"$work/cgroup.conf" # no cgroup is used; without this line it looks for one
cat >"$work/slurm.conf" <<CONF
ClusterName=tandem
SlurmctldHost=head(${host_address[head]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
SlurmdTimeout=300
KillWait=60
ReturnToService=2
NodeName=n1 NodeAddr=${host_address[n1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr=${host_address[n2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
# munge_start HOST
munge_start() {
    on "$1" munged --key-file "$work/munge.key" --log-file "$work/munged-$1.log" --seed-file /run/munge/seed \
        --pid-file /run/munge/munged.pid
}
node_start() {
    munge_start "$1"
    on "$1" slurmd -N "$1"
}
state_of() { on head sinfo -h -n "$1" -o %T 2>/dev/null; }
is_idle() { [ "$(state_of "$1")" = idle ]; }
await_nodes() {
    if ! wait_until 60 is_idle n1 || ! wait_until 60 is_idle n2; then
        tail -qn 5 "$work"/slurm*.log
        echo "nodes are not ready: $(state_of n1) $(state_of n2)"
        exit 1
    fi
}
munge_start head
on head slurmctld
node_start n1
node_start n2
etcd_start head
await_nodes

# ---- jobs ------------------------------------------------------------------------------------------------------

job_make "$work/job.yaml"
"$tandem" train "$work/job.yaml" -n 1 -q --json --set "run.dir=$work/alone" >"$work/alone.out"
want=$(hash_in "$work/alone.out")
[ -n "$want" ] || { echo "no hash of an undisturbed run"; exit 1; }
mkdir "$work/bin"
ln -s "$tandem" "$work/bin/tandem" # at the path that the script uses
script=$here/../../examples/10_slurm/train.sbatch
cp "$script" "$work/train.sbatch"

# submit CASE KILLS [OPTIONS OF sbatch...] -- OPTIONS OF tandem...: $job. sbatch passes its environment to the
# tasks, including secrets.
job=
submit() {
    local case=$1 kills=$2 options=()
    shift 2
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    job=$(on head env PATH="$work/bin:$PATH" TANDEM_TEST_KILL="$kills" sbatch --parsable -o "$work/$case.log" \
        "${options[@]}" "$work/train.sbatch" "$work/job.yaml" --set "run.dir=$work/$case" "$@")
}
job_state() { on head scontrol show job "$job" -o 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p'; }
job_ended() {
    case $(job_state) in
    PENDING | CONFIGURING | RUNNING | COMPLETING | SUSPENDED | REQUEUED) return 1 ;;
    esac
}
job_field() { on head scontrol show job "$job" -o | sed -n "s/.* $1=\([^ ]*\).*/\1/p"; }
show() {
    echo "job $job: $(job_state), restarts $(job_field Restarts), reason $(job_field Reason)"
    tail -n 15 "$work/$1.log" 2>/dev/null || true
    tail -qn 6 "$work/slurmctld.log" "$work/$1"/net-*/log*.jsonl 2>/dev/null || true
}
# stopped: the workers that have stopped, with this machine's process ids.
stopped() {
    local node pid
    for node in n1 n2; do
        for pid in $(tandem_pids "$node"); do
            if grep -q '^State:.T' "/proc/$pid/status" 2>/dev/null; then echo "$pid"; fi
        done
    done
}
is_there() { [ -n "$(stopped)" ] || job_ended; }
reach() {
    wait_until "$limit_s" is_there && [ -n "$(stopped)" ] && return
    complain "$1: it never came to step 45"
    show "$1"
    on head scancel -s KILL "$job" 2>/dev/null || true
    return 1
}
let_go_on() {
    local pid
    for pid in $(stopped); do kill -CONT "$pid" 2>/dev/null || true; done
}
# job_ends CASE STATE: within the time, and nothing of it is left on a node.
job_ends() {
    local node pid
    if ! wait_until "$limit_s" job_ended || [ "$(job_state)" != "$2" ]; then
        complain "$1: the job is $(job_state), not $2"
        show "$1"
        on head scancel -s KILL "$job" 2>/dev/null || true
    fi
    for node in n1 n2; do
        wait_until 60 no_tandem_on "$node" || complain "$1: left on $node: $(tandem_pids "$node")"
    done
}
# ends_well CASE: completed, with the bits of the undisturbed run, in one run, with every sample once.
ends_well() {
    local got
    job_ends "$1" "${2:-COMPLETED}"
    got=$("$tandem" hash "$work/$1/net-1" 2>&1 | grep -o '[0-9a-f]\{64\}' | head -n 1) || true
    if [ "$got" != "$want" ] || [ -e "$work/$1/net-2" ]; then
        complain "$1: the hash is ${got:-(none)}, not $want, in $(ls "$work/$1")"
        show "$1"
    elif ! "$tandem" ledger "$work/$1/net-1" >"$work/ledger" 2>&1; then
        complain "$1: $(cat "$work/ledger")"
    else
        echo "ok   $1: $(head -n 1 "$work/ledger")"
    fi
}
log_has() { grep -qsF -- "$2" "$work/$1.log"; }
says() { wait_until "${3:-10}" log_has "$1" "$2" || { complain "$1: it did not say '$2'"; show "$1"; }; }
starts_of() { grep -c '"room":"agent","message":"worker .* started' "$work/$1/net-1/log.jsonl" || true; }
# put_back CASE: the job is in the queue again, where it waits until its old credential has expired
# (cred_expire).
put_back() { wait_until "$limit_s" restarts 1 || { complain "$1: the job was not put back"; show "$1"; }; }
restarts() { [ "$(job_field Restarts)" = "$1" ]; }

# ---- cases -----------------------------------------------------------------------------------------------------

# A worker of the session is killed: its agent starts another one, for which the others wait (--min); Slurm
# does not notice.
case_worker() {
    submit worker "$(pause_request worker)" -- --store "$store" --min 4
    reach worker || return 0
    kill -9 "$(stopped)"
    ends_well worker
    restarts 0 || complain "worker: Slurm has started the job again"
    [ "$(starts_of worker)" -ge 5 ] || complain "worker: it was not started again"
}

# The batch script gets its signal, as when the time limit of the job is near, and calls 'scontrol requeue'.
# Training stops with a checkpoint, and resumes from it. (Slurm continues stopped tasks before it sends
# SIGTERM; in case they are fast, one stops once more.)
case_requeue() {
    submit requeue "$(pause_request requeue),forward:step=150:signal=STOP:file=$work/requeue.again" -- --store "$store"
    reach requeue || return 0
    on head scancel --batch -s USR1 "$job"
    says requeue "stopping after this step" 60
    : >"$work/requeue.again"
    let_go_on
    put_back requeue
    ends_well requeue
    says requeue "resuming from step"
}

# node_lost NODE: a power failure, of which the controller is told; without that it notices after
# SlurmdTimeout.
node_lost() {
    host_kill "$1"
    on head scontrol update "NodeName=$1" State=DOWN Reason=lost
}
node_back() {
    host_start "$1"
    node_start "$1"
}

# The node of the batch script is lost: Slurm requeues the job, and when the node is available again it
# resumes from its newest checkpoint.
case_node() {
    submit node "$(pause_request node)" -- --store "$store"
    reach node || return 0
    node_lost n1
    put_back node
    node_back n1
    ends_well node
    says node "resuming from step 4"
}

# Another node is lost, and the job and training continue without it.
case_survive() {
    submit survive "$(pause_request survive)" --no-kill -- --store "$store"
    reach survive || return 0
    node_lost n2
    let_go_on
    ends_well survive
    restarts 0 || complain "survive: Slurm has put the job back"
    says survive "Node failure on n2"
    node_back n2
}

# scancel: training stops with a checkpoint, and the job is not requeued.
case_cancel() {
    submit cancel "$(pause_request cancel),forward:step=150:signal=STOP:file=$work/cancel.again" -- --store "$store"
    reach cancel || return 0
    on head scancel "$job"
    says cancel "stopping after this step" 60
    let_go_on
    job_ends cancel CANCELLED
    "$tandem" hash "$work/cancel/net-1" >/dev/null || complain "cancel: the run has no good checkpoint"
    restarts 0 || complain "cancel: the job was put back"
    echo "ok   cancel"
}

# Without a store the tasks are ranks of a fixed world, whose secret is in the environment that sbatch passes
# on. When a rank dies, the others end with a message that names it; submitted again, the job resumes.
case_fixed() {
    local secret shown
    secret=$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n')
    TANDEM_SECRET=$secret submit fixed "$(pause_request fixed)" --
    reach fixed || return 0
    grep -qzFx "TANDEM_SECRET=$secret" "/proc/$(stopped)/environ" || complain "fixed: the secret did not come"
    shown=$(shown_in "$secret" head n1 n2)
    [ -z "$shown" ] || complain "fixed: the secret is among the words of $shown"
    kill -9 "$(stopped)"
    job_ends fixed FAILED
    says fixed "has failed"
    TANDEM_SECRET=$secret submit fixed "" --
    ends_well fixed
    says fixed "resuming from step 40"
    if grep -rlF -- "$secret" "$work/fixed" "$work"/*.log; then complain "fixed: the files above have the secret"; fi
}

for name in "${@:-worker requeue node survive cancel fixed}"; do
    # shellcheck disable=SC2086 # a list
    for case in $name; do "case_$case"; done
done
[ $failures -eq 0 ]
