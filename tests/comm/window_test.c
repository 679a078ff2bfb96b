/*
 * window_test.c: windows at the level of programs: the programs of all members of a group on one host. Every
 * kind, odd sizes, types, lanes, in place and not, buffers within the memory of the host and outside, bit for
 * bit; slots reused thousands of times with a slow member; numbers that wrap around; and members that disagree.
 */
#include "window_world.h"

/* ---- the tests ----------------------------------------------------------------------------------- */

static void all_kinds(member *m)
{
    static const size_t counts[] = {0, 1, 7, 1000, 5003, 100003, 1 << 20};
    static const tdm_dtype dtypes[] = {TDM_DTYPE_F32, TDM_DTYPE_F64, TDM_DTYPE_BF16,
                                       TDM_DTYPE_I32, TDM_DTYPE_I64, TDM_DTYPE_U8};
    int index = 0;
    for (int kind = TDM_CALL_BARRIER; kind <= TDM_CALL_ALL_TO_ALL; kind++)
        for (int c = 0; c < SCALED(7, 6); c++)
            for (int d = 0; d < 6; d++)
                for (int where = 0; where < PLACES; where++) {
                    bool reduction = tdm__kind_reduces((tdm_call_kind)kind);
                    if (reduction && dtypes[d] == TDM_DTYPE_U8) continue;
                    if (counts[c] > 5003 && d > 0 && (index % 5 != 0)) {
                        index++;
                        continue; /* large sizes: one in five for types other than the first */
                    }
                    if (counts[c] > 100003 && (m->size > 8 || d > 0)) continue;
                    if (SCALED(0, 1) && m->size > 2 && counts[c] > 5003) continue;
                    index++;
                    run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                                  .dtype = dtypes[d],
                                                  .count = counts[c],
                                                  .root = index % m->size},
                                         .where = (places)where,
                                         .in_place = index % 3 == 0});
                }
}

static void kinds_of_calls(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 16};
    for (int i = 0; i < SCALED(7, 5); i++) run_world(sizes[i], all_kinds);
}

/* Lanes: uneven, some absent, some ranks without any. */
static void all_lanes(member *m)
{
    static const size_t counts[] = {1, 100, 5003, 70001};
    int64_t first[MAX_MEMBERS + 1];
    uint8_t absent[MAX_LANES] = {0};
    absent[3] = absent[8] = absent[9] = absent[31] = 1;
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i <= m->size; i++) {
            first[i] = 32 * i / m->size;
            if (shape == 1 && i > 0 && i < m->size) first[i] = 32 * i / m->size | 1;
            if (shape == 2 && i > 0 && i < m->size) first[i] = i < m->size / 2 + 1 ? 5 : 27;
        }
        tdm_lanes lanes = {.lane_count = 32, .first = first, .absent = shape > 0 ? absent : NULL};
        for (int c = 0; c < 4; c++)
            for (int kind = TDM_CALL_REDUCE; kind <= TDM_CALL_REDUCE_SCATTER; kind++)
                for (int where = 0; where < PLACES; where++)
                    run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                                  .dtype = TDM_DTYPE_F32,
                                                  .count = counts[c],
                                                  .root = m->size - 1},
                                         .where = (places)where,
                                         .lanes = &lanes});
    }
}

static void all_cuts(member *m)
{
    run_cuts(m, TDM_CALL_SCATTER, PLACES);
}

static void lanes_of_calls(void)
{
    for (int size = 2; size <= SCALED(8, 5); size += 3) run_world(size, all_lanes);
}

static void cuts_of_calls(void)
{
    for (int size = 2; size <= SCALED(8, 5); size += 3) run_world(size, all_cuts);
}

