/*
 * control_hub_members.c: what members of the world say to the hub, and what it tells them.
 *
 * Heartbeats are kept, the last of each. Blocks of an exchange are collected; with the last one the
 * whole goes to everybody, as one blob. A broken group, a good-bye and a death go to all others. A
 * member that says what a member does not say is taken for broken, and lost.
 */
#include "boot/control_hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE 4.0 /* a silence this many times the longest so far is too long */
#define SILENT_BEATS                                                                               \
    1.3 /* as many times the time between heartbeats without one: a rank is silent */
enum {
    MAX_SILENT = 4, /* of these are told of */
    MAX_CHAIN = 8   /* and of those for whom somebody waits who is waited for */
};

/* ---- news ----------------------------------------------------------------------------------------------- */

static void tell_others(tdm__hub *hub, const tdm__frame *frame)
{
    tdm__blob *blob = tdm__blob_frame(frame);
    for (int i = 0; i < hub->facts.size; i++) {
        tdm__member *member = &hub->members[i];
        if (i != (int)frame->rank && member->state == TDM__MEMBER_HERE)
            tdm__hub_send_blob(hub, member->caller, blob);
    }
    tdm__blob_release(blob);
}

/* Before all had come. It may come again; but who can be told to give up is of an epoch, and in that it
 * does not. */
static void went_early(tdm__hub *hub, int rank, const char *how)
{
    tdm__member *member = &hub->members[rank];
    hub->here_count--;
    if (hub->facts.cancellation.is_over && !hub->doomed) {
        hub->doomed = true;
        snprintf(hub->refused, sizeof(hub->refused),
                 "rank %d (%s, process %llu) ended before all ranks had come: %.120s", rank,
                 member->host_name, (unsigned long long)member->pid, how);
    }
    *member = (tdm__member){.came_and_went = true, .waits_for = -1};
}

/* Since it was heard of last. */
static uint32_t silence_ms(const tdm__member *member)
{
    double silence_s = tdm_clock_s() - member->heard_s;
    return silence_s > 0 && silence_s < 1e6 ? (uint32_t)(silence_s * 1e3) : 0;
}

/* One that is given up for its silence may only have been stopped: its connection's end shall not look to
 * it like the end of this process. */
static void tell_given_up(tdm__member *member, int rank)
{
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_LOST,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_FAILED,
                       .id = TDM_SIGN_SILENCE};
    snprintf(news.text, sizeof(news.text), "%s", member->end);
    if (tdm__channel_put_frame(&member->caller->channel, &news))
        (void)tdm__channel_flush(&member->caller->channel);
}

