/*
 * late_program.c: a world in which the last rank is late for a call: it first waits, at most two minutes, for
 * the file that the argument names. For the test of `tandem trace` on ranks that hang.
 */
#include <tandem/comm.h>
#include <tandem/trace.h>

#include <stdio.h>
#include <unistd.h>

static tdm_status meet(tdm_comm *comm, const char *file, tdm_error *err)
{
    static float numbers[100000];
    tdm_group *world = tdm_comm_world(comm);
    for (int i = 0; i <= 17; i++) {
        if (i == 17 && tdm_comm_rank(comm) == tdm_comm_size(comm) - 1) {
            tdm_comm_mark(comm, "asleep", 0);
            for (int k = 0; k < 2400 && access(file, F_OK) != 0; k++) usleep(50000);
        }
        TDM_TRY(
            tdm_group_all_reduce(world, NULL, numbers, 100000, TDM_DTYPE_F32, TDM_REDUCE_SUM, err));
    }
    return TDM_OK;
}

int main(int argc, char **argv)
{
    tdm_comm *comm = NULL;
    tdm_error err;
    tdm_comm_options options = {.deadline_s = 120};
    tdm_status status = tdm_comm_open(&options, &comm, &err);
    if (status == TDM_OK) status = meet(comm, argc > 1 ? argv[1] : "go", &err);
    if (status != TDM_OK) fprintf(stderr, "%s\n", err.message);
    tdm_comm_close(comm);
    return status == TDM_OK ? 0 : 1;
}
