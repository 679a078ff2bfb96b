#!/usr/bin/env bash
# `tandem run`: ranks in the environment, exits of all kinds, labels; nothing is left behind.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
mkdir tmp
export TMPDIR=$work/tmp
unset TANDEM_RANK TANDEM_SIZE TANDEM_SECRET TANDEM_RENDEZVOUS TANDEM_RUN TANDEM_TRANSPORT TANDEM_JOB

limit_s=60 # limit for events that must happen
has_lines() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }
# A program whose ranks write their ids to the file pids, and then sleep.
cat >sleeper <<'SH'
#!/bin/bash
echo $$ >>pids
exec sleep 100
SH
chmod +x sleeper

test_environment() {
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 0 "$TANDEM" run -n 3 -- sh -c \
        'env | grep ^TANDEM_ | sort >env.$TANDEM_RANK; test -d "$TANDEM_RUN"'
    local rank
    for rank in 0 1 2; do
        assert_contains "$(cat env.$rank)" "TANDEM_RANK=$rank"
        assert_contains "$(cat env.$rank)" "TANDEM_LOCAL_RANK=$rank"
        assert_contains "$(cat env.$rank)" "TANDEM_SIZE=3"
        assert_contains "$(cat env.$rank)" "TANDEM_LOCAL_SIZE=3"
        assert_lacks "$(cat env.$rank)" "TANDEM_TRANSPORT"
        assert_lacks "$(cat env.$rank)" "TANDEM_JOB"
        grep -qE '^TANDEM_SECRET=[0-9a-f]{32}$' env.$rank || fail "no secret of 128 bits"
        grep -qE '^TANDEM_RENDEZVOUS=unix:.+' env.$rank || fail "no rendezvous"
        assert_equal "$(grep -E 'SECRET|RENDEZVOUS|RUN' env.$rank)" \
            "$(grep -E 'SECRET|RENDEZVOUS|RUN' env.0)" "what all share"
    done
    assert_equal "$(ls tmp)" "" "left in the temporary directory"
    local first_secret
    first_secret=$(grep SECRET env.0)
    TANDEM_RANK=7 TANDEM_SECRET=old TANDEM_RUN=/nowhere assert_exit 0 \
        "$TANDEM" run -n 1 -- sh -c 'env | grep ^TANDEM_ >env.again'
    assert_equal "$(grep -c TANDEM_RANK env.again)" 1 "ranks"
    assert_contains "$(cat env.again)" "TANDEM_RANK=0"
    assert_lacks "$(cat env.again)" old
    assert_lacks "$(cat env.again)" "$first_secret"
}

test_part_of_a_world() {
    # shellcheck disable=SC2016 # for the ranks
    TANDEM_SECRET=common assert_exit 0 "$TANDEM" run -n 2 --first 2 --size 5 --rendezvous alpha:7000 \
        --transport ucx --run kept -- sh -c 'env | grep ^TANDEM_ >part.$TANDEM_RANK'
    assert_contains "$(cat part.3)" "TANDEM_LOCAL_RANK=1"
    assert_contains "$(cat part.3)" "TANDEM_LOCAL_SIZE=2"
    assert_contains "$(cat part.3)" "TANDEM_SIZE=5"
    assert_contains "$(cat part.3)" "TANDEM_SECRET=common"
    assert_contains "$(cat part.3)" "TANDEM_RENDEZVOUS=alpha:7000"
    assert_contains "$(cat part.3)" "TANDEM_TRANSPORT=ucx"
    assert_contains "$(cat part.3)" "TANDEM_RUN=$work/kept"
    [ -d kept ] || fail "the run's directory was removed"
    assert_exit 2 "$TANDEM" run -n 2 --size 5 -- true
    assert_contains "$err" "rendezvous"
    assert_exit 2 "$TANDEM" run -n 2 --first 4 --size 5 --rendezvous alpha:7000 -- true
    assert_exit 2 "$TANDEM" run -n 0 -- true
    assert_exit 2 "$TANDEM" run -n 2
    assert_exit 2 "$TANDEM" run -n 2 --transport shmm -- true
    assert_contains "$err" "did you mean 'shm'"
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 0 "$TANDEM" run -n 1 --transport shm+ucx -- sh -c 'echo "$TANDEM_TRANSPORT"'
    assert_equal "$out" "shm+ucx" "both at once"
}

