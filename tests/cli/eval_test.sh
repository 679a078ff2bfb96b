#!/usr/bin/env bash
# `tandem eval`: its numbers compared with those of training and with those computed from single predictions;
# which data it uses; and its errors for data that does not fit.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_data 60 test.csv 2
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml --json --set data.test_fraction=0.3
split=$out run=runs/tiny-1

test_the_split_of_the_job() {
    assert_exit 0 "$TANDEM" eval "$run" --json
    local key pair
    for pair in samples:test_samples accuracy:test_accuracy loss:test_loss; do
        key=${pair%:*}
        assert_equal "$(json_value "$key" <<<"${out%%\"classes\"*}")" \
            "$(json_value "${pair#*:}" <<<"$split")" "$key of the split"
    done
    assert_exit 0 "$TANDEM" eval "$run"
    assert_contains "$out" "data        $PWD/data.csv"
    assert_contains "$out" "class  samples  precision"
}

# Everything computed from single predictions, by awk: the true class is in the last column, the prediction in
# the second.
test_numbers_follow_from_predictions() {
    # The line of a sample has all three classes, so that the loss can be computed.
    "$TANDEM" predict "$run" test.csv --top 3 >p.csv
    local counted
    counted=$(awk -F , 'NR > 1 {
            n++; right += $2 == $8; cells[$8 "," $2]++
            for (k = 2; k <= 6; k += 2) if ($k == $8) loss -= log($(k + 1))
        } END {
            printf "%d %.6f %.4f", n, right / n, loss / n
            for (t = 0; t < 3; t++) for (p = 0; p < 3; p++) printf " %d", cells[t "," p]
        }' p.csv)
    assert_exit 0 "$TANDEM" eval "$run" --data test.csv --json
    local told=${out%%\"classes\"*}
    assert_equal "$(printf '%d %.6f %.4f%s' "$(json_value samples <<<"$told")" \
        "$(json_value accuracy <<<"$told")" "$(json_value loss <<<"$told")" \
        "$(sed 's/.*"confusion"://; s/[^0-9]\{1,\}/ /g; s/ $//' <<<"$out")")" "$counted" "eval"
}

test_precision_and_recall() {
    # A file of class 0 only: its recall is the accuracy, its precision 100 %; the other classes have neither.
    grep ',0$' test.csv >zeros.csv
    assert_exit 0 "$TANDEM" eval "$run" -d zeros.csv
    local accuracy
    accuracy=$(awk '$1 == "accuracy" { print $2 }' <<<"$out")
    assert_equal "$(awk '$1 == "0" { print $2, $3, $5; exit }' <<<"$out")" "20 100.00 $accuracy" "class 0"
    assert_equal "$(awk '$1 == "1" { print $2, $NF; exit }' <<<"$out")" "0 -" "class 1"
    assert_exit 0 "$TANDEM" eval "$run" -d zeros.csv --json
    assert_contains "$out" '{"class":"1","samples":0,"precision":'
    assert_contains "$out" '"recall":null'
}

test_any_batch() {
    assert_exit 0 "$TANDEM" eval "$run" --data test.csv --json
    local whole=${out#*confusion} n
    for n in 1 7 60 1000; do
        assert_exit 0 "$TANDEM" eval "$run" --data test.csv --json --batch $n
        assert_equal "${out#*confusion}" "$whole" "the confusions with batches of $n"
    done
}

test_a_test_file_of_the_job() {
    assert_exit 0 "$TANDEM" train job.yaml --json --set data.test=test.csv --set run.dir=file
    mv data.csv away.csv # the model alone and the test file are enough
    assert_exit 0 "$TANDEM" eval file/tiny-1 --json
    mv away.csv data.csv
    assert_contains "$out" "\"samples\":60"
    assert_contains "$out" "$PWD/test.csv"
}

test_no_test_data() {
    assert_exit 0 "$TANDEM" train job.yaml --json --set run.dir=none
    assert_exit 2 "$TANDEM" eval none/tiny-1
    assert_contains "$err" "--data FILE"
}

test_a_changed_file_is_noticed() {
    cp data.csv before.csv
    awk 'BEGIN { FS = OFS = "," } { $1 = $1 + 1; print }' before.csv >data.csv
    assert_exit 0 "$TANDEM" eval "$run"
    assert_contains "$err" "has changed since the model was trained"
    sed 's/2$/7/' before.csv >data.csv
    assert_exit 4 "$TANDEM" eval "$run"
    assert_contains "$err" "its classes are not those of the model"
    cut -d , -f 2- before.csv >data.csv
    assert_exit 4 "$TANDEM" eval "$run"
    assert_contains "$err" "has 4 numbers per sample, but the model expects 5"
    cp before.csv data.csv
    assert_exit 0 "$TANDEM" eval "$run"
    assert_equal "$err" ""
}

test_many_classes_and_odd_names() {
    awk 'BEGIN { srand(4); for (i = 0; i < 400; i++) { c = i % 40; n = "class" c
        if (c == 0) n = "\"a, \"\"b\"\"\""
        if (c == 1) n = "\033[31mred"
        if (c == 2) n = "a-name-that-goes-on-and-on-and-on-and-on-and-on-and-on"
        print c + rand() "," (-c) "," n } }' >many.csv
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=many.csv --set name=many
    assert_exit 0 "$TANDEM" eval runs/many-1 --data many.csv
    assert_contains "$out" "(the 20 classes of 40 with the lowest recall; --all shows all)"
    assert_exit 0 "$TANDEM" eval runs/many-1 --data many.csv --all
    assert_equal "$(sed -n '/^class /,/^$/p' <<<"$out" | grep -c '^')" 42 "lines of the table"
    assert_contains "$out" '?[31mred '
    assert_contains "$out" 'a-name-that-goes-on-and-on-and-on-and...  '
    assert_contains "$out" 'a, "b" '
    assert_lacks "$out" "$(printf '\033')"
    # Every line of the table has the width of its header.
    sed -n '/^class /,/^$/p' <<<"$out" | awk 'NF { if (w && length($0) != w) exit 1; w = length($0) }' ||
        fail "the columns are not aligned: $out"
}

test_bad_input() {
    assert_exit 2 "$TANDEM" eval
    assert_exit 2 "$TANDEM" eval a b
    assert_exit 2 "$TANDEM" eval "$run" --labels test.csv
    assert_contains "$err" "'--labels' requires '--data'"
    assert_exit 2 "$TANDEM" eval "$run" --batch 0
    assert_exit 2 "$TANDEM" eval nowhere
    assert_contains "$err" "nowhere: there is no such run or checkpoint"
    assert_exit 2 "$TANDEM" eval "$run" --data nowhere.csv
    assert_contains "$err" "nowhere.csv"
    assert_exit 2 "$TANDEM" eval job.yaml
    cut -d , -f 1-5 test.csv >unlabelled.csv
    assert_exit 2 "$TANDEM" eval "$run" --data unlabelled.csv
    assert_contains "$err" "the data has no labels"
    sed 's/0$/zero/' test.csv >strange.csv
    assert_exit 1 "$TANDEM" eval "$run" --data strange.csv
    assert_contains "$err" "line 1, column 6: the label 'zero' is not one of the 3 classes"
    cut -d , -f 3- test.csv >narrow.csv
    assert_exit 1 "$TANDEM" eval "$run" --data narrow.csv
    assert_contains "$err" "line 1 has 4 columns; a sample has 5 numbers"
    if "$TANDEM" eval "$run" >/dev/full 2>err.txt; then fail "a full disk went unnoticed"; fi
    assert_contains "$(cat err.txt)" "cannot write the output"
}

run_tests "$@"
