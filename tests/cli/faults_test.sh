#!/usr/bin/env bash
# Disks and limits that fail while several workers train, with real means: file systems on loop devices and
# tmpfs, cgroups, ulimit. A fault that is repaired in time has no effect: the run ends with the bits of an
# undisturbed one, its last checkpoint and its complete ledger. A fault that is not repaired ends the run with
# an error that states the reason.
#
# Everything is mounted in a separate mount namespace, so nothing is left behind. This needs root. The loop
# device has ext4 without a journal, because a failing journal makes the file system read-only permanently.
set -euo pipefail
if [ -z "${FAULTS_INSIDE:-}" ]; then
    unshare -m true 2>/dev/null || { echo "SKIPPED: no mount namespace can be made here: this needs root"; exit 77; }
    FAULTS_INSIDE=1 exec unshare -m --propagation private bash "$0" "$@"
fi
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 300 data.csv
cat >job.yaml <<'YAML'
name: net
seed: 7
data: {train: data.csv}
model: {hidden: [64, 64]}
train: {batch: 24, steps: 350}
optim: {kind: adamw, lr: 0.003}
parallel: {lanes: 4}
checkpoint: {every_epochs: never, every_steps: 40, keep: all, ledger: true}
elastic: {heartbeat: 300, stall: 600}
run: {dir: disk}
YAML
# A worker that the test has stopped must not count as dead.
export TANDEM_SILENCE=600
cgroup='' run=disk/net-1
clean_up() {
    local i
    umount "$run" 2>/dev/null || true
    umount disk 2>/dev/null || true
    if [ -n "$cgroup" ]; then
        end_sessions
        for ((i = 0; i < 500; i++)); do
            if rmdir "$cgroup" 2>/dev/null; then break; fi
            sleep 0.02
        done
    fi
}

assert_exit 0 "$TANDEM" train job.yaml -n 1 --set run.dir=whole
want=$(hash_in "$out")
[ -n "$want" ] || fail "no hash of an undisturbed run"

# ---- training runs that stop at a step --------------------------------------------------------------

# start HOLDS OPTION...: two workers in the background; rank 1 stops before each of the steps HOLDS.
launcher=
start() {
    local holds=$1 hold kills=
    shift
    rm -f held-*
    for hold in $holds; do kills+=${kills:+,}forward:step=$hold:rank=1:signal=STOP:file=$work/held-$hold; done
    TANDEM_TEST_KILL=$kills timeout -k 5 240 "$TANDEM" train job.yaml -n 2 --json "$@" >run.out 2>run.err &
    launcher=$!
}
# await COMMAND...: until it succeeds, while the training runs.
await() {
    local end=$((SECONDS + 120))
    until "$@"; do
        if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$launcher" 2>/dev/null; then
            cat run.err >&2
            fail "waited in vain for: $*"
        fi
        sleep 0.02
    done
}
# held STEP: waits until rank 1 is stopped there.
held() {
    await test -s "held-$1"
    await is_stopped "$(cat "held-$1")"
}
# workers: their processes.
workers() {
    local pid
    for pid in $(test_processes); do
        if grep -qz '^TANDEM_MEMBER=.' "/proc/$pid/environ" 2>/dev/null; then echo "$pid"; fi
    done
}
resume() { kill -CONT "$(cat "held-$1")"; }
said() { grep -qsF -- "$1" run.err; }
# finish [CODE]: waits for the end of the training.
finish() {
    local code=0
    wait "$launcher" || code=$?
    [ "$code" = "${1:-0}" ] || { cat run.err >&2; fail "the training ended with $code, not ${1:-0}"; }
}
# is_right: the run has everything that an undisturbed one has.
is_right() {
    assert_equal "$(hash_in "$(cat run.out)")" "$want" "the hash of the run"
    local last=$run/checkpoints/step-000000000350.safetensors
    assert_exit 0 "$TANDEM" hash "$last"
    assert_equal "${out%% *}" "$want" "the hash of the last checkpoint"
    assert_equal "$(find "$run" -name '*.tmp')" "" "temporary files left"
}
ledger_is_whole() {
    assert_exit 0 "$TANDEM" ledger "$run"
    assert_equal "$(wc -l <"$run/ledger.jsonl")" 350 "lines of the ledger"
}

# ---- disks -----------------------------------------------------------------------------------------

new_disk() {
    rm -rf disk
    mkdir disk
}
# pass_over WHY: a case that cannot run here; the others run.
passed_over=
pass_over() {
    echo "SKIPPED: $1"
    passed_over=yes
}
# mount_ext4 MEGABYTES: on a loop device.
loop=
mount_ext4() {
    new_disk
    rm -f image
    truncate -s "$1M" image
    mkfs.ext4 -q -F -b 1024 -m 0 -O ^has_journal image 2>mount.err &&
        mount -o loop,errors=continue image disk 2>mount.err || return 1
    loop=$(losetup -j image -n -O NAME | tr -d ' ')
}
# mount_small: a disk that can be filled.
mount_small() { mount_ext4 8 || mount -t tmpfs -o size=8M tandem-test disk; }
fill() { cat /dev/zero >disk/filler 2>/dev/null || true; }

