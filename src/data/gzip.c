/*
 * gzip.c: decompresses .gz files, before a format reads them.
 *
 * A file may contain several members one after another, as `cat a.gz b.gz` makes them, and padding
 * with zero bytes at the end, as gzip allows; anything else after a member is an error. The output
 * grows while it is produced, up to the limit, whatever size the file claims. So a small file
 * cannot cause a large allocation without the bytes to fill it.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define FIRST_BLOCK_BYTES (UINT64_C(64) << 10)
#define CHUNK_BYTES (UINT32_C(1) << 30) /* zlib has 32-bit counters */

typedef struct unpacker {
    const char *name;
    const uint8_t *input;
    size_t input_count;
    size_t input_used;
    uint64_t limit_bytes;
    uint8_t *output;
    size_t output_count;
    size_t output_capacity;
    z_stream stream;
} unpacker;

const char *tdm_data_library(char buffer[TDM_LIBRARY_BYTES])
{
    snprintf(buffer, TDM_LIBRARY_BYTES, "zlib %s", zlibVersion());
    return buffer;
}

bool tdm__gzip_sniff(const uint8_t *bytes, size_t count)
{
    return count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static tdm_status output_grow(unpacker *u, tdm_error *err)
{
    if (u->output_capacity >= u->limit_bytes) {
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%s: decompresses to more than the limit of %llu bytes; check the file, "
                        "or split it",
                        u->name, (unsigned long long)u->limit_bytes);
    }
    uint64_t wanted = u->output_capacity ? (uint64_t)u->output_capacity * 2 : FIRST_BLOCK_BYTES;
    if (wanted > u->limit_bytes) wanted = u->limit_bytes;
    uint8_t *block = wanted <= SIZE_MAX ? realloc(u->output, (size_t)wanted) : NULL;
    if (!block)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory to decompress %llu bytes", u->name,
                        (unsigned long long)wanted);
    u->output = block;
    u->output_capacity = (size_t)wanted;
    return TDM_OK;
}

static tdm_status fail_truncated(const unpacker *u, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: the gzip file is truncated after %zu bytes (%zu decompressed); download "
                    "it again",
                    u->name, u->input_count, u->output_count);
}

/* If the output is exactly as long as the limit, inflate must still read a trailer: it gets one
 * spare byte. If that byte is written, the limit is exceeded. */
static tdm_status inflate_some(unpacker *u, int *out_code, tdm_error *err)
{
    uint8_t spare;
    bool full = u->output_count == u->output_capacity;
    if (full && u->output_capacity < u->limit_bytes) {
        TDM_TRY(output_grow(u, err));
        full = false;
    }
    size_t input_left = u->input_count - u->input_used;
    size_t output_left = u->output_capacity - u->output_count;
    u->stream.next_in = (Bytef *)(uintptr_t)(u->input + u->input_used);
    u->stream.avail_in = input_left < CHUNK_BYTES ? (uInt)input_left : CHUNK_BYTES;
    u->stream.next_out = full ? &spare : u->output + u->output_count;
    u->stream.avail_out = full ? 1 : output_left < CHUNK_BYTES ? (uInt)output_left : CHUNK_BYTES;
    uInt offered_in = u->stream.avail_in;
    uInt offered_out = u->stream.avail_out;

    int code = inflate(&u->stream, Z_NO_FLUSH);
    size_t taken = offered_in - u->stream.avail_in;
    size_t made = offered_out - u->stream.avail_out;
    u->input_used += taken;
    if (full && made > 0) return output_grow(u, err); /* reports that the limit is exceeded */
    u->output_count += made;

    if (code == Z_MEM_ERROR) return tdm_fail_oom(err, "to decompress (%s)", u->name);
    if (code == Z_BUF_ERROR || (code == Z_OK && taken == 0 && made == 0))
        return fail_truncated(u,
                              err); /* no progress although there is space: the input has ended */
    if (code != Z_OK && code != Z_STREAM_END)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the gzip file is damaged near byte %zu (%s); download it again",
                        u->name, u->input_used, u->stream.msg ? u->stream.msg : "bad data");
    *out_code = code;
    return TDM_OK;
}

/* Reads what follows a member: another member, zero padding up to the end, or the end. */
static tdm_status next_member(unpacker *u, bool *out_more, tdm_error *err)
{
    const uint8_t *rest = u->input + u->input_used;
    size_t rest_count = u->input_count - u->input_used;
    if (rest_count > 0 && rest[0] == 0x1f && (rest_count == 1 || rest[1] == 0x8b)) {
        *out_more = true;
        return TDM_OK;
    }
    for (size_t i = 0; i < rest_count; i++) {
        if (rest[i] == 0) continue;
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: %zu bytes follow the end of the gzip data at byte %zu, and they are "
                        "not gzip; the file is damaged",
                        u->name, rest_count, u->input_used);
    }
    *out_more = false;
    return TDM_OK;
}

static tdm_status unpack_members(unpacker *u, tdm_error *err)
{
    bool more = true;
    while (more) {
        int code = Z_OK;
        while (code != Z_STREAM_END) TDM_TRY(inflate_some(u, &code, err));
        TDM_TRY(next_member(u, &more, err));
        if (more && inflateReset(&u->stream) != Z_OK)
            return tdm_fail(err, TDM_ERR_INTERNAL, "%s: zlib cannot be reset", u->name);
    }
    return TDM_OK;
}

tdm_status tdm__gzip_unpack(const char *name, const uint8_t *bytes, size_t count,
                            uint64_t limit_bytes, uint8_t **out_bytes, size_t *out_count,
                            tdm_error *err)
{
    unpacker u = {.name = name, .input = bytes, .input_count = count, .limit_bytes = limit_bytes};
    if (inflateInit2(&u.stream, 15 + 16) != Z_OK)
        return tdm_fail_oom(err, "to decompress (%s)", name);
    tdm_status status = output_grow(&u, err);
    if (status == TDM_OK) status = unpack_members(&u, err);
    inflateEnd(&u.stream);
    if (status != TDM_OK) {
        free(u.output);
        return status;
    }
    *out_bytes = u.output;
    *out_count = u.output_count;
    return TDM_OK;
}
