/*
 * sim_schedules_test.c: ten thousand seeded schedules of collectives and faults.
 *
 * Each seed determines a world, a network, a script of collectives (sim_script.h) and up to three faults at
 * random moments, which run in virtual time. In every schedule: every living rank finishes; each call ends
 * within its deadline, with the correct result or with an error of the peer group; a group that is broken for
 * one member is soon broken for all; and without faults, or with faults that are over in time, no rank gets an
 * error. Every twentieth seed runs twice, with equal results.
 *
 * A seed that fails is printed with the command to repeat it: --seed N --verbose. --count N and --from N set
 * the number of seeds and the first one; without them the test runs a fixed set.
 */
#include "check.h"
#include "sim/simulator.h"
#include "sim_script.h"

#include <tandem/os.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SCHEDULES = 300 };
#else
enum { SCHEDULES = 10000 };
#endif

enum { TWICE = 20, MAX_FAULTS = 3 };

/* The result of a call on one rank. */
typedef struct outcome {
    bool began, ended;
    tdm_status status;
    bool right;
    double begin_s, wait_s, end_s; /* wait_s: when the wait for it began */
    char message[200];
} outcome;

typedef struct rank_state {
    tdm_request *requests[MAX_SCRIPT_CALLS];
    script_part parts[MAX_SCRIPT_CALLS];
    outcome outcomes[MAX_SCRIPT_CALLS];
    tdm_group *groups[MAX_SCRIPT_GROUPS];
    tdm_status group_status[MAX_SCRIPT_GROUPS];
    double group_s[MAX_SCRIPT_GROUPS]; /* when its creation ended */
    bool returned;
} rank_state;

typedef struct schedule {
    uint64_t seed;
    bool verbose;
    tdm_sim_options options;
    tdm_sim_fault faults[MAX_FAULTS];
    bool harmless; /* all faults are over long before any deadline */
    script script;
    rank_state ranks[MAX_SCRIPT_RANKS];
    int failure_count;
} schedule;

/* ---- drawing ----------------------------------------------------------------------------------- */

/* Below 2^max. The exponent is uniform over `scales` powers of two. */
static double draw_scaled(tdm_rng *rng, int max, int scales)
{
    int exponent = max - script_below(rng, scales); /* in this order, for every compiler */
    return ldexp((double)tdm_rng_uniform(rng), exponent);
}

static void draw_fault(tdm_rng *rng, schedule *s, tdm_sim_fault *fault)
{
    int size = s->options.size;
    fault->kind = (tdm_sim_fault_kind)(TDM_SIM_CRASH + script_below(rng, TDM_SIM_VANISH));
    fault->rank = script_below(rng, size);
    fault->other = script_below(rng, size);
    /* Most scripts are over within milliseconds: early moments are the most useful ones. */
    fault->at_s = draw_scaled(rng, 0, 14);
    double length_s = draw_scaled(rng, 3, 12);
    fault->until_s = script_chance(rng, 20) ? 0.0 : fault->at_s + length_s;
    fault->factor = fault->kind == TDM_SIM_SLOW ? 1.0 + 50.0 * (double)tdm_rng_uniform(rng)
                                                : length_s * (double)tdm_rng_uniform(rng);
    bool crash = fault->kind == TDM_SIM_CRASH || fault->kind == TDM_SIM_VANISH;
    bool ends = fault->kind == TDM_SIM_SLOW || fault->until_s > 0.0;
    if (crash || !ends || length_s > 0.02 * s->options.deadline_s) s->harmless = false;
}

