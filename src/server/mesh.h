/*
 * mesh.h: connections between the processes of a group of servers.
 *
 * A process has an id and opens connections to servers by id when it sends something. Both sides of a connection prove
 * that they know the group's secret, with the frames of the control connection (boot/control_wire.h), before anything
 * else is read; between hosts it is encrypted. Messages may be lost when a connection ends, which `lost` reports. Used
 * by one thread.
 */
#ifndef TANDEM_SERVER_MESH_H
#define TANDEM_SERVER_MESH_H

#include "os/loop.h"
#include "server/server.h"

#include <tandem/comm.h>

typedef struct tdm__mesh tdm__mesh;

typedef struct tdm__mesh_options {
    uint64_t id;
    const char *name, *secret; /* copied */
    tdm__loop *loop;
    void *user;
    void (*message)(void *user, uint64_t from, const tdm__server_message *message);
    /* An established connection has ended. */
    void (*lost)(void *user, uint64_t id);
    /* Writes the address of a server. False: it is not known. */
    bool (*address)(void *user, uint64_t id, char out[TDM__SERVER_ADDRESS_BYTES]);
} tdm__mesh_options;

tdm_status tdm__mesh_create(const tdm__mesh_options *options, tdm__mesh **out, tdm_error *err);
void tdm__mesh_destroy(tdm__mesh *mesh); /* accepts NULL */
/* Accepts connections at "HOST:PORT" (port 0: any free one); NULL: at a UNIX socket. Writes the address for the
 * others. */
tdm_status tdm__mesh_listen(tdm__mesh *mesh, const char *at, char out[TDM__SERVER_ADDRESS_BYTES],
                            tdm_error *err);
void tdm__mesh_send(tdm__mesh *mesh, uint64_t to, const tdm__server_message *message);
bool tdm__mesh_is_connected(const tdm__mesh *mesh, uint64_t id);
/* Why the last connection to a server failed; empty: it did not. */
const char *tdm__mesh_problem(const tdm__mesh *mesh, uint64_t id);
/* Sends what is queued, and closes connections that are too late or over. After each turn of the loop. */
void tdm__mesh_tick(tdm__mesh *mesh);

#endif
