#!/usr/bin/env bash
# Disks that are full, read-only or missing. Training continues as long as it can, reports what it could not
# write, and the last good checkpoint stays valid. A small disk is a tmpfs, and only root can mount one;
# without root that part is skipped.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
make_data 150 data.csv
make_job job.yaml
clean_up() { umount "$work/disk" 2>/dev/null || true; }

assert_exit 0 "$TANDEM" train job.yaml --set run.dir=whole --set run.log_every_steps=1 \
    --set checkpoint.every_steps=1 --set checkpoint.keep=all
whole=$(hash_in "$out")
everything_kb=$(du -sk whole | cut -f1)

test_a_file_in_the_way() {
    echo precious >file
    assert_exit 2 "$TANDEM" train job.yaml --set run.dir=file
    assert_contains "$err" "is a file, not a directory"
    assert_exit 1 "$TANDEM" train job.yaml --set run.dir=file/below
    assert_contains "$err" "a file with this name exists"
    assert_equal "$(cat file)" precious "the file in the way"
}

# Files may not grow beyond 16 KiB: a checkpoint fits, the metrics of a long run do not. That is
# reported once, does not stop training, and leaves no partial line.
test_metrics_that_cannot_be_written() {
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=long --set train.epochs=100
    local long
    long=$(hash_in "$out")
    # (One process: the limit also applies to memory that several processes share.)
    assert_exit 0 with_small_files "$TANDEM" train job.yaml -n 1 --set run.dir=limited \
        --set train.epochs=100 --set run.log_every_steps=1 --set checkpoint.every_epochs=50
    assert_equal "$(grep -c 'no longer complete' <<<"$err")" 1 "warnings about the metrics"
    assert_equal "$(hash_in "$out")" "$long" "the hash without all metrics"
    assert_equal "$(grep -cv '^{.*}$' limited/tiny-1/metrics.jsonl || true)" 0 "lines cut short"
    assert_equal "$(tail -c 1 limited/tiny-1/metrics.jsonl | od -An -c | tr -d ' ')" '\n' "the last byte"
}
with_small_files() (
    ulimit -f 16
    exec "$@"
)

# The limit also applies to memory that several workers share: a large one has no effect, one that is too
# small is an error that names the limit.
test_a_limit_on_files_for_several_workers() {
    (ulimit -f $((1 << 30)) && exec "$TANDEM" train job.yaml -n 2 --set run.dir=wide >wide.out) ||
        fail "a limit of a tebibyte ends a session"
    assert_equal "$(hash_in "$(cat wide.out)")" "$whole" "the hash below a wide limit"
    assert_exit 1 with_small_files "$TANDEM" train job.yaml -n 2 --set run.dir=narrow
    assert_contains "$err" "ulimit -f"
}

mount_disk() { # mount_disk KILOBYTES
    umount disk 2>/dev/null || true
    mkdir -p disk
    mount -t tmpfs -o "size=$1k" tandem-test disk 2>mount.err
}

test_a_read_only_directory() {
    mkdir -p closed
    chmod 555 closed
    if [ "$(id -u)" -eq 0 ]; then
        mount_disk 64 || skip "no small disk can be mounted here: $(cat mount.err)"
        mount -o remount,ro disk
        assert_exit 1 "$TANDEM" train job.yaml --set run.dir=disk
        assert_contains "$err" "Read-only file system"
    else
        assert_exit 1 "$TANDEM" train job.yaml --set run.dir=closed
        assert_contains "$err" "Permission denied"
    fi
}

