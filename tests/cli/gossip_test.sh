#!/usr/bin/env bash
# `sync.kind: gossip`: the mean of the replicas is a function of them alone, checkpoints have everything that they
# continue from, on any number of ranks, and the distance of the replicas is measured. hashes_test.sh compares worlds,
# elastic_test.c kills ranks, gossip_test.c tests the graphs.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 300 data.csv
make_job job.yaml
printf 'sync: {kind: gossip, replicas: 4, period: 2, graph: random}\n' >>job.yaml
common=(--set run.dir=runs --set data.test_fraction=0.2 --set run.log_every_steps=1)

trains 1
want=$hash
want_distances=$(metrics consensus_distance)

test_replicas_have_a_distance() {
    assert_equal "$(wc -l <<<"$want_distances")" 12 "lines of 24 steps in rounds of two"
    ! grep -v '^[0-9.e-]*[1-9][0-9.e-]*$' <<<"$want_distances" || fail "a distance is not a positive number"
    trains 3
    assert_equal "$(metrics consensus_distance)" "$want_distances" "the distances on three ranks"
}

# When the mean is computed, for metrics, evaluations and checkpoints, changes no bit.
test_the_mean_is_derived() {
    trains 2 --set run.log_every_steps=1000 --set eval.every_epochs=never --set checkpoint.every_epochs=never
    assert_equal "$hash" "$want" "the hash of a run that computes the mean once"
}

test_ranks_and_resumes() {
    local graph
    for graph in ring torus exponential random; do
        trains 1 --set sync.graph=$graph --set train.steps=24
        local whole=$hash
        trains 4 --set sync.graph=$graph --set train.steps=16
        [ "$hash" != "$whole" ] || fail "$graph: 16 steps give the bits of 24"
        assert_exit 0 "$TANDEM" train --resume "$run" -q --json -n 3 --set train.steps=24
        assert_equal "$(hash_in "$out")" "$whole" "the hash after a resume with $graph"
    done
}

test_balance_moves_replicas() {
    export TANDEM_TEST_SLOW=1:20
    trains 2 --set parallel.balance=feedback --set train.epochs=3
    unset TANDEM_TEST_SLOW
    assert_equal "$hash" "$want" "the hash with replicas that move"
}

# A round in which a replica gets a non-finite number changes nothing, on any number of ranks.
test_rounds_that_are_skipped() {
    local ranks expected='' skipped
    awk 'NR % 60 == 30 { gsub(/[-0-9.]+,/, "3e38,") } 1' data.csv >huge.csv
    for ranks in 1 3; do
        trains "$ranks" --set data.train=huge.csv --set data.normalise=none --set train.bad_numbers=skip \
            --set train.bad_numbers_most=1000
        skipped=$(metrics skipped | tail -1)
        [ "${skipped:-0}" -gt 0 ] || fail "no round was skipped on $ranks ranks"
        expected=${expected:-$hash}
        assert_equal "$hash" "$expected" "the hash with skipped rounds on $ranks ranks"
    done
}

test_what_cannot_be_is_refused() {
    assert_exit 2 "$TANDEM" train job.yaml -q "${common[@]}" --set parallel.lanes=1 --set sync.replicas=auto
    assert_contains "$err" "sync.kind gossip needs at least two replicas, but this job has 1"
    assert_exit 2 "$TANDEM" train job.yaml -q "${common[@]}" --set sync.replicas=auto --set sync.degree=4
    assert_contains "$err" "sync.degree is 4, but with 4 replicas each has at most 3 neighbours"
    assert_exit 2 "$TANDEM" train job.yaml -q -n 8 "${common[@]}"
    assert_contains "$err" "8 workers need at least as many replicas, but the job has 4"
}

run_tests "$@"