# Full at a checkpoint during training, and again at the last one.
test_a_disk_that_is_full_and_mended() {
    mount_small
    start "45 145 245"
    held 45
    fill
    resume 45
    held 145
    rm disk/filler
    resume 145
    held 245
    assert_contains "$(cat run.err)" "no checkpoint: "
    assert_contains "$(cat run.err)" "No space left on device"
    assert_contains "$(cat $run/log.jsonl)" "checkpoints can be written again"
    fill
    resume 245
    await said "the last checkpoint cannot be written"
    rm disk/filler
    finish
    is_right
    ledger_is_whole
    assert_equal "$(grep -c 'no checkpoint: ' run.err)" 2 "how often the missing checkpoint was reported"
    umount disk
}

# The fault is not repaired: an error after the time that the job sets, and earlier checkpoints are valid.
test_a_disk_that_stays_full() {
    mount_small
    start 45 --set checkpoint.retry_s=2
    held 45
    fill
    resume 45
    finish 1
    assert_contains "$(tail -1 run.err)" "No space left on device"
    rm disk/filler
    assert_exit 0 "$TANDEM" train --resume $run
    assert_equal "$(hash_in "$out")" "$want" "the hash after there was room again"
    ledger_is_whole
    umount disk
}

# Old checkpoints are removed for new ones, as far as the job allows; the newest and the best are kept.
test_a_full_disk_takes_old_checkpoints() {
    mount_small
    start 165 --set checkpoint.keep=3 --set checkpoint.keep_every=80 --set checkpoint.ledger=false \
        --set checkpoint.background=false
    held 165
    fill
    resume 165
    finish
    is_right
    assert_contains "$(cat run.err)" "that checkpoint.keep would have kept"
    assert_exit 0 "$TANDEM" checkpoint verify $run
    [ -e $run/checkpoints/step-000000000080.safetensors ] || fail "what keep_every keeps was removed"
    [ ! -e $run/checkpoints/step-000000000120.safetensors ] || fail "nothing was removed"
    umount disk
}

# A device whose end, from 1 MiB on, is missing for a while. Before the run begins, files that only use space
# occupy every free block before that offset, so all that the run writes is after it. What was written before
# can be read.
cut=$((1 << 20))
mount_breakable() {
    mount_ext4 8 || return 1
    local i first
    mkdir disk/front
    for ((i = 0; i < 1000; i++)); do
        head -c 16384 /dev/zero >"disk/front/$i" 2>/dev/null || break
    done
    sync -f disk
    for ((i--; i >= 0; i--)); do
        first=$(filefrag -e "disk/front/$i" | awk '$1 == "0:" { print $4 + 0 }')
        [ "${first:-$cut}" -lt $((cut / 1024)) ] || rm -f "disk/front/$i"
    done
    sync -f disk
}
break_device() {
    sync -f disk 2>/dev/null || true # it reports earlier errors as well
    tail -c +$((cut + 1)) image >rest
    truncate -s "$cut" image
    losetup -c "$loop"
}
mend_device() {
    cat rest >>image
    losetup -c "$loop"
}

test_a_device_that_fails_and_is_mended() {
    if ! mount_breakable; then
        pass_over "no loop device with ext4 can be mounted here: $(cat mount.err)"
        return
    fi
    start "45 145 245"
    held 45
    break_device
    resume 45
    held 145
    mend_device
    resume 145
    held 245
    assert_contains "$(cat run.err)" "no checkpoint: "
    assert_contains "$(cat run.err)" "Input/output error"
    assert_contains "$(cat $run/log.jsonl)" "checkpoints can be written again"
    break_device
    resume 245
    await said "the last checkpoint cannot be written"
    mend_device
    finish
    # The file on the disk is checked, not the cache.
    umount disk
    mount -o loop image disk
    is_right
    ledger_is_whole
    umount disk
}

test_a_device_that_stays_broken() {
    if ! mount_breakable; then
        pass_over "no loop device with ext4 can be mounted here: $(cat mount.err)"
        return
    fi
    start 45 --set checkpoint.retry_s=2
    held 45
    break_device
    resume 45
    finish 1
    assert_contains "$(tail -1 run.err)" "Input/output error"
    umount disk
}

# A file system with files that are open for writing cannot be remounted read-only by hand; a second mount of the
# directory, read-only, over the first one does the same to every file that is opened from then on.
make_read_only() {
    mount --bind $run $run
    mount -o remount,bind,ro $run
}

