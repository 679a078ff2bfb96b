/*
 * control_hub_members.c: messages from members of the world to the hub, and from the hub to members.
 *
 * The hub keeps the last heartbeat of each member. It collects the blocks of an exchange; with the last
 * block it sends the whole to all members, as one blob. It forwards a broken group, a BYE and a death to all
 * other members. A member that sends an invalid message is treated as lost.
 *
 * The hub is the one failure detector of its world. A rank is lost when its control connection is closed or
 * silent. A rank that loses the connection of its transport to another rank only reports that (ASK with
 * TDM__ASK_SUSPECT): a rank that leaves because of another rank's death closes its connections as well, and
 * is not the cause. The hub answers when the suspected rank is lost or has left, at the latest after
 * TDM__TIMING_BOOT_SUSPECT_S. All messages to a rank arrive in order, so the rank knows the cause, if the hub
 * knows it, before the answer.
 *
 * States of a rank (tdm__member_state):
 *
 *              JOIN accepted
 *     ABSENT ----------------> HERE --------------------------------------> LOST
 *                              ^ | |   after the start: connection closed,
 *                JOIN accepted | | |   invalid message or too long a silence;
 *                              | | |   or the hub gave up joining
 *     ENDED_EARLY -------------+ | |
 *        ^                       | | after the start: BYE;
 *        +-----------------------+ | or the hub ends
 *         before the start:        v
 *         connection closed,      LEFT
 *         or BYE
 *
 *     -> HERE                 tdm__hub_handle_joining
 *     HERE -> ENDED_EARLY     member_ended_early
 *     HERE -> LOST            tdm__hub_lost, hub_give_up_joining
 *     HERE -> LEFT            member_left, hub_send_end
 *
 * LOST and LEFT are final: a hub serves one world.
 */
#include "base/timing.h"
#include "boot/control_hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SILENT = 4,                    /* silent ranks in a report */
    MAX_CHAIN = 8,                     /* length of a chain of waiting ranks in a report */
    MAX_SUSPICIONS = 4 * TDM_MAX_RANKS /* above it, the hub answers without a wait */
};

/* ---- news ----------------------------------------------------------------------------------------------- */

static void hub_tell_others(tdm__hub *hub, const tdm__frame *frame)
{
    tdm__blob *blob = tdm__blob_frame(frame);
    for (int i = 0; i < hub->facts.size; i++) {
        tdm__member *member = &hub->members[i];
        if (i != (int)frame->rank && member->state == TDM__MEMBER_HERE)
            tdm__hub_send_blob(hub, member->peer, blob);
    }
    tdm__blob_release(blob);
}

/* A member ended before the world started. It may join again; but with a cancellation the world belongs to an
 * epoch, in which the rank does not join again. */
static void member_ended_early(tdm__hub *hub, int rank, const char *how)
{
    tdm__member *member = &hub->members[rank];
    hub->here_count--;
    if (hub->facts.cancellation.is_over && !hub->fatal[0])
        snprintf(hub->fatal, sizeof(hub->fatal),
                 "rank %d (%s, process %llu) ended before all ranks had joined: %.120s", rank,
                 member->host_name, (unsigned long long)member->pid, how);
    *member = (tdm__member){.state = TDM__MEMBER_ENDED_EARLY, .waits_for = -1};
}

/* Time since the member last sent anything. */
static uint32_t silence_ms(const tdm__member *member)
{
    double silence_s = tdm_clock_s() - member->heard_s;
    return silence_s > 0 && silence_s < 1e6 ? (uint32_t)(silence_s * 1e3) : 0;
}

/* A member that is lost because of its silence may only have been stopped. This message tells it why its
 * connection ends, so that it does not take rank 0 for dead. */
static void member_tell_lost(tdm__member *member, int rank)
{
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_LOST,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_FAILED,
                       .id = TDM_SIGN_SILENCE};
    snprintf(news.text, sizeof(news.text), "%s", member->end);
    if (tdm__channel_put_frame(&member->peer->channel, &news))
        (void)tdm__channel_flush(&member->peer->channel);
}