void tdm__hub_lost(tdm__hub *hub, int rank, tdm_peer_sign sign, const char *fmt, ...)
{
    tdm__member *member = &hub->members[rank];
    if (member->state != TDM__MEMBER_HERE) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(member->end, sizeof(member->end), fmt, args);
    va_end(args);
    if (sign == TDM_SIGN_SILENCE) tell_given_up(member, rank);
    tdm__hub_drop(hub, member->caller);
    member->caller = NULL;
    if (!hub->started) {
        tdm_log(TDM_LOG_WARN, "comm", "rank %d (%s, process %llu) came, and went again: %s", rank,
                member->host_name, (unsigned long long)member->pid, member->end);
        went_early(hub, rank, member->end);
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
    tell_others(hub, &news);
}

static void left(tdm__hub *hub, tdm__hub_peer *caller)
{
    int rank = caller->rank;
    tdm__member *member = &hub->members[rank];
    member->state = TDM__MEMBER_LEFT;
    member->caller = NULL;
    tdm__hub_let_go(hub, caller);
    if (!hub->started) {
        went_early(hub, rank, "it has left");
        return;
    }
    tdm__frame news = {.type = TDM__FRAME_NEWS,
                       .kind = TDM__NEWS_LEFT,
                       .rank = (uint32_t)rank,
                       .status = TDM_ERR_PEER_LEFT};
    tell_others(hub, &news);
}

bool tdm__hub_is_silent(const tdm__hub *hub, int rank, double now_s)
{
    return now_s - hub->members[rank].heard_s >= SILENT_BEATS * tdm__beat_s(hub->facts.size);
}

/* Of a rank of this host the kernel says whether it makes progress. */
static bool is_only_slow(const tdm__hub *hub, tdm__member *member, double now_s)
{
    if (memcmp(member->host, hub->facts.host, sizeof(member->host)) != 0) return false;
    return tdm__silence_is_slowness(&member->process, member->pid, now_s - member->heard_s,
                                    hub->facts.silence_s);
}

void tdm__hub_listen_for_silence(tdm__hub *hub, double now_s)
{
    double min_s = hub->facts.silence_s, beats_s = 20 * tdm__beat_s(hub->facts.size);
    if (min_s < beats_s && hub->facts.size > 1024) min_s = beats_s;
    for (int i = 1; i < hub->facts.size; i++) { /* rank 0 is this process */
        tdm__member *member = &hub->members[i];
        if (member->state != TDM__MEMBER_HERE) continue;
        double max_s = PATIENCE * member->longest_s;
        if (max_s > 10 * min_s) max_s = 10 * min_s;
        if (max_s < min_s) max_s = min_s;
        if (now_s - member->heard_s > max_s && !is_only_slow(hub, member, now_s))
            tdm__hub_lost(hub, i, TDM_SIGN_SILENCE, "it was not heard of for %.1f s",
                          now_s - member->heard_s);
    }
}

/* ---- exchanges ------------------------------------------------------------------------------------------ */

/* Sends everybody's blocks to everybody; without blocks when they are too many bytes. */
static void finish_exchange(tdm__hub *hub)
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
            tdm__hub_send_blob(hub, hub->members[i].caller, blob);
    tdm__blob_release(blob);
}

static void add_block(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame)
{
    tdm__member *member = &hub->members[caller->rank];
    if (frame->number != hub->exchange_number || member->has_block || !hub->started) {
        tdm__hub_lost(hub, caller->rank, TDM_SIGN_CLOSED, "it sent rank 0 an exchange out of turn");
        return;
    }
    member->block = malloc(frame->byte_count > 0 ? frame->byte_count : 1);
    if (!member->block) {
        tdm__hub_lost(hub, caller->rank, TDM_SIGN_CLOSED,
                      "rank 0 has no memory for what it exchanges");
        return;
    }
    if (frame->byte_count > 0) memcpy(member->block, frame->bytes, frame->byte_count);
    member->block_bytes = frame->byte_count;
    member->has_block = true;
    if (++hub->block_count == hub->facts.size) finish_exchange(hub);
}

/* ---- questions ------------------------------------------------------------------------------------------ */

static void report_one(const tdm__hub *hub, int rank, double now_s, tdm_str *out)
{
    const tdm__member *member = &hub->members[rank];
    tdm_str_addf(out, "rank %d (%s, process %llu): ", rank, member->host_name,
                 (unsigned long long)member->pid);
    if (member->state == TDM__MEMBER_LOST) {
        tdm_str_addf(out, "lost: %s; before: %s", member->end,
                     *member->text ? member->text : "nothing known");
        return;
    }
    tdm_str_add(out, *member->text ? member->text : "nothing known yet");
    if (member->state == TDM__MEMBER_LEFT)
        tdm_str_add(out, ", has left");
    else if (rank == 0)
        tdm_str_add(out, ", heard just now");
    else
        tdm_str_addf(out, ", last heard %.1f s ago", now_s - member->heard_s);
}

/* Adds what is known of a rank; false: there is no room. */
static bool report_add(const tdm__hub *hub, int rank, double now_s, tdm_str *out)
{
    tdm_str one = TDM_STR_INIT;
    report_one(hub, rank, now_s, &one);
    bool fits = out->length + one.length + 40 < TDM__WIRE_TEXT;
    if (fits) tdm_str_addf(out, "%s%s", out->length > 0 ? "; " : "", tdm_str_text(&one));
    tdm_str_release(&one);
    return fits;
}

