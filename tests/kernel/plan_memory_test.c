/*
 * plan_memory_test.c: sharing memory must not affect results.
 *
 * Random graphs run twice: by a plan that shares and overwrites memory as much as possible, and by one in which
 * every value is an output, so that nothing can be shared. All outputs and all gradients must agree bit for
 * bit. The placement is also checked directly: lifetimes are computed from the graph again, and no two values
 * with overlapping lifetimes may overlap in memory, except an op that works in place and its input.
 */
#include "graph/graph.h"
#include "graph/memory.h"
#include "graph_bench.h"
#include "kernel/random_graph.h"

enum { GRAPH_COUNT = 400 };

/* Marks all values as outputs, also inputs, which the builder would reject. */
static void keep_everything(tdm_graph *g)
{
    tdm_error err = {0};
    for (int32_t id = 1; (size_t)id < g->value_count; id++) {
        char name[16];
        snprintf(name, sizeof(name), "value%d", (int)id);
        if (g->values[id].role == TDM__ROLE_INPUT) g->values[id].is_output = true;
        if (g->values[id].role == TDM__ROLE_COMPUTED && !g->values[id].is_output)
            tdm_graph_output(g, name, (tdm_value){id});
    }
    CHECK_INT(tdm_graph_check(g, &err), TDM_OK);
}

static bool same_gradients(const bench *a, const bench *b)
{
    bool same = true;
    for (size_t p = 0; p < tdm_graph_param_count(a->graph); p++) {
        const tdm_param_info *info = tdm_graph_param_at(a->graph, p);
        if (info->trained)
            same = same && memcmp(a->grads + info->offset, b->grads + info->offset,
                                  info->elements * sizeof(float)) == 0;
    }
    return same;
}

/* The outputs of `a` that are also outputs of `b`. */
static bool same_outputs(const bench *a, const bench *b)
{
    bool same = true;
    for (size_t id = 1; id < a->graph->value_count; id++) {
        if (!a->graph->values[id].is_output) continue;
        tdm_tensor x = tdm_plan_output(a->plan, a->graph->values[id].name);
        tdm_tensor y = tdm_plan_output(b->plan, a->graph->values[id].name);
        same = same && memcmp(x.data, y.data, tdm_tensor_bytes(&x)) == 0;
    }
    return same;
}

/* Runs both, twice: a plan must not depend on the results of an earlier run. */
static bool compare_runs(bench *shared, bench *kept, uint64_t seed)
{
    bool finite = true;
    for (uint64_t run = 0; run < 2; run++) {
        memset(shared->grads, 0xff, shared->grad_bytes);
        memset(kept->grads, 0xff, kept->grad_bytes);
        bench_fill(shared, seed + run, RANDOM_GRAPH_CLASSES);
        bench_fill(kept, seed + run, RANDOM_GRAPH_CLASSES);
        bench_run(shared);
        bench_run(kept);
        bool outputs = same_outputs(shared, kept), gradients = same_gradients(shared, kept);
        if (!outputs || !gradients)
            fprintf(stderr, "  graph %d: %s differ\n", (int)seed,
                    outputs ? "gradients" : "outputs");
        CHECK(outputs && gradients);
        finite = finite && isfinite(*(float *)tdm_plan_output(shared->plan, "loss").data);
    }
    return finite;
}

typedef struct totals {
    size_t finite, in_place, views, shared_bytes, unshared_bytes;
} totals;

static void count_sharing(const bench *b, totals *t)
{
    for (size_t i = 0; i < tdm_plan_node_count(b->plan); i++) {
        tdm_plan_node_info info = tdm_plan_node_at(b->plan, i);
        t->in_place += info.in_place;
        t->views += strcmp(info.backend, "view") == 0;
    }
    t->shared_bytes += tdm_plan_arena_bytes(b->plan);
    t->unshared_bytes += tdm_plan_unshared_bytes(b->plan);
    CHECK(tdm_plan_arena_bytes(b->plan) <= tdm_plan_unshared_bytes(b->plan));
}

