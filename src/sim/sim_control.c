/*
 * sim_control.c: the simulated control connection.
 *
 * News travels as events that take about twice the time of a message (to a hub and back), and is
 * delayed by partitions and cuts between its subject and the recipient. A rank receives it in its
 * own coroutine, when it waits or computes, which corresponds to the control thread of a real rank.
 * A crash is reported by the control after detect_s; or, chosen at random for each rank, by the
 * transport then and by the control after twice that time: both orders must work.
 */
#include "base/base.h"
#include "sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With at least this many ranks, all receive news at the same time, by one event. */
enum { MAX_APART = 64 };

void tdm__sim_news_release(tdm__sim_news *news)
{
    if (--news->references == 0) free(news);
}

static tdm__sim_news *news_create(tdm__sim *sim, tdm__news news)
{
    size_t length = strlen(news.text);
    tdm__sim_news *copy = malloc(sizeof(*copy) + length + 1);
    if (!copy) {
        sim->no_memory = true;
        return NULL;
    }
    copy->references = 1;
    copy->news = news;
    memcpy(copy->text, news.text, length + 1);
    copy->news.text = copy->text;
    return copy;
}

static bool rank_receives_news(const tdm__sim_rank *rank)
{
    return !rank->no_control && rank->state != TDM__SIM_CRASHED;
}

/* ---- sending news ---------------------------------------------------------------------------- */

static void news_send_one(tdm__sim *sim, int to, tdm__sim_news *news, double time_s)
{
    news->references++;
    tdm__sim_post(sim, (tdm__sim_event){.time_s = time_s,
                                        .kind = TDM__SIM_NEWS_TO,
                                        .rank = to,
                                        .other = news->news.rank,
                                        .news = news});
}

static double news_travel_s(tdm__sim *sim)
{
    double jitter_s = sim->options.jitter_s > 0.0
                          ? sim->options.jitter_s * tdm_rng_uniform(&sim->rng)
                          : 0.0;
    return 2.0 * sim->options.latency_s + jitter_s;
}

/* To all ranks except its subject. */
static void news_send_all(tdm__sim *sim, tdm__news what)
{
    tdm__sim_news *news = news_create(sim, what);
    if (!news) return;
    if (sim->options.size > MAX_APART) {
        news->references++;
        tdm__sim_post(sim, (tdm__sim_event){.time_s = sim->now_s + news_travel_s(sim),
                                            .kind = TDM__SIM_NEWS_ALL,
                                            .other = what.rank,
                                            .news = news});
    } else {
        for (int i = 0; i < sim->options.size; i++)
            if (i != what.rank && rank_receives_news(&sim->ranks[i]))
                news_send_one(sim, i, news, sim->now_s + news_travel_s(sim));
    }
    tdm__sim_news_release(news);
}

/* `missing` -1: complete. */
static void exchange_end(tdm__sim *sim, int rank, int missing, double time_s)
{
    tdm__sim_post(
        sim,
        (tdm__sim_event){.time_s = time_s, .kind = TDM__SIM_MEET, .rank = rank, .other = missing});
}

void tdm__sim_tell_lost(tdm__sim *sim, int who)
{
    char text[96];
    snprintf(text, sizeof(text), "it crashed at %.6f s of simulated time", sim->now_s);
    tdm__sim_news *news = news_create(
        sim, (tdm__news){.kind = TDM__NEWS_LOST, .rank = who, .text = text});
    if (!news) return;
    double detect_s = sim->options.detect_s;
    for (int i = 0; i < sim->options.size; i++) {
        tdm__sim_rank *rank = &sim->ranks[i];
        if (i == who || !rank_receives_news(rank)) continue;
        bool by_transport = (tdm_rng_u32(&sim->rng) & 1u) != 0;
        double open_s = tdm__sim_open_s(sim, i, who, sim->now_s + detect_s);
        if (!isfinite(open_s)) continue;
        if (by_transport)
            tdm__sim_post(sim,
                          (tdm__sim_event){
                              .time_s = open_s, .kind = TDM__SIM_CUT_OFF, .rank = i, .other = who});
        news_send_one(sim, i, news, by_transport ? open_s + detect_s : open_s);
        if (rank->in_exchange && !sim->meeting[who]) exchange_end(sim, i, who, open_s);
    }
    tdm__sim_news_release(news);
}

/* ---- receiving news -------------------------------------------------------------------------- */

