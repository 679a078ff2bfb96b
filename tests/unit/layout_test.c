/*
 * layout_test.c: shares of cells, for all small worlds; blocks and prefetches of a single process; and the
 * schedules of prefetches, whose slots must never contain two buckets at once.
 */
#include "base/base.h"
#include "check.h"
#include "os/os.h"

#include "parallel/params.h"
#include "parallel/prefetch_schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <unistd.h>

enum { MAX_RANKS = 7, CELL = TDM__CELL, WINDOW = 32 };

/* ---- shares ---------------------------------------------------------------------------------- */

typedef struct world {
    tdm__layout layout;
    int rank_of_place[MAX_RANKS], node_of_place[MAX_RANKS], first_of_node[MAX_RANKS + 1];
} world;

/* Bit i of `borders`: a node ends after rank i. */
static void world_init(world *w, int size, unsigned borders, bool common, size_t elements)
{
    memset(w, 0, sizeof(*w));
    w->layout = (tdm__layout){.size = size,
                              .rank_of_place = w->rank_of_place,
                              .node_of_place = w->node_of_place,
                              .first_of_node = w->first_of_node,
                              .common = common,
                              .trained_elements = elements,
                              .trained_cells = (elements + CELL - 1) / CELL};
    int node = 0;
    for (int i = 0; i < size; i++) {
        w->rank_of_place[i] = i;
        w->node_of_place[i] = node;
        if (i + 1 == size || (borders >> i & 1)) w->first_of_node[++node] = i + 1;
    }
    w->layout.node_count = node;
}

/* Within each set of sharing ranks every cell of a range has one owner, in order; the cuts are equal. */
static bool shares_are_right(world *w, tdm__cells range)
{
    tdm__layout *l = &w->layout;
    tdm_extent all = tdm__cells_extent(l, range);
    bool ok = true;
    for (int place = 0; place < l->size; place++) {
        int node = l->node_of_place[place];
        int first = l->common ? l->first_of_node[node] : 0;
        int count = l->common ? l->first_of_node[node + 1] - first : l->size;
        tdm__cells mine = tdm__layout_share(l, range, place);
        size_t even = (range.end - range.first) / (size_t)count;
        size_t got = mine.end - mine.first;
        ok &= mine.first <= mine.end && got >= even && got <= even + 1;
        ok &= place > first ? mine.first == tdm__layout_share(l, range, place - 1).end
                            : mine.first == range.first;
        if (place + 1 == first + count) ok &= mine.end == range.end;
        size_t cuts[MAX_RANKS + 1];
        l->place = place;
        tdm__layout_cuts(l, range, cuts);
        tdm_extent part = tdm__cells_extent(l, mine);
        ok &= part.count == cuts[place - first + 1] - cuts[place - first];
        ok &= part.count == 0 || part.first == all.first + cuts[place - first];
        ok &= cuts[0] == 0 && cuts[count] == all.count;
        if (l->common) continue;
        size_t leaders[MAX_RANKS + 1];
        tdm__layout_leader_cuts(l, range, leaders);
        ok &= leaders[node] == cuts[l->first_of_node[node]];
        ok &= leaders[node + 1] == cuts[l->first_of_node[node + 1]];
    }
    return ok;
}

static void test_every_cell_has_one_owner(void)
{
    world w;
    long wrong = 0, cases = 0;
    for (int size = 1; size <= MAX_RANKS; size++)
        for (unsigned borders = 0; borders < 1u << (size - 1); borders++)
            for (int common = 0; common < 2; common++)
                for (size_t first = 0; first < 5; first++)
                    for (size_t count = 0; count < 12; count++) {
                        /* The last cell may be shorter. */
                        world_init(&w, size, borders, common, 14 * (size_t)CELL - 100);
                        tdm__cells range = {first, first + count};
                        if (range.end > w.layout.trained_cells) continue;
                        wrong += !shares_are_right(&w, range);
                        cases++;
                    }
    CHECK_INT(wrong, 0);
    CHECK(cases > 10000);
}

