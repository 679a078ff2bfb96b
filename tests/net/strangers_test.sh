#!/usr/bin/env bash
# Unauthenticated processes on the network and on the host: two hosts in network namespaces that train
# together, a third one that floods their ports, a recording of the packets between them, another user of a
# host, certificates and secrets that do not match. Training runs end with the bits of an undisturbed run, and
# none of their data can be read.
#   strangers_test.sh TANDEM [CASE...]
# Cases: flood trace user certificates newcomer secret. Needs root, `ip`, the kernel's namespaces, etcd (make setup-etcd),
# python3, openssl and setpriv; without them the test is skipped (77).
set -euo pipefail
tandem=$(realpath "$1")
shift
skip() {
    echo "SKIPPED: $*; strangers on the network were not tested"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "this needs root, to make network namespaces"
for tool in ip etcd python3 openssl setpriv; do
    command -v $tool >/dev/null || skip "there is no $tool (tools/setup --test --etcd installs it)"
done
python=/usr/bin/python3
[ -x $python ] || python=$(command -v python3)
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
id=tdms$$
work=$(mktemp -d /var/tmp/tandem-strangers.XXXXXX)
limit_s=120 # for one training
flood_wanted=${STRANGERS_FLOOD:-10000}

# shellcheck source=tests/net/namespaces.sh
source "$here/namespaces.sh"
cleanup() {
    local host
    for host in 1 2 3; do
        kill_host "$host"
        ip netns del "$id-$host" 2>/dev/null || true
    done
    ip netns del "$id-s" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work" # the other user can enter this directory
ip netns add "$id-s" 2>"$work/why" || skip "no network namespaces here ($(cat "$work/why"))"
ip -n "$id-s" link add bridge type bridge 2>"$work/why" || skip "this kernel has no bridge ($(cat "$work/why"))"
ip -n "$id-s" link set bridge up
for host in 1 2 3; do
    ip netns add "$id-$host"
    ip -n "$id-$host" link set lo up
    ip -n "$id-s" link add "port$host" type veth peer name net netns "$id-$host"
    ip -n "$id-$host" addr add "10.77.0.$host/24" dev net
    ip -n "$id-$host" link set net up
    ip -n "$id-s" link set "port$host" master bridge up
done
on() {
    local host=$1
    shift
    ip netns exec "$id-$host" "$@"
}
strangers() { "$python" "$here/strangers.py" "$@"; }
namespace() { echo "/run/netns/$id-$1"; }

NET_HOSTS=$(for host in 1 2 3; do printf '10.77.0.%s=%s-%s ' $host "$id" $host; done)
export NET_HOSTS NET_ENVIRONMENT=$work/environment TANDEM_SSH=$here/as-ssh TANDEM_RUNTIME=$work/runtime
mkdir "$NET_ENVIRONMENT"

failures=0
complain() {
    printf 'not right: %s\n' "$*"
    failures=$((failures + 1))
}

# ---- etcd ------------------------------------------------------------------------------------------------------

store=etcd:http://10.77.0.1:2379
etcd_answers() { on 1 "$tandem" ps --store "$store" >/dev/null 2>&1; }
start_etcd() {
    local at=http://10.77.0.1
    on 1 etcd --data-dir "$work/etcd" --log-level error --listen-client-urls "$at:2379" \
        --advertise-client-urls "$at:2379" --listen-peer-urls "$at:2380" --initial-advertise-peer-urls "$at:2380" \
        --initial-cluster "default=$at:2380" >"$work/etcd.log" 2>&1 &
    wait_until 60 etcd_answers || { tail -n 5 "$work/etcd.log"; echo "etcd does not start"; exit 1; }
}

# ---- training runs
# ---------------------------------------------------------------------------------------------

awk 'BEGIN { srand(4); for (i = 0; i < 300; i++) { line = ""
    for (k = 0; k < 5; k++) line = line sprintf("%.6f,", (k == i % 3 ? 1.5 : 0) + rand()); print line i % 3 } }' >"$work/data.csv"
