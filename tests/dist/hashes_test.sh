#!/usr/bin/env bash
# The same bits with any ranks: models trained for 50 steps by one process, and again by several ranks in many
# configurations; the state hash and every loss must be equal.
#   hashes_test.sh [pairs | few | all]
# pairs (the default): combinations in which every pair of settings occurs (pairs.awk). few: some that have
# many features, for slow builds. all: every combination, which takes hours.
# DIST_ONLY is a pattern of combinations (grep -E) to run alone, as in DIST_ONLY='^gpt .* hosts '.
#
# Worlds: ranks of this host in shared memory; only over UCX; under mpirun, only over MPI; and two hosts with
# shared memory inside and UCX or MPI between them. TANDEM_HOST sets the host of a rank. A job has the
# settings that affect bits; the others must not. If feedback moves lanes, rank 1 is slowed down in some of
# the runs, so that lanes really move (moved).
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/../cli/lib.sh"
. "$here/../cli/train_lib.sh"

run_limit_s=120 # for one training
what=${1:-pairs}

# ---- data and jobs -----------------------------------------------------------------------------------

make_images images.csv
make_data 300 points.csv
make_clicks 300 criteo clicks.tsv
make_clicks 300 libsvm clicks.svm
awk 'BEGIN { srand(5); for (i = 0; i < 400; i++)
    printf "%s ", substr("the cat sat on a mat and ate", 1 + int(rand() * 20), 3 + int(rand() * 5)) }' >text.txt

# 24 rows per step, of 77 samples: the last batch of an epoch has five, fewer than there are lanes.
images='data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}'
points='data: {train: points.csv, test_fraction: 0.1}'
text='data: {train: text.txt, format: text, test_fraction: 0.1}'
network='layers: [conv: {channels: 16, bias: no}, batch_norm, relu, max_pool: 2, conv: {channels: 32, bias: no},
  batch_norm, relu, max_pool: 2, flatten, linear: 64, relu, dropout: 0.2]'
gpt='kind: gpt, layers: 2, width: 32, heads: 2'

# job NAME BATCH LINES...: for 50 steps. Four lanes, unless the lines set another number.
job() {
    local name=$1 batch=$2
    shift 2
    printf '%s\n' "name: $name" 'seed: 3' "train: {batch: $batch, steps: 50}" 'run: {log_every_steps: 1}' \
        'checkpoint: {every_epochs: never}' 'eval: {every_epochs: never, every_steps: 25}' "$@" >"$name.yaml"
}
job mlp 24 "$images" 'model: {hidden: [128, 96], dropout: 0.1}' 'parallel: {lanes: 8}' \
    'optim: {kind: lamb, lr: 0.01, ema: 0.9, clip_norm: 0.5}'
job mlp-auto 256 "$points" 'model: {hidden: [128, 96]}' 'compute: {precision: bf16}'
job cnn 24 "$images" "$network" 'parallel: {lanes: 8}' 'optim: {kind: sgd, lr: 0.05, momentum: 0.9, clip_norm: 1}'
job cnn-sync 24 "$images" "$network" 'parallel: {lanes: 8, sync_batchnorm: true}'
job cnn-bf16 24 "$images" "$network" 'parallel: {lanes: 8}' 'compute: {precision: bf16}' 'optim: {ema: 0.9}'
job gpt 24 "$text" "model: {$gpt, context: 16, dropout: 0.1}" 'parallel: {lanes: 8}' 'memory: {recompute: blocks}'
job gpt-bf16 16 "$text" "model: {$gpt, context: 64}" 'compute: {precision: bf16}' 'optim: {clip_norm: 0.5}'
# Replicas that keep state: local steps, and each kind of compression. 16 lanes for 8 replicas, or one each.
job local-mlp 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'parallel: {lanes: 8}' \
    'optim: {kind: lamb, lr: 0.01, clip_norm: 0.5}' 'sync: {kind: local, replicas: 8, period: 3, outer: nesterov}'
job local-adapt 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'parallel: {lanes: 8}' 'optim: {kind: adamw}' \
    'sync: {kind: local, replicas: 8, period: 2, adapt_divergence: 0.02, outer: nesterov}'