/* Over many buckets, no rank gets a cell more than others by more than one for each residue. */
static void test_shares_are_even_over_buckets(void)
{
    world w;
    world_init(&w, 3, 2, false, (size_t)1000 * CELL);
    size_t min = SIZE_MAX, max = 0;
    for (int place = 0; place < 3; place++) {
        size_t cells = 0;
        for (size_t b = 0; b < 100; b++) {
            tdm__cells share = tdm__layout_share(&w.layout, (tdm__cells){b * 10, b * 10 + 10},
                                                 place);
            cells += share.end - share.first;
        }
        if (cells < min) min = cells;
        if (cells > max) max = cells;
    }
    CHECK(max - min <= 2);
}

/* ---- a single process ------------------------------------------------------------------------ */

typedef struct model {
    tdm_graph *graph;
    tdm_plan *plan;
    void *arena;
    float *grads;
} model;

/* Two layers and, with `extra`, a statistic and a buffer. */
static void model_make(model *m, int64_t width, bool extra)
{
    *m = (model){.graph = tdm_graph_create()};
    tdm_graph *g = m->graph;
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(4, width));
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.1};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%d", i);
        tdm_value w = tdm_graph_param(g, name, tdm_shape_2(width, width), init);
        x = tdm_graph_linear(g, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    }
    if (extra) {
        tdm_value s = tdm_graph_buffer(g, "shift", tdm_shape_1(width), init);
        x = tdm_graph_add(g, x, s);
    }
    tdm_graph_output(g, "y", x);
    CHECK_INT(tdm_graph_check(g, NULL), TDM_OK);
    CHECK_INT(tdm_plan_create(g, &(tdm_plan_options){.forward_only = true}, &m->plan, NULL),
              TDM_OK);
    m->arena = aligned_alloc(64, (tdm_plan_arena_bytes(m->plan) + 63) / 64 * 64 + 64);
    tdm_plan_bind(m->plan, TDM_SPACE_ARENA, m->arena);
}

static void model_free(model *m)
{
    tdm_plan_destroy(m->plan);
    tdm_graph_destroy(m->graph);
    free(m->arena);
}

static void fill(float *data, size_t count, float by)
{
    for (size_t i = 0; i < count; i++) data[i] = (float)(i % 1009) * by - 0.3f;
}

static void test_a_single_process(void)
{
    model m;
    model_make(&m, 200, true);
    size_t n = tdm_graph_param_extent(m.graph);
    for (int zero = 0; zero <= 3; zero++) {
        tdm_params *store = NULL;
        tdm_params_options options = {
            .graph = m.graph, .has_ema = true, .zero = zero, .bucket_bytes = 40000};
        CHECK_INT(tdm_params_create(&options, &store, NULL), TDM_OK);
        CHECK(tdm_params_is_whole(store, TDM_BLOCK_PARAMS));
        CHECK(tdm_params_block(store, TDM_BLOCK_STATE) == NULL);
        CHECK(!tdm_params_is_whole(store, TDM_BLOCK_STATE));
        tdm_params_info info = tdm_params_info_of(store);
        CHECK_INT(info.private_bytes, 2 * n * sizeof(float));
        CHECK_INT(info.bucket_count, (tdm_graph_grad_extent(m.graph) + 8191) / 8192);
        float *in = malloc(n * sizeof(*in)), *out = calloc(n, sizeof(*out));
        fill(in, n, 0.01f);
        CHECK_INT(tdm_params_write(store, TDM_BLOCK_PARAMS, 0, n, in, NULL), TDM_OK);
        CHECK_INT(tdm_params_settle(store, NULL), TDM_OK);
        CHECK_INT(tdm_params_read(store, TDM_BLOCK_PARAMS, 3, n - 3, out, NULL), TDM_OK);
        CHECK(memcmp(out, in + 3, (n - 3) * sizeof(*in)) == 0);
        CHECK(memcmp(tdm_params_block(store, TDM_BLOCK_PARAMS), in, n * sizeof(*in)) == 0);
        tdm_error err;
        CHECK_INT(tdm_params_read(store, TDM_BLOCK_PARAMS, n, 1, out, &err), TDM_ERR_RANGE);
        CHECK_INT(tdm_params_read(store, TDM_BLOCK_PARAMS, 1, SIZE_MAX, out, &err), TDM_ERR_RANGE);
        CHECK_INT(tdm_params_read(store, TDM_BLOCK_STATE, 0, 1, out, &err), TDM_ERR_NOT_FOUND);
        CHECK_INT(tdm_params_read(store, -1, 0, 1, out, &err), TDM_ERR_NOT_FOUND);
        size_t bad = 0;
        CHECK_INT(tdm_params_find_bad(store, TDM_BLOCK_PARAMS, &bad, NULL), TDM_OK);
        CHECK(bad == SIZE_MAX);
        for (size_t at = n - 1; at > 5; at /= 3) {
            tdm_params_block(store, TDM_BLOCK_PARAMS)[at] = NAN;
            CHECK_INT(tdm_params_find_bad(store, TDM_BLOCK_PARAMS, &bad, NULL), TDM_OK);
            CHECK_INT(bad, at);
        }
        CHECK_INT(tdm__params_publish(store, NULL, true, NULL), TDM_OK);
        tdm_params_destroy(store);
        free(in);
        free(out);
    }
    model_free(&m);
}

