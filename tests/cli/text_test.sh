#!/usr/bin/env bash
# A text model from end to end: training, the same bits for any number of workers, resuming, evaluation, and
# `tandem generate`.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

# make_text LINES FILE [SEED]: sentences of a small grammar.
make_text() {
    awk -v n="$1" -v seed="${3:-1}" 'BEGIN {
        srand(seed)
        split("the cat,a dog,the old man,my aunt,every child", who, ",")
        split("sees,likes,calls,finds", does, ",")
        split("quickly.,today.,with joy!,at home.", how, ",")
        for (i = 0; i < n; i++)
            print who[1 + int(5 * rand())], does[1 + int(4 * rand())], who[1 + int(5 * rand())],
                how[1 + int(4 * rand())]
    }' >"$2"
}

make_text 400 text.txt
cat >job.yaml <<'YAML'
name: text
data:
  train: text.txt
  test_fraction: 0.1
model:
  kind: gpt
  layers: 2
  width: 32
  heads: 2
  context: 24
  dropout: 0.1
train:
  batch: 8
  steps: 60
optim:
  lr: 0.005
parallel:
  lanes: 8
eval:
  batch: 500
YAML
assert_exit 0 "$TANDEM" train job.yaml --json
trained=$out run=runs/text-1

test_it_learns() {
    local loss
    loss=$(json_value test_loss <<<"$trained")
    # The entropy of the frequencies of the 24 characters is above 2.7.
    awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && loss < 2.2) }' || fail "the test loss is $loss"
}

test_the_same_bits_for_any_number_of_workers() {
    local n hash=
    for n in 1 2 3 8; do
        assert_exit 0 "$TANDEM" train job.yaml -q -n "$n" --set run.dir=workers --set train.steps=9
        : "${hash:=$(hash_in "$out")}"
        assert_equal "$(hash_in "$out")" "$hash" "the hash with $n workers"
    done
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=workers --set train.steps=9 \
        --set eval.batch=24 --set eval.every_steps=4
    assert_equal "$(hash_in "$out")" "$hash" "the hash with evaluations"
    assert_equal "$(grep -c test_loss workers/text-5/metrics.jsonl)" 3 "evaluations"
}

