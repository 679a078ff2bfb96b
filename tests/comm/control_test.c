/*
 * control_test.c: the control connections of a world, with real processes.
 *
 * Ranks join, exchange, die, stop, break groups and leave. Every other rank must be notified in time and with
 * the correct message, whether it is in a call or not. Nothing may be left behind.
 */
#include "base/timing.h"
#include "comm/control_world.h"

#include <sys/syscall.h>

/* ---- joining and exchanging ----------------------------------------------------------------------------- */

/* Block `rank` of round `round`: all ranks know its length and its bytes. */
static size_t fill(uint8_t *out, int rank, int round, size_t max)
{
    size_t bytes = ((size_t)rank * 7919 + (size_t)round * 104729) % max;
    if ((rank + round) % 5 == 0) bytes = 0;
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(i * 31 + (size_t)rank * 7 + (size_t)round);
    return bytes;
}

static void exchange_round(tdm__control *control, int round, size_t max)
{
    uint8_t *mine = malloc(max + 1), *theirs = malloc(max + 1);
    size_t bytes = fill(mine, control->rank, round, max);
    uint8_t **all = NULL;
    size_t *sizes = NULL;
    tdm_error err = {0};
    tdm_status status = control->ops->exchange(control, mine, bytes, &all, &sizes, &err);
    CHECK_TEXT(err.message, "");
    for (int i = 0; status == TDM_OK && i < control->size; i++) {
        bytes = fill(theirs, i, round, max);
        CHECK_INT(sizes[i], bytes);
        CHECK(sizes[i] != bytes || memcmp(all[i], theirs, bytes) == 0);
        CHECK_INT((uintptr_t)all[i] % 16, 0);
    }
    free(all);
    free(sizes);
    free(mine);
    free(theirs);
}

static void *note_thread(void *user)
{
    *(int *)user = (int)gettid();
    return NULL;
}

/* The kernel lists a thread for a moment after its end. */
static bool thread_is_gone(int thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d", thread);
    double until_s = tdm_clock_s() + 20;
    while (access(path, F_OK) == 0 && tdm_clock_s() < until_s) pause_s(0.001);
    return access(path, F_OK) != 0;
}

static int rank_that_exchanges(const world *w, int rank)
{
    pthread_t first; /* a sanitizer starts another thread beside the first */
    int first_id = 0;
    CHECK_INT(pthread_create(&first, NULL, note_thread, &first_id), 0);
    pthread_join(first, NULL);
    CHECK(thread_is_gone(first_id));
    int fds = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
    tdm__control *control = join(w, rank);
    for (int i = 0; i < w->size; i++) CHECK_INT(control->host_of[i], 0);
    CHECK(w->size == 1 || count_in("/proc/self/task") > threads);
    for (int round = 0; round < 30; round++) exchange_round(control, round, 3000);
    exchange_round(control, 30, SLOW || w->size > 5 ? 100000 : (size_t)4 << 20);
    exchange_round(control, 31, 1);
    control->ops->close(control);
    CHECK_INT(count_in("/proc/self/fd"), fds);
    CHECK_INT(count_left_in("/proc/self/task", threads), threads);
    return 0;
}

static void run_world(int size, const char *rendezvous)
{
    world w = {.size = size, .rendezvous = rendezvous, .victim = -1, .rank = rank_that_exchanges};
    start(&w);
    finish(&w);
    CHECK_INT(shared->warnings, 0);
}

static void worlds_join_and_exchange(void)
{
    static const int sizes[] = {1, 2, 5, 16};
    run_world(1, NULL);
    for (int i = 0; i < 4; i++) {
        run_world(sizes[i], unix_name());
        run_world(sizes[i], tcp_name(AF_INET));
        const char *path = file_name();
        run_world(sizes[i], path);
        CHECK(access(path, F_OK) != 0);
        if (SLOW && i == 2) break;
    }
    run_world(3, tcp_name(AF_INET6));
}

/* ---- death ---------------------------------------------------------------------------------------------- */