readonly name=quokka-lighthouse
cat >"$work/job.yaml" <<YAML
name: $name
seed: 7
data: {train: $work/data.csv}
model: {hidden: [64, 64]}
train: {batch: 24, steps: 60}
optim: {kind: adamw, lr: 0.003}
parallel: {lanes: 8, zero: 1}
checkpoint: {every_epochs: never, ledger: true}
YAML
hash_of() { sed -n 's/.*"hash":"\([0-9a-f]\{64\}\)".*/\1/p' "$1"; }
# reference STEPS SETS...: the hash of an undisturbed run of STEPS steps.
reference() {
    local sets=() set
    for set in "train.steps=$1" "${@:2}"; do sets+=(--set "$set"); done
    "$tandem" train "$work/job.yaml" -n 1 -q --json --set "run.dir=$work/alone" "${sets[@]}" >"$work/alone.out"
    hash_of "$work/alone.out"
}
# start CASE SETS...: one worker on each of two hosts; the launcher is on host 1.
launcher=
start() {
    local case=$1 sets=() set
    shift
    for set in "$@"; do sets+=(--set "$set"); done
    on 1 timeout -k 5 "$limit_s" "$tandem" train "$work/job.yaml" -q --json --store "$store" \
        --hosts 10.77.0.1:1,10.77.0.2:1 --remote-tandem "$tandem" \
        --set "run.dir=$work/$case" "${sets[@]}" >"$work/$case.out" 2>"$work/$case.err" &
    launcher=$!
}
show() {
    tail -n 20 "$work/$1.err"
    tail -n 30 "$work/$1/$name-1/log.jsonl" 2>/dev/null || true
}
# is_right CASE CODE HASH WORKERS: checks how a training run ended, its ledger, that no worker was restarted,
# and that it contains no message of an assertion or a sanitizer.
is_right() {
    local case=$1 code=$2 want=$3 got starts log=$work/$1/$name-1/log.jsonl
    got=$(hash_of "$work/$case.out")
    if [ "$code" != 0 ] || [ -z "$want" ] || [ "$got" != "$want" ]; then
        complain "$case: ended with $code and the hash ${got:-(none)}, not $want"
        show "$case"
        return 0
    fi
    "$tandem" ledger "$work/$case/$name-1" >"$work/ledger" 2>&1 || complain "$case: $(cat "$work/ledger")"
    starts=$(grep -c '"room":"agent","message":"worker [^ ]* started on' "$log" || true)
    [ "$starts" = "$4" ] || { complain "$case: $starts starts of $4 workers"; show "$case"; }
    if grep -i 'assert\|sanitizer\|runtime error' "$log" "$work/$case.err"; then complain "$case: see above"; fi
}
has_worker() { [ -n "$(worker_on "$1")" ]; }
no_tandem() { no_tandem_on 1 && no_tandem_on 2 && no_tandem_on 3; }

