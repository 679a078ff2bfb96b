#!/usr/bin/env bash
# Models from shared objects, with the commands: the bits do not depend on the number of workers nor on an
# interruption, a checkpoint is read with the library that it was trained with, and every kind of invalid
# library is reported with its exit code.
source tests/cli/lib.sh
source "$source_root/tests/cli/train_lib.sh"

built=$(dirname "$TANDEM")
libraries=$built/tests/library

make_data 150 data.csv
make_job tiny.yaml
cp "$built/examples/own_model.so" model.so
cat >job.yaml <<'YAML'
name: own
seed: 7
data: {train: data.csv}
model:
  kind: library
  library: model.so
  options: {width: 8, blocks: 1, dropout: 0.25}
train: {batch: 32, epochs: 3}
optim: {lr: 0.01}
parallel: {lanes: 4}
checkpoint: {every_steps: 4}
YAML
sha=$(sha256sum <model.so | cut -d' ' -f1)

test_same_bits_for_any_number_of_workers() {
    assert_exit 0 "$TANDEM" train job.yaml -n 1 --json
    one=$(hash_in "$out")
    [ -n "$one" ] || fail "no hash in $out"
    for workers in 2 4; do
        assert_exit 0 "$TANDEM" train job.yaml -n "$workers" --json
        assert_equal "$(hash_in "$out")" "$one" "the hash with $workers workers"
    done
}

test_same_bits_when_activations_are_computed_again() {
    for how in blocks full; do
        assert_exit 0 "$TANDEM" train job.yaml -n 2 --json --set memory.recompute="$how" \
            --set name="$how"
        assert_equal "$(hash_in "$out")" "$one" "the hash with memory.recompute $how"
    done
}

test_the_resolved_job_names_the_file_and_its_hash() {
    assert_contains "$(cat runs/own-1/job.yaml)" "  library: $work/model.so"
    assert_contains "$(cat runs/own-1/job.yaml)" "$sha"
    assert_contains "$(cat runs/own-1/job.yaml)" "  options: {blocks: 1, dropout: 0.25, width: 8}"
}

test_resume_is_exact() {
    assert_exit 0 "$TANDEM" train job.yaml -n 2 --set train.epochs=1 --set name=cut
    assert_exit 0 "$TANDEM" train --resume runs/cut-1 --set train.epochs=3 -n 4 --json
    assert_equal "$(hash_in "$out")" "$one" "the hash after resuming"
}

test_other_commands_load_it() {
    assert_exit 0 "$TANDEM" eval runs/own-1 --data data.csv
    assert_contains "$out" "accuracy"
    assert_exit 0 "$TANDEM" predict runs/own-1 data.csv
    assert_equal "$(grep -c . <<<"$out")" 151 "lines of predictions"
    assert_exit 0 "$TANDEM" inspect runs/own-1
    assert_contains "$out" "block1.fc1.weight"
    assert_exit 0 "$TANDEM" inspect job.yaml
    assert_contains "$out" "mish"
    assert_exit 0 "$TANDEM" job check job.yaml
    assert_exit 1 "$TANDEM" generate runs/own-1 --prompt a
    assert_contains "$err" "cannot generate text"
}

# The name of a library in a checkpoint from elsewhere is not sufficient to execute it.
test_code_only_with_consent() {
    local file command
    file=$(find runs/own-1/checkpoints -name "*.safetensors" | sort | tail -1)
    cp "$file" stray.safetensors
    for command in "eval stray.safetensors --data data.csv" "predict stray.safetensors data.csv"; do
        # shellcheck disable=SC2086 # words of a command
        assert_exit 1 "$TANDEM" $command
        assert_contains "$err" "its model is code, the shared object $work/model.so (SHA-256 $sha)"
        assert_contains "$err" "--allow-library FILE"
        # shellcheck disable=SC2086
        assert_exit 0 "$TANDEM" $command --allow-library model.so
    done
    assert_exit 1 "$TANDEM" generate stray.safetensors --prompt a
    assert_contains "$err" "its model is code"
    cp model.so elsewhere.so
    assert_exit 0 "$TANDEM" predict stray.safetensors data.csv --allow-library elsewhere.so
    assert_exit 4 "$TANDEM" predict stray.safetensors data.csv --allow-library "$libraries/no_entry.so"
    assert_exit 1 "$TANDEM" predict stray.safetensors data.csv --allow-library nothere.so
    assert_contains "$err" "nothere.so"
    # The run's own job allows it, for the run and for a file in it; the job of another run does not.
    assert_exit 0 "$TANDEM" eval "$file" --data data.csv
    mkdir -p other/checkpoints
    cp "$file" other/checkpoints/
    "$TANDEM" job show tiny.yaml >other/job.yaml
    assert_exit 1 "$TANDEM" eval other --data data.csv
    assert_contains "$err" "its model is code"
    assert_exit 0 "$TANDEM" inspect stray.safetensors
    assert_contains "$out" "the model is the shared object $work/model.so, SHA-256 $sha"
    assert_exit 0 "$TANDEM" inspect stray.safetensors --json
    assert_contains "$out" "\"library_sha256\":\"$sha\""
    assert_exit 0 "$TANDEM" checkpoint verify stray.safetensors
    assert_contains "$out" "its model is the shared object $work/model.so, SHA-256 $sha"
    assert_exit 0 "$TANDEM" checkpoint verify stray.safetensors --json
    assert_contains "$out" "\"library\":\"$work/model.so\""
}

