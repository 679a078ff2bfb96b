#!/usr/bin/env bash
# Names on the command line that do not exist, or are another kind of file: every command reports what was
# expected, and exits with 2. A damaged file is a different error, and gives exit code 1.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml -q -n 1 --set data.test_fraction=0.2
run=runs/tiny-1
: >empty
printf 'no model\n' >note.txt
mkdir subdir

# Commands that read a run or a checkpoint, with NAME in place of its name.
readers=("eval NAME" "predict NAME data.csv" "generate NAME" "hash NAME" "inspect NAME"
    "checkpoint ls NAME" "checkpoint verify NAME" "checkpoint prune NAME"
    "checkpoint copy NAME to.safetensors" "checkpoint diff NAME $run" "checkpoint diff $run NAME"
    "train --resume NAME" "replay NAME --step 1" "ledger NAME" "trace NAME" "ps NAME" "stop NAME"
    "leave NAME" "join NAME" "checkpoint now NAME")

test_wrong_names() {
    local line name words
    for line in "${readers[@]}"; do
        for name in nothere nothere/at/all subdir empty note.txt job.yaml data.csv ""; do
            [[ $line == inspect* && $name == job.yaml ]] && continue # inspect accepts this one
            read -ra words <<<"$line"
            assert_exit 2 "$TANDEM" "${words[@]/#NAME/$name}"
            assert_contains "$err" "tandem: "
            assert_lacks "$err" "header"
            assert_lacks "$err" "8 bytes"
            assert_equal "$out" "" "what '$line' printed for $name"
        done
    done
    [ ! -e to.safetensors ] || fail "a copy was made"
}

# A job file instead of a run: the message says what to give.
test_a_job_for_a_run() {
    local command
    for command in hash eval generate "checkpoint verify"; do
        # shellcheck disable=SC2086 # two words
        assert_exit 2 "$TANDEM" $command job.yaml
        assert_equal "$err" "tandem: job.yaml: neither a run nor a checkpoint; give a run \
directory, such as runs/digits-1, or a .safetensors file in its checkpoints" "the message of $command"
    done
    assert_exit 2 "$TANDEM" train --resume job.yaml
    assert_contains "$err" "'job.yaml' is a file, not a run directory"
}

test_files_of_data() {
    assert_exit 2 "$TANDEM" eval "$run" --data nothere.csv
    assert_contains "$err" "file 'nothere.csv' does not exist"
    assert_exit 2 "$TANDEM" predict "$run" nothere.csv
    assert_exit 2 "$TANDEM" predict "$run" subdir
    assert_contains "$err" "'subdir' is a directory"
    assert_exit 2 "$TANDEM" predict "$run" data.csv --labels nothere
    assert_exit 2 "$TANDEM" train job.yaml --set data.train=nothere.csv
    assert_exit 2 "$TANDEM" train nothere.yaml
    assert_exit 2 "$TANDEM" bench step nothere.yaml
    assert_exit 2 "$TANDEM" job check nothere.yaml
}

# A step that was never saved, next to one that was.
test_a_step_of_a_run() {
    assert_exit 0 "$TANDEM" checkpoint verify "$run:12"
    assert_exit 2 "$TANDEM" checkpoint verify "$run:11"
    assert_exit 2 "$TANDEM" checkpoint copy "$run:11" to.safetensors
    assert_exit 2 "$TANDEM" checkpoint diff "$run:12" nothere:12
}

# The file is of the right kind, but damaged: reading it fails.
test_damage_is_another_code() {
    local name
    head -c 3000 $run/checkpoints/step-000000000012.safetensors >short.safetensors
    cp short.safetensors short.bin
    for name in short.safetensors short.bin; do
        assert_exit 1 "$TANDEM" hash $name
        assert_exit 1 "$TANDEM" eval $name
        assert_exit 1 "$TANDEM" inspect $name
        assert_exit 1 "$TANDEM" checkpoint verify $name
        assert_exit 1 "$TANDEM" hash nothere $name
    done
}

run_tests "$@"