# ---- flood -----------------------------------------------------------------------------------------------------

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
# timed_training CASE HASH SETS...: stores its time in $took_ms. The flood counts descriptors.
timed_training() {
    local case=$1 want=$2 code=0 began
    shift 2
    began=$(now_ms)
    start "$case" "$@"
    wait "$launcher" || code=$?
    took_ms=$(($(now_ms) - began))
    is_right "$case" $code "$want" 2
}
value_of() { sed -n "s/^$2 //p" "$1"; } # value_of REPORT KEY
start_flood() { # start_flood WANTED REPORT
    on 3 "$python" "$here/strangers.py" flood "$tandem" "$1" "$2" "$2.pid" "10.77.0.1=$(namespace 1)" \
        "10.77.0.2=$(namespace 2)" >"$2.err" 2>&1 &
    flood=$!
    wait_until 30 test -s "$2.pid" || { cat "$2.err"; echo "the flood does not start"; exit 1; }
}
stop_flood() { # stop_flood REPORT
    kill -TERM "$(cat "$1.pid")" 2>/dev/null || true
    wait "$flood" || complain "the flood failed: $(tail -n 3 "$1.err")"
}
# Training runs in sequence, until all unauthenticated peers have connected, also at starts, joins and ends.
case_flood() {
    local steps=${STRANGERS_STEPS:-10000} want quiet_ms flood_ms=0 round=0 quiet=$work/quiet.report
    local report=$work/flood.report had most
    want=$(reference "$steps")
    start_flood 0 "$quiet"
    timed_training quiet "$want" "train.steps=$steps"
    quiet_ms=$took_ms
    stop_flood "$quiet"
    start_flood "$flood_wanted" "$report"
    while [ ! -e "$report" ] && [ $round -lt 20 ] && [ $failures = 0 ]; do
        round=$((round + 1))
        timed_training "flood$round" "$want" "train.steps=$steps"
        flood_ms=$((flood_ms + took_ms))
    done
    stop_flood "$report"
    [ "$(value_of "$report" begun)" -ge "$flood_wanted" ] || complain "flood: too few connections"
    had=$(value_of "$quiet" descriptors) most=$(value_of "$report" descriptors)
    [ "$most" -le $((had + 64 + 64 + 2 * 4)) ] || complain "flood: a process had $most descriptors, $had without the flood"
    [ "$(value_of "$report" replays)" -gt 0 ] || complain "flood: nothing was recorded that could be replayed"
    echo "ok   flood: $(value_of "$report" begun) connections, $(value_of "$report" made) of them made, at" \
        "$(value_of "$report" ports) ports during $round trainings; at most $most descriptors, $had without;" \
        "$((flood_ms / round)) ms a training, $quiet_ms ms without: $(((flood_ms / round - quiet_ms) * 100 / quiet_ms)) % slower"
}

# ---- trace -----------------------------------------------------------------------------------------------------

# recorded CASE SETS...: a short training run, all packets of host 2, and what can be read in them:
# $work/CASE.found
recorded() {
    local case=$1 recorder code=0
    shift
    ip netns exec "$id-2" "$python" "$here/strangers.py" record "$work/$case.packets" 2>"$work/$case.why" &
    recorder=$!
    wait_until 30 test -e "$work/$case.packets" || { complain "$case: no recording: $(cat "$work/$case.why")"; return 0; }
    TANDEM_SECRET=$secret start "$case" "$@"
    wait "$launcher" || code=$?
    is_right "$case" $code "$want" 2
    kill -TERM $recorder
    wait $recorder || complain "$case: $(cat "$work/$case.why")"
    strangers search "$work/$case.packets" "$(ls "$work/$case/$name-1/checkpoints/"*.safetensors)" "$work/data.csv" \
        "$name" "$secret" >"$work/$case.found" || complain "$case: the search failed"
    rm "$work/$case.packets"
}
# Texts are the job's name, 0, and the secret, 1. etcd protects its own traffic: the secret is never in it.
case_trace() {
    local want secret=5e55107f1a9b3c2d key
    want=$(reference 60)
    recorded trace
    recorded readable comm.security=off
    for key in parameters data text-0 text-1 stored-text-1; do
        [ "$(value_of "$work/trace.found" $key)" = 0 ] || complain "trace: $key can be read: $(tr '\n' ',' <"$work/trace.found")"
    done
    [ "$(value_of "$work/trace.found" bytes)" -gt 1000000 ] || complain "trace: too little was recorded"
    # The same search finds parameters if nothing is encrypted.
    [ "$(value_of "$work/readable.found" parameters)" -ge 100 ] ||
        complain "trace: the search finds nothing: $(tr '\n' ',' <"$work/readable.found")"
    [ "$(value_of "$work/readable.found" text-0)" = 1 ] || complain "trace: the search does not find the job's name"
    [ "$(value_of "$work/readable.found" text-1)$(value_of "$work/readable.found" stored-text-1)" = 00 ] ||
        complain "trace: without encryption the secret can be read"
    echo "ok   trace: nothing of 400 probes in $(value_of "$work/trace.found" bytes) bytes; without encryption" \
        "$(value_of "$work/readable.found" parameters) of 200 of the parameters"
}

# ---- user ------------------------------------------------------------------------------------------------------

