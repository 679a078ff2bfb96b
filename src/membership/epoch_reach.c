/*
 * epoch_reach.c: of members that could not all reach each other, the most that do.
 *
 * Two members are at odds when one of them has lost the other. We look for the largest set without odds:
 * for a network that is cut in two, that is the larger side. Members that have the run's state count more
 * than any number of newcomers that have not. Members are taken or passed over in order of
 * rank, taken first, so that of equal sets the first one found has the lowest ranks, and stays. The search
 * goes on only where it can still find more than it has, which makes clean cuts cheap; in a wild tangle of
 * odds it stops after a fixed number of tries, with the best found so far.
 */
#include "membership/member.h"

#include <string.h>

enum { WORDS = TDM__MAX_EPOCH / 64, MAX_TRIES = 200000 };

typedef struct set {
    uint64_t bits[WORDS];
} set;

typedef struct search {
    int count;
    set friends[TDM__MAX_EPOCH]; /* of each: who is not at odds with it, itself excluded */
    int weights[TDM__MAX_EPOCH];
    set best;
    int best_weight;
    int tries;
} search;

static bool has(const set *s, int i)
{
    return s->bits[i / 64] >> (i % 64) & 1;
}

static void put(set *s, int i, bool is_in)
{
    uint64_t bit = UINT64_C(1) << (i % 64);
    s->bits[i / 64] = is_in ? s->bits[i / 64] | bit : s->bits[i / 64] & ~bit;
}

static int weight_of(const search *s, const set *members)
{
    int weight = 0;
    for (int i = 0; i < s->count; i++)
        if (has(members, i)) weight += s->weights[i];
    return weight;
}

static set both(const set *a, const set *b)
{
    set out;
    for (int w = 0; w < WORDS; w++) out.bits[w] = a->bits[w] & b->bits[w];
    return out;
}

/* `taken` has no odds; `open` are those that may still be added to it, each number of them above
 * all taken. As deep as there are members. */
static void look(search *s, const set *taken, int taken_weight, set open)
{
    int open_weight = weight_of(s, &open);
    if (taken_weight > s->best_weight) {
        s->best = *taken;
        s->best_weight = taken_weight;
    }
    for (int i = 0; i < s->count && taken_weight + open_weight > s->best_weight; i++) {
        if (!has(&open, i)) continue;
        if (s->tries++ > MAX_TRIES) return;
        put(&open, i, false);
        open_weight -= s->weights[i];
        set more = *taken;
        put(&more, i, true);
        look(s, &more, taken_weight + s->weights[i], both(&open, &s->friends[i]));
    }
}

static bool names(const tdm__view_member *a, const tdm__view_member *b)
{
    for (int i = 0; i < a->lost_count; i++)
        if (strcmp(a->lost[i], b->id) == 0) return true;
    return false;
}

/* A member that refuses another one closes all its connections: that the others have lost it then says
 * nothing about the network between them. */
static bool has_lost(const tdm__view_member *a, const tdm__view_member *b)
{
    return names(a, b) && (b->refused_count == 0 || names(b, a));
}

void tdm__epoch_reach(tdm__view_member *const *members, int count, bool *keep)
{
    search s = {.count = count};
    bool has_odds = false;
    for (int i = 0; i < count; i++) {
        keep[i] = true;
        s.weights[i] = members[i]->is_whole ? TDM__MAX_EPOCH + 1 : 1;
        for (int j = 0; j < count; j++) {
            bool is_at_odds = i != j && (has_lost(members[i], members[j]) ||
                                         has_lost(members[j], members[i]));
            put(&s.friends[i], j, i != j && !is_at_odds);
            has_odds |= is_at_odds;
        }
    }
    if (!has_odds) return;
    set none = {{0}}, all = {{0}};
    for (int i = 0; i < count; i++) put(&all, i, true);
    look(&s, &none, 0, all);
    for (int i = 0; i < count; i++) keep[i] = has(&s.best, i);
}
