#!/usr/bin/env bash
# `tandem job`: check, show and keys. tests/unit/job_test.c tests the meaning of the keys; this test checks
# the output of the command and its exit codes.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 30 data.csv
make_job job.yaml

test_check_says_that_it_is_fine() {
    assert_exit 0 "$TANDEM" job check job.yaml
    assert_equal "$out" "job.yaml: the job 'tiny' is valid"
    assert_equal "$err" ""
}

test_check_says_every_problem() {
    cat >bad.yaml <<'YAML'
name: tiny
seed: -1
data:
  train: no-such.csv
model:
  hiden: [16]
  activation: rellu
train:
  batch: 32.5
optim: {lr: 0, kind: adamv}
YAML
    assert_exit 2 "$TANDEM" job check bad.yaml
    assert_equal "$out" "" "stdout of a check that found problems"
    assert_equal "$(grep -o '^bad.yaml:[0-9]*:[0-9]*: ' <<<"$err")" "bad.yaml:2:7: 
bad.yaml:4:10: 
bad.yaml:6:3: 
bad.yaml:7:15: 
bad.yaml:9:10: 
bad.yaml:10:13: 
bad.yaml:10:22: " "the places of the problems"
    assert_contains "$err" "model.hidden"
    assert_contains "$err" "relu"
    assert_contains "$err" "adamw"
    assert_contains "$err" "7 problems in the job; nothing was started"
    # All commands that read a job reject it in the same way, and train creates no directory.
    local said=$err
    assert_exit 2 "$TANDEM" job show bad.yaml
    assert_equal "$err" "$said" "what show says"
    assert_equal "$out" ""
    assert_exit 2 "$TANDEM" train bad.yaml
    assert_equal "$err" "$said" "what train says"
    [ ! -e runs ] || fail "train made a directory for a job with problems"
}

test_files_that_are_no_jobs() {
    printf 'a: [1, 2\nb: 3\n' >broken.yaml
    assert_exit 2 "$TANDEM" job check broken.yaml
    assert_contains "$err" "broken.yaml:2:"
    assert_exit 2 "$TANDEM" job check no-such.yaml
    assert_contains "$err" "no-such.yaml"
    assert_exit 2 "$TANDEM" job check .
    assert_exit 2 "$TANDEM" job check data.csv
    : >empty.yaml
    assert_exit 2 "$TANDEM" job check empty.yaml
    assert_contains "$err" "the file is empty"
    printf 'seed: 3\n' >no-data.yaml
    assert_exit 2 "$TANDEM" job check no-data.yaml
    assert_contains "$err" "data.train"
    head -c 4096 /dev/urandom >random.yaml
    assert_exit 2 "$TANDEM" job check random.yaml
    head -c 3000000 /dev/zero | tr '\0' '#' >large.yaml
    assert_exit 2 "$TANDEM" job check large.yaml
}

# A key that the model does not use is not an error, but probably a mistake of the user.
test_keys_without_effect() {
    assert_exit 0 "$TANDEM" job check job.yaml --set model.channels=[4]
    assert_contains "$err" "warning: --set: 'model.channels' has no effect: the model mlp does not"
    assert_exit 0 "$TANDEM" job check job.yaml --set model.channels=[4] --json
    assert_contains "$out" "'model.channels' has no effect"
    assert_exit 0 "$TANDEM" job check job.yaml --set "layers=[linear: 8]"
    assert_equal "$err" "" "what is said of a model that the command line has replaced"
    assert_exit 0 "$TANDEM" job check job.yaml --set parallel.weights=[1,2]
    assert_contains "$err" "'parallel.weights' has no effect unless 'parallel.balance' is weights"
    assert_exit 0 "$TANDEM" job check job.yaml --set parallel.weights=[1,2] --set parallel.balance=weights
    assert_equal "$err" "" "what is said of weights that ranks go by"
}

test_show_shows_itself() {
    assert_exit 0 "$TANDEM" job show job.yaml --set model.dropout=0.25
    printf '%s\n' "$out" >shown.yaml
    assert_contains "$out" "train: $PWD/data.csv"
    assert_contains "$out" "dropout: 0.25"
    assert_contains "$out" "beta2: 0.999"
    mkdir -p else/where
    cp shown.yaml else/where/job.yaml
    assert_exit 0 "$TANDEM" job show else/where/job.yaml
    printf '%s\n' "$out" >again.yaml
    assert_same_files again.yaml shown.yaml "the job shown a second time"
    assert_exit 0 "$TANDEM" job show job.yaml --json
    assert_equal "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["train"]["batch"])' \
        <<<"$out")" 32 "train.batch in the JSON"
}

