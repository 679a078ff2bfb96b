#!/usr/bin/env bash
# Another user of the host, and a run directory to which another user has written: they can neither prevent a
# run from continuing nor make it write elsewhere. Needs root, to become another user; without it the test is
# skipped.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
[ "$(id -u)" -eq 0 ] || skip "only root can become another user"
command -v setpriv >/dev/null || skip "setpriv is not installed"
readonly stranger=65533
as_stranger() { setpriv --reuid $stranger --regid $stranger --clear-groups "$@"; }
chmod 755 "$work"
make_data 150 data.csv
make_job job.yaml
clean_up() { rm -rf "/tmp/tandem-$stranger"; }

train_once() { # train_once FOLDER: a run with a checkpoint that can be resumed
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir="$1"
}
resume() { "$TANDEM" train --resume "$1/tiny-1" --set train.epochs=4; }

# A user who can open the file of a lock can hold the lock.
test_nobody_else_holds_the_lock() {
    train_once locked
    assert_equal "$(stat -c %a locked/tiny-1/lock)" 600 "the mode of the lock"
    chmod 644 locked/tiny-1/lock # as an earlier version made it
    assert_exit 0 resume locked
    assert_equal "$(stat -c %a locked/tiny-1/lock)" 600 "the mode of an old lock"
    if as_stranger flock --nonblock locked/tiny-1/lock true 2>/dev/null; then fail "a stranger has the lock"; fi
}

test_links_are_not_followed() {
    local name
    for name in log.jsonl metrics.jsonl ledger.jsonl lock job.yaml checkpoints/index.json; do
        rm -rf linked
        train_once linked
        cp "linked/tiny-1/$name" victim 2>/dev/null || echo precious >victim
        local before
        before=$(sha256sum <victim)
        ln -sf "$work/victim" "linked/tiny-1/$name"
        assert_exit 1 resume linked
        assert_contains "$err" "$name is a symbolic link"
        assert_equal "$(sha256sum <victim)" "$before" "the file that $name leads to"
    done
}

# The runtime directory in /tmp belongs to another user: another one is used.
test_a_taken_name_in_tmp() {
    rm -rf "/tmp/tandem-$stranger"
    mkdir "/tmp/tandem-$stranger" # root's
    mkdir home runs bin # the program may be in a directory that another user may not enter
    cp "$TANDEM" "$(dirname "$TANDEM")"/libtandem.so.0 bin/
    chown $stranger home runs
    assert_exit 0 as_stranger env -u TANDEM_RUNTIME -u XDG_RUNTIME_DIR HOME="$work/home" \
        LD_LIBRARY_PATH="$work/bin" bin/tandem train job.yaml -n 2 --set run.dir=runs
    assert_equal "$(stat -c '%u %a' home/.cache/tandem/run)" "$stranger 700" "the directory at home"
    rm -rf home/.cache
    chmod 500 home
    chown root home
    assert_exit 1 as_stranger env -u TANDEM_RUNTIME -u XDG_RUNTIME_DIR HOME="$work/home" \
        LD_LIBRARY_PATH="$work/bin" bin/tandem train job.yaml -n 2 --set run.dir=runs
    assert_contains "$err" "/tmp/tandem-$stranger cannot be the runtime directory"
}

run_tests "$@"
