#!/usr/bin/env bash
# Help, version, options, the manual page, completions, and streams that cannot be written to.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
shopt -s extglob
make_data 30 data.csv
make_job job.yaml
assert_exit 0 "$TANDEM" help
mapfile -t commands < <(awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }' <<<"$out")
[ "${#commands[@]}" -ge 9 ] || fail "only these commands in the help: ${commands[*]}"

test_help_of_all() {
    local all=$out
    assert_contains "$all" "Exit codes:"
    local code
    for code in 0 1 2 3 4 5 6 130; do assert_contains "$all" " $code  "; done
    assert_exit 0 "$TANDEM" --help
    assert_equal "$out" "$all" "--help"
    assert_exit 0 "$TANDEM" -h
    assert_equal "$out" "$all" "-h"
    assert_exit 2 "$TANDEM"
    assert_equal "$out" "$all" "what tandem alone prints"
}

test_help_of_each() {
    local name said line
    for name in "${commands[@]}"; do
        assert_exit 0 "$TANDEM" help "$name"
        said=$out
        assert_contains "$said" "tandem $name: "
        assert_contains "$said" "Usage:"
        assert_contains "$said" "--help"
        assert_equal "$err" ""
        while IFS= read -r line; do
            [ "${#line}" -le 100 ] || fail "help $name has a line of ${#line} characters: $line"
        done <<<"$said"
        assert_exit 0 "$TANDEM" "$name" --help
        assert_equal "$out" "$said" "$name --help"
        assert_exit 0 "$TANDEM" "$name" -h
        assert_equal "$out" "$said" "$name -h"
        assert_exit 0 "$TANDEM" "$name" some words --and=options --help
        assert_equal "$out" "$said" "$name ... --help"
    done
    assert_exit 2 "$TANDEM" help trian
    assert_contains "$err" "did you mean 'train'?"
}

test_unknown_words() {
    assert_exit 2 "$TANDEM" trian
    assert_contains "$err" "did you mean 'train'?"
    assert_exit 2 "$TANDEM" frobnicate
    assert_contains "$err" "'tandem help' lists all commands"
    assert_exit 2 "$TANDEM" ""
    assert_exit 2 "$TANDEM" --frobnicate
    assert_exit 2 "$TANDEM" train job.yaml --wokers 3
    assert_contains "$err" "did you mean '--workers'?"
    assert_exit 2 "$TANDEM" train job.yaml --frobnicate
    assert_contains "$err" "see 'tandem help train'"
    # The name of a key of the job, given as an option.
    assert_exit 2 "$TANDEM" train job.yaml --epochs 3
    assert_contains "$err" "for the job key use '--set train.epochs=3'"
    assert_exit 2 "$TANDEM" train job.yaml --batch-size=64
    assert_contains "$err" "'--set train.batch=64'"
    assert_exit 2 "$TANDEM" train job.yaml --kind --quiet
    assert_contains "$err" "'--set model.kind=...' or '--set optim.kind=...'"
    assert_exit 2 "$TANDEM" eval runs/x-1 --epochs 3 # this command has no --set
    assert_lacks "$err" "--set"
    assert_exit 2 "$TANDEM" train job.yaml -x
    assert_contains "$err" "unknown option '-x'"
    assert_exit 2 "$TANDEM" train job.yaml --=3
    assert_exit 2 "$TANDEM" train job.yaml "--$(printf 'x%.0s' {1..5000})"
    [ ! -e runs ] || fail "a run was begun"
}

test_values_of_options() {
    assert_exit 2 "$TANDEM" train job.yaml --workers
    assert_contains "$err" "'--workers' requires a value: --workers N"
    assert_exit 2 "$TANDEM" train job.yaml -n
    assert_contains "$err" "'--workers' requires a value"
    assert_exit 2 "$TANDEM" train job.yaml --set
    assert_contains "$err" "'--set' requires a value"
    assert_exit 2 "$TANDEM" train job.yaml --quiet=yes
    assert_contains "$err" "'--quiet' takes no value"
    local n
    for n in 0 -1 65537 99999999999999999999 1.5 2x ""; do
        assert_exit 2 "$TANDEM" train job.yaml --workers="$n"
        assert_contains "$err" "from 1 to 65536, not '$n'"
    done
    [ ! -e runs ] || fail "a run was begun"
    # All forms of options, in any order, and unique prefixes of names.
    for n in "-n 2 -q" "-n2 -q" "-qn2" "-qn 2" "--workers 2 --quiet" "--workers=2 --qui" "--work 2 -q"; do
        # shellcheck disable=SC2086 # several words
        assert_exit 0 "$TANDEM" train $n --set run.dir=ways -- job.yaml
        assert_equal "$err" "" "words of '$n'"
    done
    assert_exit 2 "$TANDEM" train -- job.yaml -q
    assert_contains "$err" "too many arguments"
}