static void test_a_feed_runs_a_plan(void)
{
    model m;
    model_make(&m, 100, false);
    tdm_params *store = NULL;
    CHECK_INT(tdm_params_create(&(tdm_params_options){.graph = m.graph}, &store, NULL), TDM_OK);
    size_t n = tdm_graph_param_extent(m.graph);
    fill(tdm_params_block(store, TDM_BLOCK_PARAMS), n, 0.0005f);
    tdm_prefetch *feed = NULL;
    CHECK_INT(tdm_prefetch_create(store, TDM_BLOCK_PARAMS, &m.plan, 1, &feed, NULL), TDM_OK);
    CHECK_INT(tdm_prefetch_bytes(feed), 0);
    float first[400];
    for (int i = 0; i < 2; i++) {
        fill(tdm_plan_input(m.plan, "x").data, 400, 0.01f);
        if (i == 0)
            CHECK_INT(tdm_prefetch_run(feed, 0, &(tdm_step_key){0}, NULL), TDM_OK);
        else
            tdm_plan_run(m.plan, &(tdm_step_key){0});
        const float *y = tdm_plan_output(m.plan, "y").data;
        if (i == 0) memcpy(first, y, sizeof(first));
        CHECK(memcmp(first, y, sizeof(first)) == 0 && isfinite(y[7]) && y[7] != 0);
    }
    CHECK_INT(tdm_prefetch_pass(feed, NULL), TDM_OK);
    tdm_error err;
    CHECK_INT(tdm_prefetch_begin(feed, 1, &err), TDM_ERR_RANGE);
    tdm_prefetch_destroy(feed);
    CHECK_INT(tdm_prefetch_create(store, TDM_BLOCK_EMA, &m.plan, 1, &feed, &err), TDM_ERR_INVALID);
    tdm_params_destroy(store);
    model_free(&m);
}

