#!/usr/bin/env bash
# Memory: recomputation changes no bit, with any number of workers and across a resume; its cost is printed; a
# job that does not fit is rejected before it creates any file, with settings that would fit.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"

make_data 150 data.csv
make_job mlp.yaml
make_images images.csv
cat >images.yaml <<'YAML'
name: images
data: {train: images.csv, test_fraction: 0.25, shape: [8, 8]}
model: {kind: cnn, channels: [4, 6], hidden: [12]}
train: {batch: 24, steps: 4}
optim: {lr: 0.01}
parallel: {lanes: 4}
YAML
for ((i = 0; i < 300; i++)); do printf 'the %d. line sees %d and %d.\n' $((i % 7)) $((i % 11)) $((i * i % 13)); done >text.txt
cat >text.yaml <<'YAML'
name: text
data: {train: text.txt, test_fraction: 0.1}
model: {kind: gpt, layers: 4, width: 32, heads: 2, context: 24, dropout: 0.1}
train: {batch: 8, steps: 5}
optim: {lr: 0.005}
parallel: {lanes: 4}
YAML

# same_bits NAME JOB SET...: all three ways on 1 and 2 workers.
same_bits() {
    local name=$1 job=$2 n way first=
    shift 2
    for way in none blocks full; do
        for n in 1 2; do
            assert_exit 0 "$TANDEM" train "$job" -q -n "$n" "$@" --set memory.recompute=$way \
                --set run.dir="$name-$way-$n"
            [ -n "$first" ] || first=$(hash_in "$out")
            assert_equal "$(hash_in "$out")" "$first" "the hash of $name, $way, with $n workers"
            rm -r "$name-$way-$n"
        done
    done
}

test_same_bits() {
    same_bits mlp mlp.yaml --set "model.hidden=[16,16,16,16]" --set model.dropout=0.2 \
        --set train.steps=6
    same_bits cnn images.yaml --set model.dropout=0.2
    same_bits resnet images.yaml --set model.kind=resnet --set train.steps=2
    same_bits gpt text.yaml
}

test_another_way_on_resume() {
    assert_exit 0 "$TANDEM" train text.yaml -q
    local whole
    whole=$(hash_in "$out")
    assert_exit 0 "$TANDEM" train text.yaml -q --set train.steps=2 --set run.dir=two
    assert_exit 0 "$TANDEM" train text.yaml -q --set memory.recompute=full --resume two/text-1
    assert_equal "$(hash_in "$out")" "$whole" "the hash, changed on resume"
}

# ways KEY: the values of that key in inspect's JSON in $out, for none, blocks and full.
ways() {
    sed 's/.*"recompute":\[\(.*\)\].*/\1/; s/},/}\n/g' <<<"$out" |
        sed -n "s/.*\"$1\":\"\{0,1\}\([a-z0-9.]*\).*/\1/p" | tr '\n' ' '
}

test_what_it_costs() {
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --set memory.recompute=blocks
    local table=${out#*$'\nmemory.recompute '}
    [[ $table =~ none\ +[0-9.]+\ [KM]B\ +[0-9.]+\ [KM]B\ +0\.0\ %$'\n' ]] || fail "none: $table"
    [[ $table =~ blocks\ +[0-9.]+\ [KM]B\ +[0-9.]+\ [KM]B\ +[12][0-9]\.[0-9]\ %\ +this\ job ]] ||
        fail "blocks: $table"
    [[ $table =~ full\ +[0-9.]+\ [KM]B\ +[0-9.]+\ [KM]B\ +[2-5][0-9]\.[0-9]\ % ]] || fail "full: $table"
    assert_contains "$out" "h.1.matmul.again "
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json --set memory.recompute=blocks
    assert_equal "$(ways recompute)" "none blocks full " "the ways"
    assert_equal "$(ways chosen)" "false true false " "the chosen way"
    read -r -a arenas <<<"$(ways arena_bytes)"
    read -r -a totals <<<"$(ways total)"
    # In a model this small, the scratch of kernels is a large part.
    ((arenas[1] * 3 < arenas[0] * 2 && arenas[2] < arenas[1])) || fail "arenas ${arenas[*]}"
    local workers
    workers=$(json_value workers <<<"$out")
    assert_equal $((totals[0] - totals[1])) $((workers * (arenas[0] - arenas[1]))) "bytes saved"
    assert_equal "$(json_value arena_bytes_per_worker <<<"$out")" "${arenas[1]}" "the job's arena"
    assert_equal "$(json_value total_bytes <<<"$out")" "${totals[1]}" "the job's total"
    assert_contains "$out" '"fits":true'
}

# refused SET...: the job of texts does not fit, and the attempt leaves nothing behind.
refused() {
    assert_exit 1 "$TANDEM" train text.yaml -n 2 --set run.dir=refused "$@"
    assert_contains "$err" "the job needs"
    [ ! -e refused ] || fail "a refused job left a directory"
}

test_refusal() {
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json
    local none blocks limit
    read -r none blocks _ <<<"$(ways total)"
    limit=$(((none + blocks) / 2))
    refused --set memory.limit=$limit
    assert_contains "$err" ": parameters "
    assert_contains "$err" " for 2 workers, evaluation "
    assert_contains "$err" "memory.limit allows"
    assert_contains "$err" "Each of these makes it fit:"
    assert_contains "$err" $'\n  memory.recompute: blocks (needs '
    assert_contains "$err" $'\n  -n 1 (needs '
    assert_contains "$err" ", but changes the result)"
    # Its proposals fit, and they change no more than necessary.
    assert_exit 0 "$TANDEM" train text.yaml -q -n 2 --set memory.limit=$limit --set memory.recompute=blocks
    assert_exit 0 "$TANDEM" train text.yaml -q -n 1 --set memory.limit=$limit
    assert_exit 0 "$TANDEM" train text.yaml -q -n 2 --set memory.limit="$none"
    refused --set memory.limit=$((none - 1))
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json --set memory.limit=$((none - 1))
    assert_contains "$out" "\"budget_bytes\":$((none - 1)),\"fits\":false"
}

# trains_with LIMIT SKIP PART...: trains with the changes that an error message lists, except number SKIP.
trains_with() {
    local limit=$1 skip=$2 i=0 part n=2 sets=()
    shift 2
    for part in "$@"; do
        i=$((i + 1))
        [ "$i" -ne "$skip" ] || continue
        case $part in
        -n*) n=${part#-n } ;;
        *) sets+=(--set "${part/: /=}") ;;
        esac
    done
    "$TANDEM" train text.yaml -q -n "$n" --set memory.limit="$limit" --set run.dir=fits \
        --set train.steps=1 ${sets[@]+"${sets[@]}"} >/dev/null 2>&1
}

