/*
 * epoch_reach.c: finds the largest set of members that can all reach each other.
 *
 * Two members conflict if one of them has lost the other. The result is the largest set without
 * conflicts; if a network is split in two, that is the larger side. A member with the run's state
 * weighs more than any number of members without it. The search takes or skips members in order of
 * rank and takes first, so of equal sets the one with the lowest ranks is found first and kept. It
 * prunes branches that cannot exceed the best weight so far, which makes clean splits cheap. With
 * very many conflicts it stops after a fixed number of tries and returns the best set found so far.
 */
#include "membership/member.h"

#include <string.h>

enum { WORDS = TDM__MAX_EPOCH / 64, MAX_TRIES = 200000 };

typedef struct set {
    uint64_t bits[WORDS];
} set;

typedef struct search {
    int count;
    set compatible
        [TDM__MAX_EPOCH]; /* of each: the members without a conflict with it, itself excluded */
    int weights[TDM__MAX_EPOCH];
    set best;
    int best_weight;
    int tries;
} search;

static bool set_has(const set *s, int i)
{
    return s->bits[i / 64] >> (i % 64) & 1;
}

static void set_put(set *s, int i, bool is_in)
{
    uint64_t bit = UINT64_C(1) << (i % 64);
    s->bits[i / 64] = is_in ? s->bits[i / 64] | bit : s->bits[i / 64] & ~bit;
}

static int weight_of(const search *s, const set *members)
{
    int weight = 0;
    for (int i = 0; i < s->count; i++)
        if (set_has(members, i)) weight += s->weights[i];
    return weight;
}

static set set_intersect(const set *a, const set *b)
{
    set out;
    for (int w = 0; w < WORDS; w++) out.bits[w] = a->bits[w] & b->bits[w];
    return out;
}

/* `taken` has no conflicts. `open` are the members that may still be added to it; all of them have
 * higher ranks than those in `taken`. The recursion is at most as deep as the number of members. */
static void search_extend(search *s, const set *taken, int taken_weight, set open)
{
    int open_weight = weight_of(s, &open);
    if (taken_weight > s->best_weight) {
        s->best = *taken;
        s->best_weight = taken_weight;
    }
    for (int i = 0; i < s->count && taken_weight + open_weight > s->best_weight; i++) {
        if (!set_has(&open, i)) continue;
        if (s->tries++ > MAX_TRIES) return;
        set_put(&open, i, false);
        open_weight -= s->weights[i];
        set more = *taken;
        set_put(&more, i, true);
        search_extend(s, &more, taken_weight + s->weights[i],
                      set_intersect(&open, &s->compatible[i]));
    }
}

static bool lists_as_lost(const tdm__view_member *a, const tdm__view_member *b)
{
    for (int i = 0; i < a->lost_count; i++)
        if (strcmp(a->lost[i], b->id) == 0) return true;
    return false;
}

/* A member that refuses another one closes all its connections. So if `b` refused a member, its
 * loss counts only if `b` has lost `a` as well. */
static bool has_lost(const tdm__view_member *a, const tdm__view_member *b)
{
    return lists_as_lost(a, b) && (b->refused_count == 0 || lists_as_lost(b, a));
}

void tdm__epoch_reach(tdm__view_member *const *members, int count, bool *keep)
{
    search s = {.count = count};
    bool has_conflict = false;
    for (int i = 0; i < count; i++) {
        keep[i] = true;
        s.weights[i] = members[i]->has_state ? TDM__MAX_EPOCH + 1 : 1;
        for (int j = 0; j < count; j++) {
            bool is_conflict = i != j && (has_lost(members[i], members[j]) ||
                                          has_lost(members[j], members[i]));
            set_put(&s.compatible[i], j, i != j && !is_conflict);
            has_conflict |= is_conflict;
        }
    }
    if (!has_conflict) return;
    set none = {{0}}, all = {{0}};
    for (int i = 0; i < count; i++) set_put(&all, i, true);
    search_extend(&s, &none, 0, all);
    for (int i = 0; i < count; i++) keep[i] = set_has(&s.best, i);
}
