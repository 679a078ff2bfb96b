#!/usr/bin/env bash
# `tandem bench step`: its figures add up, and nothing is left behind.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml

test_a_table() {
    assert_exit 0 "$TANDEM" bench step job.yaml --seconds 0.05
    assert_contains "$out" "147 parameters; 32 rows in 4 lanes of 8"
    [[ $out =~ workers\ +1\ with\ [0-9]+\ threads?\ each ]] || fail "no number of threads: $out"
    [[ $out =~ step\ +[0-9.]+\ ms\ \(median\ of\ [0-9]+ ]] || fail "no time of a step: $out"
    [[ $out =~ matmul\ +forward\ +product\ +2\  ]] || fail "no line of two products: $out"
    [[ $out =~ matmul\ +backward\ +product\ +3\  ]] || fail "no line of three products: $out"
    [ ! -e runs ] || fail "it left a run behind"
}

# Every op has a line, in the order of the plan; the sum of the lines is the time of the lane.
test_every_op() {
    assert_exit 0 "$TANDEM" bench step job.yaml --seconds 0.05 --all --json -n 2 --set compute.threads=2
    assert_equal "$(json_value workers <<<"$out")" 2
    assert_equal "$(json_value threads <<<"$out")" 2
    assert_contains "$out" '"name":"input.normalise"'
    local sum lane flops
    sum=$(grep -o '"seconds":[0-9.e-]*' <<<"$out" | awk -F: '{ s += $2 } END { printf "%.9f", s }')
    lane=$(json_value lane_s <<<"$out")
    awk -v a="$sum" -v b="$lane" 'BEGIN { exit !(a > 0 && a < 1.001 * b && a > 0.999 * b) }' ||
        fail "the ops take $sum s, the lane $lane s"
    # The lanes together have as many FLOPs as the step.
    flops=$(grep -o '"ops":.*' <<<"$out" | grep -o '"flops":[0-9]*' | awk -F: '{ s += $2 } END { print 4 * s }')
    assert_equal "$flops" "$(json_value flops <<<"${out%%\"ops\"*}")"
}

# The lanes of the busiest worker and the update add up to the step, for any distribution of work.
test_the_update_is_a_part_of_the_step() {
    local n update step
    for n in 1 4; do
        assert_exit 0 "$TANDEM" bench step job.yaml --seconds 0.01 --json -n "$n"
        update=$(json_value update_s <<<"$out")
        step=$(json_value step_s <<<"$out")
        awk -v u="$update" -v s="$step" 'BEGIN { exit !(u > 0 && u < s) }' ||
            fail "of a step of $n workers, $step s, the update takes $update s"
    done
}

# Ranks are processes, as in training: started by the command, or by a launcher that started this process as a
# rank.
test_ranks() {
    local zero
    for zero in 0 3; do
        assert_exit 0 "$TANDEM" bench step job.yaml --seconds 0.01 -n 3 --set parallel.zero=$zero
        [[ $out =~ workers\ +3\ with\ [0-9]+\ threads?\ each ]] || fail "no three workers: $out"
        assert_equal "$(grep -c '^workers' <<<"$out")" 1 "one rank talks"
        assert_equal "$err" ""
    done
    assert_exit 0 "$TANDEM" run -n 2 -- "$TANDEM" bench step job.yaml --seconds 0.01 --json
    assert_equal "$(json_value workers <<<"$out")" 2
    assert_exit 2 "$TANDEM" run -n 2 -- "$TANDEM" bench step job.yaml -n 3
    assert_contains "$err" "conflicts with the launcher"
    assert_exit 3 "$TANDEM" bench step job.yaml -n 2 --seconds 0.01 --set optim.lr=1e38
    assert_equal "$(grep -c 'not finite' <<<"$err")" 1 "said once"
    [ ! -e runs ] || fail "it left a run behind"
}

test_a_step_that_is_not_finite() {
    assert_exit 3 "$TANDEM" bench step job.yaml --seconds 0.05 --set optim.lr=1e38
    assert_contains "$err" "bench: the loss or the gradient of step 2 is not finite"
    assert_contains "$err" "set a lower optim.lr than 1e+38"
    assert_equal "$out" "" "no numbers"
}

test_mistakes() {
    assert_exit 2 "$TANDEM" bench stop job.yaml
    assert_contains "$err" "unknown subcommand 'stop'; use 'step' or 'allreduce'"
    assert_exit 2 "$TANDEM" bench step
    assert_exit 2 "$TANDEM" bench step nothing.yaml
    assert_exit 2 "$TANDEM" bench step job.yaml --seconds 0
    assert_exit 2 "$TANDEM" bench step job.yaml --workers many
    # More workers than lanes, as in training.
    assert_exit 2 "$TANDEM" bench step job.yaml -n 5 --seconds 0.05
    assert_contains "$err" "5 workers need at least as many lanes, but the job has 4"
}

run_tests "$@"
