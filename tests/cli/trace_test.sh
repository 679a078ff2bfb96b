#!/usr/bin/env bash
# `tandem trace`: the last actions of the ranks, which rank waits for which, and the JSON output; for dead
# ranks and for living ones.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
# The test program that also writes traces of a world in which rank 2 is missing from a call.
writer=$(dirname "$TANDEM")/tests/comm_trace
[ -x "$writer" ] || skip "there is no $writer"
"$writer" --write dead >ready.txt

test_killed_ranks() {
    assert_exit 0 "$TANDEM" trace dead
    assert_contains "$out" "rank 0 of 3 on "
    assert_contains "$out" "killed or crashed; 7 events"
    assert_contains "$out" "s ago  began all_reduce #17 of world: f32, 4.00 MB"
    assert_contains "$out" "waits for rank 2 in all_reduce #17 of world"
    # All three were killed, in this test: each is named.
    assert_contains "$out" "rank 2 (process "
    assert_equal "$(grep -c '^rank [012] of 3' <<<"$out")" 3 "ranks"
}

test_selection() {
    assert_exit 0 "$TANDEM" trace dead --rank 1 --last 2
    assert_equal "$(grep -c ' s ago  ' <<<"$out")" 2 "events"
    assert_equal "$(grep -c '^rank . of 3' <<<"$out")" 1 "ranks"
    assert_exit 1 "$TANDEM" trace dead --rank 7
    assert_contains "$err" "no trace of rank 7"
    assert_exit 2 "$TANDEM" trace dead --last 5000
    assert_exit 2 "$TANDEM" trace
    mkdir run
    cp -r dead run/trace
    assert_exit 0 "$TANDEM" trace run
    assert_contains "$out" "rank 2 of 3"
}

test_running_ranks() {
    rm ready.txt
    "$writer" --hang alive >ready.txt &
    local pid=$!
    wait_for 60 test -s ready.txt
    assert_exit 0 "$TANDEM" trace alive
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
    assert_contains "$out" ": running; 7 events"
    assert_contains "$out" "rank 2 did not call it: last event: mark"
    assert_contains "$out" "the culprit is rank 2 (process $pid on "
    assert_contains "$out" "it is running and in no call"
    assert_exit 0 "$TANDEM" trace alive
    assert_contains "$out" "killed or crashed"
    assert_lacks "$out" "running"
}

# Real ranks, of which the last is late: which ranks wait, for which one, and the cause. A signal that
# requests a dump has no other effect; and at the end all ranks succeed.
test_ranks_that_hang() {
    TANDEM_DUMP_SIGNAL=USR2 "$TANDEM" run -n 3 --run hang -- "$(dirname "$writer")/comm_late" go &
    local launcher=$! end=$((SECONDS + 60)) pid
    while [ "$SECONDS" -lt "$end" ]; do
        if [ -e hang/rank-00002.trace ]; then
            assert_exit 0 "$TANDEM" trace hang
            [ "$(grep -c 'waits for rank 2 in all_reduce #17 of world for' <<<"$out")" = 2 ] && break
        fi
        sleep 0.1
    done
    pid=$(sed -n 's/^rank 2 of 3 on .*, process \([0-9]*\),.*/\1/p' <<<"$out")
    assert_contains "$out" "rank 0 waits for rank 2 in all_reduce #17 of world for"
    assert_contains "$out" "rank 1 waits for rank 2 in all_reduce #17 of world for"
    assert_contains "$out" "rank 2 did not call it: last event: mark \"asleep\""
    assert_contains "$out" "the culprit is rank 2 (process $pid on "
    kill -USR2 "$pid"
    sleep 0.2
    touch go
    wait "$launcher" || fail "the ranks did not end well"
    assert_exit 0 "$TANDEM" trace hang
    assert_contains "$out" "no rank waits for another"
    assert_equal "$(grep -c ': closed; ' <<<"$out")" 3 "ranks that closed"
}

test_json_and_picture() {
    assert_exit 0 "$TANDEM" trace dead --json
    assert_contains "$out" '"waits_for":[2]'
    assert_contains "$out" '"kind":"begin","call":"all_reduce","group":0,"sequence":17'
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys; json.load(sys.stdin)' <<<"$out" || fail "this is not JSON"
    fi
    assert_exit 0 "$TANDEM" trace dead --chrome picture.json
    assert_equal "$out" "" "output"
    assert_contains "$(cat picture.json)" '"name":"waits for rank 2"'
    assert_exit 0 "$TANDEM" trace dead --chrome -
    assert_equal "$out" "$(cat picture.json)" "the picture on the standard output"
    assert_exit 1 "$TANDEM" trace dead --chrome nowhere/picture.json
}

test_bad_directories() {
    assert_exit 2 "$TANDEM" trace nowhere
    assert_contains "$err" "nowhere"
    mkdir empty
    assert_exit 2 "$TANDEM" trace empty
    assert_contains "$err" "no trace files"
    cp -r dead damaged
    echo nonsense >damaged/rank-00000.trace
    assert_exit 0 "$TANDEM" trace damaged
    assert_contains "$err" "rank-00000.trace: not a Tandem trace; skipped"
    assert_contains "$out" "rank 1 of 3"
    rm damaged/rank-0000[12].trace
    mkdir damaged/rank-00001.trace
    assert_exit 1 "$TANDEM" trace damaged
}

run_tests "$@"
