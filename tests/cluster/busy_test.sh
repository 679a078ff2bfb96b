#!/usr/bin/env bash
# Training on a host that is busy with other processes: no worker is declared dead, and no step is executed twice.
#
# Twenty processes compute beside four workers, which have the lowest priority. The kernel may share CPUs
# among sessions before it looks at priorities, so each of the twenty has a session. A worker that is
# killed meanwhile is noticed by its agent and replaced; the others are not replaced.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
deadline=240 loops=20
export TANDEM_RUNTIME=$work/runtime TANDEM_ELASTIC=1

load=()
clean_up() { [ ${#load[@]} -eq 0 ] || kill -9 "${load[@]}" 2>/dev/null || true; }
make_load() {
    local i
    for ((i = 0; i < loops; i++)); do
        setsid bash -c 'while ((SECONDS < 60)); do :; done' &
        load+=($!)
    done
}
end_load() {
    kill "${load[@]}"
    wait "${load[@]}" 2>/dev/null || true
    load=()
}

# start: starts a launcher in the background, $launcher; its workers train with the lowest priority.
start() {
    nice -n 19 "$TANDEM" train job.yaml -n 4 --min 2 --set run.dir=runs --set train.epochs=$epochs \
        --set checkpoint.every_epochs=never --set run.log_every_steps=500 >out.txt 2>err.txt &
    launcher=$!
    wait_for "$deadline" trains
}
trains() { [ "$("$TANDEM" ps --json | grep -o '"rank":' | wc -l)" -eq 4 ]; }
finish() {
    local code=0
    wait "$launcher" || code=$?
    assert_equal "$code" 0 "the launcher's code, after $(cat err.txt)"
}
losses() { grep -hoE '"message":"rank [0-9]+ [^"]* is (gone|unreachable)[^"]*|left: rank[^"]*' "$1/log.jsonl" || true; }

test_nobody_is_expelled() {
    start
    make_load
    sleep 8
    end_load
    finish
    assert_equal "$(losses runs/tiny-1)" "" "ranks that were taken for dead"
    assert_equal "$(hash_in "$(cat out.txt)")" "$want" "the hash"
}

test_a_killed_worker_alone_is_replaced() {
    local victim member
    start
    victim=$("$TANDEM" ps --json | grep -o '"rank":2,[^}]*' | json_value pid)
    make_load
    sleep 1
    kill -9 "$victim"
    sleep 6
    end_load
    finish
    losses runs/tiny-2 >losses.txt
    # The agent trains with the lowest priority here: the others may notice the loss before it reports the reason.
    grep -q "left: rank.*process $victim" losses.txt || fail "the kill was not noticed: $(cat losses.txt)"
    member=$(sed -n "s/.*(member \([^,]*\),[^)]*process $victim).*/\1/p" losses.txt | head -1)
    assert_equal "$(grep -vF "$member" losses.txt || true)" "" "others that were taken for dead"
    assert_equal "$(hash_in "$(cat out.txt)")" "$want" "the hash"
}

epochs=3000
assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=alone --set train.epochs=$epochs
want=$(hash_in "$out")
run_tests "$@"
