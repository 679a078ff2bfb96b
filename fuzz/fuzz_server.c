/*
 * fuzz_server.c: any bytes as a message, an operation, a copy of a shard, or the configuration of a group of servers.
 *
 * The first byte selects the reader. What is accepted must be equal after it is written and read again, and must stay
 * within its bytes.
 */
#include "base/base.h"
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_server: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

static void try_message(const uint8_t *bytes, size_t count)
{
    tdm__server_message message;
    uint8_t head[TDM__SERVER_HEAD];
    if (!tdm__server_message_read(bytes, count, &message)) return;
    tdm__server_message_write(&message, head);
    NEED(memcmp(head, bytes, sizeof(head)) == 0, "a message has other bytes");
    NEED(message.byte_count == count - sizeof(head), "a message has another length");
}

static void try_op(const uint8_t *bytes, size_t count, uint32_t width)
{
    tdm__server_op_view op;
    if (!tdm__server_op_read(bytes, count, width, &op)) return;
    const uint8_t *end = (const uint8_t *)(op.grads + (size_t)op.head.count * width);
    NEED(end == bytes + count, "an operation does not fill its bytes");
    uint64_t sum = 0;
    for (uint32_t i = 0; i < op.head.part_count; i++) sum += op.parts[i].count;
    NEED(op.head.part_count == 0 || sum == op.head.count, "parts do not add up");
    tdm__server_registry registry = {0};
    NEED(tdm__server_registry_apply(&registry, (int)(width % 3), &op, 1), "no memory");
    tdm__server_registry_release(&registry);
}

static void try_registry(const uint8_t *bytes, size_t count)
{
    tdm__server_registry registry = {0};
    if (tdm__server_registry_load(&registry, bytes, count)) {
        tdm__blob *blob = tdm__server_registry_save(&registry);
        NEED(blob && blob->bytes == count && memcmp(blob->data, bytes, count) == 0,
             "a registry has other bytes");
        tdm__blob_release(blob);
    }
    tdm__server_registry_release(&registry);
}

static void try_copy(const uint8_t *bytes, size_t count)
{
    const tdm_server_group group = {.shards = 1,
                                    .replication = 1,
                                    .width = 2,
                                    .optim = TDM_SERVER_ADAM,
                                    .limit_bytes = UINT64_C(1) << 20};
    void *state = tdm__server_table_state.create(NULL, &group, 0, NULL);
    NEED(state, "no memory");
    (void)tdm__server_table_state.load(state, bytes, count, NULL);
    tdm__server_table_state.destroy(state);
}

static void try_config(const char *text)
{
    tdm__server_config *first = calloc(1, sizeof(*first)), *again = calloc(1, sizeof(*again));
    tdm_str written = TDM_STR_INIT, rewritten = TDM_STR_INIT;
    NEED(first && again, "no memory");
    if (tdm__server_config_read(text, first, NULL) == TDM_OK) {
        tdm__server_config_write(first, &written);
        NEED(tdm__server_config_read(tdm_str_text(&written), again, NULL) == TDM_OK,
             "a configuration cannot be read again");
        tdm__server_config_write(again, &rewritten);
        NEED(strcmp(tdm_str_text(&written), tdm_str_text(&rewritten)) == 0,
             "a configuration has another text");
        const tdm__server_request request = {.self = {.id = 1, .lease = 1}};
        (void)tdm__server_plan(first, NULL, 0, &request, again);
    }
    tdm_str_release(&written);
    tdm_str_release(&rewritten);
    free(first);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2) return 0;
    uint8_t *copy = malloc(count); /* aligned, and without a byte after it */
    NEED(copy, "no memory");
    memcpy(copy, bytes + 2, count - 2);
    switch (bytes[0] % 5) {
    case 0: try_message(copy, count - 2); break;
    case 1: try_op(copy, count - 2, bytes[1]); break;
    case 2: try_registry(copy, count - 2); break;
    case 3: try_copy(copy, count - 2); break;
    default: copy[count - 2] = '\0'; try_config((const char *)copy);
    }
    free(copy);
    return 0;
}