static void draw(schedule *s, uint64_t seed, bool verbose)
{
    memset(s, 0, sizeof(*s));
    s->seed = seed;
    s->verbose = verbose;
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER, .sub_stream = 1});
    tdm_sim_options *o = &s->options;
    o->seed = seed;
    o->size = 2 + script_below(&rng, MAX_SCRIPT_RANKS - 1);
    o->ranks_per_host = 1 + script_below(&rng, 4);
    o->latency_s = ldexp(1e-6, script_below(&rng, 12));
    o->jitter_s = script_chance(&rng, 70) ? 3.0 * o->latency_s * (double)tdm_rng_uniform(&rng)
                                          : 0.0;
    o->bandwidth = ldexp(1e6, 2 + script_below(&rng, 13));
    o->loss = script_chance(&rng, 30) ? 0.02 * (double)tdm_rng_uniform(&rng) : 0.0;
    o->resend_s = ldexp(0.2, -script_below(&rng, 6));
    o->detect_s = ldexp(0.05, -script_below(&rng, 8));
    o->deadline_s = 20.0 + script_below(&rng, 20);
    s->harmless = true;
    o->fault_count = script_below(&rng, MAX_FAULTS + 1);
    o->faults = s->faults;
    double slowness = 1.0; /* if all affect one rank at one time */
    for (int i = 0; i < o->fault_count; i++) {
        draw_fault(&rng, s, &s->faults[i]);
        if (s->faults[i].kind == TDM_SIM_SLOW) slowness *= s->faults[i].factor;
    }
    if (slowness * (o->latency_s + o->jitter_s) > 0.02 * o->deadline_s) s->harmless = false;
    script_draw(&rng, &s->script, seed, o->size);
}

/* ---- a rank's run ------------------------------------------------------------------------------ */

static void note_end(schedule *s, tdm_comm *comm, int index, tdm_status status,
                     const tdm_error *err)
{
    rank_state *mine = &s->ranks[tdm_comm_rank(comm)];
    outcome *o = &mine->outcomes[index];
    o->ended = true;
    o->status = status;
    o->end_s = tdm_sim_now_s(comm);
    o->right = status != TDM_OK || script_part_right(&mine->parts[index]);
    if (status != TDM_OK) snprintf(o->message, sizeof(o->message), "%.199s", err->message);
}

static void finish(schedule *s, tdm_comm *comm, int index)
{
    rank_state *mine = &s->ranks[tdm_comm_rank(comm)];
    tdm_error err = {0};
    if (!mine->requests[index]) return;
    mine->outcomes[index].wait_s = tdm_sim_now_s(comm);
    tdm_status status = tdm_request_wait(mine->requests[index], &err);
    mine->requests[index] = NULL;
    note_end(s, comm, index, status, &err);
}

/* Sends to the next member and receives from the previous one. */
static tdm_status run_ring(schedule *s, tdm_group *group, int index, script_part *part,
                           tdm_error *err)
{
    const script_call *call = &s->script.calls[index];
    int size = tdm_group_size(group), rank = tdm_group_rank(group);
    int before = (rank + size - 1) % size;
    tdm_extent whole = {.count = call->count};
    part->out_bytes = call->count * tdm_dtype_bytes(call->dtype);
    part->out = script_bytes(&s->script, part->out_bytes);
    part->expected = script_piece(&s->script, index, before, whole);
    if (size == 1) {
        memcpy(part->out, part->expected, part->out_bytes);
        return TDM_OK;
    }
    tdm_call send = {.kind = TDM_CALL_SEND,
                     .dtype = TDM_DTYPE_U8,
                     .count = part->out_bytes,
                     .in = script_piece(&s->script, index, rank, whole),
                     .root = (rank + 1) % size,
                     .tag = (uint32_t)index};
    tdm_request *request = NULL;
    TDM_TRY(tdm_call_start(group, &send, &request, err));
    tdm_status received = tdm_group_recv(group, before, (uint32_t)index, part->out, part->out_bytes,
                                         err);
    tdm_status sent = tdm_request_wait(request, received == TDM_OK ? err : NULL);
    return received != TDM_OK ? received : sent;
}

static void run_call(schedule *s, tdm_comm *comm, int index)
{
    const script_call *call = &s->script.calls[index];
    rank_state *mine = &s->ranks[tdm_comm_rank(comm)];
    tdm_group *group = mine->groups[call->group];
    if (!group) return;
    int member = tdm_group_rank(group);
    outcome *o = &mine->outcomes[index];
    script_part *part = &mine->parts[index];
    tdm_error err = {0};
    uint64_t drawn = script_mix(s->seed ^ script_mix((uint64_t)index * 64 + (uint64_t)member));
    tdm_sim_compute(comm, call->pause_s * (double)(drawn >> 40) / 16777216.0);
    o->began = true;
    o->begin_s = o->wait_s = tdm_sim_now_s(comm);
    if ((int)call->kind == SCRIPT_RING) {
        note_end(s, comm, index, run_ring(s, group, index, part, &err), &err);
        return;
    }
    script_part_make(&s->script, index, member, part);
    tdm_status status = call->async
                            ? tdm_call_start(group, &part->call, &mine->requests[index], &err)
                            : tdm_call_run(group, &part->call, &err);
    if (!call->async || status != TDM_OK) note_end(s, comm, index, status, &err);
}