typedef struct listener {
    pthread_mutex_t lock;
    int lost, left, broken, confirmed;
    int seen_before; /* losses and departures that came before the last confirmed suspicion */
    tdm__news last;
    tdm_peer_sign sign; /* of the last loss */
    char text[1000];
    double at_s;
} listener;

static void on_news(void *user, const tdm__news *news)
{
    listener *l = user;
    pthread_mutex_lock(&l->lock);
    if (news->kind == TDM__NEWS_CONFIRMED) {
        l->confirmed++;
        l->seen_before = l->lost + l->left;
        pthread_mutex_unlock(&l->lock);
        return;
    }
    l->last = *news;
    if (news->loss) l->sign = news->loss->sign;
    l->at_s = tdm_clock_s();
    snprintf(l->text, sizeof(l->text), "%s", news->text);
    l->lost += news->kind == TDM__NEWS_LOST;
    l->left += news->kind == TDM__NEWS_LEFT;
    l->broken += news->kind == TDM__NEWS_BROKEN;
    pthread_mutex_unlock(&l->lock);
}

static void on_describe(void *user, char *out, size_t bytes)
{
    (void)user;
    snprintf(out, bytes, "counts sheep");
}

static void listen_to(tdm__control *control, listener *l)
{
    *l = (listener){.lock = PTHREAD_MUTEX_INITIALIZER};
    tdm__control_events events = {.user = l, .news = on_news, .describe = on_describe};
    tdm__control_listen(control, &events);
}

/* Waits for the next piece of news; returns a copy. */
static listener await_news(listener *l, int count, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        listener copy = *l;
        pthread_mutex_unlock(&l->lock);
        if (copy.lost + copy.left + copy.broken >= count || tdm_clock_s() > until_s) return copy;
        pause_s(0.002);
    }
}

static int rank_that_mourns(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank == w->victim) {
        pause_s(RANK_S);
        return 1;
    }
    listener heard = await_news(&l, 1, 20);
    CHECK_INT(heard.lost, 1);
    CHECK_INT(heard.last.rank, w->victim);
    CHECK_HAS(heard.text, "it exited or was killed");
    shared->seen_s[rank] = heard.at_s;
    shared->saw++;
    uint8_t **all = NULL;
    size_t *sizes = NULL;
    tdm_error err = {0};
    CHECK_INT(control->ops->exchange(control, "x", 1, &all, &sizes, &err), TDM_ERR_PEER_FAILED);
    CHECK_HAS(err.message, "lost");
    await(&shared->saw, w->size - 1, 20);
    control->ops->close(control);
    return 0;
}

static void a_death_is_reported_to_all(void)
{
    for (int victim = 0; victim < 4; victim++) {
        world w = {.size = 4,
                   .rendezvous = victim % 2 ? tcp_name(AF_INET) : unix_name(),
                   .victim = victim,
                   .rank = rank_that_mourns};
        start(&w);
        CHECK(await(&shared->joined, 4, 20));
        pause_s(0.05);
        double killed_s = tdm_clock_s();
        kill(w.pids[victim], SIGKILL);
        finish(&w);
        for (int i = 0; i < 4; i++)
            if (i != victim) CHECK(shared->seen_s[i] - killed_s < 15);
    }
}

/* ---- leaving -------------------------------------------------------------------------------------------- */

/* Rank 0, and with it the hub, leaves first. The others notice, continue, and end. */
static int rank_that_leaves(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    exchange_round(control, 1, 100);
    if (rank > 0) {
        listener heard = await_news(&l, 1, 20);
        CHECK_INT(heard.left, 1);
        CHECK_INT(heard.last.rank, 0);
        char text[500];
        int who = 1;
        pause_s(0.1);
        control->ops->report(control, &who, 1, text, sizeof(text));
        CHECK_HAS(text, "rank 1 (");
        CHECK_HAS(text, "no details, because rank 0 has left");
        uint8_t **all = NULL;
        size_t *sizes = NULL;
        tdm_error err = {0};
        CHECK_INT(control->ops->exchange(control, "x", 1, &all, &sizes, &err), TDM_ERR_PEER_LEFT);
        CHECK_HAS(err.message, "rank 0 (");
        control->ops->broken(control, 1, TDM_ERR_PEER_FAILED, "said to nobody");
    }
    double before_s = tdm_clock_s();
    control->ops->close(control);
    CHECK(tdm_clock_s() - before_s < 15);
    return 0;
}

