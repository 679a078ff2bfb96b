/*
 * exchange.c: messages between all pairs of ranks, of different sizes.
 *
 * In round r each rank sends to the rank r places after it and receives from the one r places before it. A message is
 * sent in pieces, so that those of a round are always within the limit of started calls (TDM_CALLS_ACTIVE_BYTES), and no
 * piece waits behind calls that wait for it.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "sparse/internal.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 4 << 20 };

tdm_status tdm__sparse_block_reserve(tdm__sparse_block *block, size_t bytes, tdm_error *err)
{
    if (bytes <= block->bytes) return TDM_OK;
    size_t room = tdm_align_up(bytes + bytes / 2, 64);
    void *data = aligned_alloc(64, room);
    if (!data) return tdm_fail_oom(err, "for the sparse features of a batch");
    free(block->data);
    *block = (tdm__sparse_block){data, room};
    return TDM_OK;
}

void tdm__sparse_block_release(tdm__sparse_block *block)
{
    free(block->data);
    *block = (tdm__sparse_block){0};
}

static size_t piece_of(size_t bytes, size_t at)
{
    size_t left = at < bytes ? bytes - at : 0;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Both directions of a piece. */
static tdm_status exchange_piece(tdm_group *group, const tdm_call calls[2], tdm_error *err)
{
    tdm_request *requests[2] = {NULL, NULL};
    tdm_status status = TDM_OK;
    for (int i = 0; i < 2 && status == TDM_OK; i++)
        if (calls[i].count > 0) status = tdm_call_start(group, &calls[i], &requests[i], err);
    for (int i = 0; i < 2; i++) {
        if (!requests[i]) continue;
        tdm_error *why = status == TDM_OK ? err : NULL; /* the first error is kept */
        tdm_status ended = tdm_request_wait(requests[i], why);
        if (status == TDM_OK) status = ended;
    }
    return status;
}

/* Distinguishes the pieces of recent exchanges; the same on both ranks. */
static uint32_t tag_of(const tdm_sparse *s, size_t at)
{
    return (s->exchange_count << 12) + (uint32_t)(at / PIECE_BYTES % 4096);
}

tdm_status tdm__sparse_exchange(tdm_sparse *s, const void *out, const int64_t *out_counts, void *in,
                                const int64_t *in_counts, size_t unit, tdm_error *err)
{
    tdm_group *group = tdm_comm_world(s->comm);
    s->exchange_count++;
    for (int round = 0; round < s->size; round++) {
        int to = (s->rank + round) % s->size, from = (s->rank + s->size - round) % s->size;
        size_t out_at = 0, in_at = 0;
        for (int p = 0; p < to; p++) out_at += (size_t)out_counts[p] * unit;
        for (int p = 0; p < from; p++) in_at += (size_t)in_counts[p] * unit;
        size_t sends = (size_t)out_counts[to] * unit, receives = (size_t)in_counts[from] * unit;
        if (round == 0) { /* to itself */
            if (sends > 0) memcpy((char *)in + in_at, (const char *)out + out_at, sends);
            continue;
        }
        for (size_t at = 0; at < sends || at < receives; at += PIECE_BYTES) {
            tdm_call calls[2] = {tdm_call_of(TDM_CALL_RECV, NULL, (char *)in + in_at + at,
                                             piece_of(receives, at), TDM_DTYPE_U8, from),
                                 tdm_call_of(TDM_CALL_SEND, (const char *)out + out_at + at, NULL,
                                             piece_of(sends, at), TDM_DTYPE_U8, to)};
            calls[0].tag = tag_of(s, at);
            calls[1].tag = tag_of(s, at);
            TDM_TRY(exchange_piece(group, calls, err));
        }
    }
    return TDM_OK;
}
