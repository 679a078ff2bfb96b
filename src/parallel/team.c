/*
 * team.c: workers that execute lanes.
 *
 * A step has two halves with a barrier between them. First, each worker runs its lanes one after
 * the other, in order of index, and adds neighbours as soon as both are there, so that it holds
 * only whole sub-trees (at most one buffer more than the tree is deep for an aligned block). Then
 * the optimiser's pieces of the block of parameters are dealt out, a stretch for each worker; it
 * adds up the rest of the tree for each of its pieces and updates that while it is in cache.
 *
 * Nothing is changed when a gradient is not finite, or so large that its square is not: optimisers
 * remember squares, and an infinity among them would stay for good. Who adds buffers looks at the sums while it has
 * them, and reads a lane's buffer once where it has nothing to add it to: as long as all numbers are
 * modest (tensor/kernel.h), no sum over the tree can be that large. When some are not,
 * one more pass over the pieces looks at the very sums that the update would see, so the answer is
 * the same for any number of workers.
 *
 * Where the optimiser needs a sum over all pieces (the norm of the gradient, LAMB's norms), the
 * second half is cut in two or three passes with a barrier between them. A piece's gradient then
 * waits in one of the buffers of the tree, `home`.
 *
 * Invariants: every element's gradient is the sum over the one tree, whoever added it; a lane's
 * gradient is written only by its worker before the barrier; after it, the numbers of a piece are
 * touched only by the worker to whom the piece belongs; nothing is allocated after creation.
 */
#include "os/barrier.h"
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <tandem/os.h>

#include <assert.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The magnitude from which a gradient, summed over the lanes, counts as bad. */
#define GRADIENT_BOUND 0x1p63f
_Static_assert(TDM_LANES_MOST *(uint64_t)TDM_KERNEL_MODEST <= (uint64_t)GRADIENT_BOUND,
               "modest gradients of all lanes must add up to a good one");

enum { PIECE_ELEMENTS = TDM_OPTIM_PIECE_ELEMENTS, PLANS_PER_BATCH = 2 };

/* What it takes to run a lane of a batch: the slice sizes of a batch differ by one at most. */
typedef struct lane_graph {
    int64_t batch;
    int64_t rows;
    tdm_graph *graph;
} lane_graph;

enum { LANE_GRAPH_MOST = TDM_TEAM_MAX_BATCHES * PLANS_PER_BATCH };

typedef struct worker {
    tdm_team *team;
    int index;
    tdm_slice lanes;
    size_t first_piece, end_piece; /* of the optimiser */
    tdm_plan *plans[LANE_GRAPH_MOST];
    tdm_pages arena;
    tdm_pages grad_pages;
    float **free_grads; /* a stack of buffers not in use */
    int free_count;
    int grad_count;
    float *scratch; /* for each thread: PIECE_ELEMENTS for the sum and for each level of the tree */
    bool modest;    /* all numbers in the buffers that it leaves in the tree */
    atomic_size_t bad_element; /* the first of its pieces that is not finite; SIZE_MAX: none */
    uint64_t lanes_done;
    double seconds;
    pthread_t thread;
    bool started;
} worker;

struct tdm_team {
    tdm_team_options options;
    lane_graph graphs[LANE_GRAPH_MOST];
    int graph_count;
    size_t trained_extent;
    size_t grad_extent; /* with the statistics behind */
    tdm__tree tree;
    double *lane_losses;
    bool *lane_has_rows;
    bool *node_measured; /* by heap number: whether somebody has looked at the numbers of its sum */
    worker *workers;
    int worker_count;
    int thread_count;        /* of each worker */
    size_t scratch_elements; /* of each thread */
    tdm_barrier barrier;
    atomic_bool quit;
    /* The step in progress: written by worker 0 before the first barrier. */
    uint64_t step;
    int64_t batch;
    tdm_step_result result;
    size_t bad_element; /* of the last step's gradient; SIZE_MAX: none, or nobody has looked */
};

/* ---- executing lanes ------------------------------------------------------------------------- */

static int find_graph(const tdm_team *team, int64_t batch, int64_t rows)
{
    for (int i = 0; i < team->graph_count; i++)
        if (team->graphs[i].batch == batch && team->graphs[i].rows == rows) return i;
    return -1;
}

