/*
 * state_hash.c: the hash of a state, by chunks.
 *
 * Each tensor is cut into chunks of a mebibyte. Each chunk has a SHA-256, so any threads or
 * processes can hash chunks in any order. The hash of the state covers the position, the name, type
 * and shape of each tensor, and the digests of its chunks in hexadecimal, with tensors in order of
 * name. Every field is preceded by its length, has a fixed width, or is a number of digests that
 * follows from the shape: two different states cannot produce the same input.
 *
 * Files of format 1 have one hash over all bytes. It is kept for reading them.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef char digest[TDM_SHA256_HEX]; /* empty: not known yet */

struct tdm_state_hasher {
    tdm_position position;
    const tdm_named_tensor **sorted;
    size_t *order;
    size_t count;  /* of tensors */
    size_t *first; /* the first chunk of each tensor, in order of name; count + 1 entries */
    digest *digests;
    /* The position of push: */
    size_t at, offset; /* the tensor, and the number of its bytes that were pushed */
    tdm_sha256 *open;  /* of the current chunk; NULL: none */
};

/* ---- chunks ---------------------------------------------------------------------------------- */

static size_t chunks_of(const tdm_named_tensor *item)
{
    size_t bytes = tdm_tensor_bytes(&item->tensor);
    return bytes / TDM_STATE_CHUNK_BYTES + (bytes % TDM_STATE_CHUNK_BYTES != 0);
}

static size_t chunk_bytes(const tdm_named_tensor *item, size_t offset)
{
    size_t left = tdm_tensor_bytes(&item->tensor) - offset;
    return left < TDM_STATE_CHUNK_BYTES ? left : TDM_STATE_CHUNK_BYTES;
}

static tdm_status fill_chunks(const tdm_named_tensor *tensors,
                              const tdm_named_tensor *const *sorted, size_t tensor_count,
                              tdm_arena *arena, tdm_state_chunk **out, size_t *out_count,
                              tdm_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < tensor_count; i++) count += chunks_of(sorted[i]);
    tdm_state_chunk *chunks = tdm_arena_array(arena, count + 1, sizeof(*chunks));
    uint64_t *begin = tdm_arena_array(arena, tensor_count + 1, sizeof(*begin));
    if (!chunks || !begin) {
        return tdm_fail_oom(err, "for %zu chunks of a state", count);
    }
    TDM_TRY(tdm__tensors_place(sorted, tensor_count, begin, err));
    size_t n = 0;
    for (size_t i = 0; i < tensor_count; i++) {
        size_t bytes = tdm_tensor_bytes(&sorted[i]->tensor);
        for (size_t at = 0; at < bytes; at += TDM_STATE_CHUNK_BYTES) {
            chunks[n++] = (tdm_state_chunk){.tensor = (size_t)(sorted[i] - tensors),
                                            .offset = at,
                                            .bytes = chunk_bytes(sorted[i], at),
                                            .place = begin[i] + at};
        }
    }
    *out = chunks;
    *out_count = n;
    return TDM_OK;
}

