/*
 * state_hash.c: the hash of a state, taken as its bytes come along.
 *
 * It takes every field with its length or as a number of fixed width: two different states cannot feed
 * it the same bytes. Tensors come in order of name, and what stands before a tensor's bytes (name, type,
 * shape) goes in when its turn comes; so the hash is the same whether the bytes come in one piece or in
 * thousands, and whether or not they ever lay in memory together.
 */
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

struct tdm_state_hasher {
    tdm_sha256 *hash;
    const tdm_named_tensor **sorted;
    size_t *order;
    size_t count;
    size_t next; /* the tensor whose head is taken next */
    size_t left; /* bytes of the one before it; 0: all bytes of all tensors were taken */
};

/* Takes the heads of tensors up to the next that has bytes. */
static void take_heads(tdm_state_hasher *h)
{
    while (h->left == 0 && h->next < h->count) {
        const tdm_named_tensor *item = h->sorted[h->next++];
        tdm_sha256_text(h->hash, item->name);
        tdm_sha256_text(h->hash, tdm_dtype_name(item->tensor.dtype));
        tdm_sha256_u64(h->hash, (uint64_t)item->tensor.shape.rank);
        for (int d = 0; d < item->tensor.shape.rank; d++) {
            tdm_sha256_u64(h->hash, (uint64_t)item->tensor.shape.dim[d]);
        }
        h->left = tdm_tensor_bytes(&item->tensor);
    }
}

static void take_position(tdm_state_hasher *h, const tdm_position *position)
{
    tdm_sha256_u64(h->hash, position->step);
    tdm_sha256_u64(h->hash, position->epoch);
    tdm_sha256_u64(h->hash, position->position);
    tdm_sha256_u64(h->hash, position->samples);
    tdm_sha256_u64(h->hash, position->seed);
    tdm_sha256_u64(h->hash, h->count);
    take_heads(h);
}

static tdm_status create(const tdm_position *position, const tdm_named_tensor *tensors,
                         size_t count, bool need_data, tdm_state_hasher **out, tdm_error *err)
{
    const tdm_named_tensor **sorted = NULL;
    TDM_TRY(tdm__tensors_in_order(tensors, count, need_data, &sorted, err));
    tdm_state_hasher *h = calloc(1, sizeof *h);
    if (h) {
        h->sorted = sorted;
        h->count = count;
        h->order = calloc(count + 1, sizeof *h->order);
        h->hash = tdm_sha256_create();
    } else {
        free(sorted);
    }
    if (!h || !h->order || !h->hash) {
        tdm_state_hasher_destroy(h);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to hash %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) h->order[i] = (size_t)(sorted[i] - tensors);
    take_position(h, position);
    *out = h;
    return TDM_OK;
}

tdm_status tdm_state_hasher_create(const tdm_position *position, const tdm_named_tensor *tensors,
                                   size_t tensor_count, tdm_state_hasher **out, tdm_error *err)
{
    return create(position, tensors, tensor_count, false, out, err);
}

void tdm_state_hasher_destroy(tdm_state_hasher *hasher)
{
    if (!hasher) return;
    tdm_sha256_destroy(hasher->hash);
    free(hasher->sorted);
    free(hasher->order);
    free(hasher);
}

const size_t *tdm_state_hasher_order(const tdm_state_hasher *hasher)
{
    return hasher->order;
}

tdm_status tdm_state_hasher_push(tdm_state_hasher *hasher, const void *bytes, size_t count,
                                 tdm_error *err)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        if (hasher->left == 0) {
            return tdm_fail(err, TDM_ERR_INVALID,
                            "%zu bytes more were pushed than the tensors of the state have", count);
        }
        size_t some = count < hasher->left ? count : hasher->left;
        tdm_sha256_update(hasher->hash, next, some);
        hasher->left -= some;
        next += some;
        count -= some;
        take_heads(hasher);
    }
    return TDM_OK;
}

tdm_status tdm_state_hasher_finish(tdm_state_hasher *hasher, char hex[TDM_SHA256_HEX],
                                   tdm_error *err)
{
    if (hasher->left > 0) {
        return tdm_fail(err, TDM_ERR_INVALID, "tensor '%.200s' lacks its last %zu bytes",
                        hasher->sorted[hasher->next - 1]->name, hasher->left);
    }
    tdm_sha256_finish(hasher->hash, hex);
    return TDM_OK;
}

tdm_status tdm_state_hash(const tdm_position *position, const tdm_named_tensor *tensors,
                          size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_state_hasher *h = NULL;
    TDM_TRY(create(position, tensors, tensor_count, true, &h, err));
    tdm_status status = TDM_OK;
    for (size_t i = 0; i < tensor_count && status == TDM_OK; i++) {
        const tdm_tensor *tensor = &h->sorted[i]->tensor;
        status = tdm_state_hasher_push(h, tensor->data, tdm_tensor_bytes(tensor), err);
    }
    if (status == TDM_OK) status = tdm_state_hasher_finish(h, hex, err);
    tdm_state_hasher_destroy(h);
    return status;
}