/* The first lane below a heap node. */
static int64_t first_lane(const tdm_team *team, int64_t node)
{
    while (node < team->tree.lane_count) node *= 2;
    return node - team->tree.lane_count;
}

/* Work on whole buffers, in pieces that are spread over the worker's threads. */
typedef struct sum {
    float *a;
    const float *b; /* NULL: `a` is only looked at */
    size_t count;
    atomic_bool *immodest;
} sum;

static void add_range(const void *args, int64_t begin, int64_t end)
{
    const sum *s = args;
    size_t first = (size_t)begin * PIECE_ELEMENTS, last = (size_t)end * PIECE_ELEMENTS;
    if (last > s->count) last = s->count;
    bool modest = s->b ? tdm_kernel_add_into(s->a + first, s->b + first, last - first)
                       : tdm_kernel_modest(s->a + first, last - first);
    if (!modest) atomic_store_explicit(s->immodest, true, memory_order_relaxed);
}

/* Adds b, where it is not NULL, to a. True when all numbers of a are then modest. */
static bool add_buffers(float *a, const float *b, size_t count)
{
    int64_t pieces = (int64_t)((count + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS);
    atomic_bool immodest = false;
    tdm_kernel_spread(pieces, PIECE_ELEMENTS, add_range, &(sum){a, b, count, &immodest});
    return !atomic_load(&immodest);
}

/* `node` is complete. While it is a right child whose sibling is this worker's too, add the two. */
static void settle(worker *w, int64_t node)
{
    tdm_team *team = w->team;
    float **held = team->tree.held;
    while (node > 1 && node % 2 == 1 && first_lane(team, node - 1) >= w->lanes.first) {
        float *left = held[node - 1], *right = held[node];
        bool measured = team->node_measured[left ? node - 1 : node];
        if (left && right) {
            if (!add_buffers(left, right, team->grad_extent)) w->modest = false;
            w->free_grads[w->free_count++] = right;
            measured = true;
        }
        held[node - 1] = held[node] = NULL;
        node /= 2;
        held[node] = left ? left : right;
        team->node_measured[node] = measured;
    }
}

/* The plan of a lane with these rows, ready to run with `grads` for its gradient. */
static tdm_plan *set_up_lane(worker *w, tdm_slice rows, float *grads)
{
    tdm_team *team = w->team;
    int index = find_graph(team, team->batch, rows.count);
    assert(index >= 0);
    tdm_plan *plan = w->plans[index];
    tdm_plan_bind(plan, TDM_SPACE_GRADS, grads);
    team->options.fill(team->options.user, w->index, rows.first, rows.count,
                       tdm_plan_input(plan, TDM_MODEL_INPUT).data,
                       tdm_plan_input(plan, TDM_MODEL_CLASSES).data);
    return plan;
}

static tdm_step_key key_of_lane(const tdm_team *team, tdm_slice rows)
{
    return (tdm_step_key){
        .seed = team->options.seed, .step = team->step, .first_row = (uint64_t)rows.first};
}

static void run_lane(worker *w, int64_t lane)
{
    tdm_team *team = w->team;
    int64_t node = team->tree.lane_count + lane;
    tdm_slice rows = tdm_lane_slice(team->batch, team->options.lane_count, lane);
    team->lane_has_rows[lane] = rows.count > 0;
    team->node_measured[node] = false;
    if (rows.count > 0) {
        assert(w->free_count > 0);
        float *grads = w->free_grads[--w->free_count];
        tdm_plan *plan = set_up_lane(w, rows, grads);
        tdm_step_key key = key_of_lane(team, rows);
        tdm_plan_run(plan, &key);
        team->lane_losses[lane] = (double)*(float *)tdm_plan_output(plan, TDM_MODEL_LOSS).data;
        team->tree.held[node] = grads;
        w->lanes_done++;
    }
    settle(w, node);
}

/* The buffers that a worker holds in the tree: calls `visit` for each, in order of their lanes. Only
 * nodes within the worker's own block can hold its buffers. */
static void visit_held(worker *w, void (*visit)(worker *w, int64_t node))
{
    tdm_team *team = w->team;
    for (int64_t i = 0; i < w->lanes.count; i++) {
        for (int64_t node = team->tree.lane_count + w->lanes.first + i; node >= 1; node /= 2) {
            if (first_lane(team, node) != w->lanes.first + i) break; /* another lane's path */
            if (team->tree.held[node]) visit(w, node);
        }
    }
}

/* A lane that was added to nothing has not been looked at yet. */
static void measure_held(worker *w, int64_t node)
{
    tdm_team *team = w->team;
    if (!team->node_measured[node] && !add_buffers(team->tree.held[node], NULL, team->grad_extent))
        w->modest = false;
}

static void run_lanes(worker *w)
{
    double begin = tdm_clock_s();
    w->modest = true;
    for (int64_t i = 0; i < w->lanes.count; i++) run_lane(w, w->lanes.first + i);
    visit_held(w, measure_held);
    w->seconds += tdm_clock_s() - begin;
}

/* The losses are added by the same tree, so that they, too, do not depend on the workers. */
static double tree_loss(const tdm_team *team, int64_t node, bool *has_rows)
{
    if (node >= team->tree.lane_count) {
        int64_t lane = node - team->tree.lane_count;
        *has_rows = team->lane_has_rows[lane];
        return *has_rows ? team->lane_losses[lane] : 0.0;
    }
    bool left_has, right_has;
    double left = tree_loss(team, 2 * node, &left_has);
    double right = tree_loss(team, 2 * node + 1, &right_has);
    *has_rows = left_has || right_has;
    return left_has && right_has ? left + right : left_has ? left : right;
}

/* ---- the update ------------------------------------------------------------------------------ */

/* A buffer in which sums can wait: any that is in the tree will do, because the part of it that is
 * overwritten was read for that very sum. */
static float *find_home(const tdm_team *team)
{
    for (int64_t node = 1; node < 2 * team->tree.lane_count; node++)
        if (team->tree.held[node]) return team->tree.held[node];
    return NULL; /* no lane had rows */
}

/* What the passes over a worker's pieces share. Each pass is spread over the worker's threads. */
typedef struct update {
    worker *w;
    float *home;
    double grad_norm;
} update;

static float *scratch_here(const worker *w)
{
    return w->scratch + (size_t)tdm_kernel_thread() * w->team->scratch_elements;
}

/* The gradient of a piece, which the optimiser may change: its sum over the tree. With `home` it is
 * left there, otherwise it stays until the next call. */
static float *sum_piece(const worker *w, const tdm_optim_piece *piece, float *home)
{
    const tdm__tree *tree = &w->team->tree;
    if (tree->held[1]) return tree->held[1] + piece->begin;
    float *scratch = scratch_here(w);
    tdm__tree_sum(tree, 1, piece->begin, piece->count, scratch, scratch + PIECE_ELEMENTS);
    if (!home) return scratch;
    return memcpy(home + piece->begin, scratch, piece->count * sizeof(float));
}

static void measure_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->w->team->options.optimiser;
    for (size_t i = u->w->first_piece + (size_t)begin; i < u->w->first_piece + (size_t)end; i++)
        tdm_optimiser_measure(optimiser, i,
                              sum_piece(u->w, tdm_optimiser_piece_at(optimiser, i), u->home));
}