job local-cnn 48 "$images" "$network" 'parallel: {lanes: 16}' 'optim: {kind: adamw}' \
    'sync: {kind: local, replicas: 8, period: 4, start_step: 6}' 'compress: {quantise: int8}'
job topk 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'parallel: {lanes: 8}' 'sync: {replicas: 8}' \
    'optim: {kind: adamw, clip_norm: 0.5}' 'compress: {sparsify: topk, ratio: 0.05, min_elements: 100}'
job dgc 24 "$images" "$network" 'parallel: {lanes: 8}' 'sync: {replicas: 8}' 'optim: {kind: sgd, lr: 0.05, momentum: 0}' \
    'compress: {sparsify: topk_sampled, ratio: 0.02, momentum: 0.9, clip_norm: 1, warmup: 20}'
job sign 48 "$text" "model: {$gpt, context: 16, dropout: 0.1}" 'parallel: {lanes: 16}' 'sync: {replicas: 8}' \
    'compress: {quantise: sign, min_elements: 100}'
job randomk 24 "$images" 'model: {hidden: [64]}' 'parallel: {lanes: 8}' 'sync: {replicas: 8}' \
    'compress: {sparsify: randomk, ratio: 0.1, quantise: f16}'

# PowerSGD: sums of factors, with statistics, with replicas without rows (8 of 5 rows), and of averages.
job power 24 "$images" "$network" 'parallel: {lanes: 8}' 'sync: {replicas: 8}' \
    'optim: {kind: sgd, lr: 0.05, momentum: 0.9, clip_norm: 1}' 'compress: {rank: 2, start_step: 5, min_elements: 100}'
job power-gpt 48 "$text" "model: {$gpt, context: 16, dropout: 0.1}" 'parallel: {lanes: 16}' 'sync: {replicas: 8}' \
    'optim: {kind: lamb, lr: 0.01}' 'compress: {rank: 4, min_rate: 1, clip_norm: 1, min_elements: 100}'
job power-local 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'parallel: {lanes: 8}' 'optim: {kind: adamw}' \
    'sync: {kind: local, replicas: 8, period: 3, outer: nesterov}' 'compress: {rank: 2, min_elements: 100}'
job gossip-mlp 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'parallel: {lanes: 8}' \
    'optim: {kind: lamb, lr: 0.01, clip_norm: 0.5}' 'sync: {kind: gossip, replicas: 8, period: 3, graph: random, degree: 2}'
job gossip-cnn 48 "$images" "$network" 'parallel: {lanes: 16}' 'optim: {kind: adamw}' \
    'sync: {kind: gossip, replicas: 8, period: 1, graph: exponential}'
job gossip-gpt 48 "$text" "model: {$gpt, context: 16, dropout: 0.1}" 'parallel: {lanes: 8}' \
    'sync: {kind: gossip, replicas: 8, period: 2, graph: torus}'
# Sparse tables, with each method of their rows.
clicks='data: {train: clicks.tsv, format: criteo, test_fraction: 0.1}'
job lr 24 'data: {train: clicks.svm, format: libsvm, test_fraction: 0.1}' 'model: {kind: lr}' \
    'parallel: {lanes: 8}' 'table: {optim: ftrl, l1: 0.01, l2: 0.1}'
job fm 24 "$clicks" 'model: {kind: fm}' 'table: {dim: 4, lr: 0.001, optim: sgd, weight_decay: 0.01, hash_bits: 9}' \
    'parallel: {lanes: 8}' 'optim: {kind: sgd, lr: 0.05}' 'schedule: {kind: cosine, warmup: 5}'
job wide-deep 24 "$clicks" 'model: {kind: wide_deep, hidden: [32], dropout: 0.1}' 'parallel: {lanes: 8}' \
    'table: {dim: 5, optim: adam, lr: 0.01, admission: 2}' 'optim: {clip_norm: 0.5}'
job dlrm 24 "$clicks" 'model: {kind: dlrm, hidden: [32], bottom: [16]}' 'parallel: {lanes: 8}' 'table: {dim: 8}'