/* Thousands of calls, small and staged, some of which let their root return early; one member is slow. */
static void many_calls(member *m)
{
    const int calls = SCALED(6000, 600);
    uint32_t drawn = 12345;
    for (int k = 0; k < calls; k++) {
        drawn = scramble(drawn + (uint32_t)k);
        if (m->rank == (int)(drawn >> 8) % m->size && drawn % 16 == 0) usleep(drawn % 300);
        bool large = drawn % 11 == 0;
        size_t count = large ? 3000 + drawn % 5000 : drawn % 200;
        tdm_call_kind kind = (tdm_call_kind)(TDM_CALL_BARRIER + (int)(drawn >> 4) % 9);
        run_trial(m, (trial){.call = {.kind = kind,
                                      .dtype = TDM_DTYPE_I32,
                                      .count = count,
                                      .root = (int)(drawn >> 16) % m->size}});
    }
}

static void slots_are_used_again(void)
{
    run_world(2, many_calls);
    run_world(5, many_calls);
}

/* The sequence wraps around: all counters compare by difference. */
static void wrapped_calls(member *m)
{
    m->group.next_sequence = UINT32_MAX - 40;
    atomic_store(&m->group.window->done[m->rank].value, UINT32_MAX - 40);
    for (int slot = 0; slot < TDM__WINDOW_SLOTS; slot++)
        atomic_store(&tdm__window_cell(m->group.window, (uint32_t)slot, m->rank)->counter,
                     (uint64_t)(UINT32_MAX - 60) << 32);
    m->group.window->all_done = UINT32_MAX - 40 - TDM__WINDOW_SLOTS;
    atomic_fetch_add(&m->world->set_up, 1);
    while (atomic_load(&m->world->set_up) < m->size) usleep(10);
    while (m->group.next_sequence != 40)
        run_trial(m, (trial){.call = {.kind = TDM_CALL_ALL_REDUCE,
                                      .dtype = TDM_DTYPE_F32,
                                      .count = m->group.next_sequence % 3 ? 100 : 3000}});
}

static void numbers_wrap_around(void)
{
    run_world(3, wrapped_calls);
}

/* Calls that end out of order: `done` follows when the gap is filled, however far ahead the others were. */
static void ends_in_any_order(member *m)
{
    tdm__window *w = m->group.window;
    for (uint32_t s = 1; s < 200; s += 2) tdm__window_ended(&m->group, s);
    CHECK_INT(w->done[m->rank].value, 0);
    for (uint32_t s = 0; s < 200; s += 2) {
        tdm__window_ended(&m->group, s);
        CHECK_INT(w->done[m->rank].value, s + 2);
    }
    tdm__window_ended(&m->group, 200);
    CHECK_INT(w->done[m->rank].value, 201);
}

static void ends_out_of_order(void)
{
    run_world(1, ends_in_any_order);
}

/* Rank 1 makes another call: all members that wait for it get the error. */
static void calls_that_differ(member *m)
{
    uint8_t *out = calloc(100000, 4), *in = calloc(100000, 4);
    tdm_call call = {
        .kind = TDM_CALL_ALL_REDUCE, .dtype = TDM_DTYPE_F32, .count = 100000, .in = in, .out = out};
    MEMBER_CHECK(m, run_call(m, &call) == TDM_OK);
    if (m->rank == 1) {
        call.kind = TDM_CALL_BARRIER; /* a small call against a large one */
        call.count = 0;
    }
    MEMBER_CHECK(m, run_call(m, &call) == TDM_ERR_PEER_MISMATCH);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "rank 1") != NULL);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "barrier") != NULL);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "all_reduce of 100000 f32") != NULL);
    free(in);
    free(out);
}

static void mismatches_are_noticed(void)
{
    run_world(2, calls_that_differ);
    run_world(4, calls_that_differ);
}

static const check_test tests[] = {
    CHECK_TEST(kinds_of_calls),         CHECK_TEST(lanes_of_calls),
    CHECK_TEST(cuts_of_calls),          CHECK_TEST(slots_are_used_again),
    CHECK_TEST(numbers_wrap_around),    CHECK_TEST(ends_out_of_order),
    CHECK_TEST(mismatches_are_noticed),
};

CHECK_MAIN(tests)
