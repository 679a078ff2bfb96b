#!/usr/bin/env bash
# `tandem doctor`: its output agrees with the system's own tools; tight limits are problems, with advice, and
# give exit code 1.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

# value NAME: of the finding, from JSON in $out.
value() {
    tr '{' '\n' <<<"$out" | sed -n "s/.*\"name\":\"$1\",\"value\":\"\\([^\"]*\\)\".*/\\1/p"
}

test_the_machine() {
    assert_exit 0 "$TANDEM" doctor --json
    assert_equal "$(value cores)" "$(nproc) usable of $(getconf _NPROCESSORS_ONLN)" "cores"
    [[ $(value topology) =~ ^[0-9]+\ cores?,\ $(nproc)\ hardware\ threads?,\ [0-9]+\ NUMA ]] ||
        fail "the topology is '$(value topology)'"
    assert_equal "$(value kernel)" "$(uname -sr)" "the kernel"
    assert_contains "$(value level)" "($(uname -m))"
    assert_contains "$(value available)" " of "
    assert_equal "$(value tandem)" "$("$TANDEM" version | sed 's/tandem //; s/ .*//;q')" "the version"
}

# The kernels have the level of the CPU; TANDEM_ISA lowers it, and a level that the CPU does not have changes
# nothing.
test_kernel_level() {
    if [ "$(uname -m)" != x86_64 ]; then return; fi
    assert_exit 0 env -u TANDEM_ISA "$TANDEM" doctor --json
    local level
    level=$(value kernels)
    assert_equal "$(value level)" "$level (x86_64)" "the level of the CPU"
    assert_exit 0 env TANDEM_ISA=v2 "$TANDEM" doctor --json
    assert_equal "$(value kernels)" "x86-64-v2 with TANDEM_ISA=v2" "a lower level"
    assert_exit 0 env TANDEM_ISA=v9 "$TANDEM" doctor --json
    assert_equal "$(value kernels)" "$level with TANDEM_ISA=v9" "a level that there is not"
    assert_contains "$out" "correct or unset it"
}

test_the_libraries() {
    assert_exit 0 "$TANDEM" doctor
    local name
    for name in 'oneDNN [0-9]+\.[0-9]+\.[0-9]+' 'libyaml 0\.[0-9]' 'OpenSSL 3\.[0-9]' 'zlib 1\.[0-9]'; do
        [[ $out =~ $name ]] || fail "no '$name' in: $out"
    done
    if command -v pkg-config >/dev/null && pkg-config --exists yaml-0.1; then
        assert_contains "$out" "libyaml $(pkg-config --modversion yaml-0.1)"
    fi
    assert_contains "$out" "ready to train"
    awk 'length($0) > 80 { exit 1 }' <<<"$out" || fail "lines of more than 80 columns: $out"
}

# Every transport has a line; one whose module is missing reports it, which is not an error.
test_transports() {
    assert_exit 0 "$TANDEM" doctor --json
    local name
    for name in shm tcp ucx mpi sim; do
        [ -n "$(value $name)" ] || fail "no line about $name: $out"
    done
    assert_contains "$(value shm)" "shared memory"
    if [ -e "$(dirname "$TANDEM")/libtandem-ucx.so" ]; then
        assert_contains "$(value ucx)" "UCX 1."
    else
        assert_contains "$(value ucx)" "libtandem-ucx.so"
    fi
}

test_tight_limits_are_problems() {
    local code=0
    out=$(ulimit -n 20 && "$TANDEM" doctor) || code=$?
    assert_equal "$code" 1 "the exit code with 20 open files"
    [[ $out =~ problem\ +open\ files\ +20 ]] || fail "no problem: $out"
    assert_contains "$out" "ulimit -n 1024"
    assert_contains "$out" "1 problem, "
    code=0
    out=$(ulimit -n 20 && ulimit -f 1000 && "$TANDEM" doctor --json) || code=$?
    assert_equal "$code" 1 "the exit code with two problems"
    assert_contains "$out" '"problems":2,'
    assert_equal "$(value 'file size')" "1.02 MB" "the limit"
}

test_notes_are_no_problems() {
    out=$(ulimit -t 100000 && "$TANDEM" doctor) || fail "a note ended with $?: $out"
    [[ $out =~ note\ +CPU\ time\ \(s\)\ +100,000 ]] || fail "no note: $out"
    assert_contains "$out" "ulimit -t unlimited"
    assert_contains "$out" "ready to train; "
    if [ "$(nproc)" -gt 1 ]; then
        assert_exit 0 taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$TANDEM" doctor
        [[ $out =~ note\ +cores\ +1\ usable\ of ]] || fail "no note on one core: $out"
    fi
}

test_bad_input() {
    assert_exit 2 "$TANDEM" doctor now
    assert_exit 2 "$TANDEM" doctor --jsno
    assert_contains "$err" "did you mean '--json'?"
    if "$TANDEM" doctor >/dev/full 2>err.txt; then fail "a full disk went unnoticed"; fi
    assert_contains "$(cat err.txt)" "cannot write the output"
}

is_training() { [[ $("$TANDEM" ps --json) == *'"state":"training"'* ]]; }
# What a job would expose, and an active run exposes: the sockets that the kernel lists, the file of the
# secret, the store.
test_security() {
    make_data 150 data.csv
    make_job job.yaml
    assert_exit 0 "$TANDEM" doctor --security job.yaml --json
    assert_contains "$(value security)" "auto: TLS 1.3"
    assert_contains "$(value source)" "generated for each session"
    sed 's/^name:.*/&\ncomm: {security: off, transport: ucx}\nstore: etcd/' job.yaml >open.yaml
    assert_exit 0 env TANDEM_SECRET=short "$TANDEM" doctor --security open.yaml
    assert_contains "$out" "neither authenticate nor encrypt"
    assert_contains "$out" "it is short enough to be guessed"
    assert_contains "$out" "without TLS"
    assert_contains "$out" "set etcd.user"
    echo key >key.pem
    chmod 644 key.pem
    assert_exit 1 env TANDEM_SECURITY=tls TANDEM_TLS_KEY=key.pem "$TANDEM" doctor --security job.yaml
    assert_contains "$out" "other users can read it"
    assert_contains "$out" "set it to a PEM file"
    assert_exit 2 "$TANDEM" doctor --security nothere
    export TANDEM_RUNTIME=$work/runtime
    "$TANDEM" train job.yaml -q -n 2 --set train.epochs=1000000 --set run.dir=secure >/dev/null 2>&1 &
    local launcher=$!
    wait_for 100 is_training
    assert_exit 0 "$TANDEM" doctor --security tiny-1
    assert_contains "$out" "UNIX socket @tandem-"
    assert_lacks "$out" " port "
    assert_exit 0 "$TANDEM" doctor --security tiny-1 --json
    assert_contains "$(value file)" ".secret (mode 600)"
    assert_exit 0 "$TANDEM" stop tiny-1
    wait "$launcher" || true
}

run_tests "$@"
