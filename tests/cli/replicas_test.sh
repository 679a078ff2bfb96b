#!/usr/bin/env bash
# Jobs with logical replicas: sync.kind local and server, and compress. How often a run writes lines, evaluates, stops or saves
# changes no bit of its result; settings that cannot work are refused with what to do.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_data 240 data.csv
cat >job.yaml <<'YAML'
name: tiny
seed: 3
data: {train: data.csv, test_fraction: 0.2}
model: {hidden: [48, 32], dropout: 0.1}
train: {batch: 24, steps: 30}
optim: {lr: 0.002}
parallel: {lanes: 4}
checkpoint: {every_epochs: never}
eval: {every_epochs: never}
YAML
async=(--set sync.kind=server --set sync.mode=async --set sync.replicas=4)

# Updates in order are computed in rounds, which end where a line, an evaluation or a checkpoint is due. Random numbers and
# the warm-up of a compression belong to the update, not to the round.
test_rounds_change_no_bit() {
    local codec lines first
    for codec in quantise=int8 "sparsify=randomk ratio=0.1" "sparsify=topk warmup=20"; do
        local sets=("${async[@]}" --set compress.min_elements=16)
        for key in $codec; do sets+=(--set "compress.$key"); done
        first=
        for lines in 1 7 50; do
            assert_exit 0 "$TANDEM" train job.yaml -q -n 2 "${sets[@]}" --set run.log_every_steps=$lines
            [ -n "$first" ] || first=$(hash_in "$out")
            assert_equal "$(hash_in "$out")" "$first" "the hash with $codec and a line every $lines steps"
        done
    done
}

# parallel.lanes is one for so small a batch.
test_more_replicas_than_lanes() {
    local few="sync.replicas is 8, but each replica needs a lane, and parallel.lanes is 1 for a batch of this size; \
set parallel.lanes to 8 or sync.replicas to 1"
    local sets=(--set sync.kind=local --set sync.replicas=8 --set parallel.lanes=auto)
    assert_exit 2 "$TANDEM" train job.yaml -n 1 "${sets[@]}" --set run.dir=none
    assert_contains "$err" "$few"
    assert_exit 2 "$TANDEM" inspect job.yaml "${sets[@]}"
    assert_contains "$err" "$few"
    assert_exit 2 "$TANDEM" train job.yaml -n 2 "${sets[@]}" --set run.dir=none
    assert_contains "$err" "2 workers need at least as many lanes"
    [ ! -e none ] || fail "a run was created"
}

run_tests "$@"
