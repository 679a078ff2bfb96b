/*
 * shm_bench.c: see shm_bench.h.
 */
#include "comm/shm_bench.h"

static uint64_t message_hash(const traffic *t, int from, int to, int number)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = t->seed,
                                               .stream = (uint32_t)from,
                                               .sub_stream = (uint32_t)to,
                                               .step = (uint64_t)number});
    return tdm_rng_u64(&rng);
}

static uint64_t message_bytes(const traffic *t, int from, int to, int number)
{
    static const uint64_t max[] = {1, 65, 65, 4097, 5000, 9000, 70000, 70000, 500000, 4 << 20};
    uint64_t hash = message_hash(t, from, to, number);
    uint64_t limit = max[hash % 10];
    if (number == 0) return 4096;
    uint64_t bytes = (hash >> 8) % limit;
    if (limit == 4 << 20 && hash >> 61) bytes %= 300000;
    return bytes > t->max_bytes ? t->max_bytes : bytes;
}

static bool message_dropped(const traffic *t, int from, int to, int number)
{
    return (message_hash(t, from, to, number) >> 40) % 12 == 0;
}

static uint8_t message_byte(uint64_t hash, uint64_t at)
{
    return (uint8_t)(hash + at * 7 + (at >> 8) * 13);
}

static parcel *parcel_new(traffic *t, int from, int to, int number)
{
    parcel *p = calloc(1, sizeof(*p));
    *p = (parcel){.t = t,
                  .from = from,
                  .to = to,
                  .number = number,
                  .bytes = message_bytes(t, from, to, number)};
    if (t->host && tdm_rng_below(&t->rng, 2)) {
        CHECK_INT(tdm__host_alloc(t->host, p->bytes + 1, &p->offset, NULL), TDM_OK);
        p->data = tdm__host_at(t->host, p->offset);
    } else {
        p->data = malloc(p->bytes + 1);
    }
    return p;
}

static void parcel_free(parcel *p)
{
    memset(p->data, 0xee, p->bytes); /* so that a later reader gets wrong bytes */
    if (p->offset)
        tdm__host_free(p->t->host, p->offset);
    else
        free(p->data);
    free(p);
}

static void traffic_sent(void *user, void *cookie, tdm_status status)
{
    traffic *t = user;
    parcel *p = cookie;
    if (status != TDM_OK) {
        CHECK_INT(status, TDM_ERR_PEER_FAILED);
        CHECK(t->forgotten[p->to] || t->lost[p->to] || atomic_load(&t->shared->dead) == p->to + 1);
    }
    t->under_way[p->to]--;
    t->in_flight--;
    parcel_free(p);
}

static void traffic_received(void *user, void *cookie, tdm_status status)
{
    traffic *t = user;
    parcel *p = cookie;
    if (status == TDM_OK) {
        uint64_t hash = message_hash(t, p->from, p->to, p->number), wrong = 0;
        for (uint64_t i = 0; i < p->bytes; i++) wrong += p->data[i] != message_byte(hash, i);
        CHECK_INT(wrong, 0);
    } else {
        CHECK_INT(status, TDM_ERR_PEER_FAILED);
        CHECK(t->forgotten[p->from] || t->lost[p->from]);
    }
    if (!t->forgotten[p->from]) t->left_from[p->from]--;
    t->under_way[p->from]--;
    t->taking--;
    parcel_free(p);
}

static void traffic_accept(traffic *t, tdm__arrival *arrival, int from, int number)
{
    if (message_dropped(t, from, t->rank, number)) {
        if (!t->forgotten[from]) t->left_from[from]--;
        t->transport->ops->drop(t->transport, arrival);
        return;
    }
    parcel *p = parcel_new(t, from, t->rank, number);
    t->taking++;
    t->under_way[from]++;
    t->transport->ops->take(t->transport, arrival, p->data, p);
}

static void traffic_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    traffic *t = user;
    CHECK_INT(head->source, peer);
    CHECK_INT(head->bytes, message_bytes(t, peer, t->rank, (int)head->sequence));
    bool full = t->pending_count == MAX_PENDING * HOST_BENCH_MAX_RANKS;
    if (full || tdm_rng_below(&t->rng, 3) == 0) {
        traffic_accept(t, arrival, peer, (int)head->sequence);
        return;
    }
    t->pending[t->pending_count++] = (struct waiting){
        .arrival = arrival, .from = peer, .number = (int)head->sequence};
}

static void traffic_lost(void *user, int peer, const char *how)
{
    traffic *t = user;
    (void)how;
    t->lost[peer] = true;
}