test_job() {
    make_data 30 data.csv
    make_job job.yaml
    # shellcheck disable=SC2016 # for the ranks
    local show='echo "$TANDEM_JOB $TANDEM_TRANSPORT"'
    assert_exit 0 "$TANDEM" run -n 1 --job job.yaml -- sh -c "$show"
    [[ $out =~ ^[0-9a-f]{64}\ auto$ ]] || fail "no hash of the job: $out"
    local hash=${out% *}
    assert_exit 0 "$TANDEM" run -n 1 --job job.yaml --set comm.transport=mpi -- sh -c "$show"
    assert_equal "$out" "$hash mpi" "the transport is not part of the job's hash"
    assert_exit 0 "$TANDEM" run -n 1 --job job.yaml --transport shm -- sh -c "$show"
    assert_equal "$out" "$hash shm" "the option wins"
    assert_exit 0 "$TANDEM" run -n 1 --job job.yaml --set seed=9 -- sh -c "$show"
    [ "$out" != "$hash auto" ] || fail "another job has the same hash"
    assert_exit 2 "$TANDEM" run -n 1 --job job.yaml --set comm.transport=pigeon -- true
    assert_exit 2 "$TANDEM" run -n 1 --set comm.transport=shm -- true
    assert_contains "$err" "'--set' overrides a key of a job; give the job with '--job'"
}

test_exit_codes() {
    assert_exit 0 "$TANDEM" run -n 2 -- true
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 7 "$TANDEM" run -n 3 -- sh -c '[ $TANDEM_RANK != 1 ] || exit 7'
    assert_contains "$err" "rank 1 exited with code 7"
    assert_equal "$(ls tmp)" "" "an empty directory is left"
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 8 "$TANDEM" run -n 2 -- sh -c 'echo x >"$TANDEM_RUN/$TANDEM_RANK"; exit 8'
    assert_contains "$err" "exited with code 8"
    assert_contains "$err" "shows the last events of each rank"
    [ "$(find tmp -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] || fail "the failed run's directory is not kept"
    rm -r tmp/tandem-run-*
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 137 "$TANDEM" run -n 3 --run kept -- sh -c '[ $TANDEM_RANK != 2 ] || kill -9 $$'
    assert_contains "$err" "rank 2 was killed by signal 9 (Killed)"
    assert_contains "$err" "'tandem trace kept' shows"
    # Other ranks may detect a failed rank, and exit, before the kernel has reported its exit: the failed rank
    # is still reported as the cause, unless it exited because of an error that it received.
    cat >late <<'SH'
#!/bin/bash
trap '' TERM # the remaining ranks receive it
if [ $TANDEM_RANK = 0 ]; then until [ -e "late.$1" ]; do sleep 0.01; done; echo $$ >"late.$1"; exit 3; fi
touch "late.$1"
until [ -s "late.$1" ]; do sleep 0.01; done
first=$(<"late.$1")
while stat=$(cat "/proc/$first/stat" 2>/dev/null) && [[ $stat != *") Z "* ]]; do sleep 0.01; done
kill -s "$1" $$
SH
    chmod +x late
    assert_exit 137 "$TANDEM" run -n 2 --run kept -- ./late KILL
    assert_contains "$err" "rank 1 was killed by signal 9 (Killed)"
    assert_exit 3 "$TANDEM" run -n 2 --run kept -- ./late ABRT
    assert_contains "$err" "rank 0 exited with code 3"
    # Words after -- belong to the program, also if they look like options of tandem.
    assert_exit 0 "$TANDEM" run -n 1 -- echo --label -n 5 --help
    assert_equal "$out" "--label -n 5 --help" "the program's own options"
}

# The others get SIGTERM first, and may exit normally; a rank that does not is killed.
test_failing_rank_ends_the_others() {
    cat >others <<'SH'
#!/bin/bash
case $TANDEM_RANK in
0) until [ -s stubborn ] && [ -e ready.1 ] && [ -e ready.3 ]; do sleep 0.01; done; echo $$ >going; exit 3 ;;
1) trap 'echo asked >asked; exit 0' TERM; touch ready.1; while :; do sleep 0.05; done ;;
2) trap '' TERM; echo $$ >stubborn; while :; do sleep 0.05; done ;;
3) touch ready.3; until [ -s going ] && ! [ -e "/proc/$(<going)" ]; do :; done
    echo "rank 0 is gone" >report; exit 1 ;;
