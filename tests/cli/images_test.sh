#!/usr/bin/env bash
# Image models: the same bits for any number of workers and after an interruption, including batch norm and
# its running statistics; and errors.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_images images.csv
cat >images.yaml <<'YAML'
name: images
data: {train: images.csv, test_fraction: 0.25, shape: [8, 8]}
model: {kind: cnn, channels: [4, 6], hidden: [12]}
train: {batch: 24, epochs: 4}
optim: {lr: 0.01}
parallel: {lanes: 4}
YAML

test_a_cnn_learns() {
    assert_exit 0 "$TANDEM" train images.yaml -q --set train.epochs=30 --set run.dir=learn --json
    awk -v a="$(json_value test_accuracy <<<"$out")" 'BEGIN { exit !(a >= 0.9) }' ||
        fail "it learnt too little: $out"
}

# Each model with 1 to 4 workers, and once more in two parts.
same_bits() { # same_bits NAME SET...
    local name=$1 n first=
    shift
    for n in 1 2 3 4; do
        assert_exit 0 "$TANDEM" train images.yaml -q -n "$n" "$@" --set run.dir="$name-$n"
        [ -n "$first" ] || first=$(hash_in "$out")
        assert_equal "$(hash_in "$out")" "$first" "the hash of $name with $n workers"
    done
    assert_exit 0 "$TANDEM" train images.yaml -q "$@" --set train.steps=2 --set run.dir="$name-two"
    assert_exit 0 "$TANDEM" train images.yaml -q -n 3 "$@" --resume "$name-two/images-1"
    assert_equal "$(hash_in "$out")" "$first" "the hash of $name in two parts"
}

test_same_bits() {
    same_bits cnn --set model.dropout=0.2 --set train.steps=6
    same_bits resnet --set model.kind=resnet --set train.steps=4
}

test_refusals() {
    assert_exit 2 "$TANDEM" train images.yaml --set data.shape=[8,9]
    assert_contains "$err" "[8, 9] does not match the samples"
    assert_exit 2 "$TANDEM" train images.yaml --set data.shape=[]
    assert_contains "$err" "this model needs images"
    assert_exit 2 "$TANDEM" train images.yaml --set model.kind=resnet --set model.depth=19
    assert_contains "$err" "'model.depth' expects 18, 34 or 50"
}

run_tests "$@"
