#!/usr/bin/env bash
# Memory: recomputation changes no bit, on any number of workers and across a resume; what it costs is
# told; a job that will not fit is refused before it leaves a trace, with what would make it fit.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_data 150 data.csv
make_job mlp.yaml
# 8 x 8 images with a bright row, whose number is the class.
awk 'BEGIN { srand(3); for (n = 0; n < 96; n++) { c = n % 4; line = "";
    for (i = 0; i < 64; i++) line = line int(rand() * 60 + (int(i / 8) == 2 * c ? 120 : 0)) ",";
    print line c } }' >images.csv
cat >images.yaml <<'YAML'
name: images
data: {train: images.csv, test_fraction: 0.25, shape: [8, 8]}
model: {kind: cnn, channels: [4, 6], hidden: [12]}
train: {batch: 24, steps: 4}
optim: {lr: 0.01}
parallel: {lanes: 4}
YAML
for ((i = 0; i < 300; i++)); do printf 'the %d. line sees %d and %d.\n' $((i % 7)) $((i % 11)) $((i * i % 13)); done >text.txt
cat >text.yaml <<'YAML'
name: text
data: {train: text.txt, test_fraction: 0.1}
model: {kind: gpt, layers: 4, width: 32, heads: 2, context: 24, dropout: 0.1}
train: {batch: 8, steps: 5}
optim: {lr: 0.005}
parallel: {lanes: 4}
YAML

# same_bits NAME JOB SET...: all three ways on 1 and 2 workers, and changed in the middle.
same_bits() {
    local name=$1 job=$2 n way first=
    shift 2
    for way in none blocks full; do
        for n in 1 2; do
            assert_exit 0 "$TANDEM" train "$job" -q -n "$n" "$@" --set memory.recompute=$way \
                --set run.dir="$name-$way-$n"
            [ -n "$first" ] || first=$(hash_in "$out")
            assert_equal "$(hash_in "$out")" "$first" "the hash of $name, $way, with $n workers"
        done
    done
    assert_exit 0 "$TANDEM" train "$job" -q "$@" --set memory.recompute=blocks \
        --set train.steps=2 --set run.dir="$name-two"
    assert_exit 0 "$TANDEM" train "$job" -q "$@" --set memory.recompute=full --resume "$name-two"/*-1
    assert_equal "$(hash_in "$out")" "$first" "the hash of $name, changed on resume"
}

test_same_bits() {
    same_bits mlp mlp.yaml --set "model.hidden=[16,16,16,16]" --set model.dropout=0.2 \
        --set train.steps=6
    same_bits cnn images.yaml --set model.dropout=0.2
    same_bits resnet images.yaml --set model.kind=resnet --set train.steps=3
    same_bits gpt text.yaml
}

run_tests "$@"
