/*
 * match.h: receives that wait for their message, and messages that wait for their receive.
 *
 * Both are in one hash table by (group, sequence): all entries of one collective are in one chain.
 * An entry is either expected (a program receives it) or waiting (it arrived before its receive);
 * there is never one of each with the same (step, source). The engine's lock protects the table.
 */
#ifndef TANDEM_COMM_MATCH_H
#define TANDEM_COMM_MATCH_H

#include "transport/transport.h"

enum {
    TDM__MAX_WAITING = 1 << 16
}; /* maximum number of waiting messages: more are an error of a peer */

typedef struct tdm__match {
    struct tdm__match *next; /* in its chain, or in the free list */
    bool expected;
    bool direct;           /* a SEND: such messages have their own numbers, separate from
                            * collectives */
    int source;            /* rank in the world */
    tdm__head head;        /* waiting: as received; expected: group, sequence, step and bytes */
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

/* Whether messages of this kind are numbered by peer and tag, not by the group. */
static inline bool tdm__is_direct(const tdm__head *head)
{
    return head->kind == TDM_CALL_SEND || head->kind == TDM_CALL_RECV;
}

/* Adds a copy of this entry; NULL: out of memory. */
tdm__match *tdm__matches_add(tdm__matches *matches, const tdm__match *entry);
/* Removes the entry with this group, sequence, step and source, and copies it to *out. */
bool tdm__matches_take(tdm__matches *matches, const tdm__head *head, int source, bool expected,
                       tdm__match *out);
/* Iterates over the entries of one call; false at the end. `*cursor` is initially NULL. */
tdm__match *tdm__matches_next(const tdm__matches *matches, const tdm__head *head,
                              tdm__match *cursor);
/* Removes any entry for which `wanted` returns true; false if there is none. `*chain` is initially
 * 0 and records where the next call continues. */
bool tdm__matches_remove(tdm__matches *matches, bool (*wanted)(const tdm__match *, const void *),
                         const void *user, size_t *chain, tdm__match *out);

#endif