# Every proposal of the message fits, and no part of a combination can be left out.
lines_are_true() {
    local limit=$1 line parts i
    while IFS= read -r line; do
        mapfile -t parts < <(sed 's/^ *//; s/ (needs.*//; s/, /\n/g' <<<"$line")
        trains_with "$limit" 0 "${parts[@]}" || fail "with $limit bytes it does not fit: $line"
        for ((i = 1; i <= ${#parts[@]}; i++)); do
            ! trains_with "$limit" "$i" "${parts[@]}" ||
                fail "with $limit bytes '${parts[i - 1]}' is needless: $line"
        done
    done <<<"${err##*fit:$'\n'}"
}

test_a_leaner_optimiser() {
    local adam lion
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json
    adam=$(json_value total_bytes <<<"$out")
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json --set optim.kind=lion
    lion=$(json_value total_bytes <<<"$out")
    assert_exit 1 "$TANDEM" train text.yaml -n 2 --set run.dir=refused --set memory.limit="$lion"
    assert_contains "$err" $'\n  optim.kind: lion (needs '
    ((lion < adam)) || fail "lion needs $lion, adamw $adam"
    # A setting that already needs as little is not proposed.
    assert_exit 1 "$TANDEM" train text.yaml -n 2 --set run.dir=refused --set memory.limit=$((lion - 1)) \
        --set optim.kind=sgd
    assert_lacks "$err" "optim.kind"
}

test_what_is_named_fits() {
    local limit together=0 unchanged=0
    for limit in 2500kB 2000kB 1700kB 1600kB 1500kB 1400kB 1300kB 1200kB 1000kB 900kB 800kB; do
        refused --set memory.limit=$limit
        [[ $err == *"it fit:"* ]] || continue
        lines_are_true $limit
        [[ $err == *"This makes it fit:"* ]] || continue
        together=$((together + 1))
        [[ $err == *"changes the result"* ]] || unchanged=$((unchanged + 1))
    done
    ((together > unchanged && unchanged > 0)) || fail "$together combinations, $unchanged with the same result"
}

test_nothing_fits() {
    refused --set memory.limit=10kB
    assert_contains "$err" "memory.limit allows 10.0 KB"
    assert_contains "$err" "use a smaller model"
    assert_lacks "$err" "makes it fit"
}

# Three times 131072 * 131072 parameters are 206 GB, and gradients and state three times as much again.
test_auto() {
    assert_exit 1 "$TANDEM" train mlp.yaml --set "model.hidden=[131072, 131072, 131072, 131072]" \
        --set run.dir=huge
    assert_contains "$err" ", but only "
    [ ! -e huge ] || fail "a refused job left a directory"
}

# Keys that affect the result cannot be changed on resume, so they are not proposed.
test_resume() {
    assert_exit 0 "$TANDEM" train text.yaml -q -n 2 --set train.steps=2 --set run.dir=going
    assert_exit 0 "$TANDEM" inspect text.yaml -n 2 --json
    local none blocks
    read -r none blocks _ <<<"$(ways total)"
    assert_exit 1 "$TANDEM" train text.yaml -n 2 --set memory.limit=$(((none + blocks) / 2)) --resume going/text-1
    assert_contains "$err" "memory.recompute: blocks (needs "
    assert_lacks "$err" "changes the result"
}

run_tests "$@"
