# shellcheck shell=bash
# train_lib.sh: small data, a small job, and a function that runs the functions test_... of a script.

# make_data COUNT FILE [SEED]: three classes around three points, in five columns.
make_data() {
    awk -v n="$1" -v seed="${3:-1}" 'BEGIN {
        srand(seed)
        for (i = 0; i < n; i++) {
            c = i % 3
            line = ""
            for (k = 0; k < 5; k++) line = line sprintf("%.3f,", (k == c ? 1.5 : 0) + rand())
            print line c
        }
    }' >"$2"
}

# A job of 15 steps: five to an epoch of 150 samples.
make_job() {
    cat >"$1" <<'YAML'
name: tiny
seed: 7
data:
  train: data.csv
model:
  hidden: [16]
train:
  batch: 32
  epochs: 3
optim:
  lr: 0.01
parallel:
  lanes: 4
YAML
}

# run_tests [PART]: all functions test_... of the script in their order, or those whose names
# contain PART.
run_tests() {
    local name names count=0
    # shellcheck disable=SC2154 # lib.sh sets it
    mapfile -t names < <(sed -n 's/^\(test_[a-z0-9_]*\)() {$/\1/p' "$script")
    for name in "${names[@]}"; do
        [[ $name == *"${1:-}"* ]] || continue
        "$name"
        count=$((count + 1))
        printf 'ok   %s\n' "$name"
    done
    [ "$count" -gt 0 ] || fail "no test has '${1:-}' in its name"
}

# The lines of metrics without the values that differ from run to run.
steady_metrics() {
    sed 's/,"samples_per_s":.*/}/' "$1"
}

# The state hash in a run's summary or JSON in $out.
hash_in() {
    sed -n 's/.*\(state hash *\|"hash":"\)\([0-9a-f]\{64\}\).*/\2/p' <<<"$1"
}

# trains N [ARGUMENT...]: trains job.yaml on N ranks with the arguments in the array `common`; sets run and hash.
# shellcheck disable=SC2154 # the test sets `common`, lib.sh sets `out`
trains() {
    local ranks=$1
    shift
    assert_exit 0 "$TANDEM" train job.yaml -q --json -n "$ranks" "${common[@]}" "$@"
    hash=$(hash_in "$out")
    run=$(json_value run <<<"$out")
    [ -n "$hash" ] || fail "no hash in $out"
}

# metrics FIELD: its numbers in the metrics of the run that trains() has set, one per line.
metrics() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" "$run/metrics.jsonl"; }

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "waited in vain for: $*"
        sleep 0.01
    done
}

# wait_for_tasks CODE: all processes in the array tasks must end with that code. They write task.N.err.
wait_for_tasks() {
    local task code
    # shellcheck disable=SC2154 # the test sets it
    for task in "${tasks[@]}"; do
        code=0
        wait "$task" || code=$?
        assert_equal "$code" "$1" "a task's code, after $(cat task.*.err)"
    done
}

# is_stopped PID: whether all threads of the process are stopped by a signal. TANDEM_TEST_KILL=...:signal=STOP:file=F writes F just
# before the process stops itself: a test that continues the process waits for this first, or its SIGCONT is lost.
is_stopped() {
    local states
    states=$(sed 's/.*) \(.\).*/\1/' "/proc/$1"/task/*/stat 2>/dev/null) && [ -n "$states" ] && [[ $states != *[!T[:space:]]* ]]
}

is_stopped_or_gone() { is_stopped "$1" || ! kill -0 "$1" 2>/dev/null; }

# make_clicks COUNT FORMAT FILE: samples with features of any frequency, whose classes depend on some of them; in the
# format libsvm, with empty samples, or criteo, with missing columns.
make_clicks() {
    awk -v n="$1" -v format="$2" 'BEGIN {
        srand(11)
        for (i = 0; i < n; i++) {
            z = -1
            line = ""
            if (format == "libsvm") {
                for (k = 1; k <= 120; k++)
                    if (rand() < (i % 50 == 7 ? 0 : 4 / (k + 8))) {
                        line = line sprintf(" %d:%.2f", k, k % 5 ? 1 : rand() * 4 - 2)
                        z += k % 3 - 1
                    }
                line = (rand() < 1 / (1 + exp(-z)) ? "+1" : "-1") line
            } else {
                for (k = 1; k <= 13; k++) {
                    number = rand() < 0.2 ? "" : int(exp(rand() * 7)) - 2
                    line = line "\t" number
                    if (k == 1 && number != "") z += log(number + 4) - 2
                }
                for (k = 1; k <= 26; k++) {
                    category = int(40 * rand() ^ 3)
                    line = line "\t" (rand() < 0.1 ? "" : sprintf("%x", category * 977))
                    if (k < 6) z += category % 3 - 0.8
                }
                line = (rand() < 1 / (1 + exp(-z)) ? 1 : 0) line
            }
            print line
        }
    }' >"$3"
}

# make_images FILE: 8 x 8 images with a bright row, whose number is the class.
make_images() {
    awk 'BEGIN { srand(3); for (n = 0; n < 96; n++) { c = n % 4; line = "";
        for (i = 0; i < 64; i++) line = line int(rand() * 60 + (int(i / 8) == 2 * c ? 120 : 0)) ",";
        print line c } }' >"$1"
}