/* The last rank leaves first: all others are notified, and none treats it as dead. */
static int rank_that_stays(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank < w->size - 1) {
        listener heard = await_news(&l, 1, 20);
        CHECK_INT(heard.left, 1);
        CHECK_INT(heard.lost, 0);
        CHECK_INT(heard.last.rank, w->size - 1);
        shared->saw++;
        CHECK(await(&shared->saw, w->size - 1, 20));
    }
    control->ops->close(control);
    return 0;
}

static void a_departure_is_reported_to_all(void)
{
    world w = {.size = 4, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_leaves};
    start(&w);
    finish(&w);
    w.rendezvous = tcp_name(AF_INET);
    start(&w);
    finish(&w);
    w.rank = rank_that_stays;
    start(&w);
    finish(&w);
    CHECK_INT(shared->warnings, 0);
}

/* ---- broken groups ---------------------------------------------------------------------------------------- */

static int rank_that_breaks(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    if (rank != 2) listen_to(control, &l);
    if (rank == 1) {
        control->ops->broken(control, 7, TDM_ERR_PEER_MISMATCH, "two calls\nthat differ");
        CHECK(await(&shared->saw, w->size - 1, 20));
        CHECK_INT(await_news(&l, 1, 0).broken, 0);
    } else {
        if (rank == 2) { /* starts to listen late, and is notified nevertheless */
            pause_s(0.2);
            listen_to(control, &l);
        }
        listener heard = await_news(&l, 1, 20);
        CHECK_INT(heard.broken, 1);
        CHECK_INT(heard.last.rank, 1);
        CHECK_INT(heard.last.group, 7);
        CHECK_INT(heard.last.status, TDM_ERR_PEER_MISMATCH);
        CHECK_TEXT(heard.text, "two calls?that differ");
        shared->saw++;
        CHECK(await(&shared->saw, w->size - 1, 20));
    }
    control->ops->close(control);
    return 0;
}

static void broken_groups_are_reported_to_all(void)
{
    world w = {.size = 4, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_breaks};
    start(&w);
    finish(&w);
}

/* ---- silence ---------------------------------------------------------------------------------------------- */

/* How long rank 1 has been silent according to a report; 0 if the report does not contain that. */
static double silence_in(const char *text)
{
    const char *rank = strstr(text, "rank 1 ("), *at = rank ? strstr(rank, "last heard ") : NULL;
    return at ? strtod(at + strlen("last heard "), NULL) : 0;
}

/* The report about rank 1, once it has been silent for a second. */
static bool report_of_silence(tdm__control *control, char *text, size_t bytes)
{
    int who = 1;
    for (double until_s = tdm_clock_s() + 20; tdm_clock_s() < until_s; pause_s(0.05)) {
        control->ops->report(control, &who, 1, text, bytes);
        if (silence_in(text) >= 1) return true;
    }
    return false;
}

/* The report about rank 1, once it contains `part`. */
static bool report_has(tdm__control *control, const char *part, char *text, size_t bytes)
{
    int who = 1;
    for (double until_s = tdm_clock_s() + 20; tdm_clock_s() < until_s; pause_s(0.05)) {
        control->ops->report(control, &who, 1, text, bytes);
        if (strstr(text, part)) return true;
    }
    return false;
}

/* Rank 1 is stopped for a while: no rank treats it as dead, and a report contains how long it has been
 * silent. */