# The file, then --set from left to right; of two keys that exclude each other the one on the command line has
# precedence.
test_the_last_word_wins() {
    shown() { "$TANDEM" job show job.yaml "$@"; }
    assert_contains "$(shown --set train.batch=64)" "batch: 64"
    assert_contains "$(shown --set train.batch=64 -s train.batch=65 --set=train.batch=66)" "batch: 66"
    assert_contains "$(shown -strain.batch=67)" "batch: 67"
    assert_contains "$(shown --set train.steps=9)" "steps: 9"
    assert_lacks "$(shown --set train.steps=9)" "epochs: 3"
    # Paths of --set are relative to the current directory, those of the file to the file.
    mkdir -p below
    cp data.csv below/other.csv
    local said
    said=$(cd below && "$TANDEM" job show ../job.yaml --set data.test=other.csv)
    assert_contains "$said" "test: $PWD/below/other.csv"
    assert_contains "$said" "train: $PWD/below/../data.csv"
    assert_exit 2 "$TANDEM" job show job.yaml --set train.batch
    assert_contains "$err" "--set"
    assert_exit 2 "$TANDEM" job show job.yaml --set train.bach=3
    assert_contains "$err" "train.batch"
    assert_exit 2 "$TANDEM" job show job.yaml --set train.batch=none
    assert_contains "$err" "train.batch"
    local sets=() i
    for ((i = 0; i < 65; i++)); do sets+=(--set "seed=$i"); done
    assert_exit 2 "$TANDEM" job show job.yaml "${sets[@]}"
    assert_contains "$err" "more than 64 times"
    assert_contains "$("$TANDEM" job show job.yaml "${sets[@]:2}")" "seed: 64"
}

test_keys() {
    assert_exit 0 "$TANDEM" job keys
    local all=$out
    assert_exit 0 "$TANDEM" job keys optim
    assert_contains "$out" "optim.lr"
    assert_lacks "$out" "train.batch"
    assert_contains "$all" "$(head -1 <<<"$out")"
    assert_exit 0 "$TANDEM" job keys --json
    # A key that is a mapping has keys below it, which can be mappings again.
    assert_equal "$(python3 -c 'import json, sys
def count(keys): return sum(1 + count(key.get("keys", [])) for key in keys)
print(count(json.load(sys.stdin)))' <<<"$out")" \
        "$(grep -c '^| `' "$source_root/docs/job-file.md")" "keys in the JSON"
    assert_exit 2 "$TANDEM" job keys optm.lr
    assert_contains "$err" "did you mean 'optim.lr'?"
    assert_exit 2 "$TANDEM" job keys zzzzzzzzzzz
    assert_contains "$err" "no key begins with"
    "$TANDEM" job keys --markdown >keys.md
    assert_same_files keys.md "$source_root/docs/job-file.md" "the page of keys"
}

test_check_for_programs() {
    printf 'train:\n  batch: x\ntypo: 1\n' >two.yaml
    assert_exit 2 "$TANDEM" job check two.yaml --json
    assert_equal "$(python3 -c 'import json, sys
d = json.load(sys.stdin)
print(d["ok"], [(p["line"], p["column"]) for p in d["problems"] if p["line"]])' <<<"$out")" \
        "False [(2, 10), (3, 1)]" "the problems in the JSON"
    assert_exit 0 "$TANDEM" job check job.yaml --json
    assert_equal "$out" '{"file":"job.yaml","ok":true,"problems":[],"warnings":[]}' "a good job in JSON"
    assert_exit 2 "$TANDEM" job check absent.yaml --json
    assert_contains "$out" '"error":'
}

test_usage() {
    assert_exit 2 "$TANDEM" job
    assert_contains "$err" "an argument is missing"
    assert_exit 2 "$TANDEM" job check
    assert_contains "$err" "FILE is missing"
    assert_exit 2 "$TANDEM" job chekc job.yaml
    assert_contains "$err" "use 'check', 'show' or 'keys'"
    assert_exit 2 "$TANDEM" job check job.yaml job.yaml
    assert_contains "$err" "too many arguments"
}

run_tests "$@"
