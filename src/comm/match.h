/*
 * match.h: receives that wait for their message, and messages that wait for their receive.
 *
 * Both lie in one hash table by (group, sequence): all that belongs to one collective is in one chain. An
 * entry is either expected (a program has asked for it) or waiting (it came before it was asked for);
 * there is never one of each with the same (step, source). Used with the engine's lock held.
 */
#ifndef TANDEM_COMM_MATCH_H
#define TANDEM_COMM_MATCH_H

#include "transport/transport.h"

enum { TDM__MAX_WAITING = 1 << 16 }; /* messages that may wait: more are a defect of a peer */

typedef struct tdm__match {
    struct tdm__match *next; /* in its chain, or in the list of free ones */
    bool expected;
    bool direct;           /* a SEND: such messages are numbered apart from the group's calls */
    int source;            /* rank in the world */
    tdm__head head;        /* waiting: as it came; expected: group, sequence, step and bytes */
    tdm__arrival *arrival; /* waiting */
    void *to;              /* expected */
    struct tdm__transfer *transfer; /* expected */
} tdm__match;

typedef struct tdm__matches {
    tdm__match **chains;
    size_t chain_count; /* a power of two */
    size_t entry_count, waiting_count;
    tdm__match *free_entries;
} tdm__matches;

tdm__matches *tdm__matches_create(void);
void tdm__matches_destroy(tdm__matches *matches);

/* Whether messages of this kind are numbered by pair and tag, not by the group. */
static inline bool tdm__is_direct(const tdm__head *head)
{
    return head->kind == TDM_CALL_SEND || head->kind == TDM_CALL_RECV;
}

/* Adds an entry like this one (copied); NULL when there is no memory. */
tdm__match *tdm__matches_add(tdm__matches *matches, const tdm__match *entry);
/* Takes out the entry with this group, sequence, step and source, into *out. */
bool tdm__matches_take(tdm__matches *matches, const tdm__head *head, int source, bool expected,
                       tdm__match *out);
/* Walks the entries of one call: returns false at the end. `*cursor` begins as NULL. */
tdm__match *tdm__matches_next(const tdm__matches *matches, const tdm__head *head,
                              tdm__match *cursor);
/* Takes out any entry for which `wanted` says so; false when there is none. For clearing away: `*chain`
 * begins as 0 and is where the next call goes on. */
bool tdm__matches_remove(tdm__matches *matches, bool (*wanted)(const tdm__match *, const void *),
                         const void *user, size_t *chain, tdm__match *out);

#endif
