#!/usr/bin/env bash
# `tandem bench allreduce`: its output, in a new world and in an existing one; tuning; and that worlds use the
# tuned choices.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
mkdir tmp cache
export TMPDIR=$work/tmp XDG_CACHE_HOME=$work/cache
unset TANDEM_RANK TANDEM_SIZE TANDEM_SECRET TANDEM_RENDEZVOUS TANDEM_RUN TANDEM_TRANSPORT TANDEM_JOB
unset TANDEM_TUNE

bench=("$TANDEM" bench allreduce --seconds 0.01)

test_a_table() {
    assert_exit 0 "${bench[@]}" -n 2 --sizes 1K,200K
    assert_contains "$out" "2 ranks over shm, f32, private buffers"
    [[ $out =~ 1.00\ KB\ +all_reduce\ +[a-z]+\ +[0-9.]+\ [um]s ]] || fail "no line for 1 KB: $out"
    [[ $out =~ 200\ KB\ +all_reduce\ +[a-z]+\ +[0-9.]+\ [um]s ]] || fail "no line for 200 KB: $out"
    [[ $out =~ waiting\ for\ a\ late\ rank\ uses\ [0-9.]+\ CPUs ]] || fail "no cost of waiting: $out"
    [ ! -e cache/tandem ] || fail "it wrote a file"
    assert_equal "$(ls tmp)" "" "the directory for temporary files"
}

