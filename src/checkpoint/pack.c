/*
 * pack.c: compresses and decompresses files with zstd.
 *
 * A compressed file is a sequence of zstd frames, each with a mebibyte of the plain file and a
 * checksum; the `zstd` program decompresses it to the plain file, byte for byte. Frames are
 * independent, so several threads work in both directions. The bytes depend on the library's
 * version only.
 *
 * The input of decompression is hostile. The end and the size of each frame are read from its
 * blocks before memory is mapped. No frame may claim more than its blocks can contain, and all
 * frames together must fit into memory. The header can be decompressed alone, so a file whose
 * header contradicts its length costs no more than that. Frames of other programs are accepted if
 * they state their size; skippable frames are skipped.
 */
#include "base/base.h"
#include "checkpoint/internal.h"
#include "os/os.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TDM__WITH_ZSTD
#include <zstd.h>
#endif

#define PACKED_SUFFIX ".zst"
enum { MAGIC_BYTES = 4 };

bool tdm__is_packed_name(const char *path)
{
    size_t length = strlen(path), suffix = strlen(PACKED_SUFFIX);
    return length > suffix && strcmp(path + length - suffix, PACKED_SUFFIX) == 0;
}

bool tdm__is_packed(const void *bytes, size_t count)
{
    static const uint8_t magic[MAGIC_BYTES] = {0x28, 0xb5, 0x2f, 0xfd};
    return count >= MAGIC_BYTES && memcmp(bytes, magic, MAGIC_BYTES) == 0;
}

#ifndef TDM__WITH_ZSTD

static tdm_status without_zstd(const char *path, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                    "%s: this build is without zstd; install libzstd-dev and build again, or "
                    "decompress the file with 'zstd -d'",
                    path);
}

tdm_status tdm__pack_usable(const char *path, tdm_error *err)
{
    return without_zstd(path, err);
}

tdm_status tdm__pack(const void *bytes, size_t count, tdm_file_writer *out, tdm_error *err)
{
    (void)bytes;
    (void)count;
    (void)out;
    return without_zstd("packing", err);
}

tdm_status tdm__unpack_open(const void *bytes, size_t count, const char *name, tdm__unpacking **out,
                            tdm_error *err)
{
    (void)bytes;
    (void)count;
    (void)out;
    return without_zstd(name, err);
}

size_t tdm__unpack_size(const tdm__unpacking *u)
{
    (void)u;
    return 0;
}

const uint8_t *tdm__unpack_data(const tdm__unpacking *u)
{
    (void)u;
    return NULL;
}

tdm_status tdm__unpack_head(tdm__unpacking *u, size_t bytes, tdm_error *err)
{
    (void)u;
    (void)bytes;
    return without_zstd("unpacking", err);
}

tdm_status tdm__unpack_rest(tdm__unpacking *u, tdm_pages *out, tdm_error *err)
{
    (void)u;
    (void)out;
    return without_zstd("unpacking", err);
}

void tdm__unpack_close(tdm__unpacking *u)
{
    (void)u;
}

bool tdm_checkpoint_packs(char library[TDM_LIBRARY_BYTES])
{
    library[0] = '\0';
    return false;
}

#else

enum {
    FRAME_BYTES = 1 << 20, /* of the plain file */
    BATCH_FRAMES = 16,     /* compressed before they are written, in order */
    MAX_BLOCK = 128 << 10,
    MIN_BLOCK = 3, /* the minimum size of a block in the compressed file */
    LEVEL = 1      /* parameters look random: a higher level saves little */
};

bool tdm_checkpoint_packs(char library[TDM_LIBRARY_BYTES])
{
    snprintf(library, TDM_LIBRARY_BYTES, "zstd %s", ZSTD_versionString());
    return true;
}

tdm_status tdm__pack_usable(const char *path, tdm_error *err)
{
    (void)path;
    (void)err;
    return TDM_OK;
}

/* ---- packing ----------------------------------------------------------------------------------- */

typedef struct packing {
    const uint8_t *bytes;
    size_t count;
    size_t first; /* frame of the batch */
    size_t bound; /* of a compressed frame */
    uint8_t *packed;
    size_t sizes[BATCH_FRAMES]; /* or a zstd error; 0: out of memory */
} packing;

