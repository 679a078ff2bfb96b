#!/usr/bin/env bash
# `tandem train`: the same job gives the same state for any number of workers; the contents of the run
# directory; errors that start nothing; the end of a run that diverges.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml

# Trains in a fresh directory and leaves the state's hash in $hash: hash_of JOB ARGUMENTS...
hash_of() {
    assert_exit 0 "$TANDEM" train "$@" --json --set run.dir=hashes
    hash=$(json_value hash <<<"$out")
    [[ $hash =~ ^[0-9a-f]{64}$ ]] || fail "no hash in: $out"
}

# same_bits WHAT ARGUMENTS...: 1, 2, 3 and 4 workers end in the same state, and that state is not
# the one of the plain job (otherwise the setting under test would do nothing).
plain=
same_bits() {
    local what=$1 n first
    shift
    hash_of job.yaml -n 1 "$@"
    first=$hash
    for n in 2 3 4; do
        hash_of job.yaml -n "$n" "$@"
        assert_equal "$hash" "$first" "$what: the hash with $n workers"
    done
    [ "$first" != "$plain" ] || fail "$what: the same state as the plain job's; the setting is ignored"
}

# A column of measurements instead of classes: each value would be a class.
test_a_numeric_target() {
    local ranks
    awk 'BEGIN { srand(2); for (i = 0; i < 400; i++) printf "%.3f,%.3f,%d\n", rand(), rand(), 25 + i * 7 % 200 }' >whole.csv
    awk 'BEGIN { srand(3); for (i = 0; i < 400; i++) printf "%.3f,%.3f,%.2f\n", rand(), rand(), i % 15 / 4 }' >fractions.csv
    awk 'BEGIN { srand(4); for (i = 0; i < 900; i++) printf "%.3f,%.3f,%d\n", rand(), rand(), i % 26 }' >classes.csv
    for ranks in 1 2; do
        assert_exit 0 "$TANDEM" train job.yaml -q -n $ranks --set run.dir=target --set data.train=whole.csv
        assert_contains "$err" "looks like a regression target"
        assert_contains "$err" "regression is not supported yet"
        assert_equal "$(grep -c regression <<<"$err")" 1 "warnings of $ranks ranks"
    done
    assert_contains "$err" "distinct numbers for 400 samples"
    assert_contains "$err" "(25, 26, ... 224)"
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=target --set data.train=fractions.csv
    assert_contains "$err" "the labels are 15 distinct numbers"
    assert_exit 0 "$TANDEM" train job.yaml -q --set run.dir=target --set data.train=classes.csv
    assert_lacks "$err" "regression"
    rm -r target
}

# Characters that a shell passes on unchanged, and that have no meaning in YAML.
test_a_blank_delimiter() {
    local value
    tr , ' ' <data.csv >blank.csv
    tr , '\t' <data.csv >tab.csv
    tr , '~' <data.csv >tilde.csv
    train_with() {
        assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=delimited \
            --set data.train="$1" --set data.delimiter="$2"
    }
    train_with blank.csv ' '
    assert_contains "$(cat delimited/tiny-1/job.yaml)" 'delimiter: " "'
    train_with blank.csv "' '"
    for value in $'\t' tab '\t' '"\t"'; do train_with tab.csv "$value"; done
    train_with tilde.csv '~'
    assert_exit 2 "$TANDEM" train job.yaml --set data.delimiter=
    assert_contains "$err" "'data.delimiter'"
    rm -r delimited
}

test_the_same_bits() {
    same_bits "the plain job"
    plain=$hash
    hash_of job.yaml
    assert_equal "$hash" "$plain" "the hash with as many workers as processors"
    same_bits dropout --set model.dropout=0.3
    same_bits "batches that do not divide into lanes" --set train.batch=27
    same_bits "a last batch smaller than the lanes" --set train.batch=37 # 150 = 4 * 37 + 2
    same_bits "a batch larger than the data" --set train.batch=1000 --set train.steps=4
    same_bits "dropping the last batch" --set train.batch=40 --set data.last_batch=drop
    same_bits "keeping the last batch" --set train.batch=40
    same_bits nesterov --set optim.kind=sgd --set optim.nesterov=true --set optim.lr=0.05
    same_bits "plain momentum" --set optim.kind=sgd --set optim.lr=0.05
    local a
    for a in gelu tanh sigmoid; do same_bits "$a" --set model.activation="$a"; done
    same_bits "no hidden layer" --set "model.hidden=[]"
    same_bits "three hidden layers" --set "model.hidden=[9, 17, 5]" --set model.dropout=0.1
    same_bits "another seed" --set seed=2
    same_bits "the plain loops" --set compute.backend=ref --set model.dropout=0.2
}

