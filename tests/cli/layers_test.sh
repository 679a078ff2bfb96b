#!/usr/bin/env bash
# User-defined networks, from the list of layers in a job: the same bits for any number of workers and after
# an interruption; checkpoints that contain the list; and errors with their positions.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_images images.csv
cat >residual.yaml <<'YAML'
name: residual
data: {train: images.csv, test_fraction: 0.25, shape: [8, 8]}
layers:
  - conv: {channels: 6, bias: no}
  - batch_norm
  - relu
  - residual:
      - conv: {channels: 8, stride: 2, bias: no}
      - batch_norm
      - relu
      - conv: {channels: 8, bias: no}
      - batch_norm
  - relu
  - repeat:
      times: 2
      layers:
        - residual: [conv: 8, gelu, dropout: 0.1]
  - global_pool
train: {batch: 24, epochs: 4}
optim: {lr: 0.01}
parallel: {lanes: 4}
YAML
awk 'BEGIN { srand(2); split("the cat sat on a mat", word, " ");
    for (i = 0; i < 400; i++) printf "%s ", word[1 + int(6 * rand())] }' >text.txt
cat >tokens.yaml <<'YAML'
name: tokens
data: {train: text.txt, test_fraction: 0.1}
model: {context: 16}
layers:
  - embedding: {width: 16, tied: yes}
  - positions
  - repeat:
      times: 2
      layers:
        - residual: [layer_norm, attention: 2]
        - residual: [layer_norm, linear: 32, gelu, linear: 16]
  - layer_norm
train: {batch: 8, steps: 8}
YAML

# same_bits JOB [ARGUMENT...]: with 1 to 4 workers, and once more in two parts.
same_bits() {
    local name=$1 n first=
    shift
    for n in 1 2 3 4; do
        assert_exit 0 "$TANDEM" train "$name.yaml" -q -n "$n" "$@" --set run.dir="$name-$n"
        [ -n "$first" ] || first=$(hash_in "$out")
        [ -n "$first" ] || fail "no hash in: $out"
        assert_equal "$(hash_in "$out")" "$first" "the hash of $name with $n workers"
    done
    assert_exit 0 "$TANDEM" train "$name.yaml" -q "$@" --set train.steps=3 --set run.dir="$name-two"
    assert_exit 0 "$TANDEM" train "$name.yaml" -q -n 3 "$@" --resume "$name-two/$name-1"
    assert_equal "$(hash_in "$out")" "$first" "the hash of $name in two parts"
}

test_same_bits() {
    same_bits residual --set train.steps=6 --set parallel.lanes=4
    same_bits tokens --set train.steps=6 --set parallel.lanes=4
}

# Recomputed activations give the same bits.
test_recompute() {
    local job what first=
    for job in residual tokens; do
        first=
        for what in none blocks full; do
            assert_exit 0 "$TANDEM" train $job.yaml -q --set train.steps=4 \
                --set memory.recompute=$what --set run.dir="$job-$what"
            [ -n "$first" ] || first=$(hash_in "$out")
            [ -n "$first" ] || fail "no hash in: $out"
            assert_equal "$(hash_in "$out")" "$first" "the hash of $job with recompute $what"
        done
    done
    assert_exit 0 "$TANDEM" inspect residual.yaml --set memory.recompute=blocks --json
}

test_it_learns() {
    assert_exit 0 "$TANDEM" train residual.yaml -q --set train.epochs=30 --set run.dir=learn --json
    awk -v a="$(json_value test_accuracy <<<"$out")" 'BEGIN { exit !(a >= 0.9) }' ||
        fail "it learnt too little: $out"
}

# A list equivalent to a named model gives the same bits of the state.
test_spelled_as_named() {
    local named
    assert_exit 0 "$TANDEM" train residual.yaml -q --set layers= --set model.kind=cnn \
        --set model.channels=[4,6] --set model.hidden=[12] --set run.dir=named
    named=$(hash_in "$out")
    "$TANDEM" inspect named/residual-1 >named.txt
    assert_exit 0 "$TANDEM" train residual.yaml -q --set run.dir=spelled --set \
        "layers=[conv: 4, relu, max_pool: 2, conv: 6, relu, max_pool: 2, flatten, linear: 12, relu]"
    "$TANDEM" inspect spelled/residual-1 >spelled.txt
    grep -q '0.conv.weight' spelled.txt || fail "no name by place: $(cat spelled.txt)"
    # The names differ, and so do the hashes; the trained numbers do not.
    [ "$named" != "$(hash_in "$out")" ] || fail "the hash does not cover the names"
    assert_equal "$(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' spelled/residual-1/metrics.jsonl)" \
        "$(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' named/residual-1/metrics.jsonl)" "the losses"
}

# A checkpoint contains its layers: evaluation and prediction need nothing else.
test_checkpoints_carry_the_list() {
    assert_exit 0 "$TANDEM" train residual.yaml -q --set run.dir=carried
    assert_exit 0 "$TANDEM" eval carried/residual-1 --json
    assert_contains "$out" '"accuracy"'
    assert_exit 0 "$TANDEM" predict carried/residual-1 images.csv
    assert_exit 0 "$TANDEM" inspect carried/residual-1
    assert_contains "$out" "3.residual.shortcut.norm.running_var"
    assert_exit 0 "$TANDEM" inspect residual.yaml
    assert_contains "$out" "4 classes"
    assert_contains "$out" "5.repeat.1.0.residual.0.conv.bias"
    assert_exit 0 "$TANDEM" job show residual.yaml
    printf '%s\n' "$out" >shown.yaml
    assert_exit 0 "$TANDEM" job show shown.yaml
    assert_equal "$out" "$(cat shown.yaml)" "the job shown of what was shown"
    # Another list is another model: a run cannot resume with it.
    sed 's/channels: 6/channels: 7/' residual.yaml >other.yaml
    assert_exit 4 "$TANDEM" train other.yaml -q --resume carried/residual-1
    assert_contains "$err" "layers[0]: {conv: {channels: 7, "
}

test_tokens_are_evaluated() {
    assert_exit 0 "$TANDEM" train tokens.yaml -q --set run.dir=tokens-eval --set train.steps=60 \
        --set optim.lr=0.01 --json
    awk -v a="$(json_value test_accuracy <<<"$out")" 'BEGIN { exit !(a >= 0.4) }' ||
        fail "it learnt too little: $out"
    assert_exit 0 "$TANDEM" eval tokens-eval/tokens-1
}

test_mistakes() {
    sed 's/- global_pool/- globl_pool/; s/channels: 8, stride/chanels: 8, stride/' residual.yaml \
        >wrong.yaml
    assert_exit 2 "$TANDEM" train wrong.yaml
    assert_contains "$err" "wrong.yaml:8:16: unknown key 'layers.conv.chanels'; did you mean"
    assert_contains "$err" "wrong.yaml:18:5: unknown layer 'globl_pool'; did you mean 'global_pool'?"
    assert_exit 2 "$TANDEM" train residual.yaml --set data.shape=
    assert_contains "$err" "layers[0] conv: it takes images"
    assert_exit 2 "$TANDEM" inspect residual.yaml --set "layers=[max_pool: 2, linear: 3]"
    assert_contains "$err" "layers: the list ends with shape [4, 3] for each sample"
    assert_exit 0 "$TANDEM" job keys layers.residual
    assert_contains "$out" "layers.residual.shortcut"
}

run_tests "$@"
