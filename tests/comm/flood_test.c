/*
 * flood_test.c: as many concurrent calls as training starts: 64 in flight on one group, sums over lanes with
 * uneven slices and gathers of such slices, of all sizes and priorities, from a thread that computes in
 * between.
 *
 *     flood_test TRANSPORT RANKS...    starts a world of each number of RANKS, one after the other
 *     flood_test --rank                one of its ranks (mpirun starts these as well)
 *
 * TRANSPORT is shm, ucx, shm+ucx (two ranks for each host, according to TANDEM_HOST), or sim. All ranks draw
 * the same calls; each rank starts them at different times and waits for them in a different order. Numbers are
 * whole, so their sums are exact. The memory that the calls use besides their buffers is limited. In a second
 * case one rank waits for calls before it starts others, which are more urgent and larger than the limit of
 * data in flight. A third case tests the memory that the ranks of a node share.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "sim/simulator.h"
#include "transport/registry.h"
#include "world.h"

#include <tandem/os.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 64, LANES = 8, MAX_RANKS = 16, HOST_RANKS = 2, SCRATCH_MB = 72 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 1, MAX_COUNT = 60000, URGENT_COUNT = 700000, IS_SLOW = 1 };
#else
enum { ROUNDS = 2, MAX_COUNT = 500000, URGENT_COUNT = 1500000, IS_SLOW = 0 };
#endif

typedef struct flood {
    tdm_comm *comm;
    int rank, size;
    bool is_sim, failed;
    tdm_rng common, own; /* the first: the same on all ranks; the second: of this rank */
} flood;

typedef struct one_call {
    tdm_call call;
    size_t cuts[MAX_RANKS + 1];
    int64_t first[MAX_RANKS + 1];
    tdm_lanes lanes;
    float *parts[LANES];
    const void *part_list[LANES];
    int part_count;
    tdm_request *request;
} one_call;

static void complain(flood *f, const one_call *c, const char *what)
{
    fprintf(stderr, "FAIL: rank %d of %d: %s of %zu: %s\n", f->rank, f->size,
            c ? tdm_call_kind_name(c->call.kind) : "world", c ? c->call.count : 0, what);
    f->failed = true;
}

static size_t below(tdm_rng *rng, size_t bound)
{
    return (size_t)tdm_rng_below(rng, bound);
}

/* Computes, as a training thread does between its calls. */
static void compute(flood *f, double seconds)
{
    if (f->is_sim) {
        tdm_sim_compute(f->comm, seconds);
        return;
    }
    double until_s = tdm_clock_s() + seconds;
    for (volatile double x = 1; tdm_clock_s() < until_s; x = x * 1.0000001) continue;
}

/* ---- the calls ----------------------------------------------------------------------------------- */

static float number_of(size_t i, int lane)
{
    return (float)((i * 7 + (size_t)lane * 13) % 101);
}

/* `count` positions from 0 to `end`, sorted; two may be equal. */
static void draw_positions(tdm_rng *rng, size_t *out, int count, size_t end)
{
    for (int i = 0; i <= count; i++) {
        size_t at = i == 0 ? 0 : i == count ? end : below(rng, end + 1);
        int j = i;
        for (; j > 0 && out[j - 1] > at; j--) out[j] = out[j - 1];
        out[j] = at;
    }
}

static void draw_lanes(flood *f, one_call *c)
{
    size_t first[MAX_RANKS + 1];
    draw_positions(&f->common, first, f->size, LANES);
    for (int i = 0; i <= f->size; i++) c->first[i] = (int64_t)first[i];
    c->lanes = (tdm_lanes){.lane_count = LANES, .first = c->first};
    int64_t nodes[TDM_MAX_LANE_PARTS];
    c->part_count = tdm_lane_nodes(&c->lanes, c->first[f->rank], c->first[f->rank + 1], nodes);
    for (int k = 0; k < c->part_count && k < LANES; k++) {
        int width = LANES;
        for (int64_t n = nodes[k]; n > 1; n /= 2) width /= 2;
        int lane = (int)(nodes[k] * width - LANES);
        c->parts[k] = malloc(c->call.count * sizeof(float));
        for (size_t i = 0; i < c->call.count; i++) {
            float sum = 0;
            for (int l = lane; l < lane + width; l++) sum += number_of(i, l);
            c->parts[k][i] = sum;
        }
        c->part_list[k] = c->parts[k];
    }
    c->call.lanes = &c->lanes;
    c->call.parts = c->part_list;
}

