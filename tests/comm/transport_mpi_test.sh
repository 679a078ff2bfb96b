#!/usr/bin/env bash
# Random traffic over the MPI transport, as 2, 3 and 5 ranks of an mpirun (tests/comm/transport_test.c).
#   transport_mpi_test.sh COMM_TRANSPORT
set -euo pipefail
program=$1
skip() {
    echo "SKIPPED: $*; tools/setup --test brings what is missing"
    exit 77
}
command -v mpirun >/dev/null || skip "mpirun is not installed, so the MPI transport is not tested"
"$program" --has-mpi || skip "built without MPI, or with a sanitizer that MPI does not pass, so its transport is not tested"
# Open MPI rejects root and more ranks than cores without these options; MPICH does not have them.
options=()
if mpirun --version 2>&1 | grep 'Open MPI' >/dev/null; then
    options=(--allow-run-as-root --oversubscribe --mca btl 'self,vader,tcp' --mca pml ob1)
fi
for ranks in 2 3 5; do
    timeout 100 mpirun "${options[@]}" -n "$ranks" "$program" --under-mpi "$((1000 + ranks))" || {
        echo "FAIL with $ranks ranks"
        exit 1
    }
    echo "ok   traffic between $ranks ranks"
done
# Ranks that MPI did not start get an error about that, and no rank waits forever.
output=$(timeout 60 "$program" --under-mpi-as 1 2 2>&1) && {
    echo "FAIL: a world that MPI does not know was made"
    exit 1
}
case $output in
*"MPI started 1 ranks, but this world has 2"*) echo "ok   a world that MPI does not know" ;;
*)
    echo "FAIL: $output"
    exit 1
    ;;
esac
