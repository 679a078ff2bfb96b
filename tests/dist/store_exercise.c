/* store_exercise.c: the operations of a rank on a store: see store_exercise.h. */
#include "store_exercise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool fine(const bench *b, tdm_status status, const tdm_error *err, const char *what)
{
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK)
        fprintf(stderr, "rank %d of %d, zero %d: %s: %s\n", b->rank, b->size, b->zero, what,
                err->message);
    return status == TDM_OK;
}

static float value(int block, int version, size_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^
                 (uint64_t)(block * 131 + version) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 29) * 0x94d049bb133111ebu;
    return ((float)(x >> 40) / 16777216.0f - 0.5f) * 0.2f;
}

/* ---- a model --------------------------------------------------------------------------------- */

/* A chain whose first weights are used again at its end, a statistic that is not read, and a buffer. */
static void net_build(tdm_graph *g, int64_t width, int layers, bool recompute)
{
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.1};
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(ROWS, width));
    tdm_value t = tdm_graph_input(g, "t", TDM_DTYPE_F32, tdm_shape_2(ROWS, width));
    tdm_value first = TDM_VALUE_NONE;
    for (int i = 0; i < layers; i++) {
        char name[16];
        tdm_graph_block(g);
        snprintf(name, sizeof(name), "w%d", i);
        tdm_value w = tdm_graph_param(g, name, tdm_shape_2(width, width), init);
        snprintf(name, sizeof(name), "b%d", i);
        tdm_value bias = tdm_graph_param(g, name, tdm_shape_1(width), init);
        x = tdm_graph_linear(g, x, w, bias, TDM_ACTIVATION_TANH);
        if (i == 0) first = w;
    }
    x = tdm_graph_linear(g, x, first, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    tdm_value s = tdm_graph_statistic(g, "seen", tdm_shape_1(width), init, 0.1);
    tdm_graph_follow(g, s, tdm_graph_sum_rows(g, x));
    x = tdm_graph_add(g, x, tdm_graph_buffer(g, "shift", tdm_shape_1(width), init));
    tdm_graph_output(g, "y", x);
    tdm_value loss = tdm_graph_mse(g, x, t, 1.0 / ROWS);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, NULL), TDM_OK);
    if (recompute) CHECK_INT(tdm_graph_recompute(g, TDM_RECOMPUTE_BLOCKS, NULL), TDM_OK);
    CHECK_INT(tdm_graph_check(g, NULL), TDM_OK);
}

static float *floats(size_t count)
{
    float *data = aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64);
    if (!data) abort();
    memset(data, 0, count * sizeof(float));
    return data;
}

static void net_init(net *n, int64_t width, int layers, bool recompute)
{
    *n = (net){.graph = tdm_graph_create()};
    net_build(n->graph, width, layers, recompute);
    tdm_plan_options forward = {.forward_only = true};
    CHECK_INT(tdm_plan_create(n->graph, NULL, &n->train, NULL), TDM_OK);
    CHECK_INT(tdm_plan_create(n->graph, NULL, &n->plain, NULL), TDM_OK);
    CHECK_INT(tdm_plan_create(n->graph, &forward, &n->eval, NULL), TDM_OK);
    n->arena = floats(tdm_plan_arena_bytes(n->train) / sizeof(float) + 16);
    size_t grads = tdm_graph_grad_extent(n->graph);
    for (int i = 0; i < 2; i++) n->grads[i] = floats(grads);
    tdm_plan *plans[] = {n->train, n->plain, n->eval};
    for (int i = 0; i < 3; i++) {
        tdm_plan_bind(plans[i], TDM_SPACE_ARENA, n->arena);
        tdm_plan_bind(plans[i], TDM_SPACE_GRADS, n->grads[i == 1]);
    }
}

