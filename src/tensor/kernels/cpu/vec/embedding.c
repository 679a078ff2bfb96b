/*
 * embedding.c: lookup of rows of a table, and the gradient of the table.
 *
 * A row of the gradient is the sum of the gradients of all positions that select it, in the order
 * of the positions: four at a time, then one by one. To this end the positions of each id are
 * chained first (scratch has the first position of each id and the next position of each position),
 * and every row is written once, by one thread, whether or not a position selects it. An id outside
 * [0, V) violates an invariant and aborts the program: it would access memory outside the table.
 */
#include "tensor/kernels/cpu/vec/vec.h"

#include <assert.h>

typedef struct work {
    const float *x; /* the table, or dy */
    const int32_t *ids;
    const float *base; /* the initial values: none, at `out`, or elsewhere */
    float *out;
    int64_t V, C;
    const int64_t *first, *next; /* chains, terminated by -1 */
} work;

static void range_embedding(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t i = begin; i < end; i++) {
        assert(w->ids[i] >= 0 && w->ids[i] < w->V);
        memcpy(w->out + i * w->C, w->x + w->ids[i] * w->C, (size_t)w->C * sizeof(float));
    }
}

static void run_embedding(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = {.x = call->in[0].data,
              .ids = call->in[1].data,
              .out = call->out[0].data,
              .V = call->in[0].shape.dim[0],
              .C = call->in[0].shape.dim[1]};
    tdm__vec_split(tdm_tensor_elements(&call->in[1]), w.C, range_embedding, &w);
}

/* to = or += the sum of `count` (1 to 4) rows. */
static void add_places(const float *const row[4], int count, int64_t C, bool begin, float *to)
{
    for (int64_t i = 0; i < C; i += TDM__WIDTH) {
        int64_t left = C - i;
        vf sum = vf_load_up_to(row[0] + i, left, 0);
        if (count > 1) sum = sum + vf_load_up_to(row[1] + i, left, 0);
        if (count > 2) {
            vf other = vf_load_up_to(row[2] + i, left, 0);
            if (count > 3) other = other + vf_load_up_to(row[3] + i, left, 0);
            sum = sum + other;
        }
        if (!begin) sum = vf_load_up_to(to + i, left, 0) + sum;
        vf_store_up_to(to + i, left, sum);
    }
}

static void range_embedding_grad(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t v = begin; v < end; v++) {
        float *to = w->out + v * w->C;
        int64_t place = w->first[v];
        size_t bytes = (size_t)w->C * sizeof(float);
        if (w->base && w->base != w->out) memcpy(to, w->base + v * w->C, bytes);
        if (!w->base && place < 0) memset(to, 0, bytes);
        for (bool fresh = !w->base; place >= 0; fresh = false) {
            const float *row[4];
            int count = 0;
            for (; count < 4 && place >= 0; place = w->next[place])
                row[count++] = w->x + place * w->C;
            add_places(row, count, w->C, fresh, to);
        }
    }
}

static tdm_status prepare_embedding_grad(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    size_t V = (size_t)call->out[0].shape.dim[0];
    size_t places = (size_t)tdm_tensor_elements(&call->in[1]);
    call->scratch_bytes = (V + places) * sizeof(int64_t);
    return TDM_OK;
}

static void run_embedding_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t V = call->out[0].shape.dim[0], C = call->out[0].shape.dim[1];
    int64_t *first = call->scratch, *next = first + V;
    const int32_t *ids = call->in[1].data;
    for (int64_t v = 0; v < V; v++) first[v] = -1;
    for (int64_t i = tdm_tensor_elements(&call->in[1]) - 1; i >= 0; i--) {
        assert(ids[i] >= 0 && ids[i] < V);
        next[i] = first[ids[i]]; /* from the end, so that chains run forwards */
        first[ids[i]] = i;
    }
    work w = {.x = call->in[0].data,
              .base = call->in[2].data,
              .out = call->out[0].data,
              .V = V,
              .C = C,
              .first = first,
              .next = next};
    tdm__vec_split(V, C, range_embedding_grad, &w);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_EMBEDDING, .dtype = TDM_DTYPE_F32, .run = run_embedding},
    {.op = TDM_OP_EMBEDDING_GRAD,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_embedding_grad,
     .run = run_embedding_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_embedding) = {kernels,
                                                             sizeof(kernels) / sizeof(kernels[0])};
