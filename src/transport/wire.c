/*
 * wire.c: heads of messages: sealed when sent, checked when received.
 *
 * The check (a hash of the 60 bytes before it) detects corrupt data and other programs that connect
 * to the port. It does not protect against an attacker who can compute it: unauthorised peers are
 * excluded when the world is opened (boot.c), and by TLS on untrusted networks.
 */
#include "base/base.h"
#include "transport/transport.h"

#include <string.h>

/* Processes eight bytes at a time, because it runs for every message. */
static uint32_t head_checksum(const tdm__head *head)
{
    uint64_t words[sizeof(*head) / sizeof(uint64_t)];
    memcpy(words, head, sizeof(*head));
    words[sizeof(*head) / sizeof(uint64_t) - 1] =
        head->source; /* the last word also contains the check */
    uint64_t sum = UINT64_C(0x6a09e667f3bcc909);
    for (size_t i = 0; i < sizeof(*head) / sizeof(uint64_t); i++)
        sum = tdm_hash64_add(sum, words[i]);
    return (uint32_t)sum;
}

void tdm__head_seal(tdm__head *head)
{
    head->magic = TDM__HEAD_MAGIC;
    head->check = head_checksum(head);
}

bool tdm__head_check(const tdm__head *head, uint32_t world, int size)
{
    return head->magic == TDM__HEAD_MAGIC && head->world == world &&
           head->source < (uint32_t)size && head->kind >= TDM_CALL_BARRIER &&
           head->kind <= TDM_CALL_RECV && head->dtype < TDM_DTYPE_COUNT &&
           head->reduce <= TDM_REDUCE_USER && head->algorithm <= TDM_ALGORITHM_WINDOW &&
           head->bytes <= INT64_MAX && head->check == head_checksum(head);
}