/* The offloaded state is in a file without a name, and keeps its numbers when its pages are dropped. */
static void test_offload(void)
{
    model m;
    model_make(&m, 700, true);
    const char *directory = check_path("offload");
    CHECK_INT(mkdir(directory, 0700), 0);
    tdm_params *store = NULL;
    tdm_params_options options = {.graph = m.graph, .has_ema = true, .offload = directory};
    CHECK_INT(tdm_params_create(&options, &store, NULL), TDM_OK);
    CHECK_INT(rmdir(directory), 0); /* it is empty again */
    tdm_params_info info = tdm_params_info_of(store);
    size_t n = tdm_graph_param_extent(m.graph);
    CHECK_INT(info.file_bytes, n * sizeof(float));
    CHECK_INT(info.private_bytes, n * sizeof(float));
    float *ema = tdm_params_block(store, TDM_BLOCK_EMA);
    size_t cells = tdm__params_layout(store)->trained_cells;
    uint64_t before = tdm_os_resident_bytes(), max = before;
    fill(ema, n, 0.25f);
    uint64_t full = tdm_os_resident_bytes();
    CHECK(full > before + n * 3); /* about 6 MB were written */
    tdm__params_has_updated(store, (tdm__cells){0, cells});
    CHECK(tdm_os_resident_bytes() + n * 3 < full); /* and went */
    /* A pass in windows never has more than one of them in memory. */
    before = tdm_os_resident_bytes();
    tdm__params_will_update(store, (tdm__cells){0, cells});
    for (size_t at = 0; at < cells; at += WINDOW) {
        tdm__cells window = {at, at + WINDOW < cells ? at + WINDOW : cells};
        tdm_extent e = tdm__cells_extent(tdm__params_layout(store), window);
        for (size_t i = e.first; i < e.first + e.count; i++) ema[i] *= 2;
        if (tdm_os_resident_bytes() > max) max = tdm_os_resident_bytes();
        tdm__params_has_updated(store, window);
    }
    CHECK(max < before + (uint64_t)3 * WINDOW * CELL * sizeof(float));
    size_t trained = tdm_graph_grad_extent(m.graph);
    for (size_t i = trained; i < n; i++)
        ema[i] *= 2; /* elements after the trained ones are in no cell */
    float *want = malloc(n * sizeof(*want)), *got = malloc(n * sizeof(*got));
    fill(want, n, 0.25f);
    for (size_t i = 0; i < n; i++) want[i] *= 2;
    CHECK_INT(tdm_params_read(store, TDM_BLOCK_EMA, 0, n, got, NULL), TDM_OK);
    CHECK(memcmp(want, got, n * sizeof(*want)) == 0);
    free(want);
    free(got);
    tdm_params_destroy(store);
    tdm_error err;
    CHECK_INT(tdm_params_create(&options, &store, &err), TDM_ERR_NOT_FOUND); /* no such directory */
    CHECK_HAS(err.message, directory);
    model_free(&m);
}

/* ---- schedules ------------------------------------------------------------------------------- */

/* Random phases: buckets that are in memory at the same time must have different slots. */
static void test_slots_never_clash(void)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 5, .stream = TDM_RNG_STREAM_USER});
    for (int trial = 0; trial < 300; trial++) {
        size_t first[40] = {0}, bucket[400], slot_of[60];
        size_t bucket_count = 1 + tdm_rng_below(&rng, 60), count = 1 + tdm_rng_below(&rng, 38);
        for (size_t p = 0; p < count; p++) {
            size_t end = first[p], wanted = tdm_rng_below(&rng, 6);
            for (size_t i = 0; i < wanted; i++) {
                size_t b = tdm_rng_below(&rng, bucket_count);
                bool is_there = false;
                for (size_t j = first[p]; j < end; j++) is_there |= bucket[j] == b;
                if (!is_there) bucket[end++] = b;
            }
            first[p + 1] = end;
        }
        tdm__bucket_lists phases = {.count = count, .first = first, .bucket = bucket};
        size_t slots = tdm__prefetch_slots(&phases, bucket_count, slot_of);
        CHECK(slots <= bucket_count);
        for (size_t p = 0; p < count; p++) {
            size_t end = first[p + 2 <= count ? p + 2 : count];
            for (size_t i = first[p]; i < end; i++)
                for (size_t j = first[p]; j < i; j++)
                    if (bucket[i] != bucket[j]) CHECK(slot_of[bucket[i]] != slot_of[bucket[j]]);
            for (size_t i = first[p]; i < end; i++) CHECK(slot_of[bucket[i]] < slots);
        }
    }
}

/* A chain of layers, each in a separate bucket, needs as much memory for 40 layers as for 10. */
static void test_slots_do_not_grow_with_depth(void)
{
    size_t first[41], bucket[80], slot_of[80];
    for (size_t p = 0; p < 40; p++) {
        first[p] = 2 * p;
        bucket[2 * p] = 2 * p;
        bucket[2 * p + 1] = 2 * p + 1;
    }
    first[40] = 80;
    CHECK_INT(tdm__prefetch_slots(&(tdm__bucket_lists){40, first, bucket}, 80, slot_of), 4);
}

static const check_test tests[] = {
    CHECK_TEST(test_every_cell_has_one_owner),
    CHECK_TEST(test_shares_are_even_over_buckets),
    CHECK_TEST(test_a_single_process),
    CHECK_TEST(test_a_feed_runs_a_plan),
    CHECK_TEST(test_offload),
    CHECK_TEST(test_slots_never_clash),
    CHECK_TEST(test_slots_do_not_grow_with_depth),
};

CHECK_MAIN(tests)