readonly other=65534
# as_other COMMAND...: as another user of host 1.
as_other() { on 1 setpriv --reuid $other --regid $other --clear-groups env -u TANDEM_RUNTIME HOME=/nonexistent LD_LIBRARY_PATH="$work/bin" "$@"; }
# cannot WHAT COMMAND...: it fails for the other user, by itself and soon.
cannot() {
    local what=$1 code=0
    shift
    as_other timeout 60 "$@" >"$work/other.out" 2>&1 || code=$?
    case $code in
    0 | 124 | 125 | 126 | 127 | 13?) complain "user: $what: exit code $code: $(head -c 300 "$work/other.out")" ;;
    esac
}
has_door() { [ -n "$(doors)" ]; }
# doors: the names of the abstract UNIX sockets on which the session listens.
doors() { on 1 cat /proc/net/unix | awk '$4 == "00010000" && $8 ~ /^@tandem/ { print substr($8, 2) }'; }
# A session of root on one host. It trains until root stops it: its state is that of an undisturbed run of as
# many steps.
case_user() {
    local pid file code=0 step names run=$work/user/$name-1
    mkdir "$work/bin" # the program may be in a directory that another user may not enter
    cp "$tandem" "$(dirname "$tandem")"/libtandem.so.0 "$here/strangers.py" "$work/bin"
    on 1 timeout -k 5 "$limit_s" "$tandem" train "$work/job.yaml" -n 2 -q --json --set "run.dir=$work/user" \
        --set train.steps=100000000 >"$work/user.out" 2>"$work/user.err" &
    launcher=$!
    wait_until 60 has_door || { complain "user: it listens nowhere"; show user; }
    [ -z "$(strangers listening "$tandem" "$(namespace 1)")" ] || complain "user: it listens at a TCP port"
    mapfile -t names < <(doors)
    as_other "$python" "$work/bin/strangers.py" knock 2000 "${names[@]}" >"$work/knock" || complain "user: the flood failed"
    [ "$(value_of "$work/knock" made)" = 2000 ] || complain "user: $(value_of "$work/knock" made) connections of 2000"
    [ "$(value_of "$work/knock" let-in)" = 0 ] || complain "user: another user was let in"
    [ "$(value_of "$work/knock" refused)" -gt 0 ] || complain "user: nobody was refused"
    as_other "$work/bin/tandem" ps >"$work/other.out" 2>&1 || complain "user: ps fails: $(cat "$work/other.out")"
    if grep -q $name "$work/other.out"; then complain "user: another user's ps shows it"; fi
    cannot "ps in the same directory" env TANDEM_RUNTIME="$TANDEM_RUNTIME" "$work/bin/tandem" ps
    cannot join env TANDEM_RUNTIME="$TANDEM_RUNTIME" "$work/bin/tandem" join $name-1
    cannot stop env TANDEM_RUNTIME="$TANDEM_RUNTIME" "$work/bin/tandem" stop $name-1
    cannot "stop by the directory" "$work/bin/tandem" stop "$run"
    cannot "join by the directory" "$work/bin/tandem" join "$run"
    while read -r file; do cannot "read $file" cat "$file"; done < <(find "$TANDEM_RUNTIME" -type f)
    for pid in $(tandem_pids 1); do
        for file in $(find "/proc/$pid/fd" -lname '/memfd:*' | head -n 2); do cannot "open memory" head -c 1 "$file"; done
        cannot "see the environment" cat "/proc/$pid/environ"
    done
    for file in /dev/shm/*; do
        case $(basename "$file") in *tandem* | *tdm*) cannot "open $file" head -c 1 "$file" ;; esac
    done
    on 1 "$tandem" stop "$run" >"$work/stop.out" 2>&1 || complain "user: $(cat "$work/stop.out")"
    wait "$launcher" || code=$?
    step=$(sed -n 's/.*"steps":\([0-9]*\).*/\1/p' "$work/user.out")
    is_right user 0 "$(reference "${step:-1}")" 2
    echo "ok   user: $(value_of "$work/knock" made) connections, $(value_of "$work/knock" refused) of them refused by word;" \
        "stopped by root at step $step (exit code $code)"
}

# ---- worlds of two ranks, without a session ----------------------------------------------------------------------