/* The next call, the same on all ranks, with its buffers: the sum of a slice is written to its offset in the
 * last part, if there is one; a gather is in place. */
static void draw_call(flood *f, one_call *c)
{
    static const tdm_call_kind kinds[] = {TDM_CALL_REDUCE_SCATTER, TDM_CALL_ALL_REDUCE,
                                          TDM_CALL_ALL_GATHER};
    *c = (one_call){.call = {.kind = kinds[below(&f->common, 3)],
                             .dtype = TDM_DTYPE_F32,
                             .count = 1 + below(&f->common, below(&f->common, 4) ? MAX_COUNT : 100),
                             .priority = (int)below(&f->common, 5)}};
    draw_positions(&f->common, c->cuts, f->size, c->call.count);
    c->call.cuts = c->cuts;
    size_t first = c->cuts[f->rank], count = c->cuts[f->rank + 1] - first;
    if (c->call.kind != TDM_CALL_ALL_GATHER) draw_lanes(f, c);
    if (c->call.kind == TDM_CALL_REDUCE_SCATTER && c->part_count > 0) {
        c->call.out = c->parts[c->part_count - 1] + first;
        return;
    }
    float *out = calloc(c->call.count, sizeof(*out));
    c->call.out = out;
    for (size_t i = first; c->call.kind == TDM_CALL_ALL_GATHER && i < first + count; i++)
        out[i] = number_of(i, 0);
}

static void check_call(flood *f, const one_call *c)
{
    const float *out = c->call.out;
    bool sliced = c->call.kind == TDM_CALL_REDUCE_SCATTER;
    size_t first = sliced ? c->cuts[f->rank] : 0;
    size_t count = sliced ? c->cuts[f->rank + 1] - first : c->call.count;
    int lanes = c->call.kind == TDM_CALL_ALL_GATHER ? 1 : LANES;
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int l = 0; l < lanes; l++) sum += number_of(first + i, l);
        if (out[i] == sum) continue;
        complain(f, c, "a wrong number came out");
        return;
    }
}

static void release_call(one_call *c)
{
    bool in_part = c->call.kind == TDM_CALL_REDUCE_SCATTER && c->part_count > 0;
    if (!in_part) free(c->call.out);
    for (int k = 0; k < c->part_count; k++) free(c->parts[k]);
}

/* ---- the flood ----------------------------------------------------------------------------------- */

static void start(flood *f, one_call *c)
{
    tdm_error err = {0};
    if (tdm_call_start(tdm_comm_world(f->comm), &c->call, &c->request, &err) != TDM_OK)
        complain(f, c, err.message);
}

static void finish(flood *f, one_call *c)
{
    tdm_error err = {0};
    if (!c->request || tdm_request_wait(c->request, &err) != TDM_OK)
        complain(f, c, c->request ? err.message : "was not started");
}