job async 24 "$images" 'model: {hidden: [64, 48], dropout: 0.1}' 'optim: {kind: adamw, clip_norm: 0.5}' \
    'parallel: {lanes: 2}' 'sync: {kind: server, mode: async, replicas: 8, compensation: 0.04}'
job stale 24 "$images" "$network" 'optim: {kind: sgd, lr: 0.05, momentum: 0.9}' 'parallel: {lanes: 4}' \
    'sync: {kind: server, mode: stale, staleness: 1, replicas: 8, speeds: [9, 9, 9, 3, 9, 9, 9, 9], staleness_lr: true}' \
    'compress: {sparsify: topk, ratio: 0.1, min_elements: 100}'

# Between hosts, updates in order need the whole state on each host.
factors_of_order() {
    cat <<'TABLE'
job async stale local-mlp dgc power
world shm
ranks 2 3 4 8
zero 0 1
balance off weights feedback moved
bucket auto
overlap true false
TABLE
}

factors_of_replicas() {
    cat <<'TABLE'
job local-mlp local-adapt local-cnn topk dgc sign randomk power power-gpt power-local
world shm tcp mpi hosts hosts-mpi
ranks 2 3 4 8
zero 0 1
balance off
bucket auto 16KB
overlap true false
TABLE
}

# Each replica has a separate state, so nothing is sharded.
factors_of_gossip() {
    cat <<'TABLE'
job gossip-mlp gossip-cnn gossip-gpt
world shm tcp mpi hosts hosts-mpi
ranks 2 3 4 8
zero 0
balance off
bucket auto 16KB
overlap true false
TABLE
}

factors_of_tables() {
    cat <<'TABLE'
job lr fm wide-deep dlrm
world shm tcp ucx mpi hosts hosts-mpi
ranks 2 3 4 8
zero 0 3
balance off weights feedback moved
bucket auto
overlap true
TABLE
}

factors() {
    cat <<'TABLE'
job mlp mlp-auto cnn cnn-sync cnn-bf16 gpt gpt-bf16
world shm tcp ucx mpi hosts hosts-mpi
ranks 2 3 4 8
zero 0 1 2 3
balance off weights feedback moved
bucket auto 16KB 64KB
overlap true false
TABLE
}

# Ranks without rows in the last batch of an epoch, while lanes are summed at batch norms, and memory for
# gradients and parameters is reused: these once waited for each other. And replicas that cannot move between hosts.
once_stuck() {
    cat <<'TABLE'
cnn-sync hosts 8 2 off 16KB false
cnn-sync ucx 8 3 off 16KB true
topk hosts 4 0 feedback auto true
TABLE
}

few() {
    cat <<'TABLE'
mlp shm 2 0 off auto true
gpt shm 3 0 moved auto true
cnn-sync shm 2 0 weights auto true
gpt-bf16 ucx 2 2 off 16KB true
mlp hosts 3 1 off 16KB false
cnn hosts 4 3 off 16KB true
local-mlp hosts 3 1 off 16KB true
dgc hosts 4 0 off 16KB true
power hosts 3 0 off 16KB true
async hosts 3 0 moved auto true
async hosts 4 0 off auto true
gossip-mlp hosts 3 0 off 16KB true
wide-deep hosts 3 0 off auto true
TABLE
}

# Every line of the rest with every setting of the first factor, and so on.
product() {
    awk '{ for (i = 2; i <= NF; i++) setting[NR, i - 1] = $i; count[NR] = NF - 1 }
        function print_from(f, text,    i) {
            if (f > NR) { print text; return }
            for (i = 1; i <= count[f]; i++) print_from(f + 1, text (f > 1 ? " " : "") setting[f, i])
        }
        END { print_from(1, "") }'
}

# ---- worlds ------------------------------------------------------------------------------------------

export TANDEM_SECRET=hashes TANDEM_DEADLINE=100
# Open MPI leaks memory: leak detection is off.
mpi_options=()
has_mpi=no
if [ "${DIST_MPI:-yes}" = yes ] && command -v mpirun >/dev/null &&
    grep -q '^ *ok *mpi ' <<<"$("$TANDEM" doctor 2>/dev/null || true)"; then
    has_mpi=yes
    if mpirun --version 2>&1 | grep 'Open MPI' >/dev/null; then
        mpi_options=(--allow-run-as-root --oversubscribe --mca btl 'self,vader,tcp' --mca pml ob1)
    fi
