#!/usr/bin/env bash
# `tandem predict`: CSV and JSON lines, with and without labels, to a pipe and to a file.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_data 60 test.csv 2
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml -q
run=runs/tiny-1
cut -d , -f 1-5 test.csv >unlabelled.csv

test_csv() {
    assert_exit 0 "$TANDEM" predict "$run" test.csv
    assert_equal "$err" ""
    assert_equal "$(head -n 1 <<<"$out")" "sample,class,probability,truth" "the header"
    assert_equal "$(wc -l <<<"$out")" 61 "lines"
    # The true classes are those of the file, in its order; classes and probabilities are valid.
    assert_equal "$(cut -d , -f 4 <<<"$out" | tail -n +2)" "$(cut -d , -f 6 test.csv)" "the truth"
    awk -F , 'NR > 1 && ($1 != NR - 2 || $2 !~ /^[012]$/ || $3 < 1 / 3 || $3 > 1) { print; exit 1 }' \
        <<<"$out" || fail "a bad line"
    # Three separate clusters: almost all predictions must be correct.
    awk -F , 'NR > 1 { right += $2 == $4 } END { exit right < 54 }' <<<"$out" || fail "predicts badly: $out"
}

test_without_labels() {
    "$TANDEM" predict "$run" test.csv >with.csv
    assert_exit 0 "$TANDEM" predict "$run" unlabelled.csv
    assert_equal "$(head -n 1 <<<"$out")" "sample,class,probability" "the header"
    assert_equal "$(tail -n +2 <<<"$out")" "$(cut -d , -f 1-3 with.csv | tail -n +2)" "the predictions"
}

# Whole numbers, so that the last column could be a label as well: only the number of columns decides.
test_the_number_of_columns_decides() {
    printf '1,0,0,0,0\n0,1,0,0,1\n0,0,1,0,2\n' >whole.csv
    assert_exit 0 "$TANDEM" predict "$run" whole.csv
    assert_equal "$(wc -l <<<"$out")" 4 "lines"
    assert_equal "$(head -n 1 <<<"$out")" "sample,class,probability" "the header"
}

test_labels_by_name() {
    { echo a,b,kind,c,d,e; awk -F , -v OFS=, '{ print $1, $2, "k" $6, $3, $4, $5 }' data.csv; } >named.csv
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=named.csv --set data.label=kind \
        --set name=named
    assert_exit 0 "$TANDEM" predict runs/named-1 named.csv
    assert_equal "$(sed -n 2p <<<"$out" | cut -d , -f 4)" k0 "the truth"
    { echo a,b,c,d,e; cut -d , -f 1-5 test.csv; } >headed.csv
    assert_exit 0 "$TANDEM" predict runs/named-1 headed.csv
    assert_equal "$(wc -l <<<"$out")" 61 "lines"
    assert_equal "$(sed -n 2p <<<"$out" | cut -d , -f 2)" k0 "the class"
}

test_top() {
    assert_exit 0 "$TANDEM" predict "$run" test.csv --top 3
    assert_equal "$(head -n 1 <<<"$out")" \
        "sample,class,probability,class_2,probability_2,class_3,probability_3,truth" "the header"
    awk -F , 'NR > 1 && ($3 < $5 || $5 < $7 || $3 + $5 + $7 < 0.9999 || $3 + $5 + $7 > 1.0001 ||
        $2 + $4 + $6 != 3) { print; exit 1 }' <<<"$out" || fail "a bad line"
    assert_exit 2 "$TANDEM" predict "$run" test.csv --top 4
    assert_contains "$err" "exceeds the number of classes, 3"
}

test_json() {
    assert_exit 0 "$TANDEM" predict "$run" test.csv --json -k 2
    local csv
    csv=$("$TANDEM" predict "$run" test.csv -k 2 | tail -n +2)
    # {"sample":0,"class":"A",P,"truth":"T","top":[{"class":"A",P},{"class":"B",P}]} has words between
    # the quotes at the places that CSV has between its commas.
    assert_equal "$(awk -F '"' -v OFS=, '{ gsub(/[^0-9]/, "", $3); print $3, $6, $24, $12 }' <<<"$out")" \
        "$(cut -d , -f 1,2,4,6 <<<"$csv")" "JSON"
    assert_equal "$(awk -F '"' '{ print $6 == $18 }' <<<"$out" | sort -u)" 1 "the first of the list"
    assert_exit 0 "$TANDEM" predict "$run" unlabelled.csv --json
    assert_lacks "$out" truth
    assert_lacks "$out" top
}

test_any_batch() {
    "$TANDEM" predict "$run" test.csv | cut -d , -f 1,2,4 >whole.txt
    local n
    for n in 1 7 1000; do
        "$TANDEM" predict "$run" test.csv -b $n | cut -d , -f 1,2,4 >part.txt
        assert_same_files part.txt whole.txt "the classes with batches of $n"
    done
}

test_quoting() {
    awk -F , -v OFS=, '{ n[0] = "\"a, \"\"b\"\"\""; n[1] = "\" c\""; n[2] = "\"two\nlines\""
        $6 = n[$6]; print }' data.csv >quoted.csv
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=quoted.csv --set name=quoted
    assert_exit 0 "$TANDEM" predict runs/quoted-1 quoted.csv -o quoted-out.csv
    local text
    text=$(cat quoted-out.csv)
    assert_contains "$text" ',"a, ""b"""'
    assert_contains "$text" '," c"'
    assert_contains "$text" ',"two