test_a_read_only_disk_that_is_mended() {
    new_disk
    start "45 145 245"
    held 45
    make_read_only
    resume 45
    held 145
    umount $run
    resume 145
    held 245
    assert_contains "$(cat run.err)" "no checkpoint: "
    assert_contains "$(cat run.err)" "Read-only file system"
    assert_contains "$(cat $run/log.jsonl)" "checkpoints can be written again"
    make_read_only
    resume 245
    await said "the last checkpoint cannot be written"
    umount $run
    finish
    is_right
    ledger_is_whole
}

# Rank 0 dies while the disk is read-only: the rank that takes over waits until it can write to the run.
test_a_worker_dies_on_a_read_only_disk() {
    new_disk
    start 45
    held 45
    make_read_only
    kill -9 "$(workers | grep -vx "$(cat held-45)")"
    resume 45
    await said "cannot be written to"
    umount $run
    finish
    is_right
    ledger_is_whole
}

# ---- memory ----------------------------------------------------------------------------------------

# make_cgroup: a group of processes with a limit on memory, in version 1 or 2 of cgroups.
limit_file='' usage_file='' events_file=''
make_cgroup() {
    local base
    if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        base=/sys/fs/cgroup/memory
        limit_file=memory.limit_in_bytes usage_file=memory.usage_in_bytes events_file=memory.oom_control
    elif grep -qsw memory /sys/fs/cgroup/cgroup.controllers; then
        base=/sys/fs/cgroup
        limit_file=memory.max usage_file=memory.current events_file=memory.events
        echo +memory >"$base/cgroup.subtree_control" 2>/dev/null || true
    else
        return 1
    fi
    mkdir "$base/tandem-faults.$$" || return 1
    cgroup=$base/tandem-faults.$$
    [ -e "$cgroup/$limit_file" ] && [ -n "$(oom_kills)" ]
}
oom_kills() { sed -n 's/^oom_kill //p' "$cgroup/$events_file"; }
limit() { echo "$1" >"$cgroup/$limit_file"; }

# Another process uses memory until none is left, including the page cache, so the kernel kills the worker,
# which is first in its order. The other process is second, and the rest have enough.
test_a_worker_that_is_killed_for_want_of_memory() {
    if ! make_cgroup; then
        pass_over "no cgroup can limit memory here"
        return
    fi
    new_disk
    rm -f held-45
    (
        echo "$BASHPID" >"$cgroup/cgroup.procs"
        export TANDEM_TEST_KILL=forward:step=45:rank=1:signal=STOP:file=$work/held-45
        exec timeout -k 5 240 "$TANDEM" train job.yaml -n 2 --json >run.out 2>run.err
    ) &
    launcher=$!
    held 45
    local victim kills own_kb spare_kb=32768 hog
    victim=$(cat held-45)
    own_kb=$(awk '/^RssAnon:/ { print $2 }' "/proc/$victim/status")
    [ "$own_kb" -gt 1024 ] || fail "the worker has $own_kb KB of private memory"
    echo 1000 >"/proc/$victim/oom_score_adj"
    kills=$(oom_kills)
    limit $(($(cat "$cgroup/$usage_file") + (spare_kb << 10)))
    (
        echo "$BASHPID" >"$cgroup/cgroup.procs"
        echo 200 >"/proc/$BASHPID/oom_score_adj"
        exec python3 -c "
import os, time
taken = []
while os.path.exists('/proc/$victim'):
    taken.append(bytearray(b'x') * (1 << 20))
    time.sleep(0.002)
time.sleep(600)"
    ) &
    hog=$!
    await is_gone "$victim"
    [ "$(oom_kills)" -gt "$kills" ] || fail "the worker was not killed for want of memory"
    limit $((1 << 40))
    kill -9 "$hog" 2>/dev/null || true
    wait "$hog" 2>/dev/null || true
    finish
    is_right
    ledger_is_whole
    assert_contains "$(cat run.err)" "killed by signal 9"
}

# A /dev/shm as in some containers: too small for anything. The memory that workers share is elsewhere, and
# UCX runs without its part of it.
test_a_tiny_dev_shm() {
    local kilobytes transport
    for kilobytes in 4 1024; do
        mount -t tmpfs -o "size=${kilobytes}k" tandem-test /dev/shm
        for transport in auto shm tcp ucx; do
            new_disk
            start "" --set comm.transport=$transport
            finish
            is_right
            ledger_is_whole
        done
        umount /dev/shm
    done
}

# ---- descriptors -----------------------------------------------------------------------------------

test_few_file_descriptors() {
    new_disk
    (
        ulimit -n 64
        exec timeout -k 5 240 "$TANDEM" train job.yaml -n 2 --json >run.out 2>run.err
    ) &
    launcher=$!
    finish
    is_right
    ledger_is_whole
}

run_tests "$@"
[ -z "$passed_over" ] || exit 77
