#!/usr/bin/env bash
# `tandem checkpoint`: lists, verifies, prunes, copies and compares the checkpoints of a run.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
train() {
    assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set checkpoint.every_steps=3 \
        --set checkpoint.every_epochs=never "$@"
}
train --set checkpoint.keep=all --set data.test_fraction=0.2 --set eval.every_steps=6
run=runs/tiny-1 directory=runs/tiny-1/checkpoints
last=$(find "$directory" -name 'step-*' | sort | tail -1) # of step 12: an epoch has four
has_zstd() { "$TANDEM" checkpoint copy "$last" probe.safetensors.zst >/dev/null 2>&1; }

damage() { # damage FILE
    printf '\377' | dd of="$1" bs=1 conv=notrunc status=none seek=$(($(stat -c %s "$1") - 3))
}

test_ls() {
    assert_exit 0 "$TANDEM" checkpoint ls "$run"
    assert_equal "$(wc -l <<<"$out")" "$(($(find "$directory" -name 'step-*' | wc -l) + 1))" "lines"
    assert_contains "$(head -1 <<<"$out")" "test loss"
    assert_contains "$(sed -n 2p <<<"$out")" "newest"
    assert_contains "$(grep -E '^ *6 ' <<<"$out")" "%" # its accuracy
    assert_lacks "$(grep -E '^ *9 ' <<<"$out")" "%"
    local table=$out
    rm -f "$directory/index.json" # it is rebuilt from the metrics
    assert_exit 0 "$TANDEM" checkpoint ls "$directory"
    assert_contains "$out" "$(grep -E '^ *6 ' <<<"$table" | sed 's/ *newest$//')"
    assert_exit 0 "$TANDEM" checkpoint ls "$run" --json --verify
    assert_equal "$(head -1 <<<"$out" | json_value good)" true "whether the newest is good"
    assert_equal "$(head -1 <<<"$out" | json_value step)" 12 "the step of the newest"
    assert_exit 2 "$TANDEM" checkpoint ls nowhere
    assert_contains "$err" "is not a run"
    mkdir -p empty fresh/checkpoints
    assert_exit 0 "$TANDEM" checkpoint ls fresh # a run without checkpoints
    assert_contains "$out" "contains no checkpoint"
    local part
    for part in ls prune verify; do
        assert_exit 2 "$TANDEM" checkpoint "$part" empty
        assert_contains "$err" "'empty' is not a run"
    done
}

test_verify() {
    assert_exit 0 "$TANDEM" checkpoint verify "$run"
    assert_lacks "$out" DAMAGED
    cp "$last" bad.safetensors
    damage bad.safetensors
    assert_exit 1 "$TANDEM" checkpoint verify "$last" bad.safetensors "$run:6"
    assert_equal "$(grep -c '^good' <<<"$out")" 2 "good ones"
    assert_contains "$out" "DAMAGED  bad.safetensors: the state hash"
    assert_exit 1 "$TANDEM" checkpoint verify bad.safetensors --json
    assert_contains "$out" '"good":false'
    assert_exit 2 "$TANDEM" checkpoint verify "$run:5"
    assert_contains "$err" "no checkpoint of step 5"
    assert_exit 2 "$TANDEM" checkpoint verify
}

test_copy() {
    assert_exit 0 "$TANDEM" checkpoint copy "$run:6" six.safetensors
    cmp six.safetensors "$directory/step-000000000006.safetensors"
    assert_exit 1 "$TANDEM" checkpoint copy "$run:6" six.safetensors
    assert_contains "$err" "--force"
    assert_exit 0 "$TANDEM" checkpoint copy "$run" six.safetensors --force
    cmp six.safetensors "$last"
    mkdir into
    assert_exit 0 "$TANDEM" checkpoint copy "$run:6" into
    cmp into/step-000000000006.safetensors "$directory/step-000000000006.safetensors"
    cp "$last" bad.safetensors
    damage bad.safetensors
    assert_exit 1 "$TANDEM" checkpoint copy bad.safetensors never.safetensors
    [ ! -e never.safetensors ] || fail "a damaged file was copied"
    assert_exit 2 "$TANDEM" checkpoint copy "$run"
}