fi

# under_mpi RANKS TRANSPORT HOSTS COMMAND...
under_mpi() {
    local ranks=$1 transport=$2 hosts=$3
    shift 3
    # shellcheck disable=SC2016 # the inner shell expands them
    ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" TANDEM_TRANSPORT=$transport \
        TANDEM_RUN=$work/traces timeout -k 5 $run_limit_s mpirun "${mpi_options[@]}" -n "$ranks" sh -c '
            rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:?no rank of MPI}}
            [ "$0" = 1 ] || export TANDEM_HOST=host$((rank * 2 / $1))
            shift; exec "$@"' "$hosts" "$ranks" "$@"
}

# on_two_hosts RANKS COMMAND...: a launcher for each host, with half of the ranks.
on_two_hosts() {
    local ranks=$1 half code=0 second
    shift
    half=$((ranks / 2))
    rm -f meet
    TANDEM_HOST=host0 timeout -k 5 $run_limit_s "$TANDEM" run -n $half --first 0 --size "$ranks" \
        --rendezvous "$work/meet" --run "$work/traces" -- "$@" &
    second=$!
    TANDEM_HOST=host1 timeout -k 5 $run_limit_s "$TANDEM" run -n $((ranks - half)) --first $half \
        --size "$ranks" --rendezvous "$work/meet" --run "$work/traces" -- "$@" || code=$?
    wait $second || code=$?
    return $code
}

# in_world WORLD RANKS COMMAND...
in_world() {
    local world=$1 ranks=$2
    shift 2
    case $world in
    # (Without --min a session starts with fewer if one is late.)
    shm | tcp | ucx) TANDEM_TRANSPORT=$world timeout -k 5 $run_limit_s "$@" -n "$ranks" --min "$ranks" ;;
    mpi) under_mpi "$ranks" mpi 1 "$@" ;;
    hosts) on_two_hosts "$ranks" "$@" ;;
    hosts-mpi) under_mpi "$ranks" shm+mpi 2 "$@" ;;
    esac
}

# was_world WORLD RANKS: checks the traces of the run, if there are any. On one host TCP is used only on
# request.
was_world() {
    local transport said
    case $1 in
    mpi | hosts-mpi) transport=mpi ;;
    hosts) transport=tcp ;;
    *) return 0 ;;
    esac
    said=$("$TANDEM" trace traces --last 0)
    rm -rf traces
    [ "$(grep -c -E "^rank [0-9]+ of $2 on .*, (shm\+)?$transport:" <<<"$said")" = "$2" ] || {
        printf '%s\n' "$said" >try.err
        return 1
    }
}

# ---- trainings ---------------------------------------------------------------------------------------

# The hash that a run printed, and its losses in the metrics.
result_of() {
    local run
    hash_in "$1"
    run=$(json_value run <<<"$1")
    grep -oE '"(step|loss|grad_norm|consensus_distance|period|divergence|test_loss|test_accuracy)":[^,}]*' "$run/metrics.jsonl"
    rm -rf "$run"
}

declare -A lanes_of
reference() {
    local name=$1 said
    said=$(timeout -k 5 $run_limit_s "$TANDEM" train "$name.yaml" -q --json -n 1 2>reference.err) ||
        fail "$name on one rank ended with $?: $(cat reference.err)"
    result_of "$said" >"$name.want"
    [ "$(wc -l <"$name.want")" -gt 25 ] || fail "$name: there are no losses to compare"
    lanes_of[$name]=$("$TANDEM" inspect "$name.yaml" --json | json_value lanes)
    case $name in async | stale) lanes_of[$name]=8 ;; esac # the number of replicas limits the ranks
    [ "${lanes_of[$name]}" -ge 4 ] || fail "$name: too few lanes for many ranks"
}

