#!/usr/bin/env bash
# `sync.adapt_divergence`: the period of local steps follows the divergence of the replicas, is in checkpoints and
# snapshots, and does not depend on ranks, kills or resumes.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 300 data.csv
make_job job.yaml
printf 'sync: {kind: local, replicas: 4, period: 2, adapt_divergence: 0.012, max_period: 9}\n' >>job.yaml
common=(--set run.dir=runs --set data.test_fraction=0.2 --set run.log_every_steps=1 --set train.steps=60
    --set checkpoint.every_steps=5 --set checkpoint.keep=100)

trains 1
want=$hash first=$run want_lines=$(metrics period; metrics divergence)

test_the_period_follows_the_divergence() {
    local few many
    [ "$(metrics period | sort -u | wc -l)" -gt 2 ] || fail "the period does not change: $want_lines"
    trains 2 --set sync.adapt_divergence=0.000001
    few=$(metrics period | tail -1)
    trains 2 --set sync.adapt_divergence=1
    many=$(metrics period | sed -n 4p)
    assert_equal "$few $many" "1 9" "the periods with a tiny and with a large target"
    # A larger target gives longer periods on the whole.
    trains 2 --set sync.adapt_divergence=0.04
    [ "$(metrics period | wc -l)" -lt "$(grep -c '"period"' "$first/metrics.jsonl")" ] ||
        fail "three times the divergence has as many rounds"
}

test_ranks_do_not_matter() {
    local ranks
    for ranks in 2 3 4; do
        trains "$ranks"
        assert_equal "$hash" "$want" "the hash on $ranks ranks"
        assert_equal "$(metrics period; metrics divergence)" "$want_lines" "periods on $ranks ranks"
    done
}

test_kills_do_not_matter() {
    local phase
    for phase in replica:rank=0 reduce:rank=1 update publish:rank=0; do
        rm -f hit
        export TANDEM_TEST_KILL="$phase:step=6:file=$PWD/hit"
        trains 3
        unset TANDEM_TEST_KILL
        [ -e hit ] || fail "no rank has been killed at $phase"
        assert_equal "$hash" "$want" "the hash after a kill at $phase"
    done
}

# From a checkpoint in the middle, whose period is not that of the job.
test_resume() {
    local newest
    newest=$(find "$first/checkpoints" -name 'step-*' | sort | tail -n +5)
    # shellcheck disable=SC2086 # several files
    rm $newest
    assert_exit 0 "$TANDEM" train --resume "$first" -q --json -n 2
    assert_equal "$(hash_in "$out")" "$want" "the hash after a resume"
}

run_tests "$@"