void tdm__hub_lost(tdm__hub *hub, int rank, tdm_peer_sign sign, const char *fmt, ...)
{
    tdm__member *member = &hub->members[rank];
    if (member->state != TDM__MEMBER_HERE) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(member->end, sizeof(member->end), fmt, args);
    va_end(args);
    if (sign == TDM_SIGN_SILENCE) member_tell_lost(member, rank);
    tdm__hub_peer_drop(hub, member->peer);
    member->peer = NULL;
    if (hub->state == TDM__HUB_JOINING) {
        tdm_log(TDM_LOG_WARN, "comm", "rank %d (%s, process %llu) disconnected while joining: %s",
                rank, member->host_name, (unsigned long long)member->pid, member->end);
        member_ended_early(hub, rank, member->end);
        return;
    }
    member->state = TDM__MEMBER_LOST;
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_LOST,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_FAILED,
                       .id = sign,
                       .number = silence_ms(member)};
    snprintf(news.text, sizeof(news.text), "%s", member->end);
    snprintf(news.what, sizeof(news.what), "%.*s", (int)sizeof(news.what) - 1, member->text);
    hub_tell_others(hub, &news);
}

static void member_left(tdm__hub *hub, tdm__hub_peer *peer)
{
    int rank = peer->rank;
    tdm__member *member = &hub->members[rank];
    member->state = TDM__MEMBER_LEFT;
    member->peer = NULL;
    tdm__hub_peer_leave(hub, peer);
    if (hub->state == TDM__HUB_JOINING) {
        member_ended_early(hub, rank, "it has left");
        return;
    }
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_LEFT,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_LEFT};
    hub_tell_others(hub, &news);
}

bool tdm__hub_is_silent(const tdm__hub *hub, int rank, double now_s)
{
    return now_s - hub->members[rank].heard_s >=
           TDM__TIMING_BOOT_QUIET_BEATS * tdm__beat_s(hub->facts.size);
}

/* Whether a silent rank on this host makes progress, according to the kernel. */
static bool member_is_slow(const tdm__hub *hub, tdm__member *member, double now_s)
{
    if (memcmp(member->host, hub->facts.host, sizeof(member->host)) != 0) return false;
    return tdm__silence_is_slowness(&member->process, member->pid, now_s - member->heard_s,
                                    hub->facts.silence_s);
}

void tdm__hub_check_silence(tdm__hub *hub, double now_s)
{
    for (int i = 1; i < hub->facts.size; i++) { /* rank 0 is this process */
        tdm__member *member = &hub->members[i];
        if (member->state != TDM__MEMBER_HERE) continue;
        double max_s = tdm__silence_max_s(hub->facts.silence_s, member->longest_s, hub->facts.size);
        if (now_s - member->heard_s > max_s && !member_is_slow(hub, member, now_s))
            tdm__hub_lost(hub, i, TDM_SIGN_SILENCE, "no heartbeat for %.1f s",
                          now_s - member->heard_s);
    }
}

/* ---- suspicions ----------------------------------------------------------------------------------------- */

static void suspicion_answer(tdm__hub *hub, int asker, int rank)
{
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_CONFIRMED,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_FAILED};
    if (hub->members[asker].state == TDM__MEMBER_HERE)
        tdm__hub_send(hub, hub->members[asker].peer, &news);
}

/* A rank has lost its connection to `ask->number`. */
static void suspicion_add(tdm__hub *hub, int asker, const tdm__frame *ask)
{
    int count = 0;
    for (const tdm__suspicion *at = hub->suspicions; at; at = at->next) count++;
    tdm__suspicion *new = count < MAX_SUSPICIONS ? malloc(sizeof(*new)) : NULL;
    if (!new) {
        suspicion_answer(hub, asker, (int)ask->number);
        return;
    }
    *new = (tdm__suspicion){.asker = asker,
                            .rank = (int)ask->number,
                            .until_s = tdm_clock_s() + TDM__TIMING_BOOT_SUSPECT_S,
                            .next = hub->suspicions};
    hub->suspicions = new;
}

void tdm__hub_answer_suspicions(tdm__hub *hub, double now_s)
{
    for (tdm__suspicion **link = &hub->suspicions; *link;) {
        tdm__suspicion *at = *link;
        bool is_here = hub->members[at->rank].state == TDM__MEMBER_HERE;
        bool is_waiting = hub->members[at->asker].state == TDM__MEMBER_HERE;
        if (is_waiting && is_here && now_s < at->until_s) {
            link = &at->next;
            continue;
        }
        *link = at->next;
        suspicion_answer(hub, at->asker, at->rank);
        free(at);
    }
}

/* ---- exchanges ------------------------------------------------------------------------------------------ */

