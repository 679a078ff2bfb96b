#!/usr/bin/env bash
# Evaluation, prediction and generation give the same digits for any number of workers, threads and batch
# size: models trained with different settings give the same answers with different settings.
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/../cli/lib.sh"
. "$here/golden_lib.sh"
golden_begin

# answers RUN DATA BATCH: all results of the model, without names of files and runs.
answers() {
    local run=$1 data=$2 batch=$3
    tandem eval "$run" --json --batch "$batch" | sed 's/"\(run\|checkpoint\|data\|model\)":"[^"]*",\{0,1\}//g'
    if [ "$data" = text.txt ]; then
        tandem generate "$run" --prompt 'the ' --tokens 60 --seed 5
        tandem generate "$run" --prompt 'a' --tokens 40 --temperature 0
        tandem generate "$run" --tokens 30 --top-k 4 --top-p 0.9 --seed 6
    else
        tandem predict "$run" "$data" --json --top 3 --batch "$batch"
    fi
}

# same_digits JOB DATA: settings are WORKERS/THREADS/BATCH, the last one in training and in the commands.
same_digits() {
    local job=$1 data=$2 setting workers threads batch said loss
    rm -f first.said
    for setting in 1/1/256 1/1/1 1/3/7 2/1/50 2/3/13 4/1/3; do
        IFS=/ read -r workers threads batch <<<"$setting"
        said=$(tandem train "$job.yaml" -q --json -n "$workers" --min "$workers" --set "compute.threads=$threads" \
            --set "eval.batch=$batch" --set "run.dir=runs-$workers-$threads-$batch") ||
            fail "$job with $setting (workers, threads, samples at a time) ended with $?"
        loss=$(json_value test_loss <<<"$said")
        { printf 'test loss %s\n' "$loss"; answers "runs-$workers-$threads-$batch/$job-1" "$data" "$batch"; } >now.said
        # The loss that training printed equals that of eval.
        grep -qF "\"loss\":$loss," now.said ||
            fail "$job with $setting: training printed the test loss $loss, eval $(grep -oE '"loss":[^,]*' now.said | head -1)"
        [ -e first.said ] || cp now.said first.said
        assert_same_files now.said first.said "what $job says with $setting (workers, threads, samples at a time)"
    done
    [ "$(wc -l <first.said)" -gt 4 ] || fail "$job said nothing: $(cat first.said)"
    rm -rf runs-*
    printf 'ok   %s\n' "$job"
}

same_digits mlp-adamw points.csv
same_digits cnn images.csv
same_digits vision images.csv
same_digits series series.csv
same_digits residual colours.csv
same_digits gpt text.txt
same_digits gpt-dropout text.txt