static void update_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->w->team->options.optimiser;
    bool measured = tdm_optimiser_must_measure(optimiser);
    for (size_t i = u->w->first_piece + (size_t)begin; i < u->w->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        float *grad = measured ? u->home + piece->begin : sum_piece(u->w, piece, u->home);
        tdm_optimiser_update(optimiser, i, grad, u->grad_norm);
    }
}

static void apply_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->w->team->options.optimiser;
    double sums[TDM_OPTIM_SUMS];
    size_t summed = SIZE_MAX; /* the parameter that `sums` belong to */
    for (size_t i = u->w->first_piece + (size_t)begin; i < u->w->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        if (piece->param_index != summed) tdm_optimiser_sums(optimiser, piece->param_index, sums);
        summed = piece->param_index;
        tdm_optimiser_apply(optimiser, i, u->home + piece->begin, sums);
    }
}

static void pass(const update *u, tdm_kernel_range_fn run)
{
    tdm_kernel_spread((int64_t)(u->w->end_piece - u->w->first_piece), PIECE_ELEMENTS, run, u);
}

/* What reaches the bound is bad; so is NaN. */
static void find_bad(worker *w, const float *numbers, size_t begin, size_t count, float bound)
{
    size_t k = 0;
    while (k < count && fabsf(numbers[k]) < bound) k++;
    size_t before = atomic_load(&w->bad_element);
    while (k < count && begin + k < before &&
           !atomic_compare_exchange_weak(&w->bad_element, &before, begin + k)) {
    }
}