test_version() {
    assert_exit 0 "$TANDEM" version
    local said=$out version
    [[ $said =~ ^tandem\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the version is '$said'"
    version=${said#tandem }
    assert_contains "$(cat "$source_root/include/tandem/base.h")" "#define TDM_VERSION \"$version\""
    assert_exit 0 "$TANDEM" --version
    assert_equal "$out" "$said"
    assert_exit 0 "$TANDEM" -V
    assert_equal "$out" "$said"
    assert_exit 0 "$TANDEM" version --json
    assert_equal "$out" "{\"version\":\"$version\"}"
    assert_exit 2 "$TANDEM" version 3
}

test_manual_page() {
    assert_exit 0 "$TANDEM" help --man
    printf '%s\n' "$out" >tandem.1
    local name
    for name in "${commands[@]}"; do grep -q "^\.SS tandem $name\$" tandem.1 || fail "no $name in it"; done
    if command -v groff >/dev/null; then
        assert_exit 0 groff -ww -man -Tutf8 tandem.1
        assert_equal "$err" "" "warnings about the manual page"
        # Text that troff takes for a request would be missing from the page.
        # shellcheck disable=SC2001 # a pattern, not a word
        out=$(sed 's/\x1b\[[0-9;]*m//g' <<<"$out" | tr -s ' \n' ' ')
        assert_contains "$out" "'check' reads a job file"
    else
        printf 'NOT CHECKED, for want of groff: the manual page\n' >&2
    fi
}

# complete_bash WORD...: what pressing TAB after these words offers.
complete_bash() {
    bash -c 'source "$1"
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _tandem
        printf "%s\n" "${COMPREPLY[@]}"' - "$work/tandem.bash" "$@" | sort | tr '\n' ' '
}

test_completion_bash() {
    "$TANDEM" help --completion bash >tandem.bash
    assert_exit 0 bash -n tandem.bash
    # shellcheck disable=SC2016 # for the other bash
    assert_exit 0 bash -c 'source ./tandem.bash; complete -p tandem'
    assert_contains "$out" "-F _tandem tandem"
    assert_equal "$(complete_bash tandem trai)" "train "
    assert_equal "$(complete_bash tandem he)" "help "
    assert_equal "$(complete_bash tandem '' | wc -w)" "${#commands[@]}" "commands offered"
    assert_equal "$(complete_bash tandem train --res)" "--resume "
    assert_equal "$(complete_bash tandem train jo)" "job.yaml "
    assert_equal "$(complete_bash tandem job sh)" "show "
    assert_contains "$(complete_bash tandem job '')" "check "
    assert_lacks "$(complete_bash tandem job '')" "--"
    assert_equal "$(complete_bash tandem nonsense --x)" " "
}

test_completion_of_other_shells() {
    assert_exit 0 "$TANDEM" help --completion zsh
    assert_equal "$(head -1 <<<"$out")" "#compdef tandem"
    printf '%s\n' "$out" >_tandem
    if command -v zsh >/dev/null; then assert_exit 0 zsh -n _tandem; fi
    assert_exit 0 "$TANDEM" help --completion fish
    printf '%s\n' "$out" >tandem.fish
    if command -v fish >/dev/null; then assert_exit 0 fish -n tandem.fish; fi
    local name
    for name in "${commands[@]}"; do
        grep -q "'$name:" _tandem || fail "zsh is not told of $name"
        grep -q -- "-a $name -d" tandem.fish || fail "fish is not told of $name"
    done
    assert_exit 2 "$TANDEM" help --completion tcsh
    assert_contains "$err" "supports bash, zsh and fish"
    assert_exit 2 "$TANDEM" help --completion
}

# Output that cannot be written is a failure, and is reported.
test_stdout_full_or_closed() {
    local words
    for words in "help" "version" "job keys" "job show job.yaml" "help --man" "train job.yaml -q"; do
        # shellcheck disable=SC2086 # several words
        assert_exit 1 full $words
        assert_contains "$err" "No space left on device"
        # shellcheck disable=SC2086
        assert_exit 1 closed $words
        assert_contains "$err" "Bad file descriptor"
    done
    assert_equal "$("$TANDEM" job keys | head -1 | wc -l)" 1 "lines through a pipe that closes early"
}
full() { "$TANDEM" "$@" >/dev/full; }
closed() { "$TANDEM" "$@" >&-; }
bare() { "$TANDEM" "$@" <&- >&- 2>&-; }

# If standard streams are closed, files must not get their descriptors and receive the output.
test_files_do_not_become_streams() {
    assert_exit 1 bare train job.yaml --set run.dir=bare --set run.log_every_steps=1
    local run=bare/tiny-1
    assert_equal "$(grep -cv '^{"step":[0-9]*,.*}$' $run/metrics.jsonl || true)" 0 "odd lines of metrics"
    assert_equal "$(grep -cv '^{"time":.*}$' $run/log.jsonl || true)" 0 "odd lines of the log"
    assert_equal "$(stat -c %s $run/lock)" 0 "bytes in the lock"
    assert_exit 0 "$TANDEM" train --resume $run
    assert_contains "$out" "nothing to do"
}

# Without a terminal: no escapes, no carriage returns.
test_plain_streams() {
    export TERM=xterm-256color
    assert_exit 0 "$TANDEM" train job.yaml --set run.dir=plain
    assert_lacks "$out$err" $'\033'
    assert_lacks "$out$err" $'\r'
    assert_exit 2 "$TANDEM" trian
    assert_lacks "$err" $'\033'
    export TERM=dumb
}

# On a terminal: colours, unless NO_COLOR is set or the terminal has none.
test_colours() {
    command -v script >/dev/null || fail "script (of bsdutils) is needed to make a terminal"
    on_terminal() { script -qec "$TANDEM trian" /dev/null </dev/null || true; }
    assert_contains "$(TERM=xterm on_terminal)" $'\033[1;31m'
    assert_contains "$(TERM=xterm NO_COLOR='' on_terminal)" $'\033[1;31m'
    assert_lacks "$(TERM=xterm NO_COLOR=1 on_terminal)" $'\033'
    assert_lacks "$(TERM=dumb on_terminal)" $'\033'
    assert_contains "$(TERM=dumb on_terminal)" "did you mean 'train'?"
    on_terminal() { script -qec "$TANDEM train job.yaml --set run.dir=coloured" /dev/null </dev/null; }
    assert_lacks "$(TERM=dumb on_terminal)" $'\033'
    [[ $(TERM=xterm NO_COLOR=1 on_terminal) != *$'\033['*([0-9;])m* ]] || fail "colours in spite of NO_COLOR"
}

run_tests "$@"