# One line for each size; from 100 KB on there is a bound.
test_json() {
    local rows
    assert_exit 0 "${bench[@]}" -n 2 --sizes 4,100K,1M --json --shared
    assert_equal "$(wc -l <<<"$out")" 1 "lines"
    assert_equal "$(json_value ranks <<<"$out")" 2
    assert_contains "$out" '"shared":true'
    assert_contains "$out" '"one_host":true'
    rows=${out#*\"rows\":}
    assert_equal "$(grep -o '"bytes":[0-9]*' <<<"$rows" | paste -sd' ')" '"bytes":4 "bytes":100000 "bytes":1000000'
    assert_equal "$(grep -o '"bound_s"' <<<"$rows" | wc -l)" 2 "bounds"
    grep -o '"seconds":[0-9.e-]*' <<<"$rows" | awk -F: '$2 <= 0 || $2 > 10 { exit 1 }' || fail "times: $rows"
}

test_types() {
    local type
    for type in f64 f16 bf16 i32 i64; do
        assert_exit 0 "${bench[@]}" -n 3 --sizes 1,3333 --dtype "$type"
        assert_contains "$out" "3 ranks over shm, $type"
    done
}

# As ranks of a world that another launcher has started; one of them prints.
test_in_a_world() {
    assert_exit 0 "$TANDEM" run -n 3 -- "${bench[@]}" --sizes 1K --json
    assert_equal "$(wc -l <<<"$out")" 1 "lines"
    assert_equal "$(json_value ranks <<<"$out")" 3
    assert_exit 2 "$TANDEM" run -n 2 -- "${bench[@]}" --sizes 1K -n 3
    assert_contains "$err" "-n 3 conflicts with the launcher"
    assert_exit 0 "${bench[@]}" -n 1 --sizes 1K
    assert_contains "$out" "1 rank over"
}

test_algorithms() {
    local name
    for name in direct tree doubling; do
        assert_exit 0 "${bench[@]}" -n 2 --sizes 10K --algorithm $name --json
        assert_contains "$out" "\"algorithm\":\"$name\""
    done
    # hierarchy needs several hosts: the error is printed once.
    assert_exit 1 "${bench[@]}" -n 3 --sizes 10K --algorithm hierarchy
    assert_contains "$err" "does not support 'hierarchy'"
    assert_equal "$(grep -c "does not support" <<<"$err")" 1 "times it is said"
}

# Measurements are stored, and worlds use them: from the default path, or from TANDEM_TUNE.
test_tuning() {
    assert_exit 0 "${bench[@]}" -n 2 --tune --sizes 1K,64K
    assert_contains "$out" "chosen for 2 ranks on one host:"
    assert_contains "$out" "written to $work/cache/tandem/tune.json"
    assert_contains "$(cat cache/tandem/tune.json)" '"tandem_tune": 1'
    [[ $out =~ all_reduce\ +from\ 0\ B ]] || fail "no choice for small all-reduces: $out"
    assert_exit 0 "${bench[@]}" -n 3 --tune --sizes 1K --file other.json --json
    assert_contains "$out" '"chosen":true'
    assert_contains "$(cat other.json)" '"size": 3'
    cat >mine.json <<'JSON'
{"tandem_tune": 1, "choices": [
 {"kind": "all_reduce", "one_host": true, "size": 2, "bytes": 0, "algorithm": "tree", "segment_bytes": 0},
 {"kind": "all_reduce", "one_host": true, "size": 2, "bytes": 50000, "algorithm": "direct", "segment_bytes": 0}]}
JSON
    TANDEM_TUNE=$work/mine.json assert_exit 0 "${bench[@]}" -n 2 --sizes 1K,60K --json
    assert_equal "$(grep -o '"algorithm":"[a-z]*"' <<<"$out" | paste -sd' ')" '"algorithm":"tree" "algorithm":"direct"'
    cp mine.json cache/tandem/tune.json
    assert_exit 0 "${bench[@]}" -n 2 --sizes 1K,60K --json
    assert_equal "$(grep -o '"algorithm":"[a-z]*"' <<<"$out" | paste -sd' ')" '"algorithm":"tree" "algorithm":"direct"'
    rm -r cache/tandem
}

# UCX would end the process without free descriptors; Tandem reports the error first.
test_few_descriptors() {
    local -x UCX_MEM_EVENTS=no # incompatible with the thread sanitizer
    if ! "${bench[@]}" -n 2 --sizes 1K --transport ucx >/dev/null 2>&1; then
        echo "ucx is not there"
        return
    fi
    local limit
    for limit in 20 24 28; do
        # shellcheck disable=SC2016 # for the ranks
        assert_exit 1 "$TANDEM" run -n 2 --transport ucx -- \
            bash -c 'ulimit -n "$0"; exec "$@"' "$limit" "${bench[@]}" --sizes 1K
        assert_contains "$err" "raise the limit on open files (ulimit -n)"
        assert_lacks "$err" backtrace
    done
    rm -rf tmp/*
}

test_mistakes() {
    assert_exit 2 "${bench[@]}" --sizes 1K,
    assert_contains "$err" "'--sizes' expects up to 32 sizes in bytes, such as 1K,64K,1M,64M, not '1K,'"
    for sizes in 0 x -4 1T 1K,,2K 99999999999999999999 9999999999G; do
        assert_exit 2 "${bench[@]}" --sizes="$sizes"
    done
    assert_exit 2 "${bench[@]}" --dtype u8
    assert_contains "$err" "expects f32, f64, f16, bf16, i32 or i64, not 'u8'"
    assert_exit 2 "${bench[@]}" --algorithm fast
    assert_exit 2 "${bench[@]}" --transport pigeon
    assert_contains "$err" "unknown transport 'pigeon'; use auto, shm"
    assert_lacks "$err" sim
    assert_exit 2 "${bench[@]}" --file choices.json
    assert_contains "$err" "'--file' requires '--tune'"
    assert_exit 2 "${bench[@]}" --tune --algorithm tree
    assert_exit 2 "${bench[@]}" job.yaml
    assert_contains "$err" "unexpected argument 'job.yaml' of 'allreduce'"
    assert_exit 2 "${bench[@]}" --set a=b
    assert_contains "$err" "'--set' is not an option of 'tandem bench allreduce'"
    assert_exit 2 "$TANDEM" bench step job.yaml --shared
}

run_tests "$@"
