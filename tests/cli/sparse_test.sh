#!/usr/bin/env bash
# Models with a sparse table: kills, resumes with another number of workers, evaluation and prediction, and messages.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_clicks 600 criteo clicks.tsv
make_clicks 600 libsvm clicks.svm
cat >job.yaml <<'YAML'
name: clicks
data: {train: clicks.tsv, format: criteo, test_fraction: 0.2}
model: {kind: wide_deep, hidden: [16]}
table: {dim: 4, optim: adam, lr: 0.01, admission: 2}
train: {batch: 32, steps: 40}
checkpoint: {every_steps: 10, ledger: true}
eval: {every_epochs: never}
parallel: {lanes: 4}
YAML
hash_in() { sed -n 's/.*"hash":"\([0-9a-f]*\)".*/\1/p' <<<"$1" | tail -1; }
assert_exit 0 "$TANDEM" train job.yaml --json --set name=whole
whole=$(hash_in "$out")

# A worker that dies takes its rows with it: training returns to the newest checkpoint, and ends with the same bits.
test_kills() {
    local point number=0
    for point in reduce:step=5:rank=0 reduce:step=17:rank=1 publish:step=32:rank=2; do
        number=$((number + 1))
        TANDEM_TEST_KILL=$point:file=$PWD/killed-$number \
            assert_exit 0 "$TANDEM" train job.yaml -n 3 --json --set "name=killed-$number"
        assert_equal "$(hash_in "$out")" "$whole" "the state after a kill at $point"
        assert_contains "$err" "training goes back to step"
        assert_exit 0 "$TANDEM" ledger "runs/killed-$number-1"
        assert_contains "$out" "no sample trained twice or skipped so far (10 steps)"
    done
}

test_resume_with_other_workers() {
    local workers
    for workers in 1 2 4; do
        assert_exit 0 "$TANDEM" train job.yaml -n 2 --json --set name=part-$workers --set train.steps=25
        assert_exit 0 "$TANDEM" train --resume runs/part-$workers-1 -n $workers --json --set train.steps=40
        assert_equal "$(hash_in "$out")" "$whole" "the state resumed by $workers workers"
    done
}

test_checkpoints_have_the_rows() {
    assert_exit 0 "$TANDEM" inspect "$(echo runs/whole-1/checkpoints/*40.safetensors)"
    assert_contains "$out" "table.keys"
    assert_contains "$out" "table.states"
    assert_exit 0 "$TANDEM" checkpoint verify runs/whole-1
}

test_eval_and_predict() {
    assert_exit 0 "$TANDEM" train job.yaml --json --set name=measured
    local trained
    trained=$(sed -n 's/.*"test_loss":\([0-9.]*\).*/\1/p' <<<"$out" | tail -1)
    assert_exit 0 "$TANDEM" eval runs/measured-1 --json
    assert_equal "$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' <<<"$out")" "$trained" "the loss of eval"
    assert_exit 0 "$TANDEM" predict runs/measured-1 clicks.tsv
    assert_equal "$(wc -l <<<"$out")" 601 "lines"
    assert_equal "$(cut -d , -f 4 <<<"$out" | tail -n +2)" "$(cut -f 1 clicks.tsv)" "the truth"
}

# The area under the ROC curve: the same at the end of training on any number of workers, in metrics and in eval; and as
# counted here from pairs of predictions.
test_auc() {
    local trained counted
    assert_exit 0 "$TANDEM" train job.yaml --json --set name=auc -n 3
    trained=$(sed -n 's/.*"test_auc":\([0-9.]*\).*/\1/p' <<<"$out" | tail -1)
    assert_contains "$(cat runs/auc-1/metrics.jsonl)" "\"test_auc\":$trained"
    assert_exit 0 "$TANDEM" eval runs/auc-1 --json
    assert_contains "$out" "\"auc\":$trained"
    assert_exit 0 "$TANDEM" predict runs/auc-1 clicks.tsv
    counted=$(awk -F , 'NR > 1 { p[NR] = $2 == 1 ? $3 : 1 - $3; y[NR] = $4 }
        END { for (i in p) for (k in p) if (y[i] == 1 && y[k] == 0) { n++; u += p[i] > p[k] ? 1 : p[i] == p[k] ? 0.5 : 0 }
            print u / n }' <<<"$out")
    assert_exit 0 "$TANDEM" eval runs/auc-1 --data clicks.tsv --json
    awk -v a="$(sed -n 's/.*"auc":\([0-9.]*\).*/\1/p' <<<"$out")" -v b="$counted" \
        'BEGIN { exit !(a > 0.5 && a - b < 0.001 && b - a < 0.001) }' || fail "eval has $out, counted $counted"
}

test_inspect_predicts_the_table() {
    assert_exit 0 "$TANDEM" inspect job.yaml --json -n 1
    local rows bytes
    rows=$(sed -n 's/.*"table_rows":\([0-9]*\).*/\1/p' <<<"$out")
    bytes=$(sed -n 's/.*"table_bytes":\([0-9]*\).*/\1/p' <<<"$out")
    # Counted here: the different categories of the training samples are at most those of the file.
    local real
    real=$(awk -F '\t' '{ for (k = 15; k <= 40; k++) if ($k != "" && !seen[k, $k]++) n++ } END { print n }' clicks.tsv)
    [ "$rows" -le $((real + real / 50)) ] || fail "$rows rows predicted of $real"
    [ "$rows" -ge $((real * 8 / 10)) ] || fail "$rows rows predicted of $real"
    [ "$bytes" -gt $((rows * 60)) ] || fail "$bytes bytes for $rows rows"
}

test_full_table() {
    assert_exit 1 "$TANDEM" train job.yaml -n 2 --set name=full --set table.limit=2MB --set table.dim=512
    assert_contains "$err" "the limit"
    assert_contains "$err" "table"
}

test_messages() {
    awk -F '\t' -v OFS='\t' '{ $1 = NR % 3; print }' clicks.tsv >three.tsv
    assert_exit 2 "$TANDEM" train job.yaml --set data.train=three.tsv --set name=three
    assert_contains "$err" "predicts one of two classes, but the data has 3"
    assert_exit 1 "$TANDEM" replay runs/whole-1 --step 12
    assert_contains "$err" "cannot be replayed"
    assert_exit 0 "$TANDEM" job check job.yaml --set table.l1=2
    assert_contains "$err" "'table.l1' has no effect unless 'table.optim' is ftrl"
}

test_every_model_learns() {
    local kind
    for kind in lr fm wide_deep; do
        assert_exit 0 "$TANDEM" train job.yaml -n 2 --json --set name=$kind --set data.train=clicks.svm \
            --set data.format=libsvm --set model.kind=$kind --set train.steps=150 --set table.admission=1 \
            --set table.optim=adagrad
        sed -n 's/.*"test_loss":\([0-9.]*\).*/\1/p' <<<"$out" | tail -1 |
            awk '{ exit !($1 < 0.69) }' || fail "$kind does not learn: $out"
    done
}

run_tests "$@"