test_going_on() {
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=whole --set train.steps=9 \
        --set checkpoint.every_steps=4
    local hash
    hash=$(hash_in "$out")
    rm whole/text-1/checkpoints/*9.safetensors
    assert_exit 0 "$TANDEM" train --resume whole/text-1 -n 3
    assert_equal "$(hash_in "$out")" "$hash" "the hash after resuming"
    # Another text is another run.
    make_text 400 text.txt 2
    assert_exit 4 "$TANDEM" train --resume whole/text-1
    make_text 400 text.txt
}

test_eval() {
    assert_exit 0 "$TANDEM" eval "$run"
    assert_contains "$out" "tokens "
    assert_exit 0 "$TANDEM" eval "$run" --json
    assert_equal "$(json_value loss <<<"$out" | cut -c 1-8)" \
        "$(json_value test_loss <<<"$trained" | cut -c 1-8)" "the loss"
    local samples tokens
    out=${out%%\"classes\"*} # classes have samples as well
    samples=$(json_value samples <<<"$out") tokens=$(json_value tokens <<<"$out")
    assert_equal "$tokens" $((24 * samples)) "tokens"
    assert_exit 0 "$TANDEM" eval "$run" --json --batch 1
    assert_equal "$(json_value tokens <<<"$out")" "$tokens" "tokens"
    make_text 50 other.txt 3
    assert_exit 0 "$TANDEM" eval "$run" --data other.txt
    { cat other.txt; echo "the cat sees a Zebra."; } >strange.txt
    assert_exit 1 "$TANDEM" eval "$run" --data strange.txt
    assert_contains "$err" "strange.txt: line 51: the character 'Z' (U+005A) is not one of"
}

test_a_test_file() {
    make_text 50 other.txt 3
    assert_exit 0 "$TANDEM" train job.yaml -q --set train.steps=2 --set data.test=other.txt \
        --set run.dir=tested
    grep -Eq '^test accuracy  [0-9.]+ % of [0-9]+ tokens in [0-9]+ windows' <<<"$out" ||
        fail "no accuracy of tokens in: $out"
    echo "Q" >>other.txt
    assert_exit 1 "$TANDEM" train job.yaml -q --set data.test=other.txt --set run.dir=tested
    assert_contains "$err" "other.txt: line 51: the character 'Q'"
    printf 'caf\xe9 \n' >latin.txt
    assert_exit 1 "$TANDEM" train job.yaml -q --set data.train=latin.txt --set run.dir=tested
    assert_contains "$err" "latin.txt: line 1, byte 3 (from 0): 0xe9 is not UTF-8"
    echo short >short.txt
    assert_exit 1 "$TANDEM" train job.yaml -q --set data.train=short.txt --set run.dir=tested
    assert_contains "$err" "6 characters are not enough"
    tr -c x x <text.txt >one.txt
    assert_exit 2 "$TANDEM" train job.yaml -q --set data.train=one.txt --set run.dir=tested
    assert_contains "$err" "repeats a single character"
}

# A larger vocabulary than that of the text: spare tokens, which are never generated.
test_spare_tokens() {
    assert_exit 0 "$TANDEM" train job.yaml -q --set train.steps=3 --set model.vocabulary=300 \
        --set run.dir=spare
    assert_exit 0 "$TANDEM" eval spare/text-1
    assert_exit 0 "$TANDEM" generate spare/text-1 -n 200 --temperature 9
    assert_exit 2 "$TANDEM" train job.yaml -q --set model.vocabulary=5 --set run.dir=spare
    assert_contains "$err" "model.vocabulary is 5"
}

test_generate() {
    assert_exit 0 "$TANDEM" generate "$run" --prompt "the cat" -n 60
    local first=$out
    assert_equal "$err" ""
    assert_equal "${first:0:7}" "the cat" "how it begins"
    "$TANDEM" generate "$run" --prompt "the cat" -n 60 >text.out
    # The prompt, 60 characters (all of one byte here), the end of the line.
    assert_equal "$(wc -c <text.out)" 68 "bytes"
    assert_exit 0 "$TANDEM" generate "$run" --prompt "the cat" -n 60 --seed 1
    assert_equal "$out" "$first" "what the same seed writes"
    assert_exit 0 "$TANDEM" generate "$run" --prompt "the cat" -n 60 --seed 2
    [ "$out" != "$first" ] || fail "another seed wrote the same: $out"
    assert_exit 0 "$TANDEM" generate "$run" -n 60 --seed 4294967297
    # A longer text begins the same.
    assert_exit 0 "$TANDEM" generate "$run" --prompt "the cat" -n 90
    assert_equal "${out:0:50}" "${first:0:50}" "how a longer text begins"
}

test_greedy() {
    local most=() way
    for way in "--temperature 0" "--temperature 0 --seed 9" "--top-k 1" "--top-k 1 --seed 9" \
        "--top-p 1e-9" "--temperature 0 --top-k 3 --top-p 0.5"; do
        # shellcheck disable=SC2086 # words on purpose
        assert_exit 0 "$TANDEM" generate "$run" --prompt "my aunt" -n 40 $way
        most+=("$out")
        assert_equal "$out" "${most[0]}" "what $way writes"
    done
}

test_long_prompts() {
    # Of a long prompt only the last 24 characters are used; all of it is printed.
    local tail="the old man sees the cat" head="every child likes my aunt at home. "
    assert_exit 0 "$TANDEM" generate "$run" --prompt "$tail" -n 30 -t 0
    local short=$out
    assert_exit 0 "$TANDEM" generate "$run" --prompt "$head$tail" -n 30 -t 0
    assert_equal "$out" "$head$short" "what follows a long prompt"
}

test_generate_json() {
    assert_exit 0 "$TANDEM" generate "$run" --prompt "a dog" -n 5 -t 0 --json
    assert_equal "$(json_value tokens <<<"$out")" 5 "tokens"
    assert_equal "$(json_value prompt <<<"$out")" "a dog" "the prompt"
    assert_equal "$(json_value step <<<"$out")" 60 "the step"
    local text
    text=$(json_value text <<<"$out")
    assert_exit 0 "$TANDEM" generate "$run" --prompt "a dog" -n 5 -t 0
    assert_equal "$out" "a dog$text" "the text"
}

test_bad_input() {
    assert_exit 1 "$TANDEM" generate "$run" --prompt "the Cat"
    assert_contains "$err" "the prompt: line 1: the character 'C' (U+0043) is not one of"
    assert_exit 1 "$TANDEM" generate "$run" --prompt $'\xff'
    assert_contains "$err" "the prompt: line 1, byte 0 (from 0): 0xff is not UTF-8"
    local bad
    for bad in "--tokens 0" "--tokens x" "--temperature -1" "--temperature warm" "--top-k 0" \
        "--top-p 0" "--top-p 1.5" "--top-p nan" "--seed -1"; do
        # shellcheck disable=SC2086 # words on purpose
        assert_exit 2 "$TANDEM" generate "$run" $bad
    done
    assert_exit 2 "$TANDEM" generate
    make_data 90 data.csv
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=data.csv --set model.kind=mlp \
        --set run.dir=mlp
    assert_exit 1 "$TANDEM" generate mlp/text-1
    assert_contains "$err" "model.kind: gpt"
    assert_exit 2 "$TANDEM" predict "$run" text.txt
    assert_contains "$err" "tandem generate"
}

# A CSV file named .txt is still read as CSV for a model of features.
test_names_do_not_matter_to_other_models() {
    make_data 90 data.txt
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=data.txt --set model.kind=mlp \
        --set run.dir=mlp-txt
}

test_inspect() {
    assert_exit 0 "$TANDEM" inspect job.yaml
    assert_contains "$out" "h.1.mlp.c_proj.weight"
    assert_contains "$out" "attention"
    assert_exit 0 "$TANDEM" inspect "$run"
    assert_contains "$out" "samples of shape [24]"
}

run_tests "$@"