# All commands treat compressed and plain checkpoints alike.
test_packed() {
    has_zstd || { echo "     left out: this build is without zstd"; return; }
    assert_exit 0 "$TANDEM" checkpoint copy "$last" p.safetensors.zst
    assert_exit 0 "$TANDEM" checkpoint copy p.safetensors.zst back.safetensors
    cmp back.safetensors "$last"
    if command -v zstd >/dev/null; then zstd -dqf p.safetensors.zst -o by-zstd && cmp by-zstd "$last"; fi
    local hash
    assert_exit 0 "$TANDEM" hash "$last"
    hash=${out%% *}
    assert_exit 0 "$TANDEM" hash p.safetensors.zst
    assert_equal "${out%% *}" "$hash" "the hash of a packed state"
    assert_exit 0 "$TANDEM" checkpoint diff p.safetensors.zst "$last"
    assert_exit 0 "$TANDEM" inspect p.safetensors.zst
    assert_contains "$out" "$hash"
    damage p.safetensors.zst
    assert_exit 1 "$TANDEM" checkpoint verify p.safetensors.zst
    # A run whose newest checkpoint is compressed resumes from it, and models are loaded from it.
    train --set run.dir=packed
    assert_exit 0 "$TANDEM" hash packed/tiny-1
    local end=${out%% *} at=packed/tiny-1/checkpoints
    rm "$at/step-000000000015.safetensors"
    assert_exit 0 "$TANDEM" checkpoint copy packed/tiny-1:12 "$at/step-000000000012.safetensors.zst"
    rm "$at/step-000000000012.safetensors"
    assert_exit 0 "$TANDEM" eval packed/tiny-1 --data data.csv
    assert_exit 0 "$TANDEM" inspect packed/tiny-1
    assert_contains "$out" "step-000000000012.safetensors.zst"
    assert_exit 0 "$TANDEM" replay packed/tiny-1 --step 13
    assert_contains "$out$err" "step-000000000012.safetensors.zst"
    assert_exit 0 "$TANDEM" train --resume packed/tiny-1
    assert_contains "$err" "resuming from step 12"
    assert_exit 0 "$TANDEM" hash packed/tiny-1
    assert_equal "${out%% *}" "$end" "the hash at the end of a run that resumed from a packed state"
    # Training writes compressed checkpoints itself, in the background.
    train --set run.dir=zst --set checkpoint.compress=zstd
    assert_equal "$(steps_in zst)" "9 12 15" "steps of a run that packs"
    assert_equal "$(find zst -name '*.safetensors')" "" "plain checkpoints of a run that packs"
    assert_exit 0 "$TANDEM" hash zst/tiny-1
    assert_equal "${out%% *}" "$end" "the hash at the end of a run that packs"
}

test_diff() {
    assert_exit 0 "$TANDEM" checkpoint diff "$run" "$last"
    assert_contains "$out" "the states are bit-identical"
    assert_exit 1 "$TANDEM" checkpoint diff "$run:6" "$run:9"
    assert_contains "$out" "step      6, 9"
    assert_contains "$out" "tensors differ"
    assert_lacks "$out" "their jobs differ"
    assert_exit 1 "$TANDEM" checkpoint diff "$run:6" "$run:9" --json
    assert_equal "$(json_value same <<<"$out")" false "whether they are the same"
    assert_contains "$out" '"step":[6,9]'
    train --set run.dir=other --set seed=9 --set checkpoint.keep=all
    assert_exit 1 "$TANDEM" checkpoint diff "$run:6" other/tiny-1:6
    assert_contains "$out" "their jobs differ"
    assert_contains "$out" "- seed: 7"
    assert_contains "$out" "+ seed: 9"
    assert_exit 2 "$TANDEM" checkpoint diff "$run" nowhere
    assert_exit 2 "$TANDEM" checkpoint diff "$run"
}

