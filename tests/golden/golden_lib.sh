# shellcheck shell=bash
# golden_lib.sh: the data and jobs of the golden training runs in the current directory, and the program; to
# be sourced after tests/cli/lib.sh.

# tandem ARGUMENTS...: the binary, under GOLDEN_RUNNER where that is set.
tandem() {
    # shellcheck disable=SC2086 # several words
    timeout -k 5 600 ${GOLDEN_RUNNER:-} "$TANDEM" "$@"
}

# golden_begin: jobs and data; removes variables of the environment that affect kernels.
golden_begin() {
    unset TANDEM_ISA GLIBC_TUNABLES
    local golden
    golden=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
    cp "$golden"/jobs/*.yaml .
    awk -f "$golden/data.awk"
    sha256sum --quiet -c "$golden/data.sha256" ||
        fail "this system's awk writes other data: see data.awk"
}