esac
SH
    chmod +x others
    assert_exit 3 timeout $limit_s "$TANDEM" run -n 4 --grace 1 --run kept -- ./others
    assert_contains "$err" "rank 0 exited with code 3"
    assert_equal "$(cat asked)" asked "who was asked"
    assert_equal "$(cat report)" "rank 0 is gone" "the moment to report"
    all_gone "$(cat stubborn)" || fail "a rank that ignores SIGTERM lives on"
}

test_killed_rank() {
    rm -f pids
    "$TANDEM" run -n 3 --run kept -- ./sleeper 2>err.txt &
    local launcher=$! code=0 pids
    wait_for $limit_s has_lines pids 3
    mapfile -t pids <pids
    kill -9 "${pids[1]}"
    wait "$launcher" || code=$?
    assert_equal "$code" 137 "the code"
    assert_contains "$(cat err.txt)" "was killed by signal 9 (Killed)"
    all_gone "${pids[@]}" || fail "ranks are left"
}

# The ranks of a launcher that is killed end soon after it, also stopped ones: long before they would end by
# themselves.
test_killed_launcher() {
    rm -f pids
    "$TANDEM" run -n 4 -- ./sleeper &
    local launcher=$! pids
    wait_for $limit_s has_lines pids 4
    mapfile -t pids <pids
    kill -STOP "${pids[2]}"
    kill -9 "$launcher"
    wait "$launcher" 2>/dev/null || true
    wait_for 30 all_gone "${pids[@]}"
    rm -rf tmp/tandem-run-*
}

# Signals are forwarded once; the second one kills.
test_interrupt() {
    cat >counter <<'SH'
#!/bin/bash
count=0
trap 'count=$((count + 1)); echo $count >count.$TANDEM_RANK' INT
trap 'exit 0' TERM
echo $$ >>pids
while :; do sleep 0.05; done
SH
    chmod +x counter
    rm -f pids
    # A shell without job control starts background processes with SIGINT ignored: env restores the default.
    env --default-signal=INT "$TANDEM" run -n 2 --run kept -- ./counter 2>err.txt &
    local launcher=$! code=0 pids
    wait_for $limit_s has_lines pids 2
    mapfile -t pids <pids
    kill -INT "$launcher"
    wait_for $limit_s has_lines count.0 1
    wait_for $limit_s has_lines count.1 1
    sleep 0.3
    assert_equal "$(cat count.0 count.1)" $'1\n1' "how often the ranks heard it"
    all_gone "${pids[@]}" && fail "the first signal killed"
    kill -INT "$launcher"
    wait "$launcher" || code=$?
    assert_equal "$code" 130 "the code"
    all_gone "${pids[@]}" || fail "the second signal did not kill"
    rm -f pids
    "$TANDEM" run -n 2 --run kept -- ./counter &
    launcher=$! code=0
    wait_for $limit_s has_lines pids 2
    kill -TERM "$launcher"
    wait "$launcher" || code=$?
    assert_equal "$code" 130 "the code after SIGTERM, when all ranks ended well"
}

# On a terminal Ctrl-C reaches the whole foreground process group: the ranks still get it once.
test_terminal() {
    command -v script >/dev/null || { echo "script is not there: no terminal to test with"; return; }
    rm -f pids count.*
    # The terminal driver turns byte 3 into the signal.
    {
        wait_for $limit_s has_lines pids 2
        printf '\3'
        wait_for $limit_s has_lines count.0 1
        wait_for $limit_s has_lines count.1 1
        sleep 0.3 # a second one would arrive now
        cat count.0 count.1 >heard
        printf '\3'
        mapfile -t pids <pids
        wait_for $limit_s all_gone "${pids[@]}"
    } | timeout $((4 * limit_s)) script -qec "$TANDEM run -n 2 --run kept -- ./counter" terminal.txt \
        >/dev/null || true
    assert_equal "$(cat heard)" $'1\n1' "how often the ranks heard it"
    local pids
    mapfile -t pids <pids
    all_gone "${pids[@]}" || fail "ranks are left"
}