steps_in() { find "$1" -name 'step-*' | sed 's/.*step-0*\([0-9]*\)\..*/\1/' | sort -n | xargs; }

test_prune() {
    cp -r "$run" copy
    assert_exit 0 "$TANDEM" checkpoint prune copy --keep 1 --keep-every 6 --dry-run
    assert_equal "$(steps_in copy)" "3 6 9 12" "steps after a dry run"
    assert_contains "$out" "would remove"
    touch copy/checkpoints/.step-000000000015.safetensors.999999.tmp # left by a kill
    assert_exit 0 "$TANDEM" checkpoint prune copy --keep 1 --keep-every 6
    assert_equal "$(steps_in copy)" "6 12" "steps that are left"
    assert_equal "$(find copy -name '*.tmp')" "" "temporary files left"
    # The newest valid checkpoint is kept under any rules.
    damage copy/checkpoints/step-000000000012.safetensors
    assert_exit 0 "$TANDEM" checkpoint prune copy --keep 1
    assert_equal "$(steps_in copy)" "6 12" "steps when the newest is damaged"
    damage copy/checkpoints/step-000000000006.safetensors
    assert_exit 1 "$TANDEM" checkpoint prune copy --keep 1
    assert_contains "$err" "nothing was removed"
    assert_equal "$(steps_in copy)" "6 12" "steps when none is good"
    # By the test results: the better one of 6 and 12.
    cp -r "$run" best
    local better
    better=$(sed -n 's/.*"step":\([0-9]*\),.*"test_loss":\([0-9.e-]*\),.*/\2 \1/p' best/metrics.jsonl |
        sort -g | head -1 | cut -d' ' -f2)
    assert_exit 0 "$TANDEM" checkpoint prune best --keep 1 --keep-best 1
    assert_equal "$(steps_in best)" "$(printf '%s\n' "$better" 12 | sort -nu | xargs)" "the best, and the newest"
    assert_exit 2 "$TANDEM" checkpoint prune best --keep -1
}

# A training run that keeps one checkpoint and writes one after each step removes the file that a reader has
# just found.
test_pruned_meanwhile() {
    "$TANDEM" train job.yaml -q -n 1 --set run.dir=going --set train.epochs=1000000 \
        --set checkpoint.every_steps=1 --set checkpoint.keep=1 --set data.test_fraction=0.2 \
        --set eval.every_epochs=never >/dev/null 2>&1 &
    local pid=$! at=going/tiny-1 i
    wait_for 60 compgen -G "$at/checkpoints/step-*" >/dev/null
    for ((i = 0; i < 25; i++)); do
        assert_exit 0 "$TANDEM" hash "$at"
        assert_contains "$out" "$at/checkpoints/step-"
        assert_exit 0 "$TANDEM" checkpoint ls "$at" --verify --json
        assert_contains "$out" '"good":true'
        assert_exit 0 "$TANDEM" checkpoint ls "$at"
        assert_contains "$out" "newest"
        assert_exit 0 "$TANDEM" checkpoint verify "$at"
        assert_contains "$out" "good "
        assert_exit 0 "$TANDEM" inspect "$at"
        assert_exit 0 "$TANDEM" checkpoint copy "$at" "copy-$i.safetensors"
        assert_exit 0 "$TANDEM" eval "$at" --data data.csv
    done
    kill -0 "$pid" || fail "the training has ended before the last look at it"
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
}

test_wrong_words() {
    assert_exit 2 "$TANDEM" checkpoint
    assert_exit 2 "$TANDEM" checkpoint list "$run"
    assert_contains "$err" "unknown subcommand 'list'"
    assert_exit 0 "$TANDEM" checkpoint --help
    assert_contains "$out" "RUN:STEP"
}

run_tests "$@"