lines"'
    assert_exit 0 "$TANDEM" predict runs/quoted-1 quoted.csv --json
    assert_contains "$out" '"truth":"a, \"b\""'
    assert_contains "$out" '"truth":"two\nlines"'
}

test_output_file() {
    "$TANDEM" predict "$run" test.csv >want.csv
    echo old >p.csv
    assert_exit 0 "$TANDEM" predict "$run" test.csv --output p.csv --batch 7
    cut -d , -f 1,2,4 p.csv >a.txt
    cut -d , -f 1,2,4 want.csv >b.txt
    assert_same_files a.txt b.txt "the file"
    assert_contains "$out" "p.csv: 60 predictions, "
    assert_exit 0 "$TANDEM" predict "$run" unlabelled.csv --output p.jsonl --json
    assert_equal "$out" "" "stdout"
    assert_equal "$(wc -l <p.jsonl)" 60 "lines"
}

test_output_is_all_or_nothing() {
    echo old >kept.csv
    assert_exit 2 "$TANDEM" predict "$run" nowhere.csv -o kept.csv
    assert_equal "$(cat kept.csv)" old "the file after a failure"
    # A limit on the size of files makes a write fail in the middle.
    make_data 30000 large.csv 3
    local code=0
    (trap '' XFSZ; ulimit -f 200; exec "$TANDEM" predict "$run" large.csv -o kept.csv) 2>err.txt || code=$?
    assert_equal "$code" 1 "the exit code"
    assert_contains "$(cat err.txt)" "kept.csv"
    assert_equal "$(cat kept.csv)" old "the file after a failed write"
    assert_equal "$(find . -maxdepth 1 -name '.kept*')" "" "what is left behind"
    assert_exit 1 "$TANDEM" predict "$run" test.csv -o nowhere/p.csv
    assert_contains "$err" "nowhere/p.csv"
}

test_a_reader_that_goes_away() {
    make_data 30000 large.csv 3
    "$TANDEM" predict "$run" large.csv 2>err.txt | head -n 1 >first.txt || true
    assert_equal "$(cat err.txt)" "" "stderr"
    assert_equal "$(cat first.txt)" "sample,class,probability,truth" "the first line"
    if "$TANDEM" predict "$run" test.csv >/dev/full 2>err.txt; then fail "a full disk went unnoticed"; fi
    assert_contains "$(cat err.txt)" "cannot write the output"
}

# 60 images of two pixels, as bytes in octal for printf.
test_idx() {
    local i images='\0\0\10\3\0\0\0\74\0\0\0\1\0\0\0\2' labels='\0\0\10\1\0\0\0\74'
    for ((i = 0; i < 60; i++)); do
        if [ $((i % 2)) = 0 ]; then
            images+='\0\377' labels+='\0'
        else
            images+='\377\0' labels+='\1'
        fi
    done
    # shellcheck disable=SC2059 # it is the format that holds the bytes
    printf "$images" >images.idx
    # shellcheck disable=SC2059
    printf "$labels" >labels.idx
    assert_exit 0 "$TANDEM" train job.yaml -q --set data.train=images.idx \
        --set data.train_labels=labels.idx --set name=idx --set train.epochs=20
    assert_exit 0 "$TANDEM" predict runs/idx-1 images.idx
    assert_equal "$(sed -n '1p;2p;3p' <<<"$out" | cut -d , -f 1,2)" "sample,class
0,0
1,1" "IDX without labels"
    assert_exit 0 "$TANDEM" predict runs/idx-1 images.idx --labels labels.idx
    assert_equal "$(sed -n '3p' <<<"$out" | cut -d , -f 1,2,4)" "1,1,1" "IDX with labels"
    assert_exit 0 "$TANDEM" eval runs/idx-1 --data images.idx --labels labels.idx
    assert_contains "$out" "accuracy    100.00 %"
    assert_exit 2 "$TANDEM" eval runs/idx-1 --data images.idx
    assert_contains "$err" "--labels FILE"
    assert_exit 1 "$TANDEM" predict "$run" images.idx
    assert_contains "$err" "has 2 numbers per sample, but the model expects 5"
}

test_bad_input() {
    assert_exit 2 "$TANDEM" predict "$run"
    assert_exit 2 "$TANDEM" predict "$run" test.csv --top 0
    assert_exit 2 "$TANDEM" predict "$run" test.csv --batch x
    assert_exit 2 "$TANDEM" predict nowhere test.csv
    assert_contains "$err" "nowhere: there is no such run or checkpoint"
    assert_exit 2 "$TANDEM" predict "$run" nowhere.csv
    printf '1,2,3,4,5\n1,2,oops,4,5\n' >oops.csv
    assert_exit 1 "$TANDEM" predict "$run" oops.csv
    assert_contains "$err" "oops.csv: line 2, column 3: 'oops' is not a number"
    printf '1;2;3;4;5\n' >semicolons.csv
    assert_exit 1 "$TANDEM" predict "$run" semicolons.csv
    assert_contains "$err" "set the delimiter"
    : >empty.csv
    assert_exit 1 "$TANDEM" predict "$run" empty.csv
    assert_contains "$err" "empty"
    assert_equal "$out" "" "stdout after a failure"
}

run_tests "$@"