tdm__transport_events traffic_events(traffic *t)
{
    return (tdm__transport_events){.user = t,
                                   .arrived = traffic_arrived,
                                   .received = traffic_received,
                                   .sent = traffic_sent,
                                   .lost = traffic_lost};
}

void traffic_init(traffic *t, int rank, int size, int messages, uint64_t seed)
{
    *t = (traffic){.rank = rank,
                   .size = size,
                   .messages = messages,
                   .seed = seed,
                   .max_bytes = HOST_BENCH_SCALE(4 << 20, 100000)};
    t->rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = 900 + (uint32_t)rank});
    t->left_to_send = messages * (size - 1);
    for (int i = 0; i < size; i++) t->left_from[i] = i == rank ? 0 : messages;
}

static void traffic_send_one(traffic *t)
{
    int peer = (int)tdm_rng_below(&t->rng, (uint64_t)t->size);
    while (peer == t->rank || t->next[peer] == t->messages) peer = (peer + 1) % t->size;
    int number = t->next[peer]++;
    t->left_to_send--;
    parcel *p = parcel_new(t, t->rank, peer, number);
    uint64_t hash = message_hash(t, t->rank, peer, number);
    for (uint64_t i = 0; i < p->bytes; i++) p->data[i] = message_byte(hash, i);
    tdm__head head = {.world = HOST_BENCH_WORLD,
                      .sequence = (uint32_t)number,
                      .kind = TDM_CALL_SEND,
                      .bytes = p->bytes,
                      .source = (uint32_t)t->rank};
    tdm__head_seal(&head);
    t->in_flight++;
    t->under_way[peer]++;
    t->transport->ops->send(t->transport, peer, &head, p->data, p);
}

static void traffic_take_one(traffic *t)
{
    int at = (int)tdm_rng_below(&t->rng, (uint64_t)t->pending_count);
    struct waiting w = t->pending[at];
    t->pending[at] = t->pending[--t->pending_count];
    traffic_accept(t, w.arrival, w.from, w.number);
}

/* A rank is dead: nothing more arrives from it, and no transfer with it is pending afterwards. */
static void traffic_forget(traffic *t, int peer)
{
    t->forgotten[peer] = true;
    t->transport->ops->forget(t->transport, peer);
    CHECK_INT(t->under_way[peer], 0);
    t->left_to_send -= t->messages - t->next[peer];
    t->next[peer] = t->messages;
    t->left_from[peer] = 0;
}

bool traffic_is_over(const traffic *t)
{
    int left = t->left_to_send + t->in_flight + t->pending_count + t->taking;
    for (int i = 0; i < t->size; i++) left += t->left_from[i];
    return left == 0;
}

static bool traffic_step(traffic *t)
{
    bool did = t->transport->ops->progress(t->transport) > 0;
    if (t->left_to_send > 0 && t->in_flight < MAX_FLIGHT && tdm_rng_below(&t->rng, 4)) {
        traffic_send_one(t);
        did = true;
    }
    if (t->pending_count > 0 && tdm_rng_below(&t->rng, 2)) {
        traffic_take_one(t);
        did = true;
    }
    return did;
}

void traffic_run(traffic *t)
{
    double last_s = tdm_clock_s();
    for (bool counted = false;;) {
        int dead = atomic_load(&t->shared->dead) - 1;
        if (dead >= 0 && !t->forgotten[dead]) traffic_forget(t, dead);
        if (!counted && traffic_is_over(t)) {
            counted = true;
            atomic_fetch_add(&t->shared->done_count, 1);
        }
        if (counted && atomic_load(&t->shared->done_count) >= t->size - (dead >= 0)) return;
        bool did = traffic_step(t);
        double now_s = tdm_clock_s();
        if (did) {
            last_s = now_s;
        } else if (now_s - last_s >= STUCK_S - 1) {
            fprintf(stderr, "rank %d is stuck: %d to send, %d in flight, %d waiting, %d taking\n",
                    t->rank, t->left_to_send, t->in_flight, t->pending_count, t->taking);
            CHECK(now_s - last_s < STUCK_S - 1);
            return;
        } else if (counted || t->may_die) {
            /* for the shared words, whose changes ring no bell */
            t->transport->ops->wait(t->transport, 0.005);
        } else if (t->pending_count == 0 && (t->left_to_send == 0 || t->in_flight == MAX_FLIGHT)) {
            t->transport->ops->wait(t->transport, STUCK_S);
        }
    }
}