# rank CASE RANK VARIABLES...: rank 0 is on host 1, rank 1 on host 2. They meet at a known port.
rank() {
    local case=$1 rank=$2
    shift 2
    ip netns exec "$id-$((rank + 1))" env "$@" timeout -k 5 "$limit_s" "$tandem" run -n 1 --first "$rank" --size 2 \
        --rendezvous 10.77.0.1:7000 -- "$tandem" train "$work/job.yaml" -q --json --set "run.dir=$work/$case"
}
listens() { [ -n "$(strangers listening "$tandem" "$(namespace 1)")" ]; }
# begin_world CASE VARIABLES...: rank 0, which waits for rank 1.
begin_world() {
    local case=$1
    shift
    rank "$case" 0 "$@" >"$work/$case.out" 2>"$work/$case.err" &
    launcher=$!
    wait_until 60 listens || { complain "$case: rank 0 does not listen"; cat "$work/$case.err"; }
}
# refused CASE TEXT VARIABLES...: a rank 1 with these is rejected, and prints the reason.
refused() {
    local case=$1 text=$2 code=0
    shift 2
    rank "$case" 1 "$@" >"$work/refused.out" 2>&1 || code=$?
    [ $code = 6 ] || complain "$case: the rank that is refused ends with $code, not 6: $(cat "$work/refused.out")"
    grep -qF -- "$text" "$work/refused.out" || complain "$case: it says $(cat "$work/refused.out"), not '$text'"
}
# end_world CASE HASH VARIABLES...: a rank 1 that is accepted. The world ends like an undisturbed one.
end_world() {
    local case=$1 want=$2 code=0 second=0
    shift 2
    rank "$case" 1 "$@" >"$work/rank-1.out" 2>&1 || second=$?
    wait "$launcher" || code=$?
    [ $second = 0 ] || complain "$case: rank 1 ended with $second: $(cat "$work/rank-1.out")"
    is_right "$case" $code "$want" 0
}

# ---- certificates ------------------------------------------------------------------------------------------------