test_more_workers_than_processors() {
    local n first
    hash_of job.yaml -n 1 --set parallel.lanes=8
    first=$hash
    for n in 5 8; do
        hash_of job.yaml -n "$n" --set parallel.lanes=8
        assert_equal "$hash" "$first" "the hash with $n workers of 8 lanes"
    done
    [ "$first" != "$plain" ] || fail "8 lanes give the bits of 4"
}

test_too_many_workers() {
    assert_exit 2 "$TANDEM" train job.yaml -n 5 --set run.dir=too-many
    assert_contains "$err" "5 workers need at least as many lanes, but the job has 4"
    [ ! -e too-many ] || fail "a run was begun with too many workers"
}

# PowerSGD: a rank that no matrix allows is refused before a run begins; the factors are in checkpoints once, and a
# run that other numbers of workers continue ends with the same bits.
test_factors() {
    local sets=(--set parallel.lanes=8 --set sync.replicas=8 --set compress.rank=2 --set compress.min_elements=10)
    local wide='model.hidden=[48,32]' whole workers
    assert_exit 2 "$TANDEM" train job.yaml -n 2 --set run.dir=no-rank "${sets[@]}" --set "$wide" --set compress.rank=40
    assert_contains "$err" "compress.rank: codec: rank 40 makes none of 6 tensors smaller"
    [ ! -e no-rank ] || fail "a run was begun with a rank that no matrix allows"
    assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=factors "${sets[@]}" --set "$wide"
    whole=$(hash_in "$out")
    for workers in 3 8; do
        assert_exit 0 "$TANDEM" train job.yaml -q -n $workers --set run.dir=factors-$workers "${sets[@]}" \
            --set "$wide" --set train.epochs=1
        assert_exit 0 "$TANDEM" inspect factors-$workers/tiny-1/checkpoints/step-000000000005.safetensors
        assert_equal "$(grep -c '^compress[.]factor ' <<<"$out")" 1 "factors in a checkpoint"
        assert_exit 0 "$TANDEM" train -q -n $((11 - workers)) --resume factors-$workers/tiny-1 --set train.epochs=3
        assert_equal "$(hash_in "$out")" "$whole" "the hash, from $workers to $((11 - workers)) workers"
    done
}

# What replicas send does not depend on workers: 8 payloads of 16 bits for each number of a matrix, or factors, against
# 8 x 4 bytes. Staleness is counted for each update.
test_traffic() {
    local sets=(--set parallel.lanes=8 --set sync.replicas=8 --set run.log_every_steps=5)
    local workers sent
    for workers in 1 4; do
        assert_exit 0 "$TANDEM" train job.yaml -q -n $workers --set run.dir=sent-$workers "${sets[@]}" \
            --set compress.quantise=bf16 --set compress.start_step=5
        grep -o '"step":[0-9]*\|"sent_bytes":[0-9]*\|"compression":[0-9.]*' sent-$workers/tiny-1/metrics.jsonl \
            >sent-$workers.txt
        assert_exit 0 grep -q '"codec_ms":[0-9.]*' sent-$workers/tiny-1/metrics.jsonl
    done
    assert_equal "$(cat sent-4.txt)" "$(cat sent-1.txt)" "what is sent with 4 workers"
    # Before the first step the log says whether it pays, once.
    assert_exit 0 grep '"message":"compression: 8 replicas; the codec encodes .* one host, so this' sent-4/tiny-1/log.jsonl
    assert_equal "$(wc -l <<<"$out")" 1 "lines about the compression"
    # 147 numbers in 4 tensors, all below compress.min_elements, so f32: a head of 32 bytes, words, sections in steps of 8
    sent=$((8 * (32 + 4 * 8 + 16 * 5 * 4 + 16 * 4 + 16 * 3 * 4 + 16)))
    assert_equal "$(grep -c sent_bytes sent-1.txt)" 2 "lines with bytes, from step 6 on"
    assert_equal "$(grep -c "^\"sent_bytes\":$sent$" sent-1.txt)" 2 "lines with $sent bytes"
    assert_exit 0 "$TANDEM" train job.yaml -q -n 2 --set run.dir=stale "${sets[@]}" --set sync.kind=server --set sync.mode=async
    assert_equal "$(grep -o '"counts":[^]]*' stale/tiny-1/metrics.jsonl | sed 's/.*\[//' |
        awk -F , '{ sum = 0; for (i = 1; i <= NF; i++) sum += $i; printf "%d ", sum }')" \
        "5 5 5 " "updates in the histograms of staleness"
}

