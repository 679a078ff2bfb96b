#!/usr/bin/env bash
# `sync.order`: every run with asynchronous updates records their order, and a recorded order is repeated bit for
# bit, on any number of ranks and after failures. order_file_test.c tests which files are rejected.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 300 data.csv
make_job job.yaml
printf 'sync: {kind: server, mode: async, replicas: 4, jitter: 0.5}\n' >>job.yaml
common=(--set run.dir=runs --set data.test_fraction=0.2 --set checkpoint.every_steps=5)

trains 1
first=$run want=$hash
recorded=(--set sync.order=recorded --set "sync.order_from=$first")

test_every_run_records_its_order() {
    assert_equal "$(wc -l <"$first/order.jsonl")" "$(grep -c . "$first/order.jsonl")" "lines"
    assert_equal "$(sed -n 's/^{"update":\([0-9]*\),.*"of":4,.*/\1/p' "$first/order.jsonl" | tr '\n' ' ')" \
        "$(seq -s ' ' 1 "$(wc -l <"$first/order.jsonl")") " "the numbers of the updates"
    trains 3
    assert_same_files "$run/order.jsonl" "$first/order.jsonl" "the order of three ranks"
}

test_a_recorded_order_gives_the_same_bits() {
    local ranks
    for ranks in 1 2 4; do
        # Another seed of the clock's speeds must not matter.
        trains "$ranks" "${recorded[@]}" --set 'sync.speeds=[1, 2, 3, 4]'
        assert_equal "$hash" "$want" "the hash with a recorded order on $ranks ranks"
        assert_same_files "$run/order.jsonl" "$first/order.jsonl" "the order that was repeated"
    done
}

# An order that was not drawn by this job's clock.
test_an_order_of_another_clock() {
    trains 2 --set 'sync.speeds=[9, 9, 9, 2]'
    [ "$hash" != "$want" ] || fail "other speeds give the same bits"
    local other=$run other_hash=$hash
    trains 1 --set sync.order=recorded --set "sync.order_from=$other/order.jsonl"
    assert_equal "$hash" "$other_hash" "the hash with the order of another clock"
}

# Where a round of updates ends depends on what is due, and must not affect a bit.
test_rounds_affect_nothing() {
    local -a compress=(--set compress.sparsify=randomk --set compress.ratio=0.2 --set compress.quantise=int8
        --set compress.min_elements=1 --set compress.warmup=8)
    trains 1 "${compress[@]}"
    local compressed=$hash
    trains 2 "${compress[@]}" --set run.log_every_steps=1
    assert_equal "$hash" "$compressed" "the hash with short rounds"
    trains 1 --set run.log_every_steps=1
    assert_equal "$hash" "$want" "the hash without compression and with short rounds"
}

test_a_rank_dies() {
    local phase
    for phase in replica:rank=0 reduce:rank=0 update publish:rank=0; do
        rm -f hit
        export TANDEM_TEST_KILL="$phase:step=9:file=$PWD/hit"
        trains 3 "${recorded[@]}"
        unset TANDEM_TEST_KILL
        [ -e hit ] || fail "no rank died in $phase"
        assert_equal "$hash" "$want" "the hash after a kill in $phase"
        assert_same_files "$run/order.jsonl" "$first/order.jsonl" "the order after a kill in $phase"
    done
}

test_a_run_resumes_in_its_order() {
    trains 2 --set train.epochs=2 "${recorded[@]}"
    assert_exit 0 "$TANDEM" train --resume "$run" -q --json -n 3 --set train.epochs=3
    assert_equal "$(hash_in "$out")" "$want" "the hash after resuming"
    assert_same_files "$run/order.jsonl" "$first/order.jsonl" "the order after resuming"
    # A run whose order is lost or damaged gets it again from the clock, or from the file.
    trains 2 --set train.epochs=2
    sed -i '3d' "$run/order.jsonl"
    assert_exit 0 "$TANDEM" train --resume "$run" -q --json -n 1 --set train.epochs=3
    assert_equal "$(hash_in "$out")" "$want" "the hash after resuming with a gap"
    assert_same_files "$run/order.jsonl" "$first/order.jsonl" "the order that was drawn again"
}

test_a_run_resumes_in_no_other_order() {
    trains 2 --set 'sync.speeds=[9, 9, 9, 2]'
    local other=$run
    trains 2 --set train.epochs=2 "${recorded[@]}"
    assert_exit 4 "$TANDEM" train --resume "$run" -q --set train.epochs=3 --set "sync.order_from=$other"
    assert_contains "$err" "in another order than that of sync.order_from; use the file with which the run began"
}