test_options_from_the_command_line() {
    assert_exit 0 "$TANDEM" job show job.yaml --set model.options.width=9
    assert_contains "$out" "options: {blocks: 1, dropout: 0.25, width: 9}"
    assert_exit 0 "$TANDEM" train job.yaml --set model.options.width=9 --set name=nine -n 1 --json
    [ "$(hash_in "$out")" != "$one" ] || fail "an option made no difference"
    # Another option is another job.
    assert_exit 4 "$TANDEM" train --resume runs/own-1 --set model.options.width=9 \
        --set train.epochs=4
    assert_contains "$err" "model.options: {blocks: 1, dropout: 0.25, width: 9} here"
    assert_exit 2 "$TANDEM" train job.yaml --set model.options.widht=9
    assert_contains "$err" "unknown option 'widht'; did you mean 'width'?"
    assert_exit 2 "$TANDEM" job check job.yaml --set model.options.width=0
    assert_contains "$err" "'width' expects a whole number from 1 to 65536, got '0'"
    assert_exit 2 "$TANDEM" job check job.yaml --set model.options.width=0 --json
    assert_contains "$out" '"ok":false'
    assert_contains "$out" "'width' expects a whole number"
}

test_a_library_that_is_gone() {
    mv model.so away.so
    assert_exit 2 "$TANDEM" train job.yaml
    assert_contains "$err" "job.yaml:6:12: 'model.library': file '$work/model.so' does not exist"
    assert_exit 2 "$TANDEM" train --resume runs/own-1 --set train.epochs=4
    assert_contains "$err" "file '$work/model.so' does not exist"
    for command in "eval runs/own-1" "predict runs/own-1 data.csv"; do
        # shellcheck disable=SC2086 # words of a command
        assert_exit 1 "$TANDEM" $command
        assert_contains "$err" "$work/model.so: the model's shared object is missing; restore it"
    done
    assert_exit 0 "$TANDEM" inspect runs/own-1 # the tensors can be listed nevertheless
    # The same file at another path is accepted.
    assert_exit 0 "$TANDEM" train --resume runs/own-1 --set model.library=away.so \
        --set train.epochs=4
    mv away.so model.so
}

test_a_library_that_is_another() {
    cp model.so kept.so
    printf 'x' >>model.so # the loader accepts it, but it is another file
    for command in "eval runs/own-2" "predict runs/own-2 data.csv"; do
        # shellcheck disable=SC2086 # words of a command
        assert_exit 4 "$TANDEM" $command
        assert_contains "$err" "$work/model.so: this is not the file that the model was trained with"
        assert_contains "$err" "$sha"
    done
    assert_exit 4 "$TANDEM" train --resume runs/own-2 --set train.epochs=4
    assert_contains "$err" "'model.library_sha256': $work/model.so has changed"
    # Allowing the file does not help: it is another job.
    assert_exit 4 "$TANDEM" train --resume runs/own-2 --set train.epochs=4 \
        --set model.library_sha256=
    assert_contains "$err" "model.library_sha256: "
    mv kept.so model.so
    assert_exit 0 "$TANDEM" train --resume runs/own-2 --set train.epochs=4
}

test_bad_libraries() {
    assert_exit 1 "$TANDEM" train job.yaml --set model.library=data.csv
    assert_contains "$err" "$work/data.csv: cannot load it as a shared object: "
    assert_exit 1 "$TANDEM" train job.yaml --set model.library="$libraries/no_entry.so"
    assert_contains "$err" "exports no function tdm_library_entry"
    assert_exit 1 "$TANDEM" train job.yaml --set model.library="$libraries/other_abi.so"
    assert_contains "$err" "compile it again with the headers of this tandem"
    for mistake in refuse none training; do
        assert_exit 1 "$TANDEM" train job.yaml --set model.library="$libraries/trial.so" \
            --set "model.options={mistake: $mistake}"
        assert_contains "$err" "trial.so: the model trial: "
    done
    assert_exit 1 "$TANDEM" train job.yaml --set model.library="$libraries/trial.so" \
        --set "model.options={extra: 2}"
    assert_contains "$err" "its build() returned f32 ["
    [ ! -e runs/own-4 ] || fail "a job that cannot start left a run behind"
}

test_a_model_of_tokens() {
    awk 'BEGIN { for (i = 0; i < 400; i++) printf "abc" }' >text.txt
    cat >text.yaml <<YAML
name: text
data: {train: text.txt, format: text, test_fraction: 0.1}
model: {kind: library, library: $libraries/tokens.so, context: 8, options: {rows: 3}}
train: {batch: 16, steps: 40}
optim: {kind: adamw, lr: 0.1}
YAML
    assert_exit 0 "$TANDEM" train text.yaml -n 2 --json
    assert_equal "$(json_value test_accuracy <<<"$out")" 1 "the accuracy"
    assert_exit 2 "$TANDEM" train text.yaml --set data.format=csv \
        --set data.train=data.csv
    assert_contains "$err" "the model takes text"
}

run_tests "$@"
