#!/usr/bin/env bash
# Every collective over the MPI transport, as ranks of an mpirun (tests/comm/matrix_test.c), or many at once
# (tests/comm/flood_test.c).
#   matrix_mpi_test.sh PROGRAM RANKS...
set -euo pipefail
program=$1
shift
skip() {
    echo "SKIPPED: $*; tools/setup --test brings what is missing"
    exit 77
}
command -v mpirun >/dev/null || skip "mpirun is not installed, so the MPI transport is not tested"
"$program" mpi || case $? in 77) skip "the MPI transport cannot be used here" ;; esac
options=()
if mpirun --version 2>&1 | grep 'Open MPI' >/dev/null; then
    options=(--allow-run-as-root --oversubscribe --mca btl 'self,vader,tcp' --mca pml ob1)
fi
# Open MPI leaks memory: leak detection is off.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
export TANDEM_TRANSPORT=mpi TANDEM_DEADLINE=120
for ranks in "$@"; do
    timeout 300 mpirun "${options[@]}" -n "$ranks" "$program" --rank || {
        echo "FAIL with $ranks ranks"
        exit 1
    }
done
