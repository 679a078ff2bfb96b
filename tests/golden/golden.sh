#!/usr/bin/env bash
# The golden training runs: small jobs (jobs/) on data that awk writes (data.awk), whose results are committed
# (hashes): for each job the hash of the trained state and the loss on the test set, with all digits. The same
# job must give the same bits on every CPU, at every instruction-set level, with any compiler, number of threads
# and number of ranks.
#   golden.sh [--level v2|v3|v4] [--threads N] [--ranks N] [--small] [--set KEY=VALUE] [--list] [JOB...]
#   golden.sh --mixed [JOB...]     two ranks in one world, each at its own level
#   golden.sh --coverage           the jobs reach every layer, optimiser, schedule and activation, and no
#                                  kernel of theirs is a vendor's
#   golden.sh --update [--force]   writes the results of this build into hashes
# TANDEM is the binary. GOLDEN_RUNNER holds words in front of it, such as an emulator's. --small leaves out the
# jobs that are slow where products are emulated. A level that this CPU does not have is skipped (77).
# GOLDEN_HASHES names another file of results, for --set KEY=VALUE, which changes all jobs.
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/../cli/lib.sh"
. "$here/golden_lib.sh"

hashes=${GOLDEN_HASHES:-$here/hashes}
large=' resnet18 mlp-wide gpt-wide '
mode=compare level='' threads=1 ranks=1 small=no force=no names=() sets=()
while [ $# -gt 0 ]; do
    case $1 in
    --level) level=$2; shift ;;
    --threads) threads=$2; shift ;;
    --ranks) ranks=$2; shift ;;
    --set) sets+=(--set "$2"); shift ;;
    --small) small=yes ;;
    --force) force=yes ;;
    --mixed | --coverage | --update | --list) mode=${1#--} ;;
    -*) fail "unknown option $1; the head of $0 lists them" ;;
    *) names+=("$1") ;;
    esac
    shift