tdm_status tdm_state_chunks(const tdm_named_tensor *tensors, size_t tensor_count, tdm_arena *arena,
                            tdm_state_chunk **out, size_t *out_count, tdm_error *err)
{
    const tdm_named_tensor **sorted = NULL;
    TDM_TRY(tdm__tensors_in_order(tensors, tensor_count, false, &sorted, err));
    tdm_status status = fill_chunks(tensors, sorted, tensor_count, arena, out, out_count, err);
    free(sorted);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool make_tables(tdm_state_hasher *h, const tdm_named_tensor *tensors)
{
    h->order = calloc(h->count + 1, sizeof(*h->order));
    h->first = calloc(h->count + 1, sizeof(*h->first));
    if (!h->order || !h->first) return false;
    for (size_t i = 0; i < h->count; i++) {
        h->order[i] = (size_t)(h->sorted[i] - tensors);
        h->first[i + 1] = h->first[i] + chunks_of(h->sorted[i]);
    }
    h->digests = calloc(h->first[h->count] + 1, sizeof(*h->digests));
    return h->digests != NULL;
}

static tdm_status hasher_create(const tdm_position *position, const tdm_named_tensor *tensors,
                                size_t count, bool need_data, tdm_state_hasher **out,
                                tdm_error *err)
{
    const tdm_named_tensor **sorted = NULL;
    TDM_TRY(tdm__tensors_in_order(tensors, count, need_data, &sorted, err));
    tdm_state_hasher *h = calloc(1, sizeof(*h));
    if (h) {
        h->position = *position;
        h->sorted = sorted;
        h->count = count;
    } else {
        free(sorted);
    }
    if (!h || !make_tables(h, tensors)) {
        tdm_state_hasher_destroy(h);
        return tdm_fail_oom(err, "to hash %zu tensors", count);
    }
    *out = h;
    return TDM_OK;
}

tdm_status tdm_state_hasher_create(const tdm_position *position, const tdm_named_tensor *tensors,
                                   size_t tensor_count, tdm_state_hasher **out, tdm_error *err)
{
    return hasher_create(position, tensors, tensor_count, false, out, err);
}

void tdm_state_hasher_destroy(tdm_state_hasher *hasher)
{
    if (!hasher) return;
    tdm_sha256_destroy(hasher->open);
    free(hasher->digests);
    free(hasher->first);
    free(hasher->sorted);
    free(hasher->order);
    free(hasher);
}

const size_t *tdm_state_hasher_order(const tdm_state_hasher *hasher)
{
    return hasher->order;
}

/* ---- bytes, in order --------------------------------------------------------------------------- */

/* Skips tensors that are complete, and empty ones. */
static void skip_full(tdm_state_hasher *h)
{
    while (h->at < h->count && h->offset == tdm_tensor_bytes(&h->sorted[h->at]->tensor)) {
        h->at++;
        h->offset = 0;
    }
}

/* Hashes some of the bytes, at most to the end of the current chunk. */
static tdm_status take_some(tdm_state_hasher *h, const uint8_t *bytes, size_t count, size_t *taken,
                            tdm_error *err)
{
    size_t inside = h->offset % TDM_STATE_CHUNK_BYTES;
    size_t whole = chunk_bytes(h->sorted[h->at], h->offset - inside);
    size_t some = count < whole - inside ? count : whole - inside;
    if (!h->open) h->open = tdm_sha256_create();
    if (!h->open) return tdm_fail_oom(err, "to hash a state");
    tdm_sha256_update(h->open, bytes, some);
    if (inside + some == whole) {
        size_t chunk = h->first[h->at] + h->offset / TDM_STATE_CHUNK_BYTES;
        tdm_sha256_finish(h->open, h->digests[chunk]);
        tdm_sha256_destroy(h->open);
        h->open = NULL;
    }
    h->offset += some;
    *taken = some;
    return TDM_OK;
}

tdm_status tdm_state_hasher_push(tdm_state_hasher *hasher, const void *bytes, size_t count,
                                 tdm_error *err)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        skip_full(hasher);
        if (hasher->at == hasher->count) {
            return tdm_fail(err, TDM_ERR_INVALID,
                            "%zu bytes more were pushed than the tensors of the state have", count);
        }
        size_t some = 0;
        TDM_TRY(take_some(hasher, next, count, &some, err));
        next += some;
        count -= some;
    }
    return TDM_OK;
}

/* ---- digests, in any order --------------------------------------------------------------------- */

tdm_status tdm_state_hasher_accept(tdm_state_hasher *hasher, size_t chunk,
                                   const char hex[TDM_SHA256_HEX], tdm_error *err)
{
    size_t count = hasher->first[hasher->count];
    if (chunk >= count || strnlen(hex, TDM_SHA256_HEX) != TDM_SHA256_HEX - 1) {
        return tdm_fail(err, TDM_ERR_INVALID,
                        "chunk %zu of %zu of a state does not exist, or its hash is invalid", chunk,
                        count);
    }
    memcpy(hasher->digests[chunk], hex, TDM_SHA256_HEX);
    return TDM_OK;
}

static tdm_status check_complete(const tdm_state_hasher *h, tdm_error *err)
{
    for (size_t i = 0; i < h->count; i++) {
        for (size_t chunk = h->first[i]; chunk < h->first[i + 1]; chunk++) {
            if (h->digests[chunk][0]) continue;
            size_t known = (chunk - h->first[i]) * TDM_STATE_CHUNK_BYTES;
            if (h->at == i && h->offset > known) known = h->offset;
            return tdm_fail(err, TDM_ERR_INVALID, "tensor '%.200s' lacks its last %zu bytes",
                            h->sorted[i]->name, tdm_tensor_bytes(&h->sorted[i]->tensor) - known);
        }
    }
    return TDM_OK;
}