# tell COMBINATION WHAT: prints a failure, with the output of the run.
# tell_end COMBINATION CODE: for a run that failed; its traces show which rank waited for which.
tell_end() {
    [ ! -d traces ] || "$TANDEM" trace traces --last 2 >>try.err 2>&1 || true
    rm -rf traces
    tell "$1" "ended with $2"
}
tell() {
    printf 'FAIL %s: %s\n' "$1" "$2"
    head -20 try.err
    return 1
}

# One combination: JOB WORLD RANKS ZERO BALANCE BUCKET OVERLAP.
slowed=0 moved=0 # runs in which lanes should move, and did
try() {
    local name=$1 world=$2 ranks=$3 balance=$5 said run
    local sets=(--set "parallel.zero=$4" --set "parallel.bucket=$6" --set "parallel.overlap=$7")
    local -x TANDEM_TEST_SLOW=
    # With lanes set to auto, their number limits the ranks.
    [ "$ranks" -le "${lanes_of[$name]}" ] || ranks=${lanes_of[$name]}
    case $balance in
    weights) sets+=(--set "parallel.weights=[$(seq -s , 1 "$ranks")]") ;;
    moved) balance=feedback TANDEM_TEST_SLOW=1:20 ;;
    esac
    said=$(in_world "$world" "$ranks" "$TANDEM" train "$name.yaml" -q --json "${sets[@]}" \
        --set "parallel.balance=$balance" 2>try.err) || { tell_end "$*" $?; return; }
    # The world was the requested one.
    [ "$(grep -o '"lane_share"' <<<"$said" | wc -l)" = "$ranks" ] || { tell "$*" "not on $ranks ranks"; return; }
    was_world "$world" "$ranks" || { tell "$*" "in another world"; return; }
    if [ "$5" = moved ] && [ $((2 * ranks)) -le "${lanes_of[$name]}" ]; then
        run=$(json_value run <<<"$said")
        slowed=$((slowed + 1))
        if grep -q 'lanes have moved' "$run/log.jsonl"; then moved=$((moved + 1)); fi
    fi
    result_of "$said" >got
    cmp -s got "$name.want" || {
        diff got "$name.want" | head -6 >try.err
        tell "$*" "other bits than on one rank"
        return
    }
    printf 'ok   %s\n' "$*"
}

# ---- all of it -----------------------------------------------------------------------------------------

case $what in
pairs)
    factors | awk -f "$here/pairs.awk"
    factors_of_replicas | awk -f "$here/pairs.awk"
    factors_of_gossip | awk -f "$here/pairs.awk"
    factors_of_order | awk -f "$here/pairs.awk"
    factors_of_tables | awk -f "$here/pairs.awk"
    once_stuck
    ;;
few) few ;;
all)
    factors | product
    factors_of_replicas | product
    factors_of_gossip | product
    factors_of_order | product
    factors_of_tables | product
    ;;
*) fail "there is nothing called '$what'; there are pairs, few and all" ;;
esac | grep -E -- "${DIST_ONLY:-.}" >combinations
if [ $has_mpi = no ] && grep -q ' \(mpi\|hosts-mpi\) ' combinations; then
    echo "NOT TESTED: MPI, because mpirun or the transport is missing (tools/setup --test), or by DIST_MPI"
    sed -i '/ \(mpi\|hosts-mpi\) /d' combinations
fi
[ -s combinations ] || fail "no combination matches"
mapfile -t names < <(cut -d " " -f 1 combinations | sort -u)
for name in "${names[@]}"; do reference "$name"; done
failures=0
slow_settings=() # a combination in which lanes should move
while read -r -a settings <&3; do
    before=$slowed
    try "${settings[@]}" || failures=$((failures + 1))
    [ $slowed -eq $before ] || slow_settings=("${settings[@]}")
done 3<combinations
# Under high load all ranks are slow at times, so lanes do not move every time.
for ((again = 0; again < 5 && slowed > 0 && moved == 0; again++)); do
    try "${slow_settings[@]}" || failures=$((failures + 1))
done
printf '%d combinations, %d failed; lanes moved in %d of %d\n' "$(wc -l <combinations)" $failures $moved $slowed
[ $slowed -eq 0 ] || [ $moved -gt 0 ] || fail "lanes never move from a slow rank"
[ $failures -eq 0 ]