static void net_release(net *n)
{
    tdm_plan_destroy(n->train);
    tdm_plan_destroy(n->plain);
    tdm_plan_destroy(n->eval);
    tdm_graph_destroy(n->graph);
    free(n->arena);
    free(n->grads[0]);
    free(n->grads[1]);
}

/* ---- a bench --------------------------------------------------------------------------------- */

bool bench_store(bench *b, size_t bucket_bytes)
{
    tdm_error err = {0};
    tdm_params_options options = {.graph = b->net.graph,
                                  .optimiser = b->optimiser,
                                  .has_ema = true,
                                  .comm = b->comm,
                                  .zero = b->zero,
                                  .offload = b->offload,
                                  .shm = b->shm,
                                  .slot = b->slot,
                                  .epoch = b->epoch,
                                  .bucket_bytes = bucket_bytes};
    return fine(b, tdm_params_create(&options, &b->store, &err), &err, "create");
}

bool bench_open(bench *b, int64_t width, int layers, size_t bucket_bytes)
{
    b->rank = b->comm ? tdm_comm_rank(b->comm) : 0;
    b->size = b->comm ? tdm_comm_size(b->comm) : 1;
    net_init(&b->net, width, layers, b->zero % 2);
    tdm_optim_param params[64];
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(b->net.graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(b->net.graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    b->job.optim.kind = TDM_JOB_OPTIM_ADAMW;
    CHECK_INT(tdm_optimiser_create(&b->job, params, count, &b->optimiser, NULL), TDM_OK);
    b->elements = tdm_graph_param_extent(b->net.graph);
    b->copy = floats(b->elements);
    b->got = floats(b->elements);
    return bench_store(b, bucket_bytes);
}

static bool bench_feeds(bench *b)
{
    tdm_error err = {0};
    tdm_plan *const train[] = {b->net.train, b->net.plain}; /* as if for another number of rows */
    return fine(b, tdm_prefetch_create(b->store, TDM_BLOCK_PARAMS, train, 2, &b->feed, &err), &err,
                "feed") &&
           fine(b,
                tdm_prefetch_create(b->store, TDM_BLOCK_PARAMS, &b->net.eval, 1, &b->eval_feed,
                                    &err),
                &err, "feed for evaluation") &&
           fine(b,
                tdm_prefetch_create(b->store, TDM_BLOCK_EMA, &b->net.eval, 1, &b->ema_feed, &err),
                &err, "feed of the average");
}

void bench_close(bench *b)
{
    tdm_prefetch_destroy(b->ema_feed);
    tdm_prefetch_destroy(b->eval_feed);
    tdm_prefetch_destroy(b->feed);
    tdm_params_destroy(b->store);
    tdm_optimiser_destroy(b->optimiser);
    net_release(&b->net);
    free(b->copy);
    free(b->got);
}

static void fill_copy(bench *b, int block, int version)
{
    size_t trained = tdm_graph_grad_extent(b->net.graph);
    for (size_t i = 0; i < b->elements; i++) /* buffers never change */
        b->copy[i] = value(block, i < trained ? version : 0, i);
}

/* ---- what is checked ------------------------------------------------------------------------- */

/* This rank may access all of a block, or its share. */
bool sees(bench *b, int block, int version)
{
    const tdm__layout *l = tdm__params_layout(b->store);
    const float *data = tdm_params_block(b->store, block);
    fill_copy(b, block, version);
    if (tdm_params_is_whole(b->store, block))
        return memcmp(data, b->copy, b->elements * sizeof(*data)) == 0;
    bool ok = true;
    for (size_t i = 0; i < l->bucket_count; i++) {
        tdm_extent e = tdm__cells_extent(l,
                                         tdm__layout_share(l, tdm__layout_bucket(l, i), l->place));
        ok &= memcmp(data + e.first, b->copy + e.first, e.count * sizeof(*data)) == 0;
    }
    size_t behind = l->trained_elements;
    return ok &&
           memcmp(data + behind, b->copy + behind, (b->elements - behind) * sizeof(*data)) == 0;
}

/* Rank 0 writes a block in pieces with odd boundaries, and reads it back in other pieces. */
bool write_block(bench *b, int block, int version)
{
    tdm_error err = {0};
    bool root = b->rank == 0;
    fill_copy(b, block, version);
    for (size_t at = 0, n = 0; at < b->elements; at += n) {
        n = at == 0 ? 1 : 13007;
        if (n > b->elements - at) n = b->elements - at;
        if (!fine(b, tdm_params_write(b->store, block, at, n, root ? b->copy + at : NULL, &err),
                  &err, "write"))
            return false;
    }
    return true;
}

static bool read_block(bench *b, int block, int version)
{
    tdm_error err = {0};
    bool root = b->rank == 0;
    fill_copy(b, block, version);
    memset(b->got, 0, b->elements * sizeof(*b->got));
    for (size_t at = 0, n = 0; at < b->elements; at += n) {
        n = at == 0 ? 5003 : 17011;
        if (n > b->elements - at) n = b->elements - at;
        if (!fine(b, tdm_params_read(b->store, block, at, n, root ? b->got + at : NULL, &err), &err,
                  "read"))
            return false;
    }
    if (root) CHECK(memcmp(b->got, b->copy, b->elements * sizeof(*b->got)) == 0);
    return true;
}

static bool run_and_compare(bench *b, tdm_prefetch *feed, tdm_plan *fed, int block, int version)
{
    net *n = &b->net;
    tdm_error err = {0};
    float y[ROWS * WIDTH];
    tdm_step_key key = {0};
    fill_copy(b, block, version);
    for (int i = 0; i < 2; i++) {
        tdm_plan *plan = i == 0 ? fed : n->plain;
        for (int k = 0; k < 2; k++) {
            tdm_tensor in = tdm_plan_input(plan, k == 0 ? "x" : "t");
            for (size_t j = 0; in.data && j < ROWS * WIDTH; j++)
                ((float *)in.data)[j] = value(9 + k, 0, j);
        }
        if (i == 0 && !fine(b, tdm_prefetch_run(feed, 0, &key, &err), &err, "run")) return false;
        if (i == 1) {
            tdm_plan_bind(n->plain, TDM_SPACE_PARAMS, b->copy);
            tdm_plan_run(n->plain, &key);
        }
        const float *out = tdm_plan_output(plan, "y").data;
        if (i == 0) memcpy(y, out, sizeof(y));
        CHECK(memcmp(y, out, sizeof(y)) == 0);
    }
    if (fed == n->train)
        CHECK(memcmp(n->grads[0], n->grads[1], tdm_graph_grad_extent(n->graph) * sizeof(float)) ==
              0);
    return true;
}

bool meet(bench *b)
{
    tdm_error err = {0};
    return !b->comm || fine(b, tdm_group_barrier(tdm_comm_world(b->comm), &err), &err, "barrier");
}

/* A step: every rank updates its share of all blocks, then the parameters are distributed. */
static bool update(bench *b, bool overlap)
{
    const tdm__layout *l = tdm__params_layout(b->store);
    tdm_error err = {0};
    if (!meet(b)) return false; /* the old ones are not read any more */
    b->version++;
    size_t *order = calloc(l->bucket_count + 1, sizeof(*order));
    if (!order) return false;
    for (size_t i = 0; i < l->bucket_count; i++) {
        order[i] = l->bucket_count - 1 - i;
        tdm__cells mine = tdm__layout_share(l, tdm__layout_bucket(l, i), l->place);
        tdm_extent e = tdm__cells_extent(l, mine);
        tdm__params_will_update(b->store, mine);
        for (int block = 0; block < BLOCKS; block++)
            for (size_t j = e.first; j < e.first + e.count; j++)
                tdm_params_block(b->store, block)[j] = value(block, b->version, j);
        tdm__params_has_updated(b->store, mine);
    }
    bool ok = fine(b, tdm__params_publish(b->store, order, overlap, &err), &err, "publish");
    free(order);
    return ok;
}

static bool find_bad(bench *b)
{
    tdm_error err = {0};
    size_t bad = 0;
    for (int block = 0; block < BLOCKS; block++) {
        if (!fine(b, tdm_params_find_bad(b->store, block, &bad, &err), &err, "find_bad"))
            return false;
        CHECK(bad == SIZE_MAX);
        size_t at = b->elements * (size_t)(block + 1) / 6;
        float wrong[2] = {INFINITY, NAN}, right[2];
        for (size_t i = 0; i < 2; i++) right[i] = value(block, b->version, at + i);
        for (int i = 0; i < 2; i++) {
            const float *in = b->rank == 0 ? (i == 0 ? wrong : right) : NULL;
            if (!fine(b, tdm_params_write(b->store, block, at, 2, in, &err), &err, "write") ||
                !fine(b, tdm_params_settle(b->store, &err), &err, "settle") ||
                !fine(b, tdm_params_find_bad(b->store, block, &bad, &err), &err, "find_bad"))
                return false;
            CHECK(bad == (i == 0 ? at : SIZE_MAX));
            if (!meet(b)) return false;
        }
    }
    return true;
}

/* Trains some steps, with lanes on some ranks only, and an evaluation. */
static bool steps(bench *b)
{
    tdm_error err = {0};
    for (int step = 0; step < 4; step++) {
        if (!update(b, step % 2 == 0)) return false;
        for (int lane = 0; lane < 2; lane++) {
            bool runs = lane == 0 || b->rank % 2 == 0 || step == 3;
            if (runs ? !run_and_compare(b, b->feed, b->net.train, TDM_BLOCK_PARAMS, b->version)
                     : !fine(b, tdm_prefetch_pass(b->feed, &err), &err, "pass"))
                return false;
        }
    }
    return fine(b, tdm_params_settle(b->store, &err), &err, "settle");
}

static bool evaluate(bench *b)
{
    tdm_error err = {0};
    /* Both prefetches have the same plan here: the one that was created last has bound it. */
    if (!run_and_compare(b, b->ema_feed, b->net.eval, TDM_BLOCK_EMA, b->version)) return false;
    tdm_prefetch_destroy(b->ema_feed);
    tdm_prefetch_destroy(b->eval_feed);
    b->ema_feed = b->eval_feed = NULL;
    return fine(b,
                tdm_prefetch_create(b->store, TDM_BLOCK_PARAMS, &b->net.eval, 1, &b->eval_feed,
                                    &err),
                &err, "feed") &&
           run_and_compare(b, b->eval_feed, b->net.eval, TDM_BLOCK_PARAMS, b->version);
}

static bool exercise_open(bench *b)
{
    tdm_error err = {0};
    for (int block = 0; block < BLOCKS; block++)
        if (!write_block(b, block, 0)) return false;
    if (!fine(b, tdm_params_settle(b->store, &err), &err, "settle")) return false;
    for (int block = 0; block < BLOCKS; block++) CHECK(sees(b, block, 0));
    for (int block = 0; block < BLOCKS; block++)
        if (!read_block(b, block, 0)) return false;
    if (!bench_feeds(b) || !steps(b) || !evaluate(b)) return false;
    for (int block = 0; block < BLOCKS; block++) CHECK(sees(b, block, b->version));
    for (int block = 0; block < BLOCKS; block++)
        if (!read_block(b, block, b->version)) return false;
    return meet(b) && find_bad(b);
}

void exercise(tdm_comm *comm, int zero, const char *offload)
{
    bench b = {.comm = comm, .zero = zero, .offload = offload};
    if (bench_open(&b, WIDTH, LAYERS, BUCKET_BYTES)) (void)exercise_open(&b);
    bench_close(&b);
}