/* The fields before the digests of a tensor or, in format 1, before its bytes. */
static void take_head(tdm_sha256 *hash, const tdm_named_tensor *item)
{
    tdm_sha256_text(hash, item->name);
    tdm_sha256_text(hash, tdm_dtype_name(item->tensor.dtype));
    tdm_sha256_u64(hash, (uint64_t)item->tensor.shape.rank);
    for (int d = 0; d < item->tensor.shape.rank; d++) {
        tdm_sha256_u64(hash, (uint64_t)item->tensor.shape.dim[d]);
    }
}

static tdm_sha256 *begin_hash(const tdm_position *position, size_t tensor_count, tdm_error *err)
{
    tdm_sha256 *hash = tdm_sha256_create();
    if (!hash) {
        tdm_fail_oom(err, "to hash %zu tensors", tensor_count);
        return NULL;
    }
    tdm_sha256_u64(hash, position->step);
    tdm_sha256_u64(hash, position->epoch);
    tdm_sha256_u64(hash, position->position);
    tdm_sha256_u64(hash, position->samples);
    tdm_sha256_u64(hash, position->seed);
    tdm_sha256_u64(hash, tensor_count);
    return hash;
}

tdm_status tdm_state_hasher_finish(tdm_state_hasher *hasher, char hex[TDM_SHA256_HEX],
                                   tdm_error *err)
{
    TDM_TRY(check_complete(hasher, err));
    tdm_sha256 *hash = begin_hash(&hasher->position, hasher->count, err);
    if (!hash) return TDM_ERR_NO_MEMORY;
    for (size_t i = 0; i < hasher->count; i++) {
        take_head(hash, hasher->sorted[i]);
        for (size_t chunk = hasher->first[i]; chunk < hasher->first[i + 1]; chunk++) {
            tdm_sha256_update(hash, hasher->digests[chunk], TDM_SHA256_HEX - 1);
        }
    }
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}

/* ---- all at once ------------------------------------------------------------------------------- */

typedef struct hashing {
    tdm_state_hasher *hasher;
    size_t *tensor_of; /* by chunk, in order of name */
    atomic_bool failed;
} hashing;

static void hash_chunk(void *user, size_t chunk)
{
    hashing *all = user;
    tdm_state_hasher *h = all->hasher;
    const tdm_named_tensor *item = h->sorted[all->tensor_of[chunk]];
    size_t offset = (chunk - h->first[all->tensor_of[chunk]]) * TDM_STATE_CHUNK_BYTES;
    const char *bytes = (const char *)item->tensor.data + offset;
    if (tdm_sha256_of(bytes, chunk_bytes(item, offset), h->digests[chunk]) != TDM_OK) {
        atomic_store(&all->failed, true);
    }
}

static tdm_status hash_chunks(tdm_state_hasher *h, tdm_error *err)
{
    size_t count = h->first[h->count];
    hashing all = {.hasher = h, .tensor_of = calloc(count + 1, sizeof(size_t))};
    bool failed = !all.tensor_of;
    uint64_t bytes = 0;
    for (size_t i = 0; i < h->count && !failed; i++) {
        for (size_t c = h->first[i]; c < h->first[i + 1]; c++) all.tensor_of[c] = i;
        bytes += tdm_tensor_bytes(&h->sorted[i]->tensor);
    }
    if (!failed) tdm__spread(count, bytes, hash_chunk, &all);
    free(all.tensor_of);
    if (!failed && !atomic_load(&all.failed)) return TDM_OK;
    return tdm_fail_oom(err, "to hash %zu tensors", h->count);
}

tdm_status tdm_state_hash(const tdm_position *position, const tdm_named_tensor *tensors,
                          size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_state_hasher *h = NULL;
    TDM_TRY(hasher_create(position, tensors, tensor_count, true, &h, err));
    tdm_status status = hash_chunks(h, err);
    if (status == TDM_OK) status = tdm_state_hasher_finish(h, hex, err);
    tdm_state_hasher_destroy(h);
    return status;
}

tdm_status tdm__state_hash_1(const tdm_position *position, const tdm_named_tensor *tensors,
                             size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err)
{
    const tdm_named_tensor **sorted = NULL;
    TDM_TRY(tdm__tensors_in_order(tensors, tensor_count, true, &sorted, err));
    tdm_sha256 *hash = begin_hash(position, tensor_count, err);
    for (size_t i = 0; hash && i < tensor_count; i++) {
        take_head(hash, sorted[i]);
        tdm_sha256_update(hash, sorted[i]->tensor.data, tdm_tensor_bytes(&sorted[i]->tensor));
    }
    free(sorted);
    if (!hash) return TDM_ERR_NO_MEMORY;
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}