static int rank_that_waits(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    char text[1000];
    CHECK(report_has(control, "counts sheep", text, sizeof(text)));
    if (rank != 1) {
        shared->saw++;
        CHECK(await(&shared->may_go, 1, 30));
        CHECK(report_of_silence(control, text, sizeof(text)));
        char who[64];
        snprintf(who, sizeof(who), "process %d): counts sheep", shared->pids[1]);
        CHECK_HAS(text, who);
        /* of a rank that is alive and well */
        control->ops->report(control, &rank, 1, text, sizeof(text));
        CHECK_HAS(text, who);
        shared->saw++;
    }
    exchange_round(control, 3, 1000);
    CHECK_INT(await_news(&l, 1, 0).lost, 0);
    exchange_round(control, 4, 1000);
    control->ops->close(control);
    return 0;
}

static void a_stopped_rank_is_not_lost(void)
{
    world w = {.size = 3, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_waits};
    start(&w);
    CHECK(await(&shared->saw, 2, 20));
    kill(w.pids[1], SIGSTOP);
    shared->may_go = 1;
    CHECK(await(&shared->saw, 4, 20));
    kill(w.pids[1], SIGCONT);
    finish(&w);
}

/* Rank 0 is stopped for longer than allowed, and killed; or rank 1 is stopped and continues: then it must not
 * treat rank 0 as dead, which has only closed the connection. */
static int rank_that_gives_up(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    listener heard = await_news(&l, 1, 20);
    CHECK_INT(heard.lost, 1);
    CHECK_INT(heard.sign, TDM_SIGN_SILENCE);
    if (rank == 1 && w->victim < 0) {
        CHECK_INT(heard.last.rank, 0);
        control->ops->close(control);
        return 0;
    }
    CHECK_INT(heard.last.rank, w->victim < 0 ? 1 : 0);
    CHECK_HAS(heard.text, "no heartbeat for ");
    char text[1000];
    CHECK(w->victim == 0 || report_has(control, "lost: no heartbeat for", text, sizeof(text)));
    shared->saw++;
    await(&shared->saw, 2, 20);
    control->ops->close(control);
    return 0;
}

static void stop_for_long(int victim)
{
    world w = {.size = 3,
               .rendezvous = tcp_name(AF_INET),
               .victim = victim == 0 ? 0 : -1,
               .rank = rank_that_gives_up};
    start(&w);
    CHECK(await(&shared->joined, 3, 20));
    kill(w.pids[victim], SIGSTOP);
    CHECK(await(&shared->saw, 2, 20));
    kill(w.pids[victim], victim == 0 ? SIGKILL : SIGCONT);
    finish(&w);
}

static void stop_the_hub(void)
{
    stop_for_long(0);
}

static void stop_a_member(void)
{
    stop_for_long(1);
}

static void long_silence_is_death(void)
{
    void (*const stops[])(void) = {stop_the_hub, stop_a_member};
    /* a rank is not silent for this long even on a busy machine */
    setenv("TANDEM_SILENCE", "3", 1);
    run_at_once(stops, 2);
    unsetenv("TANDEM_SILENCE");
}

/* ---- calls that wait -------------------------------------------------------------------------------------- */

/* Of the ranks that connect, one may be too late for another: only rank 2 never connects, and no rank reports
 * itself as missing. */
static void check_lacking(const char *message, int rank)
{
    const char *list = strstr(message, "missing ranks: ");
    char self[16];
    snprintf(self, sizeof(self), " %d", rank);
    CHECK_HAS(list, " 2");
    CHECK(!list || !strstr(list, self));
}

static int rank_that_lacks(const world *w, int rank)
{
    tdm_comm_options options = options_of(w, rank);
    options.deadline_s = 1;
    tdm__control *control = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm__control_open(&options, &control, &err), TDM_OK);
    if (!control) return 1;
    shared->joined++;
    CHECK(await(&shared->joined, w->size, 20));
    if (rank != 2) {
        uint8_t **all = NULL;
        size_t *sizes = NULL;
        tdm_status status = control->ops->exchange(control, "x", 1, &all, &sizes, &err);
        CHECK_INT(status, TDM_ERR_PEER_TIMEOUT);
        check_lacking(err.message, rank);
        CHECK(!all && !sizes);
        status = control->ops->exchange(control, "x", 1, &all, &sizes, &err);
        CHECK_INT(status, TDM_ERR_PEER_TIMEOUT);
        CHECK_HAS(err.message, "earlier exchange");
        shared->saw++;
    }
    CHECK(await(&shared->saw, w->size - 1, 20));
    control->ops->close(control);
    return 0;
}