static void compare_graph(uint64_t seed, const char *backend, totals *t)
{
    tdm_error err = {0};
    tdm_graph *g = random_graph_make(seed, &err), *all = random_graph_make(seed, &err);
    CHECK_TEXT(err.message, "");
    bench shared, kept;
    if (g && all) {
        keep_everything(all);
        const tdm_plan_options options = {.backend = backend};
        if (bench_open(&shared, g, &options)) {
            if (bench_open(&kept, all, &options)) {
                for (size_t i = 0; i < tdm_plan_node_count(kept.plan); i++)
                    CHECK(!tdm_plan_node_at(kept.plan, i).in_place);
                if (backend && strcmp(backend, "ref") == 0) /* no scratch, nothing shared */
                    CHECK_INT(tdm_plan_arena_bytes(kept.plan), tdm_plan_unshared_bytes(kept.plan));
                t->finite += compare_runs(&shared, &kept, seed);
                bench_close(&kept);
            }
            count_sharing(&shared, t);
            bench_close(&shared);
        }
    }
    tdm_graph_destroy(g);
    tdm_graph_destroy(all);
}

static void sharing_does_not_show(const char *backend)
{
    totals t = {0};
    for (uint64_t seed = 0; seed < GRAPH_COUNT; seed++) compare_graph(seed, backend, &t);
    printf("     %zu of %d graphs finite, %zu ops in place, %zu views, %zu KB for %zu KB\n",
           t.finite, GRAPH_COUNT, t.in_place, t.views, t.shared_bytes >> 10,
           t.unshared_bytes >> 10);
    /* The test is meaningful only while the graphs share memory. */
    CHECK(t.finite > GRAPH_COUNT * 9 / 10);
    CHECK(t.in_place > 5 * GRAPH_COUNT && t.views > GRAPH_COUNT);
    CHECK(t.shared_bytes < t.unshared_bytes * 3 / 4);
}

static void sharing_does_not_show_with_ref(void)
{
    sharing_does_not_show("ref");
}

static void sharing_does_not_show_with_the_best_kernels(void)
{
    sharing_does_not_show(NULL);
}

/* ---- placement ------------------------------------------------------------------------------- */

/* The lifetime of a value, from the graph alone. A view has the lifetime of its source. */
typedef struct life {
    int32_t root;        /* the value whose memory it is */
    int32_t first, last; /* of a root: node numbers, -1 before the run, INT32_MAX after it */
    bool there;
} life;

static void find_lives(const tdm_graph *g, const bool *live, life *lives)
{
    for (int32_t id = 1; (size_t)id < g->value_count; id++) {
        bool outside = g->values[id].role != TDM__ROLE_COMPUTED;
        lives[id] = (life){.root = id, .first = -1, .last = -1, .there = outside};
    }
    for (int32_t n = 0; (size_t)n < g->node_count; n++) {
        const tdm__node *node = &g->nodes[n];
        if (!live[n]) continue;
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
            if (!node->out[o]) continue;
            bool view = node->op == TDM_OP_RESHAPE;
            lives[node->out[o]] = (life){.root = view ? lives[node->in[0]].root : node->out[o],
                                         .first = n,
                                         .last = n,
                                         .there = true};
        }
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (node->in[i]) lives[lives[node->in[i]].root].last = n;
    }
    for (int32_t id = 1; (size_t)id < g->value_count; id++)
        if (g->values[id].is_output && lives[id].there) lives[lives[id].root].last = INT32_MAX;
}

static bool touch_in_space(const tdm__storage *a, const tdm__storage *b, size_t a_bytes,
                           size_t b_bytes)
{
    return a->space == b->space && a->offset < b->offset + b_bytes &&
           b->offset < a->offset + a_bytes;
}

/* b reuses a's memory at the one node where a ends and b begins, as the op's row allows. */
static bool hands_over(const tdm_graph *g, const tdm__memory *m, const life *lives, int32_t a,
                       int32_t b)
{
    int32_t n = lives[b].first;
    if (n < 0 || lives[a].last != n || !m->in_place[n]) return false;
    const tdm__op_row *row = tdm__op_row_of(g->nodes[n].op);
    if (g->nodes[n].out[row->in_place_out] != b) return false;
    if (m->storages[m->of_value[a]].offset != m->storages[m->of_value[b]].offset) return false;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
        if (row->in_place >> i & 1 && g->nodes[n].in[i] && lives[g->nodes[n].in[i]].root == a)
            return true;
    return false;
}

static size_t bytes_of(const tdm_graph *g, int32_t id)
{
    return (size_t)tdm_shape_elements(&g->values[id].shape) * 4;
}