static void run_rank(tdm_comm *comm, void *user)
{
    schedule *s = user;
    rank_state *mine = &s->ranks[tdm_comm_rank(comm)];
    mine->groups[0] = tdm_comm_world(comm);
    for (int g = 1; g < s->script.group_count; g++) {
        const script_group *group = &s->script.groups[g];
        if (script_member(group, tdm_comm_rank(comm)) < 0) continue;
        mine->group_status[g] = tdm_group_create(comm, group->ranks, group->size, &mine->groups[g],
                                                 NULL);
        mine->group_s[g] = tdm_sim_now_s(comm);
    }
    for (int i = 0; i < s->script.call_count; i++) {
        for (int k = 0; k < i; k++)
            if (s->script.calls[k].wait_before == i) finish(s, comm, k);
        run_call(s, comm, i);
    }
    for (int i = 0; i < s->script.call_count; i++) finish(s, comm, i);
    for (int g = 1; g < s->script.group_count; g++) tdm_group_destroy(mine->groups[g]);
    mine->returned = true;
}

/* ---- what must hold ---------------------------------------------------------------------------- */

static void complain(schedule *s, const char *fmt, ...) TDM_PRINTF(2, 3);
static void complain(schedule *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (s->failure_count++ == 0)
        fprintf(stderr, "schedule %llu fails; again: comm_sim_schedules --seed %llu --verbose\n",
                (unsigned long long)s->seed, (unsigned long long)s->seed);
    if (s->failure_count <= 5 || s->verbose) {
        fputs("  ", stderr);
        vfprintf(stderr, fmt, args);
        fputc('\n', stderr);
    }
    va_end(args);
}

/* The longest time for which faults may have kept a rank from running, or the news from it. */
static double excuse_s(const schedule *s)
{
    /* A call that fails has 0.2 s to get its buffers back from peers that do not answer. */
    double sum = 0.3 + s->options.detect_s + 20.0 * s->options.resend_s * (s->options.loss > 0.0);
    for (int i = 0; i < s->options.fault_count; i++) {
        const tdm_sim_fault *f = &s->faults[i];
        if (f->kind == TDM_SIM_STALL || f->kind == TDM_SIM_CUT || f->kind == TDM_SIM_PARTITION)
            sum += f->until_s > 0.0 ? f->until_s - f->at_s : 0.0;
        if (f->kind == TDM_SIM_DELAY) sum += f->factor;
        if (f->kind == TDM_SIM_SLOW) sum += 0.1 * f->factor;
    }
    return sum;
}

static bool is_peer_error(tdm_status status)
{
    return tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER;
}

static void check_outcome(schedule *s, int rank, int index)
{
    const outcome *o = &s->ranks[rank].outcomes[index];
    const char *kind = tdm_call_kind_name(s->script.calls[index].kind);
    double deadline_s = s->options.deadline_s;
    double latest_s = fmax(o->wait_s, o->begin_s + deadline_s) + excuse_s(s);
    if (!o->began || !o->ended) return;
    if (o->status == TDM_OK && !o->right)
        complain(s, "rank %d, call %d (%s): a wrong result", rank, index, kind);
    if (o->status != TDM_OK && !is_peer_error(o->status))
        complain(s, "rank %d, call %d (%s): %s is not an error of the peer group: %s", rank, index,
                 kind, tdm_status_name(o->status), o->message);
    if (o->status != TDM_OK && s->harmless)
        complain(s, "rank %d, call %d (%s): %s without a cause: %s", rank, index, kind,
                 tdm_status_name(o->status), o->message);
    if (o->end_s > latest_s)
        complain(s, "rank %d, call %d (%s): ended %g s after its start, its deadline is %g s", rank,
                 index, kind, o->end_s - o->begin_s, deadline_s);
}

/* Whether some ranks never receive anything from others again. Then a call that only sends may succeed at any
 * time. */