done
if [ ${#names[@]} -eq 0 ]; then
    for job in "$here"/jobs/*.yaml; do
        name=$(basename "$job" .yaml)
        [ $small = yes ] && [[ $large == *" $name "* ]] || names+=("$name")
    done
fi
golden_begin
# What every training of this call has in common, for messages.
setting="at level ${level:-of this CPU}, $threads thread(s), $ranks rank(s)${GOLDEN_RUNNER:+, under $GOLDEN_RUNNER}"

# ---- levels --------------------------------------------------------------------------------------------

# cpu_has LEVEL: according to /proc/cpuinfo, without the program.
cpu_has() {
    local flags wanted flag
    flags=" $(sed -n 's/^flags[^:]*: //p;T;q' /proc/cpuinfo) "
    case $1 in
    v2) wanted='sse4_2 popcnt' ;;
    v3) wanted='avx2 fma bmi1 bmi2' ;;
    v4) wanted='avx512f avx512bw avx512cd avx512dq avx512vl' ;;
    *) fail "no level '$1'; there are v2, v3 and v4" ;;
    esac
    for flag in $wanted; do
        [[ $flags == *" $flag "* ]] || return 1
    done
}

# use_level LEVEL: exports the variables that limit kernels to it, and checks that the program uses it. On a
# CPU without fused multiply-add the C library uses other code as well: v2 selects that.
use_level() {
    cpu_has "$1" || skip "this CPU does not have x86-64-$1"
    export TANDEM_ISA=$1
    [ "$1" != v2 ] || export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA
    assert_contains "$(tandem doctor --json 2>&1 || true)" "x86-64-$1 with TANDEM_ISA=$1"
}

# ---- one training --------------------------------------------------------------------------------------

# result_of SUMMARY: "HASH LOSS" of what `tandem train --json` printed.
result_of() {
    sed -n 's/.*"hash":"\([0-9a-f]*\)".*"test_loss":\([^,]*\),.*/\1 \2/p' <<<"$1"
}

# one_by_one COUNT ARGUMENTS...: as ranks of a fixed world that are started here, one by one; to be called in
# a subshell. An emulated process cannot start others, unless the kernel is configured for their binaries. The
# limit on the size of files keeps the shared segment small: an emulator takes seconds to map a large one.
one_by_one() {
    local count=$1 rank code=0 others=()
    shift
    local -x TANDEM_SIZE=$count TANDEM_RENDEZVOUS=$work/meet TANDEM_SECRET=golden TANDEM_SILENCE=120
    ulimit -f 400000 # blocks of 1,024 bytes
    rm -f meet
    for ((rank = 1; rank < count; rank++)); do
        TANDEM_RANK=$rank tandem "$@" >/dev/null &
        others+=($!)
    done
    TANDEM_RANK=0 tandem "$@" || code=$?
    for rank in "${others[@]}"; do wait "$rank" || code=$?; done
    return $code
}

# train NAME: result, "HASH LOSS".
train() {
    local said lanes count=$ranks words=(train "$1.yaml" -q --json --set "compute.threads=$threads" "${sets[@]}")
    # A job has at most as many ranks as lanes.
    lanes=$(sed -n 's/^parallel: {lanes: \([0-9]*\).*/\1/p' "$1.yaml")
    [ "$count" -le "${lanes:?no parallel.lanes in $1.yaml}" ] || count=$lanes
    # Without --min a session starts with fewer ranks if one is late.
    if [ "$count" -eq 1 ]; then
        words=(tandem "${words[@]}" -n 1)
    elif [ -z "${GOLDEN_RUNNER:-}" ]; then
        words=(tandem "${words[@]}" -n "$count" --min "$count")
    else
        words=(one_by_one "$count" "${words[@]}")
    fi
    said=$("${words[@]}" 2>train.err) || fail "$1 $setting ended with $?: $(cat train.err)"
    result=$(result_of "$said")
    [ -n "$result" ] || fail "$1 $setting: no hash and test loss in: $said"
    rm -rf runs
}

# compare NAME RESULT: with the committed one. Reports differences, and counts.
failures=0
compare() {
    local want hash loss
    want=$(awk -v name="$1" '$1 == name { print $2, $3 }' "$hashes")
    [ -n "$want" ] || fail "$1 has no line in tests/golden/hashes; golden.sh --update writes it"
    if [ "$2" = "$want" ]; then
        printf 'ok   %s\n' "$1"
        return
    fi
    failures=$((failures + 1))
    read -r hash loss <<<"$2"
    printf 'FAIL %s %s\n' "$1" "$setting"
    [ "$hash" = "${want% *}" ] || printf '     state hash %s\n     instead of %s\n' "$hash" "${want% *}"
    [ "$loss" = "${want#* }" ] || printf '     test loss  %s\n     instead of %s\n' "$loss" "${want#* }"
}

finish() {
    if [ $failures -gt 0 ]; then
        cat <<TEXT
$failures of ${#names[@]} golden training runs gave other bits $setting.
If no change of bits is wanted, this is a defect: where other settings still agree with tests/golden/hashes, the
difference between the settings is the place to look. If the change is wanted, raise TDM_NUMERICS_VERSION, run
tests/golden/golden.sh --update, and say in CHANGELOG.md that checkpoints of both versions train differently.
TEXT
        exit 1
    fi
    printf '%d golden training runs, %s: all as committed\n' "${#names[@]}" "$setting"
}

# ---- two levels in one world ---------------------------------------------------------------------------

# The ranks of `tandem run` get their levels according to their numbers.
mixed() {
    local said name
    if cpu_has v4; then levels='v3 v4'; elif cpu_has v3; then levels='v2 v3'; else skip "this CPU has one level"; fi
    setting="of two ranks with the levels $levels"
    for name in "${names[@]}"; do
        if grep -q '^parallel: {lanes: 1}' "$name.yaml"; then continue; fi
        # shellcheck disable=SC2016 # the inner shell expands them
        said=$(GOLDEN_LEVELS=$levels TANDEM_SECRET=golden timeout -k 5 120 "$TANDEM" run -n 2 -- sh -c '
            set -- $GOLDEN_LEVELS -- "$@"
            [ "$TANDEM_RANK" = 0 ] || shift
            export TANDEM_ISA="$1"
            while [ "$1" != -- ]; do shift; done
            shift
            exec "$@"' sh "$TANDEM" train "$name.yaml" -q --json "${sets[@]}" 2>train.err) ||
            fail "$name $setting ended with $?: $(cat train.err)"
        [ "$(grep -o '"lane_share"' <<<"$said" | wc -l)" = 2 ] || fail "$name: not on two ranks: $said"
        compare "$name" "$(result_of "$said")"
        rm -rf runs
    done
}

# ---- what the jobs reach -------------------------------------------------------------------------------

# choices KEY: the words that a key takes, from the table of job keys.
choices() {
    tandem job keys --markdown | awk -F '|' -v key="\`$1\`" '$2 ~ key { print $3; exit }' |
        sed 's/ or / /; s/,/ /g'
}

coverage() {
    local name key word kinds absent=() vendor
    for name in "${names[@]}"; do tandem job show "$name.yaml" >"$name.shown"; done
    # shellcheck disable=SC2016 # backquotes of Markdown
    kinds=$(tandem job keys --markdown | sed -n 's/^| `layers\.\([a-z0-9_]*\)` .*/\1/p')
    [ "$(wc -w <<<"$kinds")" -ge 23 ] || fail "the table of job keys has only these layers: $kinds"
    for word in $kinds; do
        grep -qE "(^|[ [{,-])$word([]:,} ]|\$)" ./*.yaml || absent+=("layers.$word")
    done
    for key in optim.kind schedule.kind model.activation memory.recompute compute.precision; do
        for word in $(choices $key); do
            grep -qhE "^ +${key#*.}: $word( |\$)" ./*.shown || absent+=("$key: $word")
        done
    done
    [ ${#absent[@]} -eq 0 ] || fail "no golden job uses: ${absent[*]}"
    for name in "${names[@]}"; do
        vendor=$(tandem inspect "$name.yaml" | awk '$0 ~ / (onednn|wide_vendor) / { print $2 }' | sort | uniq -c)
        [ -z "$vendor" ] || fail "$name: these ops have a vendor's kernel, although numerics are portable: $vendor"
    done
    printf 'the golden jobs reach all %d layers, all optimisers, schedules and activations\n' "$(wc -w <<<"$kinds")"
}

# ---- the committed file --------------------------------------------------------------------------------

# The version of the numerics, in the headers.
source_version() {
    grep -rhoE 'TDM_NUMERICS_VERSION(_?[A-Z]*)? *=? *[0-9]+' "$here"/../../include/tandem | head -1 | grep -oE '[0-9]+$' || echo 0
}
file_version() { sed -n 's/^# numerics version \([0-9]*\)$/\1/p' "$hashes" 2>/dev/null; }

update() {
    local name changed=() old
    {
        echo "# Written by tests/golden/golden.sh --update: job, hash of the trained state, loss on the test set."
        printf '# numerics version %s\n' "$(source_version)"
        for name in "${names[@]}"; do
            train "$name"
            printf '%s %s\n' "$name" "$result"
        done
    } >hashes.new
    for name in "${names[@]}"; do
        old=$(grep "^$name " "$hashes" 2>/dev/null || true)
        [ -z "$old" ] || grep -qxF "$old" hashes.new || changed+=("$name")
    done
    if [ ${#changed[@]} -gt 0 ] && [ "$(file_version)" = "$(source_version)" ] && [ $force = no ]; then
        fail "the bits of ${changed[*]} have changed, but TDM_NUMERICS_VERSION is still $(source_version): raise it
  (or use --force, as long as no release has that version)"
    fi
    cp hashes.new "$hashes"
    printf 'wrote %d lines; %d changed: %s\n' "${#names[@]}" "${#changed[@]}" "${changed[*]:-none}"
}

# ---- all of it -----------------------------------------------------------------------------------------

case $mode in
list) printf '%s\n' "${names[@]}"; exit 0 ;;
update) update; exit 0 ;;
coverage) coverage; exit 0 ;;
esac
[ "$(file_version)" = "$(source_version)" ] || fail "tests/golden/hashes are of numerics version $(file_version), the
  headers say $(source_version): run tests/golden/golden.sh --update"
if [ "$mode" = mixed ]; then
    mixed
else
    [ -z "$level" ] || use_level "$level"
    for name in "${names[@]}"; do
        train "$name"
        compare "$name" "$result"
    done
fi
finish