readonly ec=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
authority() { openssl req -x509 "${ec[@]}" -days 2 -subj "/O=$1" -keyout "$work/$1.key" -out "$work/$1.pem" 2>/dev/null; }
certificate() { # certificate NAME AUTHORITY SUBJECT_ALTERNATIVE_NAME
    openssl req "${ec[@]}" -subj "/CN=$1" -keyout "$work/$1.key" -out "$work/$1.csr" 2>/dev/null
    openssl x509 -req -in "$work/$1.csr" -CA "$work/$2.pem" -CAkey "$work/$2.key" -CAcreateserial -days 2 \
        -extfile <(echo "subjectAltName=$3") -out "$work/$1.pem" 2>/dev/null
}
# variables NAME: for a host with this certificate; $files are the same as a list.
variables() {
    files=(TANDEM_SECURITY=tls TANDEM_TLS_CERTIFICATE="$work/$1.pem" TANDEM_TLS_KEY="$work/$1.key"
        TANDEM_TLS_AUTHORITY="$work/trusted.pem")
}
# certified CASE NAME: a session in which host 2 has this certificate; leaves its exit code in $code.
certified() {
    variables one
    printf '%s\n' "${files[@]}" >"$NET_ENVIRONMENT/10.77.0.1"
    variables "$2"
    printf '%s\n' "${files[@]}" >"$NET_ENVIRONMENT/10.77.0.2"
    code=0
    start "$1"
    wait "$launcher" || code=$?
    rm -f "$NET_ENVIRONMENT"/*
}
# ends_saying CASE CODE TEXT
ends_saying() {
    [ "$code" = "$2" ] || { complain "$1: ended with $code, not $2"; show "$1"; }
    grep -qE -- "$3" "$work/$1.err" || complain "$1: it says $(cat "$work/$1.err"), not '$3'"
}
case_certificates() {
    local want code files
    want=$(reference 60)
    authority trusted
    authority unknown
    certificate one trusted IP:10.77.0.1
    certificate two trusted IP:10.77.0.2
    certificate foreign unknown IP:10.77.0.2
    certificate misnamed trusted IP:10.77.0.9
    certified certified two
    is_right certified "$code" "$want" 2
    # Rank 0 may be on either host: either the side that verifies reports it, or the one that was rejected.
    certified foreign foreign
    ends_saying foreign 6 "certificate \(/CN=foreign\)"
    certified misnamed misnamed
    ends_saying misnamed 6 'certificate of another name \(/CN=misnamed\)'
    certified missing missing
    ends_saying missing 1 "cannot use the certificate $work/missing.pem: No such file or directory"
    # The same for the ranks of a fixed world: rank 0 continues to wait for one that matches.
    variables one
    begin_world certificates TANDEM_SECRET=fixed "${files[@]}"
    variables foreign
    refused certificates "the peer refuses this side's certificate (/CN=foreign)" TANDEM_SECRET=fixed "${files[@]}"
    variables misnamed
    refused certificates 'has a certificate of another name (/CN=misnamed)' TANDEM_SECRET=fixed "${files[@]}"
    refused certificates 'set comm.security' TANDEM_SECRET=fixed
    variables two
    end_world certificates "$want" TANDEM_SECRET=fixed "${files[@]}"
    echo "ok   certificates"
}

# ---- newcomer ----------------------------------------------------------------------------------------------------

# epochs_of CASE: how many epochs the run has had.
epochs_of() { grep -c '"message":"epoch [0-9]*: training ' "$work/$1/$name-1/log.jsonl" || true; }
# step_of CASE: the last step in its metrics.
step_of() { sed -n 's/.*"step":\([0-9]*\).*/\1/p' "$work/$1/$name-1/metrics.jsonl" | tail -n 1; }
trains_past() { [ "$(step_of "$1")" -gt "$2" ]; }
# joins VARIABLES...: two workers of host 3; leaves the exit code in $code and what it prints in $work/join.out.
joins() {
    code=0
    on 3 env TANDEM_SECRET="$secret" "$@" timeout -k 5 "$limit_s" "$tandem" join $name-1 -n 2 --host host3 --store "$store" \
        >"$work/join.out" 2>&1 || code=$?
}
# is_expelled WHAT TEXT VARIABLES...: workers with these are not admitted to the run.
# run changes its epoch to take them in and once more to continue without them, at most for each of them, and continues.
is_expelled() {
    local what=$1 text=$2 before after code
    shift 2
    before=$(epochs_of newcomer)
    joins "$@"
    [ "$code" = 6 ] || complain "newcomer: $what: join ends with $code, not 6: $(cat "$work/join.out")"
    grep -qE -- "$text" "$work/join.out" || complain "newcomer: $what: join says $(cat "$work/join.out"), not '$text'"
    wait_until 60 trains_past newcomer "$(step_of newcomer)" || complain "newcomer: $what: the run no longer trains"
    after=$(epochs_of newcomer)
    [ $((after - before)) -le 4 ] || complain "newcomer: $what: $((after - before)) epochs instead of 2"
    [ $failures = 0 ]
}
has_three() { grep '"message":"epoch [0-9]*: training continues' "$work/newcomer/$name-1/log.jsonl" | tail -n 1 | grep -q 'with 3 ranks'; }
# expel_all: hosts with a certificate of another authority or of another name, without a file, with another
# comm.security, and with a certificate that one host accepts, where rank 0 may be, and the other one does not.
expel_all() {
    local host
    variables foreign
    is_expelled foreign 'certificate \(/CN=foreign\).*comm.tls_certificate' "${files[@]}" || return
    variables misnamed
    is_expelled misnamed 'certificate of another name \(/CN=misnamed\)' "${files[@]}" || return
    variables missing
    is_expelled missing "cannot use the certificate $work/missing.pem: No such file or directory" "${files[@]}" || return
    is_expelled psk 'set comm.security' TANDEM_SECURITY=psk || return
    for host in 1 2; do
        variables only-$host
        is_expelled only-$host "certificate \\(/CN=only-$host\\)" "${files[@]}" || return
    done
}
# Hosts whose certificate does not fit join a healthy run; then one whose certificate does.
case_newcomer() {
    local secret=5e55107f1a9b3c2d files host large='model.hidden=[512, 512]'
    authority trusted
    authority unknown
    certificate one trusted IP:10.77.0.1
    certificate two trusted IP:10.77.0.2
    certificate three trusted IP:10.77.0.3
    certificate foreign unknown IP:10.77.0.3
    certificate misnamed trusted IP:10.77.0.9
    for host in 1=one 2=two; do
        authority "authority-${host%=*}"
        certificate "only-${host%=*}" "authority-${host%=*}" IP:10.77.0.3
        cat "$work/trusted.pem" "$work/authority-${host%=*}.pem" >"$work/both-${host%=*}.pem"
        variables "${host#*=}"
        printf '%s\n' "${files[@]}" TANDEM_TLS_AUTHORITY="$work/both-${host%=*}.pem" >"$NET_ENVIRONMENT/10.77.0.${host%=*}"
    done
    TANDEM_SECRET=$secret start newcomer train.steps=100000000 elastic.max=8 "$large"
    wait_until 60 test -s "$work/newcomer/$name-1/metrics.jsonl" || { complain "newcomer: no session"; show newcomer; return 0; }
    expel_all || { show newcomer; kill_host 1; kill_host 2; return 0; }
    variables three
    on 3 env TANDEM_SECRET=$secret "${files[@]}" timeout -k 5 "$limit_s" "$tandem" join $name-1 --host host3 --store "$store" \
        >"$work/join.out" 2>&1 &
    wait_until 60 has_three || { complain "newcomer: one with a good certificate is not let in"; cat "$work/join.out"; }
    on 1 "$tandem" stop $name-1 --store "$store" >"$work/stop.out" 2>&1 || complain "newcomer: $(cat "$work/stop.out")"
    wait "$launcher" || true
    rm -f "$NET_ENVIRONMENT"/*
    # Two workers of the session, two of each host that is refused, and the one that is let in.
    is_right newcomer 0 "$(reference "$(sed -n 's/.*"steps":\([0-9]*\).*/\1/p' "$work/newcomer.out")" "$large")" 15
    echo "ok   newcomer: $(epochs_of newcomer) epochs"
}

# ---- secret ------------------------------------------------------------------------------------------------------

# Strangers connect to rank 0's port before rank 1 comes, first with another secret, then with the right one. An agent
# with another secret is not let into a session.
case_secret() {
    local want code=0 report=$work/secret.report
    want=$(reference 60)
    begin_world secret TANDEM_SECRET=right
    start_flood 2000 "$report"
    wait_until 60 test -e "$report" || complain "secret: no flood"
    refused secret 'refused rank 1: it has another secret' TANDEM_SECRET=wrong
    end_world secret "$want" TANDEM_SECRET=right
    stop_flood "$report"
    TANDEM_SECRET=5e55107f1a9b3c2d start joined train.steps=100000000
    wait_until 60 has_worker 2 || complain "secret: no session"
    wait_until 60 test -s "$work/joined/$name-1/metrics.jsonl" || complain "secret: the session does not train"
    on 2 env TANDEM_SECRET=0123456789abcdef timeout 60 "$tandem" join $name-1 --store "$store" >"$work/join.out" 2>&1 || code=$?
    [ $code = 1 ] || complain "secret: join with another secret ends with $code, not 1"
    grep -qF 'the secret of this host differs from the secret of session' "$work/join.out" || complain "secret: join says $(cat "$work/join.out")"
    on 1 "$tandem" stop $name-1 --store "$store" >"$work/stop.out" 2>&1 || complain "secret: $(cat "$work/stop.out")"
    wait "$launcher" || true
    is_right joined 0 "$(reference "$(sed -n 's/.*"steps":\([0-9]*\).*/\1/p' "$work/joined.out")")" 2
    echo "ok   secret: rank 1 came to a port with $(value_of "$report" begun) strangers"
}

start_etcd
for name_list in "${@:-flood trace user certificates newcomer secret}"; do
    # shellcheck disable=SC2086 # a list
    for case in $name_list; do "case_$case"; done
done
wait_until 60 no_tandem || complain "processes of tandem are left"
[ $failures -eq 0 ]