static long max_resident_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void run_round(flood *f)
{
    one_call *calls = calloc(CALLS, sizeof(*calls));
    int order[CALLS];
    for (int i = 0; i < CALLS; i++) draw_call(f, &calls[i]);
    long before_kb = max_resident_kb();
    if (below(&f->own, 2)) compute(f, 0.02);
    for (int i = 0; i < CALLS && !f->failed; i++) {
        start(f, &calls[i]);
        if (below(&f->own, 4) == 0) compute(f, 0.0005);
        int j = (int)below(&f->own, (size_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < CALLS && !f->failed; i++) finish(f, &calls[order[i]]);
    long grown_mb = (max_resident_kb() - before_kb) / 1024;
    if (!f->is_sim && !IS_SLOW && grown_mb > SCRATCH_MB)
        complain(f, NULL, "64 calls took more memory than there is to be for them");
    for (int i = 0; i < CALLS && !f->failed; i++) check_call(f, &calls[i]);
    for (int i = 0; i < CALLS; i++) release_call(&calls[i]);
    free(calls);
}

/* The others start all calls at once, the most urgent one last; rank 1 waits for the first two before it
 * starts the rest. Urgent calls, even if they exceed the limit of data in flight, must not block these two. */
static void run_urgent(flood *f, tdm_algorithm algorithm)
{
    enum { URGENT = 4 };
    one_call calls[URGENT] = {0};
    for (int i = 0; i < URGENT; i++) {
        one_call *c = &calls[i];
        c->call = (tdm_call){.kind = TDM_CALL_ALL_GATHER,
                             .dtype = TDM_DTYPE_F32,
                             .count = URGENT_COUNT,
                             .algorithm = algorithm,
                             .priority = -i};
        tdm_extent own = tdm_group_slice(URGENT_COUNT, f->size, f->rank);
        float *out = calloc(URGENT_COUNT, sizeof(*out));
        c->call.out = out;
        for (size_t k = own.first; k < own.first + own.count; k++) out[k] = number_of(k, 0);
    }
    if (f->rank == 1) compute(f, 0.05);
    for (int i = 0; i < URGENT && !f->failed; i++) {
        start(f, &calls[i]);
        if (f->rank == 1 && i < 2 && !f->failed) finish(f, &calls[i]);
    }
    for (int i = f->rank == 1 ? 2 : 0; i < URGENT && !f->failed; i++) finish(f, &calls[i]);
    for (int i = 0; i < URGENT; i++) {
        if (!f->failed) check_call(f, &calls[i]);
        free(calls[i].call.out);
    }
}

/* ---- memory in common ------------------------------------------------------------------------------ */

/* The region of a rank in the segment of its node. */
static void *region_of(flood *f, uint32_t scope, int rank)
{
    char name[TDM_SHM_NAME_BYTES];
    tdm_error err = {0};
    void *region = NULL;
    tdm_shm *shm = tdm_comm_shm(f->comm, &err);
    snprintf(name, sizeof(name), "flood-%u-%d", (unsigned)scope, rank);
    if (!shm || tdm_shm_region_take(shm, name, (size_t)3 * 4096, NULL, &region, &err) != TDM_OK)
        complain(f, NULL, err.message);
    return region;
}

/* Every rank takes a region and sends its offset; the ranks of the same node write into it. */
static void run_shared(flood *f)
{
    tdm_error err = {0};
    uint64_t places[MAX_RANKS] = {0};
    uint32_t scope = tdm_comm_shm_scope(f->comm);
    tdm_shm *shm = tdm_comm_shm(f->comm, &err);
    void *block = region_of(f, scope, f->rank), *regions[MAX_RANKS] = {NULL};
    if (!block) return;
    int *words = (int *)((char *)block + 4096 + 64), outside = 0;
    tdm_group *world = tdm_comm_world(f->comm);
    places[f->rank] = tdm_shm_offset(shm, words);
    if (places[f->rank] == UINT64_MAX || tdm_shm_at(shm, places[f->rank]) != words ||
        tdm_shm_offset(shm, &outside) != UINT64_MAX || tdm_shm_at(shm, UINT64_MAX) ||
        tdm_shm_at(shm, UINT64_MAX - 4095))
        complain(f, NULL, "a place of shared memory is not what it should be");
    if (tdm_group_all_gather(world, NULL, places, (size_t)f->size, TDM_DTYPE_I64, &err) != TDM_OK)
        complain(f, NULL, err.message);
    int node = tdm_comm_node_of(f->comm, f->rank), neighbours = 0;
    for (int r = 0; r < f->size && !f->failed; r++) {
        if (tdm_comm_node_of(f->comm, r) != node) continue;
        regions[r] = region_of(f, scope, r);
        int *theirs = tdm_shm_at(shm, places[r]);
        neighbours++;
        if (theirs)
            theirs[f->rank] = f->rank + 1;
        else
            complain(f, NULL, "a neighbour's memory is not seen");
    }
    if (tdm_group_barrier(world, &err) != TDM_OK) complain(f, NULL, err.message);
    for (int r = 0; r < f->size && !f->failed; r++)
        if (words[r] != (tdm_comm_node_of(f->comm, r) == node ? r + 1 : 0))
            complain(f, NULL, "a neighbour's word is not there");
    tdm_comm_info info;
    tdm_comm_info_get(f->comm, &info);
    bool shares = strncmp(info.transport, "shm", 3) == 0;
    if (neighbours != (shares ? info.local_size : 1) || tdm_comm_node_of(f->comm, -1) != -1 ||
        tdm_comm_node_of(f->comm, f->size) != -1)
        complain(f, NULL, "the ranks of a node are not those that share its memory");
    if (tdm_group_barrier(world, &err) != TDM_OK) complain(f, NULL, err.message);
    for (int r = 0; r < f->size; r++) tdm_shm_region_release(shm, regions[r]);
    tdm_shm_region_release(shm, block);
}

/* ---- ranks ---------------------------------------------------------------------------------------- */

static bool run_rank(tdm_comm *comm, bool is_sim)
{
    flood f = {
        .comm = comm, .rank = tdm_comm_rank(comm), .size = tdm_comm_size(comm), .is_sim = is_sim};
    tdm_rng_address address = {.seed = 7, .stream = TDM_RNG_STREAM_USER};
    f.common = tdm_rng_at(address);
    address.seed = 1000 + (uint64_t)f.rank;
    f.own = tdm_rng_at(address);
    run_shared(&f);
    for (int i = 0; i < ROUNDS && !f.failed; i++) run_round(&f);
    if (!f.failed) run_urgent(&f, TDM_ALGORITHM_AUTO);
    if (!f.failed) run_urgent(&f, TDM_ALGORITHM_DIRECT);
    return !f.failed;
}

static int be_a_rank(void)
{
    tdm_error err = {0};
    tdm_comm *comm = NULL;
    if (tdm_comm_open(NULL, &comm, &err) != TDM_OK) {
        fprintf(stderr, "FAIL: %s\n", err.message);
        return 1;
    }
    bool well = run_rank(comm, false);
    tdm_comm_info info;
    tdm_comm_info_get(comm, &info);
    if (well && tdm_comm_rank(comm) == 0)
        printf("%s, %d ranks: %d calls at once are right\n", info.transport, tdm_comm_size(comm),
               CALLS);
    tdm_comm_close(comm);
    return well ? 0 : 1;
}

static void simulated_rank(tdm_comm *comm, void *user)
{
    if (run_rank(comm, true)) ++*(int *)user;
}

static bool run_sim(int size)
{
    int well_count = 0;
    tdm_sim_result result = {0};
    tdm_error err = {0};
    tdm_sim_options options = {.seed = 3, .size = size, .ranks_per_host = HOST_RANKS};
    tdm_status status = tdm_sim_run(&options, simulated_rank, &well_count, &result, &err);
    if (status != TDM_OK) fprintf(stderr, "FAIL: %s\n", err.message);
    if (well_count == size) printf("sim, %d ranks: %d calls at once are right\n", size, CALLS);
    return status == TDM_OK && well_count == size;
}

typedef struct flood_world {
    const char *transport;
    int size;
} flood_world;

static int start_rank(void *user, int rank)
{
    const flood_world *f = user;
    char meeting[64], host[32];
    snprintf(meeting, sizeof(meeting), "flood-%d-%d", (int)getppid(), f->size);
    snprintf(host, sizeof(host), "host%d", rank / HOST_RANKS);
    world_place_set(&(world_place){.meeting = meeting,
                                   .transport = f->transport,
                                   .host = strchr(f->transport, '+') ? host : NULL,
                                   .rank = rank,
                                   .size = f->size,
                                   .deadline_s = 60});
    world_exec("--rank", NULL);
}

static bool run_world(const char *transport, int size)
{
    world_ranks ranks;
    flood_world f = {.transport = transport, .size = size};
    world_ranks_start(&ranks, size, 190, start_rank, &f);
    world_ranks_finish(&ranks, -1);
    return check_failures == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--rank") == 0) return be_a_rank();
    if (argc < 2) return 2;
    const char *far = strchr(argv[1], '+') ? strchr(argv[1], '+') + 1 : argv[1];
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, far) == 0 && !info.usable) {
            printf("SKIPPED: %s cannot be used here: %s\n", far, info.why);
            return 77;
        }
    for (int i = 2; i < argc; i++) {
        int size = atoi(argv[i]);
        if (size < 1 || size > MAX_RANKS) return 2;
        if (!(strcmp(argv[1], "sim") == 0 ? run_sim(size) : run_world(argv[1], size))) return 1;
    }
    return 0;
}
