#!/usr/bin/env bash
# The progress line on a real terminal: tmux is the terminal, whose contents are checked. The line is redrawn
# in place, never wraps, and leaves nothing behind when the window is resized.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
command -v tmux >/dev/null || skip "tmux is not installed (tools/setup --test): progress is not tested"
RANDOM=${TANDEM_TEST_SEED:-$$}
make_data 150 data.csv
make_job job.yaml
# Until it is stopped; 150 lines of history would contain rows that the screen lost.
train=("$TANDEM" train job.yaml -n 1 --set train.epochs=1000000000 --set checkpoint.every_epochs=never
    --set data.test_fraction=0.2 --set eval.every_epochs=100)

number=0 # a server for each terminal: one that is ending accepts no new ones
terminal() { TMUX_TMPDIR=$work tmux -L "t$number" -f /dev/null "$@"; }
end_terminal() { terminal kill-server 2>/dev/null || true; }
clean_up() { end_terminal; }

screen() { terminal capture-pane -p; }
history() { terminal capture-pane -p -S -; }
# Rows of the screen or of standard input that belong to a progress line, complete or in part.
bars() { grep -cE '^step +[0-9]|step +[0-9]+/|loss [0-9]|[0-9][kM]*/s|left$|^\[[=>]' || true; }
showing() { [ "$(screen | bars)" -gt 0 ]; }
# The bar exists and has changed since $1.
moved_on() { [ "$(screen | grep -E 'step +[0-9]+/')" != "$1" ] && showing; }
redrawn() {
    local before
    before=$(screen | grep -E 'step +[0-9]+/' || true)
    wait_for 30 moved_on "$before"
}

# assert_one_bar WHERE WHEN: there is one progress line, on the screen or in the whole history, as soon as the
# terminal has notified the program of its last change, and the program has drawn.
assert_one_bar() {
    local end=$((SECONDS + 30))
    until [ "$("$1" | bars)" -eq 1 ]; do
        [ "$SECONDS" -lt "$end" ] || fail "not one progress line $2: $("$1")"
        sleep 0.05
    done
}

# begin COLUMNS ROWS: a shell that prints two lines and then trains.
begin() {
    end_terminal
    number=$((number + 1))
    terminal new-session -d -x "$1" -y "$2" \
        "cd '$work'; echo above one; echo above two; $(printf '%q ' "${train[@]}") --set run.dir=runs-$number; \
         echo code \$?; sleep 600"
    wait_for 60 showing
}
resize() { terminal resize-window -x "$1"; }
stop() {
    terminal send-keys C-c
    wait_for 60 stopped
}
stopped() { screen | grep -q '^code '; }

test_in_place() {
    begin 80 20
    local before after
    before=$(screen)
    assert_equal "$(sed -n 1,2p <<<"$before")" "above one
above two" "the lines above"
    assert_equal "$(bars <<<"$before")" 1 "progress lines"
    redrawn
    redrawn
    after=$(screen)
    assert_equal "$(bars <<<"$after")" 1 "progress lines after it was redrawn"
    assert_equal "$(grep -vE 'step +[0-9]+/' <<<"$after")" "$(grep -vE 'step +[0-9]+/' <<<"$before")" \
        "the rest of the screen"
    assert_equal "$(grep -nE 'step +[0-9]+/' <<<"$after" | cut -d: -f1)" 5 "the row of the line"
    stop
    assert_equal "$(screen | grep -cE 'step +[0-9]+/' || true)" 0 "progress lines at the end"
    assert_contains "$(screen)" "stopped at step"
    assert_contains "$(screen)" "code 130"
    assert_equal "$(screen | sed -n 1,2p)" "above one
above two" "the lines above at the end"
    assert_contains "$(screen | sed -n 5,6p)" "stopping after this step"
}

test_a_narrow_window() {
    local columns
    for columns in 20 33; do
        begin "$columns" 24
        redrawn
        assert_one_bar screen "in $columns columns"
        assert_equal "$(screen | grep -E 'step +[0-9]+/' | awk -v c="$columns" 'length >= c')" "" \
            "lines that reach the edge at $columns columns"
        assert_one_bar history "in $columns columns, history included"
    done
    # Too narrow for any text: still one row, which does not reach the edge.
    begin 8 40
    assert_equal "$(screen | grep -cE '^step +[0-9]')" 1 "rows at 8 columns"
    stop
}

# The terminal is resized as by hand, column by column. No old text may remain on the screen or above it.
test_dragged() {
    local columns
    begin 110 16
    for ((columns = 110; columns >= 40; columns -= 2)); do resize "$columns" && sleep 0.03; done
    for ((columns = 40; columns <= 110; columns += 2)); do resize "$columns" && sleep 0.03; done
    sleep 0.5 # until the last change has arrived
    redrawn
    assert_one_bar screen "after dragging"
    assert_one_bar history "after dragging, history included"
    assert_equal "$(history | sed -n 1,2p)" "above one
above two" "the lines above after dragging"
}

# In large steps, faster than tmux notifies the program.
test_jumped() {
    local round i
    for round in 1 2 3; do
        begin 80 $((10 + RANDOM % 20))
        for ((i = 0; i < 15; i++)); do
            resize $((20 + RANDOM % 100))
            sleep "0.0$((RANDOM % 9 + 1))"
        done
        sleep 0.5
        resize 80
        sleep 0.5
        redrawn
        assert_one_bar screen "in round $round"
        stop
        assert_equal "$(screen | grep -cE 'step +[0-9]+/' || true)" 0 "progress lines at the end: $(screen)"
    done
}

# Other output during training is printed above the line.
test_words_in_between() {
    begin 80 20
    rm -rf "runs-$number/tiny-1/checkpoints"
    stop
    assert_equal "$(screen | grep -cE 'step +[0-9]+/' || true)" 0 "progress lines at the end: $(screen)"
    assert_contains "$(screen)" "tandem: checkpoint of step"
    assert_contains "$(screen)" "code 1"
}

run_tests "$@"