live=(--set sync.order=live)

# replays RANKS: the recorded order of the last run gives its hash.
replays() {
    local live_hash=$hash live_run=$run
    trains "$1" --set sync.order=recorded --set "sync.order_from=$live_run"
    assert_equal "$hash" "$live_hash" "the hash of the recorded order of $live_run on $1 ranks"
    assert_same_files "$run/order.jsonl" "$live_run/order.jsonl" "the order of $live_run"
    run=$live_run
}

test_live_orders_are_repeated() {
    local ranks
    for ranks in 1 2 4; do
        trains "$ranks" "${live[@]}"
        assert_equal "$(wc -l <"$run/order.jsonl")" "$(wc -l <"$first/order.jsonl")" "updates"
        assert_equal "$(sed 's/.*"batch":\([0-9]*\),.*/\1/' "$run/order.jsonl" | sort | uniq -d)" "" "batches trained twice"
        replays 1
        replays 3
    done
    trains 3 "${live[@]}" --set sync.mode=stale --set sync.staleness=0
    assert_exit 0 "$TANDEM" train job.yaml -q --json -n 1 "${common[@]}" --set sync.mode=stale --set sync.staleness=0 \
        --set sync.order=recorded --set "sync.order_from=$run"
    assert_equal "$(hash_in "$out")" "$hash" "the hash of an order with a bound"
}

# updates RANK_WORKERS: how many updates these workers made.
updates() { grep -c "\"worker\":[$1]," "$run/order.jsonl" || true; }

test_a_slow_rank_delays_nobody() {
    local -a large=(--set 'model.hidden=[768, 768]' --set train.epochs=15)
    export TANDEM_TEST_SLOW=1:20
    trains 2 "${live[@]}" "${large[@]}"
    unset TANDEM_TEST_SLOW
    [ "$(updates 01)" -gt $((3 * $(updates 23))) ] ||
        fail "the fast rank made $(updates 01) updates, the slow one $(updates 23)"
    local live_run=$run live_hash=$hash
    trains 1 --set sync.order=recorded --set "sync.order_from=$live_run" "${large[@]}"
    assert_equal "$hash" "$live_hash" "the hash of the order with a slow rank"
    # Its batches are not trained in order, so a ledger cannot prove anything.
    assert_exit 2 "$TANDEM" train job.yaml -q "${common[@]}" "${large[@]}" --set checkpoint.ledger=true \
        --set sync.order=recorded --set "sync.order_from=$live_run"
    assert_contains "$err" "which does not train batches in order, so a ledger cannot prove it"
    trains 2 "${recorded[@]}" --set checkpoint.ledger=true
    assert_exit 0 "$TANDEM" ledger "$run"
}

test_a_live_run_survives() {
    local phase
    for phase in replica:rank=1 reduce:rank=0 update publish:rank=0; do
        rm -f hit
        export TANDEM_TEST_KILL="$phase:file=$PWD/hit"
        trains 3 "${live[@]}"
        unset TANDEM_TEST_KILL
        [ -e hit ] || fail "no rank died in $phase"
        replays 1
    done
}

test_a_live_run_resumes() {
    trains 3 "${live[@]}" --set train.epochs=2
    assert_exit 0 "$TANDEM" train --resume "$run" -q --json -n 2 --set train.epochs=3
    hash=$(hash_in "$out")
    replays 1
    trains 2 "${live[@]}" --set train.epochs=2
    sed -i '3d' "$run/order.jsonl"
    assert_exit 1 "$TANDEM" train --resume "$run" -q --set train.epochs=3
    assert_contains "$err" "line 3 has update 4, but update 3 is next"
}

test_orders_that_do_not_fit() {
    assert_exit 1 "$TANDEM" train job.yaml -q "${common[@]}" "${recorded[@]}" --set train.epochs=9
    assert_contains "$err" "order.jsonl: the order ends after update"
    assert_exit 1 "$TANDEM" train job.yaml -q "${common[@]}" "${recorded[@]}" --set sync.replicas=8
    assert_contains "$err" "the order is that of 4 replicas, but the job has 8; set sync.replicas to 4"
    mkdir -p none
    assert_exit 1 "$TANDEM" train job.yaml -q "${common[@]}" --set sync.order=recorded --set sync.order_from=none
    assert_contains "$err" "none has no order.jsonl"
}

run_tests "$@"