static void news_deliver(tdm__sim *sim, int to, tdm__sim_news *news)
{
    tdm__sim_rank *rank = &sim->ranks[to];
    if (!rank_receives_news(rank)) return;
    double open_s = tdm__sim_open_s(sim, to, news->news.rank, sim->now_s);
    if (open_s > sim->now_s) {
        if (isfinite(open_s)) news_send_one(sim, to, news, open_s + sim->options.latency_s);
        return;
    }
    struct tdm__sim_datagram *letter = malloc(sizeof(*letter));
    if (!letter) {
        sim->no_memory = true;
        return;
    }
    *letter = (struct tdm__sim_datagram){.news = news};
    news->references++;
    *rank->letters_end = letter;
    rank->letters_end = &letter->next;
    tdm__sim_wake(rank);
}

void tdm__sim_control_event(tdm__sim *sim, const tdm__sim_event *event)
{
    if (event->kind == TDM__SIM_NEWS_TO) {
        news_deliver(sim, event->rank, event->news);
    } else if (event->kind == TDM__SIM_NEWS_ALL) {
        for (int i = 0; i < sim->options.size; i++)
            if (i != event->other) news_deliver(sim, i, event->news);
    } else { /* MEET */
        tdm__sim_rank *rank = &sim->ranks[event->rank];
        if (!rank->in_exchange || rank->exchange_done) return;
        rank->exchange_done = true;
        rank->exchange_missing = event->other;
        tdm__sim_wake(rank);
    }
}

static struct tdm__sim_datagram *rank_take_news(tdm__sim_rank *rank)
{
    struct tdm__sim_datagram *letter = rank->letters;
    if (!letter) return NULL;
    rank->letters = letter->next;
    if (!rank->letters) rank->letters_end = &rank->letters;
    return letter;
}

void tdm__sim_hear(tdm__sim_rank *rank)
{
    while (rank->control && rank->control->events.news && rank->letters) {
        struct tdm__sim_datagram *letter = rank_take_news(rank);
        rank->control->events.news(rank->control->events.user, &letter->news->news);
        tdm__sim_news_release(letter->news);
        free(letter);
    }
}

void tdm__sim_control_clear(tdm__sim_rank *rank)
{
    for (struct tdm__sim_datagram *letter; (letter = rank_take_news(rank)) != NULL;) {
        tdm__sim_news_release(letter->news);
        free(letter);
    }
    free(rank->control);
    rank->control = NULL;
    rank->no_control = true;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* The last rank has arrived: its block completes the exchange, and the next one may start. */
static void exchange_complete(tdm__sim *sim)
{
    int size = sim->options.size;
    for (int i = 0; i < size; i++) {
        free(sim->met[i]);
        sim->met[i] = sim->meeting[i];
        sim->met_bytes[i] = sim->meeting_bytes[i];
        sim->meeting[i] = NULL;
    }
    sim->meeting_count = 0;
    for (int to = 0; to < size; to++) {
        double open_s = sim->now_s;
        for (int i = 0; i < size && sim->options.fault_count > 0; i++)
            open_s = fmax(open_s, tdm__sim_open_s(sim, i, to, sim->now_s));
        if (isfinite(open_s)) exchange_end(sim, to, -1, open_s + 2.0 * sim->options.latency_s);
    }
}

static size_t block_aligned_bytes(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* Copies the result of an exchange for one rank: pointers, followed by the blocks. */
static tdm_status exchange_copy_result(const tdm__sim *sim, uint8_t ***out_all, size_t **out_bytes,
                                       tdm_error *err)
{
    size_t size = (size_t)sim->options.size;
    size_t total = block_aligned_bytes(size * sizeof(uint8_t *));
    for (size_t i = 0; i < size; i++) total += block_aligned_bytes(sim->met_bytes[i]);
    uint8_t **all = malloc(total);
    size_t *bytes = malloc(size * sizeof(*bytes));
    if (!all || !bytes) {
        free(all);
        free(bytes);
        return tdm_fail_oom(err, "for an exchange");
    }
    uint8_t *block = (uint8_t *)all + block_aligned_bytes(size * sizeof(uint8_t *));
    for (size_t i = 0; i < size; i++) {
        all[i] = block;
        bytes[i] = sim->met_bytes[i];
        memcpy(block, sim->met[i], bytes[i]);
        block += block_aligned_bytes(bytes[i]);
    }
    *out_all = all;
    *out_bytes = bytes;
    return TDM_OK;
}

static tdm_status sim_exchange(tdm__control *control, const void *mine, size_t bytes,
                               uint8_t ***out_all, size_t **out_bytes, tdm_error *err)
{
    tdm__sim_rank *rank = ((tdm__sim_control *)control)->rank;
    tdm__sim *sim = rank->sim;
    uint8_t *copy = malloc(bytes + 1);
    if (!copy) return tdm_fail_oom(err, "for an exchange");
    if (bytes > 0) memcpy(copy, mine, bytes);

    if (sim->meeting[rank->rank])
        free(sim->meeting[rank->rank]); /* left from a failed exchange */
    else
        sim->meeting_count++;
    sim->meeting[rank->rank] = copy;
    sim->meeting_bytes[rank->rank] = bytes;
    rank->in_exchange = true;
    rank->exchange_done = false;

    if (sim->meeting_count == sim->options.size) {
        exchange_complete(sim);
    } else {
        for (int i = 0; i < sim->options.size; i++)
            if (sim->ranks[i].state == TDM__SIM_CRASHED && !sim->meeting[i])
                exchange_end(sim, rank->rank, i, sim->now_s + sim->options.detect_s);
    }

    double end_s = sim->now_s + sim->options.deadline_s;
    while (!rank->exchange_done && sim->now_s < end_s && !rank->dead) tdm__sim_wait(rank, end_s);
    rank->in_exchange = false;

    if (!rank->exchange_done)
        return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                        "sim: not all ranks joined the exchange within %g s",
                        sim->options.deadline_s);
    if (rank->exchange_missing >= 0)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "sim: rank %d crashed", rank->exchange_missing);
    return exchange_copy_result(sim, out_all, out_bytes, err);
}

