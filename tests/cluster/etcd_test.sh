#!/usr/bin/env bash
# The store in front of real etcd servers: three members on the loopback device, whose leader is killed
# with SIGKILL, and then one more, so that nobody can answer; then one member with TLS and users.
#   etcd_test.sh PROGRAM
# Without etcd (make setup-etcd installs it) the test is skipped (77).
set -euo pipefail
program=$1
skip() {
    echo "SKIPPED: $*; the store etcd was not tested"
    exit 77
}
for tool in etcd etcdctl openssl; do
    command -v "$tool" >/dev/null || skip "there is no $tool (make setup-etcd installs it)"
done
if "$program" refused http://127.0.0.1:1 "no libcurl" >/dev/null 2>&1; then
    skip "this build has no libcurl"
fi
export ETCDCTL_API=3
export ETCD_UNSUPPORTED_ARCH=arm64 # without which etcd does not start there
work=$(mktemp -d)
status=0
declare -A member=() # name to process
kill_all() {
    local pid
    for pid in "${member[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
}
cleanup() {
    kill_all
    wait
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "FAIL: $*"
    for log in "$work"/*.log; do
        echo "--- $log"
        tail -n 8 "$log"
    done
    exit 1
}
run() { timeout 120 "$program" "$@" || status=1; }

# start NAME CLIENT-URL PEER-URL MORE...: one member, which keeps its data when it is started again
start() {
    local name=$1 client=$2 peer=$3
    shift 3
    rm -f "$work/$name.pid"
    # shellcheck disable=SC2016 # the inner shell's own number becomes etcd's
    (timeout 300 bash -c 'echo $$ >"$0"; exec etcd "$@"' "$work/$name.pid" --name "$name" \
        --data-dir "$work/$name" --logger zap --log-level error \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster-token "$work" "$@" || true) >>"$work/$name.log" 2>&1 &
    for _ in $(seq 200); do
        [ -s "$work/$name.pid" ] && break
        sleep 0.05
    done
    member[$name]=$(cat "$work/$name.pid")
}
# healthy ETCDCTL-ARGUMENTS...: waits until all of them can be asked
healthy() {
    for _ in $(seq 300); do
        etcdctl "$@" endpoint health >/dev/null 2>&1 && return
        sleep 0.2
    done
    return 1
}

# ---- three members ----------------------------------------------------------------------------------
# Ports below those that the system assigns; other ports where one is in use.
three() {
    local base=$1 i cluster='' urls=''
    for i in 1 2 3; do
        cluster+="m$i=http://127.0.0.1:$((base + 2 * i)),"
        urls+="http://127.0.0.1:$((base + 2 * i + 1)),"
    done
    endpoints=${urls%,}
    for i in 1 2 3; do
        start "m$i" "http://127.0.0.1:$((base + 2 * i + 1))" "http://127.0.0.1:$((base + 2 * i))" \
            --initial-cluster "${cluster%,}"
    done
    healthy --endpoints "$endpoints"
}
for trial in 1 2 3 4; do
    base=$((20000 + RANDOM % 600 * 10)) # hosts_test.sh has those from 26000 on
    three "$base" && break
    [ "$trial" -lt 4 ] || fail "three members do not start"
    kill_all
    rm -rf "$work"/m?
done
echo "three members: $endpoints"
run exercise "$endpoints"

leader=$(etcdctl --endpoints "$endpoints" -w fields endpoint status |
    awk '/"MemberID"/ { id = $3 } /"Leader"/ { leader = $3 } /"Endpoint"/ { if (id == leader) print $3 }' |
    tr -d '"')
name=m$(((${leader##*:} - base - 1) / 2))
[ -n "${member[$name]:-}" ] || fail "no member is the leader ($leader)"
run survive "$endpoints" "${member[$name]}"
for other in m1 m2 m3; do
    [ "$other" = "$name" ] && continue
    kill -9 "${member[$other]}"
    break
done
run silence "$endpoints"
kill_all

# ---- TLS and users ----------------------------------------------------------------------------------
# Certificates that are good for a day, for a server at 127.0.0.1 and for clients.
certify() { # certify NAME PURPOSE
    openssl req -newkey rsa:2048 -nodes -keyout "$work/$1.key" -out "$work/$1.csr" -subj "/O=$1" \
        2>/dev/null
    printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=%s\n' "$2" >"$work/$1.ext"
    openssl x509 -req -in "$work/$1.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial \
        -days 1 -extfile "$work/$1.ext" -out "$work/$1.pem" 2>/dev/null
}
for authority in ca stranger; do
    openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj "/O=$authority" \
        -keyout "$work/$authority.key" -out "$work/$authority.pem" 2>/dev/null
done
certify server serverAuth,clientAuth # etcd's gateway is a client of the same server
certify client clientAuth

safe="https://127.0.0.1:$((base + 9))"
start_safe() {
    start safe "$safe" "http://127.0.0.1:$((base + 8))" --bcrypt-cost 4 --client-cert-auth \
        --initial-cluster "safe=http://127.0.0.1:$((base + 8))" \
        --cert-file "$work/server.pem" --key-file "$work/server.key" --trusted-ca-file "$work/ca.pem"
}
start_safe
admin=(--endpoints "$safe" --cacert "$work/ca.pem" --cert "$work/client.pem" --key "$work/client.key")
healthy "${admin[@]}" || fail "a member with TLS does not start"
{
    etcdctl "${admin[@]}" user add root:secret
    etcdctl "${admin[@]}" role add root
    etcdctl "${admin[@]}" user grant-role root root
    etcdctl "${admin[@]}" user add trainer:"pass \"word\" ü"
    etcdctl "${admin[@]}" role add tandem
    etcdctl "${admin[@]}" role grant-permission tandem --prefix=true readwrite tandem-test
    etcdctl "${admin[@]}" user grant-role trainer tandem
    etcdctl "${admin[@]}" auth enable
} >"$work/admin.log" 2>&1 || fail "users cannot be made"

export STORE_CA=$work/ca.pem STORE_CERTIFICATE=$work/client.pem STORE_KEY=$work/client.key
export STORE_USER=trainer STORE_PASSWORD='pass "word" ü'
run exercise "$safe"
timeout 150 "$program" users "$safe" "${member[safe]}" &
users=$!
for _ in $(seq 1200); do # until it has killed the member
    kill -0 "${member[safe]}" 2>/dev/null || break
    sleep 0.05
done
start_safe
wait "$users" || status=1
# Each of these takes all the time it has: side by side.
strangers=()
refused() {
    timeout 60 "$program" refused "$@" &
    strangers+=($!)
}
STORE_CA=$work/stranger.pem refused "$safe" certificate
STORE_CA=$work/none.pem refused "$safe" none.pem
STORE_CERTIFICATE='' STORE_KEY='' refused "$safe" "no etcd server answered"
STORE_KEY=$work/none.key refused "$safe" none.key
refused "${safe/https/http}" "no etcd server answered"
refused "${safe/https:\/\//}" "http://HOST:PORT"
for pid in "${strangers[@]}"; do wait "$pid" || status=1; done
[ $status = 0 ] || fail "see above"
echo "ok"
