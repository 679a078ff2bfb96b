#!/usr/bin/env bash
# Checkpoints are independent of the world: a checkpoint that four ranks with ZeRO 3 wrote is resumed with 1, 2, 3
# and 8 ranks and ZeRO 0 to 3, and the run ends with the hash of an uninterrupted run.
#   reload_test.sh [all | few]      few: four of the sixteen combinations, for slow builds
# shellcheck source-path=SCRIPTDIR
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
. "$here/../cli/lib.sh"
. "$here/../cli/train_lib.sh"

limit_s=100 # for one training run
make_images images.csv
cat >job.yaml <<'YAML'
name: reload
seed: 5
data: {train: images.csv, shape: [8, 8], test_fraction: 0.2}
layers: [conv: {channels: 8, bias: no}, batch_norm, relu, max_pool: 2, flatten, linear: 32, relu, dropout: 0.2]
train: {batch: 24, steps: 16}
optim: {kind: adamw, lr: 0.01, ema: 0.9, clip_norm: 1}
eval: {every_epochs: never}
checkpoint: {every_epochs: never, every_steps: 8, keep: all}
parallel: {lanes: 8}
YAML

# train ARGUMENTS...: sets $out; ends the test if the command fails.
train() {
    out=$(timeout -k 5 $limit_s "$TANDEM" train "$@" -q --json 2>err) || fail "train $*: exit code $?: $(cat err)"
}

train job.yaml -n 1
want=$(hash_in "$out")
[ -n "$want" ] || fail "no hash in $out"
train job.yaml -n 4 --set parallel.zero=3
assert_equal "$(hash_in "$out")" "$want" "four ranks with ZeRO 3"
written=$(json_value run <<<"$out")
middle=checkpoints/step-000000000008.safetensors
assert_equal "$("$TANDEM" hash "$written/$middle" | cut -d " " -f 1)" \
    "$("$TANDEM" hash "runs/reload-1/$middle" | cut -d " " -f 1)" "the checkpoint of step 8"

case ${1:-all} in
all) worlds="1:0 1:1 1:2 1:3 2:0 2:1 2:2 2:3 3:0 3:1 3:2 3:3 8:0 8:1 8:2 8:3" ;;
few) worlds="1:0 2:3 3:1 8:2" ;;
*) fail "unknown argument '$1' (all or few)" ;;
esac
for world in $worlds; do
    rm -rf again
    cp -r "$written" again
    rm again/checkpoints/step-000000000016.safetensors
    train --resume again -n "${world%:*}" --set "parallel.zero=${world#*:}"
    assert_equal "$(hash_in "$out")" "$want" "${world%:*} ranks with ZeRO ${world#*:}"
    assert_equal "$(json_value steps <<<"$out")" 16 "steps"
    printf 'ok   on %s ranks with ZeRO %s\n' "${world%:*}" "${world#*:}"
done