static void pack_frame(void *user, size_t index)
{
    packing *p = user;
    size_t at = (p->first + index) * FRAME_BYTES;
    size_t bytes = p->count - at < FRAME_BYTES ? p->count - at : FRAME_BYTES;
    ZSTD_CCtx *context = ZSTD_createCCtx();
    size_t size = 0;
    if (context) {
        ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, LEVEL);
        ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
        size = ZSTD_compress2(context, p->packed + index * p->bound, p->bound, p->bytes + at,
                              bytes);
    }
    ZSTD_freeCCtx(context);
    p->sizes[index] = size;
}

static tdm_status write_batch(const packing *p, size_t frames, tdm_file_writer *out, tdm_error *err)
{
    for (size_t i = 0; i < frames; i++) {
        if (p->sizes[i] == 0 || ZSTD_isError(p->sizes[i])) {
            return tdm_fail(err, TDM_ERR_NO_MEMORY, "zstd compression failed: %s",
                            p->sizes[i] ? ZSTD_getErrorName(p->sizes[i]) : "out of memory");
        }
        TDM_TRY(tdm_file_writer_write(out, p->packed + i * p->bound, p->sizes[i], err));
    }
    return TDM_OK;
}

tdm_status tdm__pack(const void *bytes, size_t count, tdm_file_writer *out, tdm_error *err)
{
    packing p = {.bytes = bytes, .count = count, .bound = ZSTD_compressBound(FRAME_BYTES)};
    size_t frames = count / FRAME_BYTES + (count % FRAME_BYTES != 0);
    p.packed = malloc(p.bound * BATCH_FRAMES);
    if (!p.packed) return tdm_fail_oom(err, "to pack a file");
    tdm_status status = TDM_OK;
    for (; p.first < frames && status == TDM_OK; p.first += BATCH_FRAMES) {
        size_t some = frames - p.first < BATCH_FRAMES ? frames - p.first : BATCH_FRAMES;
        tdm__spread(some, (uint64_t)some * FRAME_BYTES, pack_frame, &p);
        status = write_batch(&p, some, out, err);
    }
    free(p.packed);
    return status;
}

/* ---- unpacking --------------------------------------------------------------------------------- */

typedef struct frame {
    size_t from, packed; /* in the compressed file */
    size_t to, plain;
} frame;

struct tdm__unpacking {
    const char *name;
    const uint8_t *bytes;
    size_t count;
    tdm_pages pages;
    frame *frames;
    size_t frame_count, plain;
    _Atomic size_t
        bad; /* index of the first frame that could not be decompressed, plus 1; 0: none */
};

/* Reads the frame at `at`. *plain is 0 for a frame to be skipped. */
static tdm_status look_at(const uint8_t *bytes, size_t count, size_t at, const char *name,
                          size_t *packed, size_t *plain, tdm_error *err)
{
    size_t size = ZSTD_findFrameCompressedSize(bytes + at, count - at);
    if (ZSTD_isError(size) || size == 0 || size > count - at) {
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the compressed data is truncated or damaged in the frame at byte %zu",
                        name, at);
    }
    unsigned long long content = ZSTD_getFrameContentSize(bytes + at, size);
    if (content == ZSTD_CONTENTSIZE_UNKNOWN) {
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: the frame at byte %zu does not contain its size; decompress the "
                        "file with 'zstd -d'",
                        name, at);
    }
    if (content == ZSTD_CONTENTSIZE_ERROR || content / MAX_BLOCK > size / MIN_BLOCK) {
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the frame at byte %zu claims more than its %zu bytes can hold", name,
                        at, size);
    }
    *packed = size;
    *plain = (size_t)content;
    return TDM_OK;
}

static tdm_status find_frames(const uint8_t *bytes, size_t count, const char *name, frame **out,
                              size_t *out_count, size_t *out_plain, tdm_error *err)
{
    size_t room = 0, n = 0, total = 0, packed = 0, plain = 0;
    frame *frames = NULL;
    for (size_t at = 0; at < count; at += packed) {
        tdm_status status = look_at(bytes, count, at, name, &packed, &plain, err);
        if (status == TDM_OK && n == room) {
            room = 2 * room + 16;
            frame *more = realloc(frames, room * sizeof(*frames));
            if (more) frames = more;
            if (!more) status = tdm_fail_oom(err, "for %s", name);
        }
        if (status == TDM_OK && __builtin_add_overflow(total, plain, &total)) {
            status = tdm_fail(err, TDM_ERR_FORMAT, "%s: its frames claim too many bytes", name);
        }
        if (status != TDM_OK) {
            free(frames);
            return status;
        }
        if (plain > 0) frames[n++] = (frame){at, packed, total - plain, plain};
    }
    *out = frames;
    *out_count = n;
    *out_plain = total;
    return TDM_OK;
}