static void an_exchange_names_the_missing_rank(void)
{
    world w = {.size = 4, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_lacks};
    start(&w);
    finish(&w);
}

typedef struct stuck {
    pthread_mutex_t lock;
    _Atomic int entered;
} stuck;

static void stuck_news(void *user, const tdm__news *news)
{
    stuck *s = user;
    (void)news;
    s->entered = 1;
    pthread_mutex_lock(&s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* An event waits for a lock; the holder of the lock requests a report, and gets it. */
static int rank_that_holds_a_lock(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    stuck s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tdm__control_events events = {.user = &s, .news = stuck_news, .describe = on_describe};
    pthread_mutex_lock(&s.lock);
    tdm__control_listen(control, &events);
    if (rank == 0) {
        control->ops->broken(control, 1, TDM_ERR_PEER_FAILED, "so that there is news");
    } else {
        CHECK(await(&s.entered, 1, 20));
        char text[1000];
        CHECK(report_has(control, "rank 1 (", text, sizeof(text)));
        CHECK(!strstr(text, "does not respond"));
    }
    pthread_mutex_unlock(&s.lock);
    exchange_round(control, 1, 100);
    control->ops->close(control);
    return 0;
}

static void reports_do_not_wait_for_events(void)
{
    world w = {.size = 2, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_holds_a_lock};
    start(&w);
    finish(&w);
}

static void slow_news(void *user, const tdm__news *news)
{
    stuck *s = user;
    if (news->kind == TDM__NEWS_BROKEN) {
        pause_s(0.1);
        s->entered++;
    }
}

/* Rank 0 reports an error and leaves at once. A rank that asks then must have received the report before it
 * is left without an answer. */
static int rank_that_asks_too_late(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    stuck s = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tdm__control_events events = {.user = &s, .news = slow_news, .describe = on_describe};
    tdm__control_listen(control, &events);
    exchange_round(control, 1, 100);
    if (rank == 0) {
        control->ops->broken(control, 1, TDM_ERR_PEER_TIMEOUT, "rank 2 does not come");
    } else {
        char text[1000] = "";
        double until_s = tdm_clock_s() + 20;
        while (!strstr(text, "has left") && tdm_clock_s() < until_s)
            control->ops->report(control, &rank, 1, text, sizeof(text));
        CHECK_HAS(text, "has left");
        CHECK_INT(s.entered, 1);
    }
    control->ops->close(control);
    return 0;
}

static void last_news_arrives_before_a_question_fails(void)
{
    for (int i = 0; i < (SLOW ? 2 : 5); i++) {
        world w = {.size = 2, .rendezvous = unix_name(), .victim = -1};
        w.rank = rank_that_asks_too_late;
        start(&w);
        finish(&w);
    }
}

/* Waits until `count` suspicions are confirmed; returns a copy. */
static listener await_confirmed(listener *l, int count, double seconds)
{
    double until_s = tdm_clock_s() + seconds;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        listener copy = *l;
        pthread_mutex_unlock(&l->lock);
        if (copy.confirmed >= count || tdm_clock_s() > until_s) return copy;
        pause_s(0.001);
    }
}

/* The victim dies at about the time when the others lose their connections to it. Each of them must be
 * notified of the death before its suspicion is confirmed. */
static int rank_that_suspects_a_victim(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank == w->victim) {
        pause_s(RANK_S);
        return 1;
    }
    CHECK(await(&shared->may_go, 1, 30));
    control->ops->suspect(control, w->victim);
    listener heard = await_confirmed(&l, 1, 30);
    CHECK_INT(heard.confirmed, 1);
    CHECK_INT(heard.lost, 1);
    CHECK_INT(heard.seen_before, 1);
    CHECK_INT(heard.last.rank, w->victim);
    shared->saw++;
    CHECK(await(&shared->saw, w->size - 1, 20));
    CHECK_INT(await_confirmed(&l, 1, 0).confirmed, 1);
    control->ops->suspect(control, w->victim); /* the hub has no news: it answers at once */
    heard = await_confirmed(&l, 2, 20);
    CHECK_INT(heard.confirmed, 2);
    CHECK_INT(heard.lost, 1);
    shared->joined++;
    CHECK(await(&shared->joined, w->size + w->size - 1, 20)); /* no rank has left before */
    control->ops->close(control);
    return 0;
}