# Space for some of the checkpoints: those that do not fit are reported, training continues to the end, and
# the final message says that the last one could not be saved.
test_a_disk_that_fills_up() {
    mount_disk $((everything_kb / 2)) || skip "no small disk can be mounted here: $(cat mount.err)"
    assert_exit 1 "$TANDEM" train job.yaml --set run.dir=disk --set run.log_every_steps=1 \
        --set checkpoint.every_steps=1 --set checkpoint.keep=all --set checkpoint.retry_s=0
    assert_contains "$err" "training continues"
    assert_contains "$err" "No space left on device"
    assert_contains "$(tail -1 <<<"$err")" "tandem: "
    assert_contains "$(tail -1 <<<"$err")" "No space left on device"
    assert_lacks "$(tail -1 <<<"$err")" "warning"
    assert_equal "$out" "" "the summary of a run whose end was not saved"
    local count=0 file here
    for file in disk/tiny-1/checkpoints/*; do
        assert_exit 0 "$TANDEM" hash "$file"
        here=${out%% *}
        assert_exit 0 "$TANDEM" hash "whole/tiny-1/checkpoints/${file##*/}"
        assert_equal "$here" "${out%% *}" "the hash of $file"
        count=$((count + 1))
    done
    { [ "$count" -ge 2 ] && [ "$count" -le 13 ]; } || fail "$count of 15 checkpoints fitted"
    assert_equal "$(find disk -name '*.tmp')" "" "temporary files left"
    # With free space again it resumes from the last good one.
    mount -o "remount,size=$((everything_kb * 3))k" disk
    assert_exit 0 "$TANDEM" train --resume disk/tiny-1
    assert_contains "$err" "resuming from step"
    assert_equal "$(hash_in "$out")" "$whole" "the hash after there was room again"
}

# An interruption must not mistake a requested checkpoint that failed for a saved one.
test_interrupted_on_a_full_disk() {
    mount_disk $((everything_kb / 2)) || skip "no small disk can be mounted here: $(cat mount.err)"
    "$TANDEM" train job.yaml --set run.dir=disk --set checkpoint.every_steps=1 \
        --set checkpoint.keep=all --set checkpoint.retry_s=1 --set train.epochs=1000000 >full.out 2>full.err &
    local pid=$! code=0
    wait_for 60 grep -qs "training continues" full.err
    kill -INT "$pid"
    wait "$pid" || code=$?
    assert_equal "$code" 1 "the exit code of an interruption that could not be saved"
    assert_contains "$(tail -1 full.err)" "No space left on device"
    assert_equal "$(grep -cvE '^\{.*\}$' disk/tiny-1/log.jsonl)" 0 "torn lines of the log"
    assert_equal "$(grep -cvE '^\{.*\}$' disk/tiny-1/metrics.jsonl)" 0 "torn lines of metrics"
}

# Rank 0 dies while the disk is full, with lines of the ledger in its memory. The other rank waits for space,
# and the ledger is complete.
test_a_death_on_a_full_disk() {
    mount_disk $((everything_kb * 3)) || skip "no small disk can be mounted here: $(cat mount.err)"
    TANDEM_TEST_KILL=forward:step=3:rank=0:signal=STOP:file=$work/fill,forward:step=9:rank=0:file=$work/died \
        "$TANDEM" train job.yaml -n 2 -q --set run.dir=disk --set run.log_every_steps=1 \
        --set checkpoint.every_epochs=never --set checkpoint.ledger=true >death.out 2>death.err &
    local pid=$!
    wait_for 60 test -s fill
    wait_for 60 is_stopped_or_gone "$(cat fill)"
    head -c $((everything_kb * 4096)) /dev/zero >disk/filler 2>/dev/null || true
    kill -CONT "$(cat fill)" 2>/dev/null || true # a busy host may have replaced it meanwhile
    wait_for 60 test -s died
    wait_for 60 grep -q "training waits for up to" death.err
    rm disk/filler
    wait "$pid" || fail "it ended with $?: $(cat death.err)"
    assert_equal "$(hash_in "$(cat death.out)")" "$whole" "the hash after a death on a full disk"
    assert_exit 0 "$TANDEM" ledger disk/tiny-1
}

# No space at the start: nothing is left behind.
test_no_room_to_begin() {
    mount_disk 8 || skip "no small disk can be mounted here: $(cat mount.err)"
    mkdir disk/runs
    head -c 100000 /dev/zero >disk/filler 2>/dev/null || true
    assert_exit 1 "$TANDEM" train job.yaml --set run.dir=disk/runs
    assert_contains "$err" "No space left on device"
    assert_equal "$(ls disk/runs)" "" "what a run that could not begin left"
}

run_tests "$@"