# On one host nothing is sent, so nothing is compressed. The choice is made once, and stays when the run continues.
test_the_compression_is_chosen() {
    local sets=(--set compress.auto=true --set compress.min_elements=10) workers
    assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set run.dir=auto "${sets[@]}" --set train.epochs=1
    assert_exit 0 "$TANDEM" inspect auto/tiny-1/checkpoints/step-000000000005.safetensors
    assert_contains "$out" "compress.choice"
    assert_exit 0 "$TANDEM" train -q -n 3 --resume auto/tiny-1 --set train.epochs=3
    local hash
    hash=$(hash_in "$out")
    assert_exit 0 grep 'compress.auto chooses' auto/tiny-1/log.jsonl
    assert_equal "$(wc -l <<<"$out")" 1 "choices of a run"
    assert_contains "$out" "4 replicas: compress.auto chooses none"
    assert_exit 0 "$TANDEM" train job.yaml -q -n 4 --set run.dir=auto "${sets[@]}"
    assert_equal "$(hash_in "$out")" "$hash" "the hash with 4 workers"
}

test_what_a_run_holds() {
    assert_exit 0 "$TANDEM" train job.yaml -n 2 --set run.dir=held --set run.log_every_steps=1
    assert_contains "$out" "done at step 15"
    assert_contains "$out" " held/tiny-1/checkpoints/step-000000000015.safetensors"
    assert_contains "$err" "4 lanes on"
    assert_equal "$(wc -l <held/tiny-1/metrics.jsonl)" 15 "lines of metrics"
    assert_equal "$(ls held/tiny-1)" "checkpoints
job.yaml
lock
log.jsonl
logs
metrics.jsonl" "the files of a run"
    assert_equal "$(find held/tiny-1/logs -type f | wc -l)" 2 "logs of workers"
    assert_equal "$(find held/tiny-1/checkpoints -type f | wc -l)" 3 "checkpoints kept"
    assert_exit 0 "$TANDEM" job check held/tiny-1/job.yaml
    assert_exit 0 "$TANDEM" train job.yaml -n 2 --set run.dir=held --quiet
    assert_equal "$err" "" "words of a quiet run"
    [ -d held/tiny-2 ] || fail "the second run is not tiny-2"
    # A number is not used again, even if its run was removed.
    rm -r held/tiny-1
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=held --json
    assert_equal "$(json_value run <<<"$out")" "$PWD/held/tiny-3" "the third run"
    assert_equal "$(json_value steps <<<"$out")" 15
    assert_equal "$(json_value interrupted <<<"$out")" false
    assert_equal "$err" "" "words beside JSON"
}

test_two_at_once_get_separate_directories() {
    local pids=() i
    for i in 1 2 3 4; do
        "$TANDEM" train job.yaml -q -n 1 --set run.dir=many >"many.$i" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || fail "one of four runs failed: $(cat many.*)"; done
    assert_equal "$(find many -mindepth 1 -maxdepth 1 | wc -l)" 4 "directories of four runs"
    assert_equal "$(grep -h 'state hash' many.? | sort -u | wc -l)" 1 "states of four equal runs"
}

