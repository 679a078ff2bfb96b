/*
 * match.c: the hash table of match.h: chains by (group, sequence), and by the tag for messages that
 * are numbered by it. The number of chains is doubled when they get long.
 *
 * Entries are allocated by malloc and reused, so a call in the steady state allocates nothing here.
 */
#include "comm/match.h"
#include "base/base.h"

#include <stdlib.h>

enum { FIRST_CHAINS = 64 };

tdm__matches *tdm__matches_create(void)
{
    tdm__matches *matches = calloc(1, sizeof(*matches));
    if (!matches) return NULL;
    matches->chain_count = FIRST_CHAINS;
    matches->chains = calloc(FIRST_CHAINS, sizeof(*matches->chains));
    if (matches->chains) return matches;
    free(matches);
    return NULL;
}

static void match_free_list(tdm__match *entry)
{
    while (entry) {
        tdm__match *next = entry->next;
        free(entry);
        entry = next;
    }
}

void tdm__matches_destroy(tdm__matches *matches)
{
    if (!matches) return;
    for (size_t i = 0; i < matches->chain_count; i++) match_free_list(matches->chains[i]);
    match_free_list(matches->free_entries);
    free(matches->chains);
    free(matches);
}

static size_t matches_chain_of(const tdm__matches *matches, const tdm__head *head)
{
    uint64_t key = (uint64_t)head->group << 32 | head->sequence;
    if (tdm__is_direct(head)) key = tdm_mix64(key) ^ head->step;
    return (size_t)tdm_mix64(key) & (matches->chain_count - 1);
}

static bool match_is_same_call(const tdm__match *entry, const tdm__head *head)
{
    return entry->head.group == head->group && entry->head.sequence == head->sequence &&
           entry->direct == tdm__is_direct(head);
}

/* Doubles the number of chains; keeps the old ones if memory runs out. */
static void matches_grow(tdm__matches *matches)
{
    size_t old_count = matches->chain_count;
    tdm__match **old = matches->chains;
    tdm__match **chains = calloc(old_count * 2, sizeof(*chains));
    if (!chains) return;
    matches->chains = chains;
    matches->chain_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++)
        while (old[i]) {
            tdm__match *entry = old[i];
            old[i] = entry->next;
            size_t at = matches_chain_of(matches, &entry->head);
            entry->next = chains[at];
            chains[at] = entry;
        }
    free(old);
}

tdm__match *tdm__matches_add(tdm__matches *matches, const tdm__match *entry)
{
    if (matches->entry_count >= matches->chain_count * 2) matches_grow(matches);
    tdm__match *copy = matches->free_entries;
    if (copy)
        matches->free_entries = copy->next;
    else
        copy = malloc(sizeof(*copy));
    if (!copy) return NULL;
    *copy = *entry;
    size_t at = matches_chain_of(matches, &copy->head);
    copy->next = matches->chains[at];
    matches->chains[at] = copy;
    matches->entry_count++;
    matches->waiting_count += !copy->expected;
    return copy;
}

/* Moves the entry at *link to the free list. */
static void matches_unlink(tdm__matches *matches, tdm__match **link, tdm__match *out)
{
    tdm__match *entry = *link;
    *out = *entry;
    *link = entry->next;
    entry->next = matches->free_entries;
    matches->free_entries = entry;
    matches->entry_count--;
    matches->waiting_count -= !entry->expected;
}

bool tdm__matches_take(tdm__matches *matches, const tdm__head *head, int source, bool expected,
                       tdm__match *out)
{
    tdm__match **link = &matches->chains[matches_chain_of(matches, head)];
    for (; *link; link = &(*link)->next) {
        const tdm__match *entry = *link;
        if (entry->expected == expected && entry->source == source &&
            entry->head.step == head->step && match_is_same_call(entry, head)) {
            matches_unlink(matches, link, out);
            return true;
        }
    }
    return false;
}

tdm__match *tdm__matches_next(const tdm__matches *matches, const tdm__head *head,
                              tdm__match *cursor)
{
    tdm__match *entry = cursor ? cursor->next : matches->chains[matches_chain_of(matches, head)];
    while (entry && !match_is_same_call(entry, head)) entry = entry->next;
    return entry;
}

bool tdm__matches_remove(tdm__matches *matches, bool (*wanted)(const tdm__match *, const void *),
                         const void *user, size_t *chain, tdm__match *out)
{
    for (; *chain < matches->chain_count; (*chain)++)
        for (tdm__match **link = &matches->chains[*chain]; *link; link = &(*link)->next)
            if (wanted(*link, user)) {
                matches_unlink(matches, link, out);
                return true;
            }
    return false;
}