static void check_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    const tdm_optimiser *optimiser = u->w->team->options.optimiser;
    for (size_t i = u->w->first_piece + (size_t)begin; i < u->w->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        find_bad(u->w, sum_piece(u->w, piece, NULL), piece->begin, piece->count, GRADIENT_BOUND);
    }
}

/* What the lanes observed for the statistics: worker 0 sees to it, as to these themselves. Nobody
 * takes their squares. */
static void check_statistics(worker *w)
{
    const tdm_team *team = w->team;
    for (size_t at = team->trained_extent; w->index == 0 && at < team->grad_extent;
         at += PIECE_ELEMENTS) {
        size_t left = team->grad_extent - at, count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
        if (tdm__tree_sum(&team->tree, 1, at, count, w->scratch, w->scratch + PIECE_ELEMENTS))
            find_bad(w, w->scratch, at, count, INFINITY);
    }
}

/* The first number of the whole gradient, statistics included, that is bad; SIZE_MAX: none is. All
 * workers say the same. */
static size_t find_bad_element(worker *w)
{
    tdm_team *team = w->team;
    bool modest = true;
    for (int i = 0; i < team->worker_count; i++) modest = modest && team->workers[i].modest;
    if (modest) return SIZE_MAX;
    atomic_store(&w->bad_element, SIZE_MAX);
    pass(&(update){.w = w}, check_range);
    check_statistics(w);
    tdm_barrier_wait(&team->barrier);
    size_t first = SIZE_MAX;
    for (int i = 0; i < team->worker_count; i++) {
        size_t its = atomic_load(&team->workers[i].bad_element);
        if (its < first) first = its;
    }
    return first;
}

static void update_shard(worker *w, double *grad_norm)
{
    tdm_team *team = w->team;
    tdm_optimiser *optimiser = team->options.optimiser;
    bool measures = tdm_optimiser_must_measure(optimiser);
    bool applies = tdm_optimiser_must_apply(optimiser);
    update u = {.w = w, .home = measures || applies ? find_home(team) : NULL};
    *grad_norm = 0;
    if (measures) {
        pass(&u, measure_range);
        tdm_barrier_wait(&team->barrier);
        *grad_norm = u.grad_norm = tdm_optimiser_grad_norm(optimiser);
    }
    pass(&u, update_range);
    if (applies) {
        tdm_barrier_wait(&team->barrier);
        pass(&u, apply_range);
    }
}

/* Statistics follow what the lanes observed. They are few: worker 0 sees to all of them. */
static void update_statistics(worker *w)
{
    const tdm_team *team = w->team;
    const tdm_graph *graph = team->graphs[0].graph;
    if (w->index != 0 || team->grad_extent == team->trained_extent) return;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        float *value = team->options.params + p->offset, momentum = (float)p->momentum;
        for (size_t at = 0; p->statistic && at < p->elements; at += PIECE_ELEMENTS) {
            size_t count = p->elements - at < PIECE_ELEMENTS ? p->elements - at : PIECE_ELEMENTS;
            tdm__tree_sum(&team->tree, 1, p->offset + at, count, w->scratch,
                          w->scratch + PIECE_ELEMENTS);
            for (size_t k = 0; k < count; k++)
                value[at + k] = (1.0f - momentum) * value[at + k] + momentum * w->scratch[k];
        }
    }
}

static void take_back(worker *w, int64_t node)
{
    w->free_grads[w->free_count++] = w->team->tree.held[node];
    w->team->tree.held[node] = NULL;
}

