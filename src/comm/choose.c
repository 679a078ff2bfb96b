/*
 * choose.c: selects the algorithm of a call.
 *
 * All algorithms are in one list, and the choices in one table, by kind, place of the group's
 * members, size and bytes. If the requested algorithm supports the call, it is used; else that of
 * the best row of the table which supports it; else direct exchange, which supports every call. For
 * a group within one host without a matching row, the rows for several hosts are used. Every rank
 * has the same table (rank 0's) and considers only the call and the group, so all ranks make the
 * same choice.
 */
#include "comm/algorithms/build.h"
#include "comm/choices.h"
#include "comm/engine.h"

const tdm__algorithm_ops *const tdm__algorithms[] = {
    &tdm__algorithm_direct, &tdm__algorithm_ring,      &tdm__algorithm_doubling,
    &tdm__algorithm_tree,   &tdm__algorithm_hierarchy, &tdm__algorithm_window,
};
const int tdm__algorithm_count = sizeof(tdm__algorithms) / sizeof(tdm__algorithms[0]);

/* clang-format off */
enum { KB = 1024, MB = 1024 * 1024 };
#define ROW(KIND, PLACE, SIZE, BYTES, ALGORITHM)                                                   \
    {.kind = TDM_CALL_##KIND, .place = TDM__GROUP_PLACE_##PLACE, .size = (SIZE), .bytes = (BYTES),        \
     .algorithm = TDM_ALGORITHM_##ALGORITHM}
const tdm__choice tdm__choices_builtin[] = {
    /* Few ranks: one step, all to all. Many: a number of steps logarithmic in the number of
     * ranks. */
    ROW(BARRIER,        HOSTS,    1,  0,        DIRECT),
    ROW(BARRIER,        HOSTS,    3,  0,        DOUBLING),
    ROW(BROADCAST,      HOSTS,    1,  0,        DIRECT),
    ROW(BROADCAST,      HOSTS,    5,  0,        TREE),
    ROW(BROADCAST,      HOSTS,    5,  128 * KB, DIRECT),
    ROW(BROADCAST,      HOSTS,    5,  4 * MB,   RING),
    ROW(BROADCAST,      HOSTS,    65, 0,        TREE),
    ROW(REDUCE,         HOSTS,    1,  0,        DIRECT),
    ROW(REDUCE,         HOSTS,    5,  0,        TREE),
    ROW(REDUCE,         HOSTS,    5,  64 * KB,  DIRECT),
    ROW(REDUCE,         HOSTS,    65, 0,        TREE),
    ROW(REDUCE,         HOSTS,    65, 1 * MB,   DIRECT),
    ROW(ALL_REDUCE,     HOSTS,    1,  0,        DIRECT),
    ROW(ALL_REDUCE,     HOSTS,    4,  0,        DOUBLING),
    ROW(ALL_REDUCE,     HOSTS,    4,  0,        TREE),
    ROW(ALL_REDUCE,     HOSTS,    4,  16 * KB,  DIRECT),
    ROW(ALL_REDUCE,     HOSTS,    17, 0,        DOUBLING),
    ROW(ALL_REDUCE,     HOSTS,    17, 0,        TREE),
    ROW(ALL_REDUCE,     HOSTS,    17, 256 * KB, DIRECT),
    ROW(ALL_REDUCE,     HOSTS,    65, 0,        DOUBLING),
    ROW(ALL_REDUCE,     HOSTS,    65, 0,        TREE),
    ROW(ALL_REDUCE,     HOSTS,    65, 4 * MB,   DIRECT),
    ROW(REDUCE_SCATTER, HOSTS,    1,  0,        DIRECT),
    ROW(REDUCE_SCATTER, HOSTS,    9,  0,        DOUBLING),
    ROW(REDUCE_SCATTER, HOSTS,    9,  64 * KB,  DIRECT),
    ROW(REDUCE_SCATTER, HOSTS,    65, 0,        DOUBLING),
    ROW(REDUCE_SCATTER, HOSTS,    65, 4 * MB,   DIRECT),
    ROW(ALL_GATHER,     HOSTS,    1,  0,        DIRECT),
    ROW(ALL_GATHER,     HOSTS,    5,  0,        DOUBLING),
    ROW(ALL_GATHER,     HOSTS,    5,  64 * KB,  DIRECT),
    ROW(ALL_GATHER,     HOSTS,    33, 0,        DOUBLING),
    ROW(ALL_GATHER,     HOSTS,    33, 1 * MB,   RING),
    ROW(GATHER,         HOSTS,    1,  0,        DIRECT),
    ROW(GATHER,         HOSTS,    9,  0,        TREE),
    ROW(GATHER,         HOSTS,    9,  64 * KB,  DIRECT),
    ROW(SCATTER,        HOSTS,    1,  0,        DIRECT),
    ROW(SCATTER,        HOSTS,    9,  0,        TREE),
    ROW(SCATTER,        HOSTS,    9,  64 * KB,  DIRECT),
    ROW(ALL_TO_ALL,     HOSTS,    1,  0,        DIRECT),
    ROW(ALL_TO_ALL,     HOSTS,    17, 1 * MB,   RING),
    ROW(SEND,           HOSTS,    1,  0,        DIRECT),
    ROW(RECV,           HOSTS,    1,  0,        DIRECT),

    /* Shared memory is faster than any message. */
    ROW(BARRIER,        HOST,     1,  0,        WINDOW),
    ROW(BROADCAST,      HOST,     1,  0,        WINDOW),
    ROW(REDUCE,         HOST,     1,  0,        WINDOW),
    ROW(ALL_REDUCE,     HOST,     1,  0,        WINDOW),
    ROW(REDUCE_SCATTER, HOST,     1,  0,        WINDOW),
    ROW(ALL_GATHER,     HOST,     1,  0,        WINDOW),
    ROW(GATHER,         HOST,     1,  0,        WINDOW),
    ROW(SCATTER,        HOST,     1,  0,        WINDOW),
    ROW(ALL_TO_ALL,     HOST,     1,  0,        WINDOW),

    ROW(BARRIER,        CROWDED,  1,  0,        HIERARCHY),
    ROW(BROADCAST,      CROWDED,  1,  0,        HIERARCHY),
    ROW(REDUCE,         CROWDED,  1,  0,        HIERARCHY),
    ROW(ALL_REDUCE,     CROWDED,  1,  0,        HIERARCHY),
    ROW(REDUCE_SCATTER, CROWDED,  1,  0,        HIERARCHY),
    ROW(ALL_GATHER,     CROWDED,  1,  0,        HIERARCHY),
};
/* clang-format on */
const int tdm__choices_builtin_count = sizeof(tdm__choices_builtin) /
                                       sizeof(tdm__choices_builtin[0]);

static tdm__group_place group_place(const tdm_group *group)
{
    if (group->host_count == 1) return TDM__GROUP_PLACE_HOST;
    return group->host_count < group->size ? TDM__GROUP_PLACE_CROWDED : TDM__GROUP_PLACE_HOSTS;
}

static const tdm__algorithm_ops *algorithm_find(int id)
{
    for (int i = 0; i < tdm__algorithm_count; i++)
        if ((int)tdm__algorithms[i]->id == id) return tdm__algorithms[i];
    return NULL;
}

/* Whether a row applies to this call on this group, treated as a group of this place. */
static bool choice_applies(const tdm__choice *row, const tdm_group *group, const tdm_call *call,
                           tdm__group_place place)
{
    return row->kind == call->kind && row->place == place && row->size <= group->size &&
           row->bytes <= tdm__call_bytes(call);
}

static bool choice_is_better(const tdm__choice *row, const tdm__choice *best)
{
    if (!best) return true;
    return row->size != best->size ? row->size > best->size : row->bytes > best->bytes;
}

static const tdm__algorithm_ops *choices_look_up(const tdm_group *group, const tdm_call *call,
                                                 tdm__group_place place)
{
    const tdm__choices *choices = &group->comm->choices;
    const tdm__choice *best = NULL;
    const tdm__algorithm_ops *found = NULL;
    for (int i = 0; i < choices->count; i++) {
        const tdm__choice *row = &choices->rows[i];
        if (!choice_applies(row, group, call, place) || !choice_is_better(row, best)) continue;
        const tdm__algorithm_ops *algorithm = algorithm_find(row->algorithm);
        if (!algorithm || !algorithm->fits(group, call)) continue;
        best = row;
        found = algorithm;
    }
    return found;
}

tdm_status tdm__choose(const tdm_group *group, const tdm_call *call, const tdm__algorithm_ops **out,
                       tdm_error *err)
{
    if (call->kind < TDM_CALL_BARRIER || call->kind > TDM_CALL_RECV)
        return tdm_fail(err, TDM_ERR_INVALID, "invalid kind of call %d", (int)call->kind);
    const tdm__algorithm_ops *asked = algorithm_find((int)call->algorithm);
    if (asked && asked->fits(group, call)) {
        *out = asked;
        return TDM_OK;
    }
    tdm__group_place place = group_place(group);
    const tdm__algorithm_ops *found = choices_look_up(group, call, place);
    if (!found && place != TDM__GROUP_PLACE_HOSTS)
        found = choices_look_up(group, call, TDM__GROUP_PLACE_HOSTS);
    *out = found ? found : &tdm__algorithm_direct;
    return TDM_OK;
}

tdm_status tdm_call_algorithm(const tdm_group *group, const tdm_call *call, tdm_algorithm *out,
                              tdm_error *err)
{
    const tdm__algorithm_ops *algorithm = NULL;
    TDM_TRY(tdm__choose(group, call, &algorithm, err));
    *out = algorithm->id;
    return TDM_OK;
}

static const tdm__choice *choices_find_row(const tdm_group *group, const tdm_call *call,
                                           tdm__group_place place, tdm_algorithm algorithm)
{
    const tdm__choices *choices = &group->comm->choices;
    const tdm__choice *best = NULL;
    for (int i = 0; i < choices->count; i++) {
        const tdm__choice *row = &choices->rows[i];
        if (row->algorithm == algorithm && choice_applies(row, group, call, place) &&
            choice_is_better(row, best))
            best = row;
    }
    return best;
}

size_t tdm__choices_segment(const tdm_group *group, const tdm_call *call, tdm_algorithm algorithm)
{
    const tdm__choice *row = choices_find_row(group, call, group_place(group), algorithm);
    if (!row) row = choices_find_row(group, call, TDM__GROUP_PLACE_HOSTS, algorithm);
    return row ? row->segment_bytes : 0;
}