static void a_death_is_reported_before_a_suspicion_is_confirmed(void)
{
    for (int i = 0; i < (SLOW ? 3 : 12); i++) {
        world w = {.size = 4,
                   .rendezvous = i % 2 ? tcp_name(AF_INET) : unix_name(),
                   .victim = i % 3,
                   .rank = rank_that_suspects_a_victim};
        start(&w);
        CHECK(await(&shared->joined, 4, 20));
        if (i % 4 < 2) shared->may_go = 1; /* shortly before the death, or after it */
        kill(w.pids[w.victim], SIGKILL);
        CHECK_INT(finish_one(w.pids[w.victim]), 1000 + SIGKILL);
        shared->may_go = 1;
        for (int rank = 0; rank < w.size; rank++)
            if (rank != w.victim) CHECK_INT(finish_one(w.pids[rank]), 0);
    }
}

/* Ranks 0 and 1 lose their connections to rank 2, which stays; then to rank 3, which leaves. */
static int rank_that_suspects_the_living(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank < 2) {
        double asked_s = tdm_clock_s();
        control->ops->suspect(control, 2);
        control->ops->suspect(control, 2); /* it is already suspected: there is one answer only */
        listener heard = await_confirmed(&l, 1, 30);
        CHECK_INT(heard.confirmed, 1);
        CHECK(tdm_clock_s() - asked_s >= 0.9 * TDM__TIMING_BOOT_SUSPECT_S);
        CHECK_INT(heard.seen_before, 0);
        control->ops->suspect(control, 3);
        shared->saw++;
        heard = await_confirmed(&l, 2, 30);
        CHECK_INT(heard.seen_before, 1);
        CHECK_INT(heard.left, 1);
        CHECK_INT(heard.lost, 0);
        CHECK_INT(heard.confirmed, 2);
        shared->may_go++;
    }
    CHECK(rank != 3 || await(&shared->saw, 2, 60));
    CHECK(rank == 3 || await(&shared->may_go, 2, 60));
    control->ops->close(control);
    return 0;
}

static void suspicions_of_living_ranks_are_confirmed(void)
{
    world w = {
        .size = 4, .rendezvous = unix_name(), .victim = -1, .rank = rank_that_suspects_the_living};
    start(&w);
    finish(&w);
}

/* Rank 0 is stopped. A suspicion is confirmed when rank 0 itself is lost; a rank that ends does not wait for
 * that. */
static int rank_that_suspects_beside_a_stopped_hub(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    listener l;
    listen_to(control, &l);
    if (rank == 0) {
        pause_s(RANK_S);
        return 1;
    }
    CHECK(await(&shared->may_go, 1, 30));
    control->ops->suspect(control, 3 - rank);
    if (rank == 1) {
        listener heard = await_confirmed(&l, 1, 40);
        CHECK_INT(heard.confirmed, 1);
        CHECK_INT(heard.lost, 1);
        CHECK_INT(heard.seen_before, 1);
        CHECK_INT(heard.last.rank, 0);
        CHECK_INT(heard.sign, TDM_SIGN_SILENCE);
        control->ops->suspect(control, 2); /* the hub is gone: the client answers at once */
        CHECK_INT(await_confirmed(&l, 2, 20).confirmed, 2);
    }
    double ends_s = tdm_clock_s();
    control->ops->close(control);
    CHECK(tdm_clock_s() - ends_s < (SLOW ? 5 : 1));
    return 0;
}