/* ---- other operations ------------------------------------------------------------------------ */

static void sim_listen(tdm__control *control, const tdm__control_events *events)
{
    ((tdm__sim_control *)control)->events = *events;
}

static void sim_broken(tdm__control *control, uint32_t group, tdm_status status, const char *text)
{
    tdm__sim_rank *rank = ((tdm__sim_control *)control)->rank;
    if (rank->dead) return;
    news_send_all(rank->sim, (tdm__news){.kind = TDM__NEWS_BROKEN,
                                         .rank = rank->rank,
                                         .group = group,
                                         .status = status,
                                         .text = text ? text : ""});
}

/* What one rank did last, as far as `from` can know it. */
static void rank_describe(const tdm__sim *sim, int from, int about, char *out, size_t bytes)
{
    const tdm__sim_rank *rank = &sim->ranks[about];
    char last[256] = "";
    if (rank->no_control) {
        snprintf(out, bytes, "rank %d: has left", about);
        return;
    }
    if (rank->control && rank->control->events.describe)
        rank->control->events.describe(rank->control->events.user, last, sizeof(last));
    if (rank->state == TDM__SIM_CRASHED)
        snprintf(out, bytes, "rank %d: %s; stopped %.3g s ago", about, last,
                 sim->now_s - rank->stopped_s);
    else if (tdm__sim_open_s(sim, from, about, sim->now_s) > sim->now_s)
        snprintf(out, bytes, "rank %d: %s; the network between is cut", about, last);
    else if (tdm__sim_awake_s(sim, about, sim->now_s) > sim->now_s)
        snprintf(out, bytes, "rank %d: %s; stalled", about, last);
    else
        snprintf(out, bytes, "rank %d: %s", about, last);
}

static void sim_report(tdm__control *control, const int *ranks, int count, char *out, size_t bytes)
{
    const tdm__sim_rank *rank = ((tdm__sim_control *)control)->rank;
    size_t used = 0;
    if (bytes == 0) return;
    out[0] = 0;
    for (int i = 0; i < count && used + 1 < bytes; i++) {
        char line[400];
        rank_describe(rank->sim, rank->rank, ranks[i], line, sizeof(line));
        int length = snprintf(out + used, bytes - used, "%s%s", i > 0 ? "; " : "", line);
        if (length < 0) break;
        used += (size_t)length;
    }
}

static void sim_close(tdm__control *control)
{
    tdm__sim_rank *rank = ((tdm__sim_control *)control)->rank;
    if (!rank->dead)
        news_send_all(rank->sim,
                      (tdm__news){.kind = TDM__NEWS_LEFT, .rank = rank->rank, .text = ""});
    tdm__sim_control_clear(rank);
}

static const tdm__control_ops control_ops = {
    .listen = sim_listen,
    .exchange = sim_exchange,
    .broken = sim_broken,
    .report = sim_report,
    .close = sim_close,
};

tdm_status tdm__sim_control_make(tdm__sim_rank *rank, tdm__control **out, tdm_error *err)
{
    tdm__sim_control *control = calloc(1, sizeof(*control));
    if (!control) return tdm_fail_oom(err, "for rank %d", rank->rank);
    control->base = (tdm__control){.ops = &control_ops,
                                   .rank = rank->rank,
                                   .size = rank->sim->options.size,
                                   .world = rank->sim->world};
    control->rank = rank;
    rank->control = control;
    *out = &control->base;
    return TDM_OK;
}