static int count_clashes(const tdm_graph *g, const tdm__memory *m, const life *lives)
{
    int clashes = 0;
    for (int32_t a = 1; (size_t)a < g->value_count; a++) {
        if (!lives[a].there || lives[a].root != a) continue;
        const tdm__storage *s = &m->storages[m->of_value[a]];
        CHECK(s->offset % 64 == 0);
        if (s->space == TDM_SPACE_ARENA) CHECK(s->offset + bytes_of(g, a) <= m->arena_bytes);
        for (int32_t b = 1; (size_t)b < g->value_count; b++) {
            if (b == a || !lives[b].there || lives[b].root != b) continue;
            bool at_once = lives[a].first <= lives[b].last && lives[b].first <= lives[a].last;
            clashes += at_once &&
                       touch_in_space(s, &m->storages[m->of_value[b]], bytes_of(g, a),
                                      bytes_of(g, b)) &&
                       !hands_over(g, m, lives, a, b) && !hands_over(g, m, lives, b, a);
        }
    }
    return clashes;
}

static int count_scratch_clashes(const tdm_graph *g, const tdm__memory *m, const life *lives,
                                 const size_t *scratch)
{
    int clashes = 0;
    for (int32_t n = 0; (size_t)n < g->node_count; n++) {
        if (m->of_scratch[n] < 0) continue;
        const tdm__storage *s = &m->storages[m->of_scratch[n]];
        CHECK(s->offset % 64 == 0 && s->offset + scratch[n] <= m->arena_bytes);
        for (int32_t id = 1; (size_t)id < g->value_count; id++)
            clashes += lives[id].there && lives[id].root == id && lives[id].first <= n &&
                       n <= lives[id].last &&
                       touch_in_space(s, &m->storages[m->of_value[id]], scratch[n],
                                      bytes_of(g, id));
    }
    return clashes;
}

/* Views share the memory of their source; gradients and parameters are where the layout defines. */
static void check_fixed_places(const tdm_graph *g, const tdm__memory *m, const life *lives,
                               bool forward_only)
{
    for (int32_t id = 1; (size_t)id < g->value_count; id++) {
        const tdm__value *v = &g->values[id];
        if (!lives[id].there) continue;
        CHECK(m->of_value[id] >= 0);
        const tdm__storage *s = &m->storages[m->of_value[id]];
        CHECK(m->of_value[id] == m->of_value[lives[id].root]);
        if (v->role == TDM__ROLE_PARAM)
            CHECK(s->space == TDM_SPACE_PARAMS && s->offset == 4 * g->params[v->param].offset);
        if (v->role == TDM__ROLE_INPUT) CHECK(s->space == TDM_SPACE_ARENA);
        if (v->grad_of && !forward_only)
            CHECK(s->space == TDM_SPACE_GRADS && s->offset == 4 * g->params[v->grad_of - 1].offset);
    }
}

static void place_one(const tdm_graph *g, const bool *live, bool forward_only, tdm_rng *rng)
{
    tdm_error err = {0};
    tdm__memory m = {0};
    size_t *scratch = calloc(g->node_count, sizeof(*scratch));
    life *lives = calloc(g->value_count, sizeof(*lives));
    for (size_t n = 0; n < g->node_count; n++)
        if (tdm_rng_below(rng, 4) == 0) scratch[n] = 1 + tdm_rng_below(rng, 2000);
    CHECK_INT(tdm__memory_plan(g, live, scratch, forward_only, &m, &err), TDM_OK);
    find_lives(g, live, lives);
    CHECK_INT(count_clashes(g, &m, lives), 0);
    CHECK_INT(count_scratch_clashes(g, &m, lives, scratch), 0);
    check_fixed_places(g, &m, lives, forward_only);
    for (size_t n = 0; n < g->node_count; n++)
        CHECK_INT(m.of_scratch[n] >= 0, live[n] && scratch[n] > 0);
    tdm__memory_release(&m);
    free(lives);
    free(scratch);
}

/* With all nodes needed, as after a backward pass, and with only the forward ones. */
static void nothing_that_lives_at_once_overlaps(void)
{
    for (uint64_t seed = 0; seed < GRAPH_COUNT; seed++) {
        tdm_error err = {0};
        tdm_graph *g = random_graph_make(seed, &err);
        CHECK(g != NULL);
        if (!g) continue;
        tdm_rng rng = bench_rng(seed, 1);
        bool *live = calloc(g->node_count, sizeof(*live));
        for (size_t n = 0; n < g->node_count; n++) live[n] = true;
        place_one(g, live, false, &rng);
        for (size_t n = 0; n < g->node_count; n++) live[n] = !g->nodes[n].backward;
        place_one(g, live, true, &rng);
        free(live);
        tdm_graph_destroy(g);
    }
}

