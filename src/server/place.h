/*
 * place.h: where a group of servers is: its store, its secret, and its keys in the store. Shared by servers (process.c)
 * and clients (client.c).
 */
#ifndef TANDEM_SERVER_PLACE_H
#define TANDEM_SERVER_PLACE_H

#include "server/server.h"

#include <tandem/cluster.h>
#include <tandem/kv.h>

enum { TDM__SERVER_KEY_BYTES = TDM_SERVER_NAME_BYTES + 32 };

typedef struct tdm__server_place {
    tdm_kv *kv;
    bool is_local;
    double lease_s;
    char name[TDM_SERVER_NAME_BYTES], secret[TDM_SECRET_BYTES];
    char prefix[TDM__SERVER_KEY_BYTES], config_key[TDM__SERVER_KEY_BYTES],
        record_prefix[TDM__SERVER_KEY_BYTES];
} tdm__server_place;

/* `creates`: a server, which may create the store and the file of the secret. */
tdm_status tdm__server_place_open(const tdm_server_place *given, bool creates,
                                  tdm__server_place *out, tdm_error *err);
void tdm__server_place_close(tdm__server_place *place);
/* Reads the configuration. TDM_ERR_NOT_FOUND: the group does not exist. */
tdm_status tdm__server_place_read(tdm__server_place *place, tdm__server_config *out,
                                  uint64_t *out_revision, tdm_error *err);

#endif
