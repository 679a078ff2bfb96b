#!/usr/bin/env bash
# The commands of README.md that are meant to be pasted work as the text says, exactly as printed.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
mkdir -p build/release
ln -s "$TANDEM" build/release/tandem
mkdir -p examples/data
cp -r "$source_root/examples/09_kill_anything" examples
awk 'BEGIN { srand(5); for (i = 0; i < 640; i++) { # as many numbers a line as a handwritten digit has
    for (k = 0; k < 64; k++) printf "%d,", k % 10 == i % 10 ? 16 : rand() * 8
    print i % 10 } }' | gzip >examples/data/digits.csv.gz

# The block of README.md that contains this text.
block_with() {
    awk -v text="$1" '/^```/ { if (inside && index(block, text)) printf "%s", block
        inside = !inside; block = ""; next } inside { block = block $0 "\n" }' "$source_root/README.md"
}

test_kill_a_worker() {
    local other=examples/09_kill_anything/job.yaml
    block_with "kill -9" >snippet.sh
    assert_equal "$(wc -l <snippet.sh)" 3 "lines"
    assert_lacks "$(cat snippet.sh)" '$ '
    # The snippet names one process, so another run of the same job loses no worker.
    "$TANDEM" train $other -n 3 -q --set train.epochs=100000 --set run.dir=others >other.txt 2>&1 &
    local pid=$! before
    before=$("$TANDEM" ps $pid --wait 60 --pid 2)
    assert_exit 0 bash snippet.sh
    assert_contains "$err" "left: rank 2"
    assert_contains "$err" "killed by signal 9"
    assert_contains "$out" "state hash"
    assert_exit 0 "$TANDEM" ps $pid --pid 2
    assert_equal "$out" "$before" "rank 2 of the other run"
    assert_equal "$(cat other.txt)" "" "what the other run said"
    assert_exit 0 "$TANDEM" stop $pid
    wait $pid || true
    assert_exit 0 "$TANDEM" ledger runs/kill-1
}

test_ps_of_one_run() {
    local long=(examples/09_kill_anything/job.yaml -n 2 -q --set train.epochs=100000)
    "$TANDEM" train "${long[@]}" --set run.dir=own >/dev/null 2>&1 &
    local pid=$! word
    assert_exit 0 "$TANDEM" ps kill --wait 60 --pid 1
    local rank=$out
    wait_for 60 test -e own/kill-1/job.yaml
    for word in kill-1 own/kill-1 $pid; do
        assert_exit 0 "$TANDEM" ps "$word" --wait 60 --pid 1
        assert_equal "$out" "$rank" "the process of rank 1 of $word"
        assert_exit 0 "$TANDEM" ps "$word"
        assert_equal "$(wc -l <<<"$out")" 2 "lines"
    done
    assert_exit 1 "$TANDEM" ps $pid --pid 7
    assert_contains "$err" "has no rank 7"
    assert_exit 2 "$TANDEM" ps other
    assert_contains "$err" "no active run 'other'"
    assert_exit 2 "$TANDEM" ps --pid 1
    assert_contains "$err" "usage: tandem ps RUN"
    # For a process that has ended, ps does not wait for a run.
    true &
    word=$!
    wait $word
    local begin=$SECONDS
    assert_exit 2 "$TANDEM" ps $word --wait 100
    [ $((SECONDS - begin)) -lt 50 ] || fail "it waited for a process that has ended"
    # Two runs with one name: neither is chosen.
    "$TANDEM" train "${long[@]}" >/dev/null 2>&1 &
    assert_exit 0 "$TANDEM" ps $! --wait 60 --pid 0
    assert_exit 2 "$TANDEM" ps kill --pid 0
    assert_contains "$err" "'kill' matches 2 active sessions"
    end_sessions
}

run_tests "$@"
