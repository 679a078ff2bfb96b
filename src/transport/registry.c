/*
 * registry.c: the list of transports, for open.c and `tandem doctor`.
 *
 * shm and tcp are built in; ucx and mpi are plugins, which are opened on first use.
 */
#include "transport/registry.h"
#include "transport/plugin.h"
#include "transport/shm.h"
#include "transport/tcp.h"

#include <stdio.h>
#include <string.h>

typedef struct transport_row {
    const char *name;
    const char *about;
    const tdm__transport_ops *ops; /* NULL: a module */
} transport_row;

static const transport_row rows[] = {
    {"shm", "ranks of one host, through shared memory", &tdm__transport_shm},
    {"tcp", "ranks of any hosts, over TCP, encrypted between hosts", &tdm__transport_tcp},
    {"ucx", "ranks of any hosts, over the networks that UCX finds: TCP, RDMA", NULL},
    {"mpi", "ranks started by mpirun or srun, over MPI", NULL},
};
enum { ROW_COUNT = sizeof(rows) / sizeof(rows[0]) };

tdm_status tdm__transport_find(const char *name, const tdm__transport_ops **out, tdm_error *err)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        if (!rows[i].ops) return tdm__module_find(name, out, err);
        *out = rows[i].ops;
        return TDM_OK;
    }
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "unknown transport \"%s\"; expected auto, shm, tcp, ucx, mpi, or shm+tcp, "
                    "shm+ucx or shm+mpi (the first within hosts, the second between them)",
                    name);
}

bool tdm_transport_at(size_t index, tdm_transport_info *out)
{
    if (index > ROW_COUNT) return false;
    if (index == ROW_COUNT) {
        *out = (tdm_transport_info){.name = "sim",
                                    .about = "thousands of ranks in one process, in virtual time",
                                    .usable = true};
        return true;
    }
    const transport_row *row = &rows[index];
    *out = (tdm_transport_info){.name = row->name, .about = row->about};
    const tdm__transport_ops *ops = row->ops;
    tdm_error error;
    if (!ops && tdm__module_find(row->name, &ops, &error) != TDM_OK)
        snprintf(out->why, sizeof(out->why), "%.*s", (int)sizeof(out->why) - 1, error.message);
    else
        out->usable = ops->usable(out->why, out->library);
    return true;
}