test_programs_that_do_not_run() {
    assert_exit 1 "$TANDEM" run -n 4 -- no-such-program-here
    assert_contains "$err" "cannot run no-such-program-here: No such file or directory in PATH"
    echo "no program" >plain.txt
    assert_exit 1 "$TANDEM" run -n 4 -- ./plain.txt
    assert_contains "$err" "cannot run ./plain.txt: Permission denied"
    assert_equal "$(ls tmp)" "" "left in the temporary directory"
}

test_labels() {
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 0 "$TANDEM" run -n 3 --label -- sh -c \
        'for i in 1 2 3 4 5; do echo "line $i of $TANDEM_RANK"; echo "error $i" >&2; done; printf open'
    local rank i
    for rank in 0 1 2; do
        for i in 1 2 3 4 5; do
            assert_contains "$out" "[$rank] line $i of $rank"
            assert_contains "$err" "[$rank] error $i"
        done
        assert_contains "$out" "[$rank] open"
    done
    assert_equal "$(wc -l <<<"$out")" 18 "lines"
    # shellcheck disable=SC2016 # for the other shell
    assert_exit 1 bash -c '"$0" run -n 2 --label -- echo there >/dev/full' "$TANDEM"
    assert_contains "$err" "cannot write the output: No space left on device"
    # Long lines are not split, and every byte arrives.
    head -c 600000 /dev/urandom | tr -d '\n' >long.bin
    # shellcheck disable=SC2016 # for the ranks
    "$TANDEM" run -n 2 --label -- sh -c 'cat long.bin; echo' >labelled.bin
    { printf '[0] '; cat long.bin; echo; } >zero.bin
    { printf '[1] '; cat long.bin; echo; } >one.bin
    cat zero.bin one.bin >01.bin
    cat one.bin zero.bin >10.bin
    cmp -s labelled.bin 01.bin || cmp -s labelled.bin 10.bin || fail "bytes were changed or mixed"
    # A child of a rank that keeps the pipe open does not delay the launcher, and a closed output is not an
    # error.
    local start=$SECONDS
    assert_exit 0 "$TANDEM" run -n 1 --label -- sh -c 'sleep 30 & echo there'
    assert_equal "$out" "[0] there" "output"
    [ $((SECONDS - start)) -lt 20 ] || fail "waited for a child of a rank"
    { "$TANDEM" run -n 2 --label --run kept -- yes 2>/dev/null || true; } | head -n 3 >three.txt
    assert_equal "$(wc -l <three.txt)" 3 "lines before the pipe was closed"
}

test_input() {
    assert_equal "$(echo hello | "$TANDEM" run -n 2 --label -- cat)" "[0] hello" "input"
}

# A parent that ignores SIGCHLD passes that on, and then the kernel discards the exit codes of children.
test_ignored_sigchld() {
    # shellcheck disable=SC2016 # for the inner shell
    assert_exit 3 timeout $limit_s bash -c 'trap "" CHLD; exec "$@"' bash \
        "$TANDEM" run -n 2 -- sh -c 'exit 3'
}

test_many_ranks_on_few_cores() {
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 0 "$TANDEM" run -n 16 -- sh -c 'echo $TANDEM_RANK'
    assert_equal "$(sort -n <<<"$out" | tr '\n' ' ')" "$(seq -s ' ' 0 15) " "ranks"
    assert_equal "$(ls tmp)" "" "left in the temporary directory"
}

test_pins() {
    local usable
    usable=$(nproc)
    # shellcheck disable=SC2016 # for the ranks
    assert_exit 0 "$TANDEM" run -n "$usable" --pin -- sh -c 'grep Cpus_allowed_list /proc/self/status'
    assert_equal "$(sort -u <<<"$out" | wc -l)" "$usable" "different processors"
    assert_exit 0 "$TANDEM" run -n $((usable + 1)) --pin -- true
}

run_tests "$@"