/* Sends all blocks to all members; no blocks if they are too large. */
static void exchange_finish(tdm__hub *hub)
{
    int size = hub->facts.size;
    uint64_t total = 0;
    for (int i = 0; i < size; i++) total += hub->members[i].block_bytes;
    bool fits = total + 8 * (uint64_t)size < TDM__MAX_WIRE_GATHERED;
    tdm__frame frame = {.type = TDM__FRAME_GATHERED,
                        .number = hub->exchange_number,
                        .count = fits ? (uint32_t)size : 0};
    tdm_str text = TDM_STR_INIT;
    tdm__wire_write_before(&frame, fits ? (size_t)total + 8 * (size_t)size : 0, &text);
    for (int i = 0; fits && i < size; i++) tdm__wire_put_u64(hub->members[i].block_bytes, &text);
    for (int i = 0; i < size; i++) {
        tdm__member *member = &hub->members[i];
        if (fits && member->block_bytes > 0)
            tdm_str_add_bytes(&text, member->block, member->block_bytes);
        free(member->block);
        member->block = NULL;
        member->block_bytes = 0;
        member->has_block = false;
    }
    hub->block_count = 0;
    hub->exchange_number++;
    tdm__blob *blob = tdm__blob_of(&text);
    tdm_str_release(&text);
    for (int i = 0; i < size; i++)
        if (hub->members[i].state == TDM__MEMBER_HERE)
            tdm__hub_send_blob(hub, hub->members[i].peer, blob);
    tdm__blob_release(blob);
}

static void exchange_add_block(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame)
{
    tdm__member *member = &hub->members[peer->rank];
    if (frame->number != hub->exchange_number || member->has_block ||
        hub->state != TDM__HUB_STARTED) {
        tdm__hub_lost(hub, peer->rank, TDM_SIGN_CLOSED, "it sent rank 0 an unexpected exchange");
        return;
    }
    member->block = malloc(frame->byte_count > 0 ? frame->byte_count : 1);
    if (!member->block) {
        tdm__hub_lost(hub, peer->rank, TDM_SIGN_CLOSED,
                      "rank 0 has no memory for its part of an exchange");
        return;
    }
    if (frame->byte_count > 0) memcpy(member->block, frame->bytes, frame->byte_count);
    member->block_bytes = frame->byte_count;
    member->has_block = true;
    if (++hub->block_count == hub->facts.size) exchange_finish(hub);
}

/* ---- questions ------------------------------------------------------------------------------------------ */

static void report_one(const tdm__hub *hub, int rank, double now_s, tdm_str *out)
{
    const tdm__member *member = &hub->members[rank];
    tdm_str_addf(out, "rank %d (%s, process %llu): ", rank, member->host_name,
                 (unsigned long long)member->pid);
    if (member->state == TDM__MEMBER_LOST) {
        tdm_str_addf(out, "lost: %s; before: %s", member->end,
                     *member->text ? member->text : "unknown");
        return;
    }
    tdm_str_add(out, *member->text ? member->text : "unknown yet");
    if (member->state == TDM__MEMBER_LEFT)
        tdm_str_add(out, ", has left");
    else if (rank == 0)
        tdm_str_add(out, ", heard just now");
    else
        tdm_str_addf(out, ", last heard %.1f s ago", now_s - member->heard_s);
}

/* Appends what is known of a rank; false: the text is full. */
static bool report_add(const tdm__hub *hub, int rank, double now_s, tdm_str *out)
{
    tdm_str one = TDM_STR_INIT;
    report_one(hub, rank, now_s, &one);
    bool fits = out->length + one.length + 40 < TDM__WIRE_TEXT;
    if (fits) tdm_str_addf(out, "%s%s", out->length > 0 ? "; " : "", tdm_str_text(&one));
    tdm_str_release(&one);
    return fits;
}

static bool question_has_rank(const tdm__frame *ask, int rank)
{
    for (uint32_t i = 0; i < ask->count; i++)
        if (tdm__wire_u32(ask->bytes + 4 * (size_t)i) == (uint32_t)rank) return true;
    return false;
}

/* Reports silent ranks, the longest silence first: the ranks of the question may themselves wait for a silent
 * one. */
static void report_silent(const tdm__hub *hub, const tdm__frame *ask, double now_s, tdm_str *out)
{
    int told[MAX_SILENT];
    for (int count = 0; count < MAX_SILENT; count++) {
        int max = -1;
        for (int i = 1; i < hub->facts.size; i++) {
            const tdm__member *member = &hub->members[i];
            if (member->state != TDM__MEMBER_HERE || !tdm__hub_is_silent(hub, i, now_s)) continue;
            bool known = question_has_rank(ask, i);
            for (int k = 0; k < count && !known; k++) known = told[k] == i;
            if (!known && (max < 0 || member->heard_s < hub->members[max].heard_s)) max = i;
        }
        if (max < 0 || !report_add(hub, max, now_s, out)) return;
        told[count] = max;
    }
}