static void work(worker *w)
{
    tdm_team *team = w->team;
    bool any;
    run_lanes(w);
    tdm_barrier_wait(&team->barrier);
    tdm_step_result result = {.loss = tree_loss(team, 1, &any)};
    size_t bad_element = SIZE_MAX;
    result.finite = isfinite(result.loss);
    if (result.finite) bad_element = find_bad_element(w);
    if (bad_element != SIZE_MAX) result.finite = false;
    if (result.finite) {
        update_shard(w, &result.grad_norm);
        update_statistics(w);
    }
    tdm_barrier_wait(&team->barrier);
    visit_held(w, take_back);
    if (w->index == 0) {
        team->result = result;
        team->bad_element = bad_element;
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    tdm_kernel_enter(w->team->thread_count);
    for (;;) {
        tdm_barrier_wait(&w->team->barrier);
        if (atomic_load(&w->team->quit)) return NULL;
        work(w);
    }
}

tdm_step_result tdm_team_step(tdm_team *team, uint64_t step, int64_t batch, double lr)
{
    team->step = step;
    team->batch = batch;
    tdm_optimiser_begin(team->options.optimiser, step, lr);
    tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
    tdm_barrier_wait(&team->barrier);
    work(&team->workers[0]);
    tdm_kernel_leave(&before);
    return team->result;
}

/* ---- bad numbers ----------------------------------------------------------------------------- */

/* Every lane is good by itself; `magnitude` is what the sum of the bad element may be at most. */
static void blame_sum(const tdm_team *team, const tdm_graph *graph, double magnitude,
                      tdm_bad_number *out)
{
    const double nearly = 0.99; /* sums are rounded */
    bool overflows = magnitude > nearly * (double)FLT_MAX;
    bool is_large = team->bad_element < team->trained_extent &&
                    magnitude > nearly * (double)GRADIENT_BOUND;
    if (!overflows && !is_large) return;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (team->bad_element < p->offset || team->bad_element >= p->offset + p->elements) continue;
        *out = (tdm_bad_number){.kind = overflows ? TDM_BAD_SUM : TDM_BAD_LARGE, .name = p->name};
    }
}

void tdm_team_replay(tdm_team *team, tdm_bad_number *out)
{
    worker *w = &team->workers[0];
    const tdm_graph *layout = team->graphs[0].graph;
    *out = (tdm_bad_number){.kind = TDM_BAD_NOWHERE};
    if (tdm__blame_params(layout, team->options.params, out)) return;
    double magnitude = 0;
    float *grads = w->free_grads[0];
    for (int64_t i = 0; i < team->options.lane_count; i++) {
        tdm_slice rows = tdm_lane_slice(team->batch, team->options.lane_count, i);
        if (rows.count == 0) continue;
        tdm__lane lane = {.graph = team->graphs[find_graph(team, team->batch, rows.count)].graph,
                          .plan = set_up_lane(w, rows, grads),
                          .key = key_of_lane(team, rows),
                          .grads = grads,
                          .index = i,
                          .rows = rows};
        if (tdm__blame_lane(&lane, out)) return;
        if (team->bad_element != SIZE_MAX) magnitude += fabs((double)grads[team->bad_element]);
    }
    blame_sum(team, layout, magnitude, out);
}

/* ---- creation -------------------------------------------------------------------------------- */

static tdm_status build_graphs(tdm_team *team, tdm_error *err)
{
    for (int b = 0; b < TDM_TEAM_MAX_BATCHES; b++) {
        int64_t batch = team->options.batches[b];
        if (batch <= 0) continue;
        int64_t least = batch / team->options.lane_count;
        for (int64_t rows = least; rows <= least + (batch % team->options.lane_count != 0);
             rows++) {
            if (rows == 0 || find_graph(team, batch, rows) >= 0) continue;
            tdm_model_options m = tdm_model_of_lane(&team->options.model, rows, batch);
            lane_graph *g = &team->graphs[team->graph_count];
            TDM_TRY(tdm_model_build(&m, &g->graph, err));
            g->batch = batch;
            g->rows = rows;
            team->graph_count++;
        }
    }
    if (team->graph_count == 0)
        return tdm_fail(err, TDM_ERR_INVALID, "team: no batch size is given");
    team->trained_extent = tdm_graph_trained_extent(team->graphs[0].graph);
    team->grad_extent = tdm_graph_grad_extent(team->graphs[0].graph);
    return TDM_OK;
}

