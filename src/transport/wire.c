/*
 * wire.c: heads of messages: sealed when they are sent, checked when they come.
 *
 * A head comes from outside. The check (a hash of the 60 bytes before it) is there against
 * garbage and strangers that speak to the wrong port, not against an enemy who can compute it: whoever
 * must be kept out is kept out when the world is made (boot.c), and by TLS beyond a trusted network.
 */
#include "transport/transport.h"

#include <string.h>

/* Eight bytes at a time: this is done for every message. */
static uint32_t sum_of(const tdm__head *head)
{
    uint64_t words[sizeof *head / sizeof(uint64_t)];
    memcpy(words, head, sizeof *head);
    words[sizeof *head / sizeof(uint64_t) - 1] =
        head->source; /* the last one holds the check, too */
    uint64_t sum = 0x6a09e667f3bcc909u;
    for (size_t i = 0; i < sizeof *head / sizeof(uint64_t); i++) {
        sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return (uint32_t)sum;
}

void tdm__head_seal(tdm__head *head)
{
    head->magic = TDM__HEAD_MAGIC;
    head->check = sum_of(head);
}

bool tdm__head_check(const tdm__head *head, uint32_t world, int size)
{
    return head->magic == TDM__HEAD_MAGIC && head->world == world &&
           head->source < (uint32_t)size && head->kind >= TDM_CALL_BARRIER &&
           head->kind <= TDM_CALL_RECV && head->dtype < TDM_DTYPE_COUNT &&
           head->reduce <= TDM_REDUCE_USER && head->algorithm <= TDM_ALGORITHM_WINDOW &&
           head->bytes <= INT64_MAX && head->check == sum_of(head);
}
