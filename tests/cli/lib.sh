# shellcheck shell=bash
# lib.sh: shared by the tests of the command line; to be sourced.
#
# $TANDEM is the program. Each test gets a directory, $work, which is the current directory and is removed at
# the end, and starts with HOME, TERM and colours as in a batch job. A failed check prints its position and
# ends the test; a test that cannot run here exits with 77, which CTest reports as skipped. Workers and agents
# outlive their launcher: so each test has a separate runtime directory, and at the end all processes with
# that directory in their environment are killed, as are the remaining jobs of the shell.
set -euo pipefail

# shellcheck disable=SC2034 # for the tests
source_root=$PWD script=$(realpath "$0")
: "${TANDEM:?set TANDEM to the tandem binary}"
TANDEM=$(realpath "$TANDEM")
# A program with a sanitizer is slow: tests run fewer processes then.
# shellcheck disable=SC2034 # for the tests
if grep -qE '__(asan|tsan)_init' "$TANDEM"; then slow=1; else slow=0; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-cli.XXXXXX")
unset NO_COLOR
export TERM=dumb LC_ALL=C TANDEM_RUNTIME=$work/.runtime

# The processes that this test started, according to their environment: launchers, agents, workers.
test_processes() (
    directory=$TANDEM_RUNTIME
    unset TANDEM_RUNTIME # so that it does not find this test's own
    grep -lzFx "TANDEM_RUNTIME=$directory" /proc/[0-9]*/environ 2>/dev/null | tr -cd '0-9\n'
)

# is_gone PID: it has ended. A killed process loses its environment long before it has released its locks and
# connections; once it is a zombie, or does not exist, it has released them.
is_gone() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    [[ ${stat##*) } == [ZX]* ]]
}
all_gone() {
    local pid
    for pid in "$@"; do is_gone "$pid" || return 1; done
}

# The agent of a killed worker restarts it at once, and a process that is just being started is not found: so
# repeat until none is found twice.
end_sessions() {
    local pids found=() quiet=0 i
    for ((i = 0; i < 1500; i++)); do
        mapfile -t pids < <(test_processes || true)
        if [ "${#pids[@]}" -gt 0 ]; then
            found+=("${pids[@]}")
            kill -9 "${pids[@]}" 2>/dev/null || true
            quiet=0
        elif all_gone "${found[@]}"; then
            quiet=$((quiet + 1))
            [ $quiet -lt 2 ] || return 0
        fi
        sleep 0.02
    done
    printf 'these processes do not die: %s\n' "${found[*]}" >&2
}

leave() {
    local code=$? pid
    if declare -F clean_up >/dev/null; then clean_up; fi # of the test, if it has one
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
    end_sessions
    cd /
    rm -rf "$work"
    exit "$code"
}
trap leave EXIT
cd "$work"

# The position in the test: the line that called the check.
fail() {
    local i
    printf 'FAIL: %s\n' "$*" >&2
    for ((i = 1; i < ${#FUNCNAME[@]}; i++)); do
        printf '  at %s:%s\n' "${BASH_SOURCE[i]}" "${BASH_LINENO[i - 1]}" >&2
    done
    exit 1
}

skip() {
    printf 'SKIPPED: %s\n' "$*" >&2
    exit 77
}

# assert_equal ACTUAL EXPECTED [WHAT]
assert_equal() {
    [ "$1" = "$2" ] || fail "${3:-value} is
  $1
not
  $2"
}

# assert_contains TEXT PART
assert_contains() {
    case $1 in
    *"$2"*) ;;
    *) fail "the text
$1
does not contain
  $2" ;;
    esac
}

assert_lacks() {
    case $1 in
    *"$2"*) fail "the text
$1
contains
  $2" ;;
    esac
}

# assert_exit CODE COMMAND...: runs it; $out and $err have what it printed.
assert_exit() {
    local want=$1 code=0
    shift
    "$@" >"$work/.out" 2>"$work/.err" || code=$?
    out=$(cat "$work/.out") err=$(cat "$work/.err")
    [ "$code" -eq "$want" ] || fail "'$*' ended with $code, not $want; it printed
$out
$err"
}

# assert_same_files A B [WHAT]
assert_same_files() {
    cmp -s "$1" "$2" || fail "${3:-$1} differs from $2: $(diff "$1" "$2" | head -20)"
}

# The value of KEY in one line of JSON that has no nesting: json_value KEY < file
json_value() {
    sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^\",}]*\\).*/\\1/p"
}
