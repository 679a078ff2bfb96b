/*
 * fuzz_etcd.c: any bytes as a response of etcd.
 *
 * The first byte selects the request. An accepted response must be valid: keys in order and within the
 * store's limits, revisions, valid and printable texts. A rejected one must give an error message and leave
 * the outputs unchanged.
 */
#include "base/base.h"
#include "kv/kv_etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_etcd: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

static void check_refused(tdm_status status, const tdm_error *err)
{
    NEED(err->status == status && err->message[0], "a failure without a message");
    NEED(status == TDM_ERR_FORMAT || status == TDM_ERR_NO_MEMORY, "another kind of failure");
}

static void check_words(const char *words)
{
    size_t length = strnlen(words, TDM__ETCD_MESSAGE_BYTES);
    NEED(length < TDM__ETCD_MESSAGE_BYTES, "words without an end");
    for (size_t at = 0; at < length;) {
        size_t one = tdm_text_utf8(words + at, length - at, NULL);
        NEED(one > 0 && (unsigned char)words[at] >= ' ' && words[at] != 0x7f, "words not to show");
        at += one;
    }
}

static void items(tdm__etcd_bytes in, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("fuzz");
    if (!arena) return;
    tdm_kv_item *out = NULL;
    size_t count = 77;
    uint64_t revision = 0;
    tdm_status status = tdm__etcd_read_items(in, arena, &out, &count, &revision, err);
    if (status != TDM_OK) {
        check_refused(status, err);
        NEED(out == NULL && count == 77 && revision == 0, "a failure with an output");
    }
    for (size_t i = 0; status == TDM_OK && i < count; i++) {
        size_t key = strnlen(out[i].key, TDM_KV_KEY_BYTES);
        NEED(key > 0 && key < TDM_KV_KEY_BYTES, "a key beyond the limits");
        NEED(strnlen(out[i].value, TDM_KV_VALUE_BYTES) < TDM_KV_VALUE_BYTES, "a value beyond them");
        NEED(out[i].revision > 0, "no revision");
        NEED(i == 0 || strcmp(out[i - 1].key, out[i].key) < 0, "keys out of order");
        /* A request for this key must be valid JSON that contains the same key. */
        tdm_str request = TDM_STR_INIT;
        tdm__etcd_write_put(out[i].key, out[i].value, out[i].lease, &request);
        NEED(!tdm_str_ok(&request) || strchr(request.data, '}'), "no request");
        tdm_str_release(&request);
    }
    tdm_arena_destroy(arena);
}

static void notice(tdm__etcd_bytes in, tdm_error *err)
{
    tdm__etcd_watch_response out = {.revision = 77};
    tdm_status status = tdm__etcd_read_watch(in, &out, err);
    if (status != TDM_OK) {
        check_refused(status, err);
        NEED(out.revision == 77, "a failure with an output");
        return;
    }
    NEED(out.event != TDM__ETCD_EVENT_CHANGED || out.revision > 0, "a change without a revision");
    if (out.event == TDM__ETCD_EVENT_ENDED) check_words(out.why.message);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 1) return 0;
    tdm_error err = {0};
    tdm__etcd_bytes in = {
        .data = (const char *)bytes + 1, .count = count - 1, .scratch = tdm_arena_create("fuzz")};
    if (!in.scratch) return 0;
    uint64_t number = 0, seconds = 0;
    bool swapped = false;
    char token[TDM__ETCD_TOKEN_BYTES] = "";
    tdm__etcd_error error = {0};
    tdm_status status = TDM_OK;
    switch (bytes[0] % 7) {
    case 0: items(in, &err); break;
    case 1: notice(in, &err); break;
    case 2:
        status = tdm__etcd_read_swap(in, &swapped, &number, &err);
        NEED(status != TDM_OK || number > 0, "no revision");
        break;
    case 3:
        status = tdm__etcd_read_lease(in, &number, &seconds, &err);
        NEED(status != TDM_OK || number > 0, "no lease");
        break;
    case 4:
        status = tdm__etcd_read_token(in, token, &err);
        NEED(strnlen(token, sizeof(token)) < sizeof(token) && !strpbrk(token, "\r\n "), "no token");
        break;
    case 5: status = tdm__etcd_read_done(in, &err); break;
    default:
        status = tdm__etcd_read_error(in, &error, &err);
        if (status == TDM_OK) check_words(error.message);
    }
    if (status != TDM_OK) check_refused(status, &err);
    tdm_arena_destroy(in.scratch);
    return 0;
}