static bool has_deaf_ranks(const schedule *s)
{
    for (int i = 0; i < s->options.fault_count; i++) {
        const tdm_sim_fault *f = &s->faults[i];
        if ((f->kind == TDM_SIM_CUT || f->kind == TDM_SIM_PARTITION) && f->until_s <= 0.0)
            return true;
    }
    return false;
}

/* After the first error on a group, calls on it soon fail, and on the same rank at once. */
static void check_group(schedule *s, int g)
{
    bool deaf = has_deaf_ranks(s);
    double first_s = INFINITY;
    for (int r = 0; r < s->options.size; r++) {
        for (int i = 0; i < s->script.call_count; i++) {
            const outcome *o = &s->ranks[r].outcomes[i];
            if (s->script.calls[i].group == g && o->ended && o->status != TDM_OK)
                first_s = fmin(first_s, o->end_s);
        }
        if (s->ranks[r].group_status[g] != TDM_OK) first_s = fmin(first_s, s->ranks[r].group_s[g]);
    }
    double latest_s = first_s + s->options.deadline_s + excuse_s(s);
    for (int r = 0; r < s->options.size; r++) {
        double broken_s = INFINITY; /* here */
        for (int i = 0; i < s->script.call_count; i++) {
            const outcome *o = &s->ranks[r].outcomes[i];
            if (s->script.calls[i].group != g || !o->ended) continue;
            if (o->status == TDM_OK && o->end_s > latest_s && !deaf)
                complain(s, "rank %d, call %d ends well at %g s, its group is broken since %g s", r,
                         i, o->end_s, first_s);
            if (o->begin_s > broken_s && (o->status == TDM_OK || o->end_s > o->wait_s + 1e-9))
                complain(s, "rank %d, call %d on a group that is broken here: %s, after %g s", r, i,
                         tdm_status_name(o->status), o->end_s - o->begin_s);
            if (o->status != TDM_OK && o->end_s < broken_s) broken_s = o->end_s;
        }
    }
}

static void check_schedule(schedule *s, const tdm_sim_result *result)
{
    if (result->hung_count > 0) complain(s, "%d ranks hang", result->hung_count);
    for (int r = 0; r < s->options.size; r++) {
        const rank_state *mine = &s->ranks[r];
        for (int i = 0; i < s->script.call_count; i++) {
            check_outcome(s, r, i);
            if (mine->returned && mine->outcomes[i].began && !mine->outcomes[i].ended)
                complain(s, "rank %d, call %d has no end", r, i);
        }
        for (int g = 1; g < s->script.group_count; g++) {
            tdm_status status = mine->group_status[g];
            if (status != TDM_OK && (s->harmless || !is_peer_error(status)))
                complain(s, "rank %d, group %d: %s", r, g, tdm_status_name(status));
        }
    }
    for (int g = 0; g < s->script.group_count; g++) check_group(s, g);
}

/* ---- telling ----------------------------------------------------------------------------------- */

static void tell(const schedule *s, const tdm_sim_result *result)
{
    const tdm_sim_options *o = &s->options;
    printf("%d ranks, %d on each host, latency %g s, jitter %g s, %g bytes/s, loss %g (again after "
           "%g s), detect %g s, deadline %g s\n",
           o->size, o->ranks_per_host, o->latency_s, o->jitter_s, o->bandwidth, o->loss,
           o->resend_s, o->detect_s, o->deadline_s);
    static const char *const faults[] = {"",          "crash", "stall", "slow",
                                         "partition", "cut",   "delay", "vanish"};
    for (int i = 0; i < o->fault_count; i++)
        printf("fault: %s of rank %d (other %d) from %g s to %g s, factor %g\n",
               faults[s->faults[i].kind], s->faults[i].rank, s->faults[i].other, s->faults[i].at_s,
               s->faults[i].until_s, s->faults[i].factor);
    for (int g = 0; g < s->script.group_count; g++) {
        printf("group %d:", g);
        for (int i = 0; i < s->script.groups[g].size; i++)
            printf(" %d", s->script.groups[g].ranks[i]);
        printf("\n");
    }
    for (int i = 0; i < s->script.call_count; i++) {
        const script_call *c = &s->script.calls[i];
        printf("call %d: %s on group %d, %zu of dtype %d, reduce %s, root %d, %s%s%s%s\n", i,
               tdm_call_kind_name(c->kind), c->group, c->count, (int)c->dtype,
               tdm_reduce_name(c->reduce), c->root, tdm_algorithm_name(c->algorithm),
               c->has_lanes ? ", lanes" : "", c->in_place ? ", in place" : "",
               c->async ? ", async" : "");
        for (int r = 0; r < o->size; r++) {
            const outcome *u = &s->ranks[r].outcomes[i];
            if (!u->began) continue;
            printf("  rank %2d: %.6f s to %.6f s: %s %s\n", r, u->begin_s, u->end_s,
                   !u->ended ? "no end" : tdm_status_name(u->status),
                   u->ended && !u->right ? "WRONG" : u->message);
        }
    }
    printf("%.6f s, %llu messages, %llu events, %d finished, %d crashed, %d hang, hash %016llx\n",
           result->virtual_s, (unsigned long long)result->message_count,
           (unsigned long long)result->event_count, result->finished_count, result->crashed_count,
           result->hung_count, (unsigned long long)result->hash);
}