static void a_stopped_hub_confirms_nothing_and_delays_no_rank(void)
{
    setenv("TANDEM_SILENCE", "2", 1);
    world w = {.size = 3,
               .rendezvous = unix_name(),
               .victim = 0,
               .rank = rank_that_suspects_beside_a_stopped_hub};
    start(&w);
    unsetenv("TANDEM_SILENCE");
    CHECK(await(&shared->joined, 3, 20));
    kill(w.pids[0], SIGSTOP);
    int status = 0;
    CHECK_INT(waitpid(w.pids[0], &status, WUNTRACED), w.pids[0]); /* all its threads have stopped */
    CHECK(WIFSTOPPED(status));
    shared->may_go = 1;
    CHECK_INT(finish_one(w.pids[1]), 0);
    CHECK_INT(finish_one(w.pids[2]), 0);
    kill(w.pids[0], SIGKILL);
    CHECK_INT(finish_one(w.pids[0]), 1000 + SIGKILL);
}

/* A rank dies while others are in an exchange; repeated, at any moment. */
static int rank_that_exchanges_until_the_end(const world *w, int rank)
{
    tdm__control *control = join(w, rank);
    for (;;) {
        uint8_t **all = NULL;
        size_t *sizes = NULL;
        tdm_error err = {0};
        tdm_status status = control->ops->exchange(control, "xyz", 3, &all, &sizes, &err);
        free(all);
        free(sizes);
        if (status == TDM_OK) continue;
        CHECK_INT(status, TDM_ERR_PEER_FAILED);
        char name[32];
        snprintf(name, sizeof(name), "rank %d (", w->victim);
        CHECK_HAS(err.message, name);
        break;
    }
    shared->saw++;
    await(&shared->saw, w->size - 1, 20);
    control->ops->close(control);
    return 0;
}

static void death_ends_an_exchange(void)
{
    for (int i = 0; i < (SLOW ? 4 : 20); i++) {
        world w = {.size = 3,
                   .rendezvous = i % 2 ? tcp_name(AF_INET) : unix_name(),
                   .victim = i % 3,
                   .rank = rank_that_exchanges_until_the_end};
        start(&w);
        CHECK(await(&shared->joined, 3, 20));
        pause_s(0.001 * (i % 7));
        kill(w.pids[w.victim], SIGKILL);
        finish(&w);
    }
}

/* ---- floods --------------------------------------------------------------------------------------------- */

/* A rank in the hub's process that has sent more data whenever the hub reads from it, while `is_on` is set.
 * */
static struct {
    pthread_mutex_t lock;
    bool is_on, has_joined, has_failed;
    int hub_fd; /* the hub's end of the connection */
    tdm__channel channel;
    tdm__blob *beats;
    int refills;
} flood = {.lock = PTHREAD_MUTEX_INITIALIZER, .hub_fd = -1};

/* Replaces read() of the C library, which TLS calls on the hub's thread. */
ssize_t recv(int fd, void *into, size_t bytes, int flags)
{
    pthread_mutex_lock(&flood.lock);
    if (flood.is_on && fd == flood.hub_fd) {
        if (!tdm__channel_has_output(&flood.channel) &&
            !tdm__channel_put(&flood.channel, flood.beats))
            flood.has_failed = true;
        if (tdm__channel_flush(&flood.channel) != TDM__CHANNEL_OK) flood.has_failed = true;
        flood.refills++;
    }
    pthread_mutex_unlock(&flood.lock);
    return syscall(SYS_recvfrom, fd, into, bytes, flags, NULL, NULL);
}

/* The descriptor of this process that is the other end of `fd`. */
static int other_end(int fd)
{
    tdm__endpoint here = tdm__socket_here(fd);
    for (int i = 0; i < 1000; i++) {
        tdm__endpoint there = tdm__socket_there(i);
        if (there.port == here.port && memcmp(there.bytes, here.bytes, sizeof(here.bytes)) == 0)
            return i;
    }
    return -1;
}