static tdm_status prepare_plans(worker *w, tdm_error *err)
{
    tdm_team *team = w->team;
    tdm_plan_options options = tdm_model_plan_options(team->options.model.job);
    size_t arena_bytes = 64;
    for (int i = 0; i < team->graph_count; i++) {
        TDM_TRY(tdm_plan_create(team->graphs[i].graph, &options, &w->plans[i], err));
        if (tdm_plan_arena_bytes(w->plans[i]) > arena_bytes)
            arena_bytes = tdm_plan_arena_bytes(w->plans[i]);
    }
    TDM_TRY(tdm_pages_map(arena_bytes, false, &w->arena, err));
    for (int i = 0; i < team->graph_count; i++) {
        tdm_plan_bind(w->plans[i], TDM_SPACE_ARENA, w->arena.data);
        tdm_plan_bind(w->plans[i], TDM_SPACE_PARAMS, team->options.params);
    }
    return TDM_OK;
}

/* The first piece of worker `index`: workers get stretches of about the same number of elements. */
static size_t first_piece_of(const tdm_team *team, int index)
{
    const tdm_optimiser *optimiser = team->options.optimiser;
    size_t low = 0, high = tdm_optimiser_piece_count(optimiser);
    size_t begin = team->trained_extent / (size_t)team->worker_count * (size_t)index;
    if (index == team->worker_count) return high;
    while (low < high) { /* the first that begins at `begin` or after it */
        size_t middle = low + (high - low) / 2;
        if (tdm_optimiser_piece_at(optimiser, middle)->begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static tdm_status prepare_worker(tdm_team *team, int index, tdm_error *err)
{
    worker *w = &team->workers[index];
    w->team = team;
    w->index = index;
    w->lanes = tdm_lane_slice(team->options.lane_count, team->worker_count, index);
    w->first_piece = first_piece_of(team, index);
    w->end_piece = first_piece_of(team, index + 1);
    w->grad_count = tdm_lane_buffers(team->options.lane_count, w->lanes);
    TDM_TRY(prepare_plans(w, err));
    TDM_TRY(tdm_pages_map((size_t)w->grad_count * team->grad_extent * sizeof(float), false,
                          &w->grad_pages, err));
    w->free_grads = calloc((size_t)w->grad_count, sizeof(*w->free_grads));
    w->scratch = aligned_alloc(64,
                               (size_t)team->thread_count * team->scratch_elements * sizeof(float));
    if (!w->free_grads || !w->scratch) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    for (int i = 0; i < w->grad_count; i++)
        w->free_grads[w->free_count++] = (float *)w->grad_pages.data +
                                         (size_t)i * team->grad_extent;
    return TDM_OK;
}

static tdm_status start_threads(tdm_team *team, tdm_error *err)
{
    for (int i = 1; i < team->worker_count; i++) {
        worker *w = &team->workers[i];
        int error_number = pthread_create(&w->thread, NULL, worker_main, w);
        if (error_number != 0)
            return tdm_fail(err, TDM_ERR_SYSTEM, "team: worker %d cannot be started: %s", i,
                            strerror(error_number));
        w->started = true;
    }
    return TDM_OK;
}

static tdm_status check_options(const tdm_team_options *o, tdm_error *err)
{
    if (o->lane_count < 1 || o->lane_count > TDM_LANES_MOST ||
        (o->lane_count & (o->lane_count - 1)) != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "team: %lld lanes; it must be a power of two up to %d",
                        (long long)o->lane_count, TDM_LANES_MOST);
    if (o->worker_count < 1 || o->worker_count > o->lane_count)
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%d workers cannot share %lld lanes: each executes at least one; use between "
            "1 and %lld workers, or set parallel.lanes higher (which changes the result)",
            o->worker_count, (long long)o->lane_count, (long long)o->lane_count);
    return TDM_OK;
}

tdm_status tdm_team_create(const tdm_team_options *options, tdm_team **out, tdm_error *err)
{
    TDM_TRY(check_options(options, err));
    tdm_team *team = calloc(1, sizeof(*team));
    if (!team) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    team->options = *options;
    team->worker_count = options->worker_count;
    team->thread_count = tdm_model_plan_options(options->model.job).threads;
    team->scratch_elements = 2 * PIECE_ELEMENTS;
    for (int64_t n = options->lane_count; n > 1; n /= 2) team->scratch_elements += PIECE_ELEMENTS;
    size_t lanes = (size_t)options->lane_count;
    team->tree.lane_count = options->lane_count;
    team->tree.held = calloc(2 * lanes, sizeof(*team->tree.held));
    team->lane_losses = calloc(lanes, sizeof(*team->lane_losses));
    team->lane_has_rows = calloc(lanes, sizeof(*team->lane_has_rows));
    team->node_measured = calloc(2 * lanes, sizeof(*team->node_measured));
    team->workers = calloc((size_t)team->worker_count, sizeof(*team->workers));
    tdm_barrier_init(&team->barrier, (uint32_t)team->worker_count);
    atomic_init(&team->quit, false);
    tdm_status status = TDM_OK;
    if (!team->tree.held || !team->lane_losses || !team->lane_has_rows || !team->node_measured ||
        !team->workers)
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    if (status == TDM_OK) status = build_graphs(team, err);
    for (int i = 0; i < team->worker_count && status == TDM_OK; i++)
        status = prepare_worker(team, i, err);
    if (status == TDM_OK) status = start_threads(team, err);
    if (status != TDM_OK) {
        tdm_team_destroy(team);
        return status;
    }
    *out = team;
    return TDM_OK;
}

static void stop_threads(tdm_team *team)
{
    int started = 0;
    for (int i = 1; i < team->worker_count; i++) started += team->workers[i].started;
    if (started == 0) return;
    /* When some could not be started, the others wait for a full house that never comes: let those
     * that are there be all, and this thread with them. */
    atomic_store(&team->quit, true);
    for (int i = started; i < team->worker_count - 1; i++)
        atomic_fetch_add(&team->barrier.arrived, 1);
    tdm_barrier_wait(&team->barrier);
    for (int i = 1; i < team->worker_count; i++)
        if (team->workers[i].started) pthread_join(team->workers[i].thread, NULL);
}

void tdm_team_destroy(tdm_team *team)
{
    if (!team) return;
    if (team->workers) {
        stop_threads(team);
        for (int i = 0; i < team->worker_count; i++) {
            worker *w = &team->workers[i];
            for (int p = 0; p < LANE_GRAPH_MOST; p++) tdm_plan_destroy(w->plans[p]);
            tdm_pages_unmap(&w->arena);
            tdm_pages_unmap(&w->grad_pages);
            free(w->free_grads);
            free(w->scratch);
        }
    }
    for (int i = 0; i < team->graph_count; i++) tdm_graph_destroy(team->graphs[i].graph);
    free(team->workers);
    free(team->tree.held);
    free(team->lane_losses);
    free(team->lane_has_rows);
    free(team->node_measured);
    free(team);
}

tdm_team_info tdm_team_info_of(const tdm_team *team)
{
    tdm_team_info info = {.worker_count = team->worker_count,
                          .lane_count = team->options.lane_count,
                          .arena_bytes = team->workers[0].arena.bytes};
    for (int i = 0; i < team->worker_count; i++)
        info.grad_bytes += team->workers[i].grad_pages.bytes;
    const lane_graph *g = &team->graphs[0];
    uint64_t flops = 0;
    for (size_t n = 0; n < tdm_graph_node_count(g->graph); n++)
        flops += tdm_graph_node_at(g->graph, n).flops;
    info.flops_per_row = flops / (uint64_t)g->rows;
    return info;
}

void tdm_team_worker(const tdm_team *team, int worker_index, uint64_t *lanes, double *seconds)
{
    *lanes = team->workers[worker_index].lanes_done;
    *seconds = team->workers[worker_index].seconds;
}