test_a_test_set_is_measured() {
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=measured --set data.test_fraction=0.2
    assert_contains "$out" "test accuracy"
    assert_equal "$(grep -c test_accuracy measured/tiny-1/metrics.jsonl)" 3 "evaluations"
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=measured --set data.test=data.csv --json \
        --set eval.every_epochs=never --set eval.batch=7
    assert_equal "$(grep -c test_accuracy measured/tiny-2/metrics.jsonl)" 1 "evaluations"
    assert_equal "$(json_value test_samples <<<"$out")" 150
}

# bad_start CODE TEXT ARGUMENTS...: it exits with CODE, prints TEXT, and leaves no directory behind.
bad_start() {
    local code=$1 text=$2
    shift 2
    assert_exit "$code" "$TANDEM" train "$@" --set run.dir=none
    assert_contains "$err" "$text"
    [ ! -e none ] || fail "'train $*' left a directory: $(find none)"
}

test_what_starts_nothing() {
    printf 'data:\n  train: data.csv\ntrain:\n  batch: many\n  epoch: 3\noptim: {lr: -1}\n' >bad.yaml
    bad_start 2 "bad.yaml:4:10: " bad.yaml
    assert_contains "$err" "bad.yaml:5:3: "
    assert_contains "$err" "bad.yaml:6:13: "
    assert_contains "$err" "3 problems in the job; nothing was started"
    bad_start 2 "no-such.yaml" no-such.yaml
    bad_start 2 "JOB is missing"
    bad_start 2 "too many arguments" job.yaml job.yaml
    bad_start 2 "one batch of 1000" job.yaml --set train.batch=1000 --set data.last_batch=drop
    bad_start 2 "'--workers' expects a whole number" job.yaml -n 0
    bad_start 2 "'--workers' expects a whole number" job.yaml -n many
    awk -F, -v OFS=, '{ $NF = 1; print }' data.csv >one-class.csv
    bad_start 2 "all samples have the same label" job.yaml --set data.train=one-class.csv
    cut -d, -f2- data.csv >narrow.csv
    bad_start 2 "4 numbers per sample, but the training data has 5" job.yaml --set data.test=narrow.csv
    printf '1,2,3\n4,5\n' >ragged.csv
    bad_start 1 "ragged.csv" job.yaml --set data.train=ragged.csv
    : >empty.csv
    bad_start 1 "empty.csv" job.yaml --set data.train=empty.csv
}

# A learning rate with which every model diverges: exit 3, and all numbers on disk are finite.
test_divergence() {
    assert_exit 3 "$TANDEM" train job.yaml --set run.dir=diverged --set optim.kind=sgd \
        --set optim.lr=1e300 --set checkpoint.every_steps=1
    assert_contains "$err" "optim.lr"
    assert_equal "$(grep -c 'optim.lr' <<<"$err")" 1 "times the error is said"
    assert_contains "$(cat diverged/tiny-1/log.jsonl)" '"level":"error"'
    assert_contains "$err" "no checkpoint was written before"
    assert_equal "$(ls diverged/tiny-1/checkpoints)" "" "checkpoints of a first step that diverged"
    local file
    # Diverging later: earlier checkpoints are kept, and training can be resumed up to that step.
    assert_exit 3 "$TANDEM" train job.yaml --set run.dir=later --set optim.kind=sgd \
        --set optim.lr=3000 --set optim.momentum=0.99 --set checkpoint.every_steps=1 \
        --set checkpoint.keep=all --set train.steps=3000 --set model.activation=relu
    assert_contains "$err" "the newest checkpoint is the last good state"
    [ -e later/tiny-1/checkpoints/step-000000000001.safetensors ] || fail "no checkpoint before it"
    for file in later/tiny-1/checkpoints/*; do
        non_finite "$file" && fail "$file holds numbers that are not finite"
    done
    # ... and the check above can fail:
    printf '\x02\0\0\0\0\0\0\0{}\0\0\x80\x3f\0\0\xc0\x7f' >nan
    non_finite nan || fail "a NaN was not seen"
}

# Whether a number of type f32 in a safetensors file is NaN or infinite.
non_finite() {
    local header
    header=$(od -An -v -tu8 -N8 "$1" | tr -d ' ')
    [ "$(od -An -v -w4 -tu4 -j $((8 + header)) "$1" |
        awk 'int($1 / 8388608) % 256 == 255 { n++ } END { print n + 0 }')" -gt 0 ]
}

run_tests "$@"