/* ---- running ----------------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t schedule_count, failed_count, message_count, event_count;
    uint64_t harmless_count, error_count, ok_count, crash_count;
} tally;

static uint64_t run_seed(schedule *s, uint64_t seed, bool verbose, tally *t)
{
    draw(s, seed, verbose);
    tdm_sim_result result = {0};
    tdm_error err = {0};
    if (tdm_sim_run(&s->options, run_rank, s, &result, &err) != TDM_OK)
        complain(s, "the run fails: %s", err.message);
    else
        check_schedule(s, &result);
    if (verbose) tell(s, &result);
    for (int r = 0; r < s->options.size; r++)
        for (int i = 0; i < s->script.call_count; i++) {
            const outcome *o = &s->ranks[r].outcomes[i];
            t->ok_count += o->ended && o->status == TDM_OK;
            t->error_count += o->ended && o->status != TDM_OK;
        }
    t->schedule_count++;
    t->failed_count += s->failure_count > 0;
    t->message_count += result.message_count;
    t->event_count += result.event_count;
    t->harmless_count += s->harmless;
    t->crash_count += (uint64_t)result.crashed_count;
    tdm_arena_destroy(s->script.arena);
    return result.hash;
}

static tally run_seeds(uint64_t from, uint64_t count, bool verbose)
{
    tally t = {0}, unused = {0};
    schedule *s = malloc(sizeof(*s));
    CHECK(s != NULL);
    if (!s) return t;
    for (uint64_t seed = from; seed < from + count && t.failed_count < 10; seed++) {
        uint64_t hash = run_seed(s, seed, verbose, &t);
        if (seed % TWICE == 0 && run_seed(s, seed, false, &unused) != hash) {
            complain(s, "the same seed gives another run");
            t.failed_count++;
        }
    }
    free(s);
    return t;
}

static void test_schedules(uint64_t from, uint64_t count, bool verbose)
{
    tally t = run_seeds(from, count, verbose);
    printf("%llu schedules, %llu of them harmless, with %llu crashes: %llu messages, %llu events; "
           "%llu calls ended well, %llu with an error; %llu schedules failed\n",
           (unsigned long long)t.schedule_count, (unsigned long long)t.harmless_count,
           (unsigned long long)t.crash_count, (unsigned long long)t.message_count,
           (unsigned long long)t.event_count, (unsigned long long)t.ok_count,
           (unsigned long long)t.error_count, (unsigned long long)t.failed_count);
    CHECK_INT(t.failed_count, 0);
    /* The set must cover all cases. */
    if (count < 300) return;
    CHECK(t.ok_count > 3 * count);
    CHECK(t.error_count > count);
    CHECK(t.crash_count > count / 20);
    CHECK(t.harmless_count > count / 5);
}

int main(int argc, char **argv)
{
    uint64_t from = 1, count = SCHEDULES;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--seed") == 0) {
            from = strtoull(value, NULL, 10);
            count = 1;
        } else if (strcmp(argv[i], "--from") == 0) {
            from = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            count = strtoull(value, NULL, 10);
        }
        verbose = verbose || strcmp(argv[i], "--verbose") == 0;
    }
    test_schedules(from, count, verbose);
    printf("%d checks, %d failed\n", check_count, check_failures);
    return check_failures > 0;
}