/* A few bytes can decompress to very many, so a size that exceeds the memory is rejected first. */
static tdm_status check_room(const tdm__unpacking *u, tdm_error *err)
{
    tdm_memory_info memory = {0};
    tdm_os_memory_info(&memory);
    if (memory.available_bytes == 0 || u->plain <= memory.available_bytes) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NO_MEMORY,
                    "%s: its %zu bytes decompress to %zu, but only %llu bytes of memory are "
                    "free; decompress the file with 'zstd -d'",
                    u->name, u->count, u->plain, (unsigned long long)memory.available_bytes);
}

tdm_status tdm__unpack_open(const void *bytes, size_t count, const char *name, tdm__unpacking **out,
                            tdm_error *err)
{
    tdm__unpacking *u = calloc(1, sizeof(*u));
    if (!u) return tdm_fail_oom(err, "for %s", name);
    u->name = name;
    u->bytes = bytes;
    u->count = count;
    tdm_status status = find_frames(bytes, count, name, &u->frames, &u->frame_count, &u->plain,
                                    err);
    if (status == TDM_OK) status = check_room(u, err);
    if (status == TDM_OK) {
        status = tdm_pages_reserve(u->plain > 0 ? u->plain : 1, &u->pages, err);
        if (status != TDM_OK) tdm_error_context(err, status, "%s: unpacking", name);
    }
    if (status != TDM_OK) {
        tdm__unpack_close(u);
        return status;
    }
    *out = u;
    return TDM_OK;
}

size_t tdm__unpack_size(const tdm__unpacking *u)
{
    return u->plain;
}

const uint8_t *tdm__unpack_data(const tdm__unpacking *u)
{
    return u->pages.data;
}

tdm_status tdm__unpack_head(tdm__unpacking *u, size_t bytes, tdm_error *err)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_outBuffer to = {u->pages.data, bytes < u->plain ? bytes : u->plain, 0};
    ZSTD_inBuffer from = {u->bytes, u->count, 0};
    size_t left = 0;
    while (stream && to.pos < to.size && from.pos < from.size && !ZSTD_isError(left))
        left = ZSTD_decompressStream(stream, &to, &from);
    ZSTD_freeDStream(stream);
    if (!stream) return tdm_fail_oom(err, "for %s", u->name);
    if (to.pos == to.size) return TDM_OK;
    return tdm_fail(err, TDM_ERR_CHECKSUM,
                    "%s: its first bytes cannot be decompressed: the file was damaged or changed; "
                    "remove it and resume from an older checkpoint",
                    u->name);
}

static void unpack_frame(void *user, size_t index)
{
    tdm__unpacking *u = user;
    const frame *f = &u->frames[index];
    uint8_t *to = (uint8_t *)u->pages.data + f->to;
    size_t size = ZSTD_decompress(to, f->plain, u->bytes + f->from, f->packed);
    if (!ZSTD_isError(size) && size == f->plain) return;
    size_t before = 0;
    atomic_compare_exchange_strong(&u->bad, &before, index + 1);
}

tdm_status tdm__unpack_rest(tdm__unpacking *u, tdm_pages *out, tdm_error *err)
{
    tdm__spread(u->frame_count, u->plain, unpack_frame, u);
    size_t bad = atomic_load(&u->bad);
    if (bad > 0)
        return tdm_fail(err, TDM_ERR_CHECKSUM,
                        "%s: the frame at byte %zu cannot be decompressed: the file was damaged or "
                        "changed; remove it and resume from an older checkpoint",
                        u->name, u->frames[bad - 1].from);
    *out = u->pages;
    u->pages = (tdm_pages){0};
    return TDM_OK;
}

void tdm__unpack_close(tdm__unpacking *u)
{
    if (!u) return;
    tdm_pages_unmap(&u->pages);
    free(u->frames);
    free(u);
}

#endif