static void *join_as_rank_1(void *user)
{
    const world *w = user;
    tdm_comm_security security = {.mode = TDM_SECURITY_PSK};
    tdm__facts facts = {.rank = 1, .size = w->size, .join_s = 20, .security = security.mode};
    tdm__rendezvous meeting;
    tdm__joined joined = {0};
    flood.has_joined = tdm__tls_context_create(&security, &facts.tls, NULL) == TDM_OK &&
                       tdm__host_identity(NULL, facts.host, facts.host_name, NULL) == TDM_OK &&
                       tdm__rendezvous_init(&meeting, w->rendezvous, w->secret, NULL) == TDM_OK &&
                       tdm__join(&facts, &meeting, -1, &joined, NULL) == TDM_OK;
    flood.channel = joined.channel;
    free(joined.entries);
    return facts.tls;
}

static void begin_flood(void)
{
    tdm__frame beat = {.type = TDM__FRAME_BEAT};
    tdm_str many = TDM_STR_INIT;
    while (many.length < 256 << 10) tdm__wire_write(&beat, &many);
    flood.beats = tdm__blob_of(&many);
    tdm_str_release(&many);
    flood.hub_fd = other_end(flood.channel.stream.fd);
    CHECK(flood.hub_fd >= 0);
    pthread_mutex_lock(&flood.lock);
    flood.is_on = true;
    CHECK(tdm__channel_put(&flood.channel, flood.beats));
    CHECK_INT(tdm__channel_flush(&flood.channel), TDM__CHANNEL_OK);
    pthread_mutex_unlock(&flood.lock);
}

static int rank_beside_a_flood(const world *w, int rank)
{
    pthread_t other;
    tdm_comm_options options = options_of(w, rank);
    options.security.mode = TDM_SECURITY_PSK;
    tdm__control *control = NULL;
    void *tls = NULL;
    CHECK_INT(pthread_create(&other, NULL, join_as_rank_1, (void *)(uintptr_t)w), 0);
    CHECK_INT(tdm__control_open(&options, &control, NULL), TDM_OK);
    pthread_join(other, &tls);
    CHECK(flood.has_joined);
    if (!control) return 1;
    begin_flood();
    for (int i = 0; i < 20; i++) {
        double until_s = tdm_clock_s() + 60;
        char text[1000] = "no details";
        while (strstr(text, "no details") && tdm_clock_s() < until_s)
            control->ops->report(control, &rank, 1, text, sizeof(text));
        CHECK(tdm_clock_s() < until_s && !control->ops->has_failed(control, NULL));
        if (check_failures > 0) _exit(99); /* the thread of the hub does not end either */
    }
    pthread_mutex_lock(&flood.lock);
    flood.is_on = false;
    CHECK(flood.refills > 20 && !flood.has_failed);
    pthread_mutex_unlock(&flood.lock);
    tdm__blob_release(flood.beats);
    tdm__channel_release(&flood.channel);
    tdm__tls_context_destroy(tls);
    control->ops->close(control);
    return 0;
}

static void a_flood_does_not_delay_ranks(void)
{
    world w = {
        .size = 2, .rendezvous = tcp_name(AF_INET), .secret = "s", .rank = rank_beside_a_flood};
    CHECK_INT(finish_one(start_one(&w, 0)), 0);
}

static const check_test tests[] = {
    CHECK_TEST(worlds_join_and_exchange),
    CHECK_TEST(a_death_is_reported_to_all),
    CHECK_TEST(a_departure_is_reported_to_all),
    CHECK_TEST(broken_groups_are_reported_to_all),
    CHECK_TEST(a_stopped_rank_is_not_lost),
    CHECK_TEST(long_silence_is_death),
    CHECK_TEST(an_exchange_names_the_missing_rank),
    CHECK_TEST(reports_do_not_wait_for_events),
    CHECK_TEST(a_death_is_reported_before_a_suspicion_is_confirmed),
    CHECK_TEST(suspicions_of_living_ranks_are_confirmed),
    CHECK_TEST(a_stopped_hub_confirms_nothing_and_delays_no_rank),
    CHECK_TEST(death_ends_an_exchange),
    CHECK_TEST(a_flood_does_not_delay_ranks),
    CHECK_TEST(last_news_arrives_before_a_question_fails),
};

int main(int argc, char **argv)
{
    return world_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