static bool is_asked(const tdm__frame *ask, int rank)
{
    for (uint32_t i = 0; i < ask->count; i++)
        if (tdm__wire_u32(ask->bytes + 4 * (size_t)i) == (uint32_t)rank) return true;
    return false;
}

/* Whoever asks may wait for ranks that are well and wait themselves, for one that is silent: the longest
 * silence comes first. */
static void report_silent(const tdm__hub *hub, const tdm__frame *ask, double now_s, tdm_str *out)
{
    int told[MAX_SILENT];
    for (int count = 0; count < MAX_SILENT; count++) {
        int max = -1;
        for (int i = 1; i < hub->facts.size; i++) {
            const tdm__member *member = &hub->members[i];
            if (member->state != TDM__MEMBER_HERE || !tdm__hub_is_silent(hub, i, now_s)) continue;
            bool known = is_asked(ask, i);
            for (int k = 0; k < count && !known; k++) known = told[k] == i;
            if (!known && (max < 0 || member->heard_s < hub->members[max].heard_s)) max = i;
        }
        if (max < 0 || !report_add(hub, max, now_s, out)) return;
        told[count] = max;
    }
}

/* Those who are asked for may have asked, too: for whom do they wait? And so on. */
static void report_chain(const tdm__hub *hub, const tdm__frame *ask, double now_s, tdm_str *out)
{
    if (ask->count == 0) return;
    uint32_t first = tdm__wire_u32(ask->bytes);
    int at = first < (uint32_t)hub->facts.size ? hub->members[first].waits_for : -1;
    int before = (int)first;
    for (int i = 0; i < MAX_CHAIN && at >= 0 && at != (int)first; i++) {
        if (out->length + 60 > TDM__WIRE_TEXT) return;
        tdm_str_addf(out, "; rank %d waits for rank %d", before, at);
        if (!is_asked(ask, at)) report_add(hub, at, now_s, out);
        before = at;
        at = hub->members[at].waits_for;
    }
}

static void report(tdm__hub *hub, int asker, const tdm__frame *ask, tdm_str *out)
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
        tdm_str_addf(out, "; and %u ranks more", ask->count - i);
        return;
    }
    report_chain(hub, ask, now_s, out);
}

/* Who has brought nothing to an exchange. */
static void lacking(const tdm__hub *hub, const tdm__frame *ask, tdm_str *out)
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

static void answer(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *ask)
{
    if (ask->byte_count != 4 * (uint64_t)ask->count) {
        tdm__hub_lost(hub, caller->rank, TDM_SIGN_CLOSED,
                      "it asked rank 0 something that makes no sense");
        return;
    }
    tdm_str text = TDM_STR_INIT;
    if (ask->kind == TDM__ASK_LACKING) {
        lacking(hub, ask, &text);
    } else {
        report(hub, caller->rank, ask, &text);
    }
    tdm__frame frame = {.type = TDM__FRAME_ANSWER, .id = ask->id};
    snprintf(frame.text, sizeof(frame.text), "%s", tdm_str_text(&text));
    tdm_str_release(&text);
    tdm__hub_send(hub, caller, &frame);
}

void tdm__hub_member(tdm__hub *hub, tdm__hub_peer *caller, const tdm__frame *frame)
{
    tdm__member *member = &hub->members[caller->rank];
    tdm__frame news;
    switch (frame->type) {
    case TDM__FRAME_BEAT: memcpy(member->text, frame->text, sizeof(member->text)); break;
    case TDM__FRAME_EXCHANGE: add_block(hub, caller, frame); break;
    case TDM__FRAME_ASK: answer(hub, caller, frame); break;
    case TDM__FRAME_BYE: left(hub, caller); break;
    case TDM__FRAME_NEWS:
        news = *frame;
        news.kind = TDM__NEWS_BROKEN;
        news.rank = (uint32_t)caller->rank;
        if (hub->started) tell_others(hub, &news);
        break;
    default:
        tdm__hub_lost(hub, caller->rank, TDM_SIGN_CLOSED,
                      "it sent rank 0 something that makes no sense");
    }
}