/* A chain of one-to-one ops needs its input and nothing else. */
static void a_chain_runs_in_one_buffer(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(16, 16));
    for (int i = 0; i < 5; i++) x = tdm_graph_gelu(g, tdm_graph_reshape(g, x, tdm_shape_1(256)));
    tdm_graph_output(g, "y", x);
    bench b;
    if (bench_open(&b, g, NULL)) {
        CHECK_INT(tdm_plan_arena_bytes(b.plan), 1024);
        CHECK_INT(tdm_plan_unshared_bytes(b.plan), 6 * 1024);
        for (size_t i = 0; i < tdm_plan_node_count(b.plan); i++) {
            tdm_plan_node_info info = tdm_plan_node_at(b.plan, i);
            CHECK_TEXT(info.backend, i % 2 ? "cpu" : "view");
            CHECK_INT(info.in_place, i % 2);
            CHECK_INT(info.arena_offset, 0);
            CHECK_INT(info.bytes, 1024);
        }
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* The gradient of a table that is added to a value computed from the table: the incoming gradient and the
 * value to which the rows are added are the same, directly or as a view. */
static void a_scatter_does_not_overwrite_its_input(void)
{
    enum { V = 4, C = 2 };
    static const int32_t chosen[V] = {1, 2, 2, 0};
    static const float expected[V * C] = {8, 10, 4, 6, 13, 16, 7, 8};
    for (int trial = 0; trial < 4; trial++) {
        tdm_error err = {0};
        tdm_graph *g = tdm_graph_create();
        tdm_value t = tdm_graph_param(g, "t", tdm_shape_2(V, C), (tdm_init){TDM_INIT_ZERO, 0});
        tdm_value ids = tdm_graph_input(g, "ids", TDM_DTYPE_I32, tdm_shape_1(V));
        tdm_value y = tdm_graph_input(g, "y", TDM_DTYPE_F32, tdm_shape_2(V, C));
        tdm_value e = tdm_graph_embedding(g, t, ids);
        if (trial & 1)
            e = tdm_graph_reshape(g, tdm_graph_reshape(g, e, tdm_shape_1(V * C)),
                                  tdm_shape_2(V, C));
        tdm_value loss = tdm_graph_mse(g, tdm_graph_add(g, e, t), y, 1.0);
        tdm_graph_output(g, "loss", loss);
        CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
        bench b;
        if (bench_open(&b, g, &(tdm_plan_options){.backend = trial & 2 ? "ref" : NULL})) {
            memset(b.params, 0, b.param_bytes);
            memset(b.arena, 0xff, b.arena_bytes);
            memcpy(tdm_plan_input(b.plan, "ids").data, chosen, sizeof(chosen));
            float *target = tdm_plan_input(b.plan, "y").data;
            for (int i = 0; i < V * C; i++) target[i] = -0.5f * (float)(i + 1); /* dy: 1, 2, 3... */
            bench_run(&b);
            for (int i = 0; i < V * C; i++) CHECK_NEAR(b.grads[i], expected[i], 0);
            bench_close(&b);
        }
        tdm_graph_destroy(g);
    }
}

/* A sum of a value and itself, or a view of it, needs no second buffer. */
static void a_sum_with_itself_stays_in_place(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(16, 16));
    tdm_value view = tdm_graph_reshape(g, x, tdm_shape_2(16, 16));
    x = tdm_graph_add(g, x, view);
    tdm_graph_output(g, "y", tdm_graph_mul(g, x, x));
    bench b;
    if (bench_open(&b, g, NULL)) {
        CHECK_INT(tdm_plan_arena_bytes(b.plan), 1024);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

/* More bytes than any machine has: an error of the placement, without an overflow. */
static void too_large_a_plan_is_refused(void)
{
    tdm_error err = {0};
    tdm_plan *plan = NULL;
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_1(INT64_MAX / 16));
    for (int i = 0; i < 9; i++) x = tdm_graph_add(g, x, x);
    tdm_graph_output(g, "y", x);
    CHECK_INT(tdm_plan_create(g, NULL, &plan, &err), TDM_ERR_RANGE);
    CHECK_TEXT(err.message, "plan: the values exceed the address space; "
                            "make the model or the batch smaller");
    CHECK(!plan);
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(sharing_does_not_show_with_ref),
    CHECK_TEST(sharing_does_not_show_with_the_best_kernels),
    CHECK_TEST(nothing_that_lives_at_once_overlaps),
    CHECK_TEST(a_chain_runs_in_one_buffer),
    CHECK_TEST(a_scatter_does_not_overwrite_its_input),
    CHECK_TEST(a_sum_with_itself_stays_in_place),
    CHECK_TEST(too_large_a_plan_is_refused),
};
CHECK_MAIN(tests)