/* Reports which rank the first rank of the question waits for, which one that rank waits for, and so on. */
static void report_chain(const tdm__hub *hub, const tdm__frame *ask, double now_s, tdm_str *out)
{
    if (ask->count == 0) return;
    uint32_t first = tdm__wire_u32(ask->bytes);
    int at = first < (uint32_t)hub->facts.size ? hub->members[first].waits_for : -1;
    int before = (int)first;
    for (int i = 0; i < MAX_CHAIN && at >= 0 && at != (int)first; i++) {
        if (out->length + 60 > TDM__WIRE_TEXT) return;
        tdm_str_addf(out, "; rank %d waits for rank %d", before, at);
        if (!question_has_rank(ask, at)) report_add(hub, at, now_s, out);
        before = at;
        at = hub->members[at].waits_for;
    }
}

static void report_write(tdm__hub *hub, int asker, const tdm__frame *ask, tdm_str *out)
{
    double now_s = tdm_clock_s();
    if (ask->count > 0) {
        uint32_t first = tdm__wire_u32(ask->bytes);
        hub->members[asker].waits_for = first < (uint32_t)hub->facts.size ? (int)first : -1;
    }
    report_silent(hub, ask, now_s, out);
    for (uint32_t i = 0; i < ask->count; i++) {
        uint32_t rank = tdm__wire_u32(ask->bytes + 4 * (size_t)i);
        if (rank >= (uint32_t)hub->facts.size) continue;
        if (report_add(hub, (int)rank, now_s, out)) continue;
        tdm_str_addf(out, "; and %u more ranks", ask->count - i);
        return;
    }
    report_chain(hub, ask, now_s, out);
}

/* Lists the ranks that have not sent their block of an exchange. */
static void report_missing_blocks(const tdm__hub *hub, const tdm__frame *ask, tdm_str *out)
{
    for (int i = 0; i < hub->facts.size && ask->number == hub->exchange_number; i++) {
        if (hub->members[i].has_block) continue;
        if (out->length > TDM__WIRE_TEXT - 100) {
            tdm_str_add(out, ", ...");
            return;
        }
        tdm_str_addf(out, "%s%d", out->length > 0 ? ", " : "", i);
    }
}

static void hub_answer(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *ask)
{
    bool is_valid = ask->byte_count == 4 * (uint64_t)ask->count &&
                    (ask->kind != TDM__ASK_SUSPECT || ask->number < (uint32_t)hub->facts.size);
    if (!is_valid) {
        tdm__hub_lost(hub, peer->rank, TDM_SIGN_CLOSED, "it sent rank 0 an invalid question");
        return;
    }
    if (ask->kind == TDM__ASK_SUSPECT) {
        suspicion_add(hub, peer->rank, ask);
        return;
    }
    tdm_str text = TDM_STR_INIT;
    if (ask->kind == TDM__ASK_LACKING) {
        report_missing_blocks(hub, ask, &text);
    } else {
        report_write(hub, peer->rank, ask, &text);
    }
    tdm__frame frame = {.type = TDM__FRAME_ANSWER, .id = ask->id};
    snprintf(frame.text, sizeof(frame.text), "%s", tdm_str_text(&text));
    tdm_str_release(&text);
    tdm__hub_send(hub, peer, &frame);
}

void tdm__hub_handle_member(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame)
{
    tdm__member *member = &hub->members[peer->rank];
    tdm__frame news;
    switch (frame->type) {
    case TDM__FRAME_BEAT: memcpy(member->text, frame->text, sizeof(member->text)); break;
    case TDM__FRAME_EXCHANGE: exchange_add_block(hub, peer, frame); break;
    case TDM__FRAME_ASK: hub_answer(hub, peer, frame); break;
    case TDM__FRAME_BYE: member_left(hub, peer); break;
    case TDM__FRAME_NEWS:
        news = *frame;
        news.kind = TDM__NEWS_BROKEN;
        news.rank = (uint32_t)peer->rank;
        if (hub->state == TDM__HUB_STARTED) hub_tell_others(hub, &news);
        break;
    default: tdm__hub_lost(hub, peer->rank, TDM_SIGN_CLOSED, "it sent rank 0 an invalid message");
    }
}
