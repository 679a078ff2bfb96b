/*
 * server_test.c: the settings, the configuration and the state of a group of parameter servers. Their protocol is
 * tested by tests/server.
 */
#include "base/base.h"
#include "check.h"
#include "server/server.h"

/* ---- settings ------------------------------------------------------------------------------------ */

static tdm_server_group good_group(void)
{
    return (tdm_server_group){.width = 4};
}

static void defaults_are_filled_in(void)
{
    tdm_server_group group = good_group();
    tdm_error err = {.status = TDM_OK};
    CHECK_INT(tdm__server_group_check(&group, &err), TDM_OK);
    CHECK_INT(group.shards, 8);
    CHECK_INT(group.replication, 1);
    CHECK_INT(group.limit_bytes, 4LL << 30);
}

static void check_refused(tdm_server_group group, const char *why)
{
    tdm_error err = {.status = TDM_OK};
    CHECK_INT(tdm__server_group_check(&group, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, why);
}

static void bad_settings_are_refused(void)
{
    tdm_server_group bad = good_group();
    check_refused((tdm_server_group){.width = 0}, "width is 0; it must be 1 to 4096");
    check_refused((tdm_server_group){.width = 5000}, "width is 5000");
    bad.shards = 257;
    check_refused(bad, "shards is 257");
    bad = good_group();
    bad.replication = 9;
    check_refused(bad, "replication is 9; it must be 1 to 8");
    bad = good_group();
    bad.bound = 2;
    check_refused(bad, "bound is 2; it must be 0 unless the mode is stale");
    bad = good_group();
    bad.mode = TDM_SERVER_SYNC;
    check_refused(bad, "workers is 0; it must be 1 to 1024 with mode sync");
    bad = good_group();
    bad.workers = 2;
    check_refused(bad, "workers is 2; it must be 0 unless the mode is sync");
    bad = good_group();
    bad.l1 = 0.1;
    check_refused(bad, "l1 and l2 belong to FTRL");
    bad = good_group();
    bad.optim = TDM_SERVER_FTRL;
    bad.weight_decay = 0.1;
    check_refused(bad, "FTRL has no weight_decay");
    bad = good_group();
    bad.limit_bytes = 1000;
    check_refused(bad, "limit_bytes is 1000");
    bad = good_group();
    bad.init_scale = NAN;
    check_refused(bad, "init_scale is nan");
}

static void other_settings_are_named(void)
{
    tdm_server_group a = good_group(), b = good_group();
    tdm_error err = {.status = TDM_OK};
    CHECK_INT(tdm__server_group_match(&a, &b, &err), TDM_OK);
    b.optim = TDM_SERVER_ADAM;
    CHECK_INT(tdm__server_group_match(&a, &b, &err), TDM_ERR_PEER_MISMATCH);
    CHECK_HAS(err.message, "optim is 0 in this group of servers, and 3 here");
}

/* ---- configurations ------------------------------------------------------------------------------ */

typedef struct lab {
    tdm__server_config config, next;
    tdm__server_record records[8];
    size_t record_count;
} lab;

static void lab_init(lab *l, uint32_t shards, uint32_t replication)
{
    *l = (lab){.config = {.epoch = 1, .group = {.width = 1}}};
    l->config.group.shards = shards;
    l->config.group.replication = replication;
    CHECK_INT(tdm__server_group_check(&l->config.group, NULL), TDM_OK);
}

/* One look of a server; its id is also its lease. */
static bool lab_look(lab *l, uint64_t id, bool is_leaving, const tdm__server_claim *claim)
{
    const tdm__server_request request = {
        .self = {.id = id, .lease = id, .is_leaving = is_leaving, .address = "here"},
        .claims = claim,
        .claim_count = claim ? 1 : 0};
    bool changes = tdm__server_plan(&l->config, l->records, l->record_count, &request, &l->next);
    if (changes) tdm__server_config_copy(&l->config, &l->next);
    return changes;
}

static void lab_start(lab *l, uint64_t id)
{
    l->records[l->record_count++] = (tdm__server_record){.id = id, .lease = id};
    CHECK(lab_look(l, id, false, NULL));
}

static void lab_expire(lab *l, uint64_t id)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->record_count; i++)
        if (l->records[i].id != id) l->records[kept++] = l->records[i];
    l->record_count = kept;
}

static void check_chain(const lab *l, uint32_t shard, const char *expected)
{
    const tdm__server_chain *chain = &l->config.chains[shard];
    tdm_str text = TDM_STR_INIT;
    for (uint32_t m = 0; m < chain->member_count; m++)
        tdm_str_addf(&text, "%s%llu", m ? " " : "", (unsigned long long)chain->members[m]);
    if (chain->joining) tdm_str_addf(&text, " + %llu", (unsigned long long)chain->joining);
    CHECK_TEXT(tdm_str_text(&text), expected);
    tdm_str_release(&text);
}

static void chains_begin_with_all_copies(void)
{
    static lab l;
    lab_init(&l, 1, 2);
    lab_start(&l, 1);
    check_chain(&l, 0, "");
    lab_start(&l, 2);
    check_chain(&l, 0, "1 2");
    CHECK(!lab_look(&l, 1, false, NULL));
}

static void a_dead_member_is_removed_by_another(void)
{
    static lab l;
    lab_init(&l, 1, 2);
    for (uint64_t id = 1; id <= 3; id++) lab_start(&l, id);
    check_chain(&l, 0, "1 2");
    lab_expire(&l, 1);
    (void)lab_look(&l, 3, false, NULL); /* not a member: it cannot know whether 2 is alive */
    check_chain(&l, 0, "1 2");
    CHECK(lab_look(&l, 2, false, NULL));
    check_chain(&l, 0, "2 + 3");
    const tdm__server_claim late = {.shard = 0, .epoch = 1, .joining = 3};
    (void)lab_look(&l, 2, false, &late); /* of an earlier chain */
    check_chain(&l, 0, "2 + 3");
    const tdm__server_claim claim = {.shard = 0, .epoch = l.config.chains[0].epoch, .joining = 3};
    CHECK(lab_look(&l, 2, false, &claim));
    check_chain(&l, 0, "2 3");
}

static void the_last_member_is_never_removed(void)
{
    static lab l;
    lab_init(&l, 1, 2);
    for (uint64_t id = 1; id <= 3; id++) lab_start(&l, id);
    lab_expire(&l, 1);
    lab_expire(&l, 2);
    (void)lab_look(&l, 3, false, NULL);
    check_chain(&l, 0, "1 2");
    l.records[l.record_count++] = (tdm__server_record){.id = 1, .lease = 1}; /* it is back */
    CHECK(lab_look(&l, 1, false, NULL));
    check_chain(&l, 0, "1 + 3");
}

static void a_leaving_server_is_replaced(void)
{
    static lab l;
    lab_init(&l, 1, 1);
    lab_start(&l, 1);
    lab_start(&l, 2);
    check_chain(&l, 0, "1");
    CHECK(lab_look(&l, 1, true, NULL));
    check_chain(&l, 0, "1 + 2");
    const tdm__server_claim claim = {.shard = 0, .epoch = l.config.chains[0].epoch, .joining = 2};
    CHECK(lab_look(&l, 1, true, &claim));
    check_chain(&l, 0, "1 2");
    CHECK(lab_look(&l, 2, false, NULL));
    check_chain(&l, 0, "2");
}

static void a_new_server_gets_its_share(void)
{
    static lab l;
    lab_init(&l, 4, 1);
    lab_start(&l, 1);
    lab_start(&l, 2);
    for (int i = 0; i < 20; i++)
        for (uint64_t id = 1; id <= 2; id++)
            for (uint32_t s = 0; s < 4; s++) {
                const tdm__server_claim claim = {.shard = s,
                                                 .epoch = l.config.chains[s].epoch,
                                                 .joining = l.config.chains[s].joining};
                (void)lab_look(&l, id, false, &claim);
            }
    int second = 0;
    for (uint32_t s = 0; s < 4; s++) {
        CHECK_INT(l.config.chains[s].member_count, 1);
        second += l.config.chains[s].members[0] == 2;
    }
    CHECK_INT(second, 2);
}

static void configurations_are_read_strictly(void)
{
    static lab l;
    tdm_str text = TDM_STR_INIT;
    tdm_error err;
    lab_init(&l, 2, 2);
    lab_start(&l, 1);
    lab_start(&l, 2);
    tdm__server_config_write(&l.config, &text);
    CHECK_INT(tdm__server_config_read(tdm_str_text(&text), &l.next, &err), TDM_OK);
    CHECK_INT(l.next.epoch, l.config.epoch);
    CHECK_INT(l.next.chains[1].members[1], 2);
    CHECK_TEXT(l.next.servers[0].address, "here");
    static const char *const pairs[][2] = {{"\"members\":[1,2]", "\"members\":[1,3]"},
                                           {"\"shards\":2", "\"shards\":3"},
                                           {"\"width\":1", "\"width\":0"},
                                           {"\"id\":1", "\"id\":0"},
                                           {"\"leaving\":0", "\"leaving\":2"},
                                           {"\"joining\":0", "\"joining\":9"},
                                           {"\"epoch\":3", "\"epoch\":-1"}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        const char *whole = tdm_str_text(&text), *at = strstr(whole, pairs[i][0]);
        tdm_str bad = TDM_STR_INIT;
        REQUIRE(at != NULL);
        tdm_str_addf(&bad, "%.*s%s%s", (int)(at - whole), whole, pairs[i][1],
                     at + strlen(pairs[i][0]));
        CHECK_INT(tdm__server_config_read(tdm_str_text(&bad), &l.next, &err), TDM_ERR_FORMAT);
        tdm_str_release(&bad);
    }
    tdm_str_release(&text);
}

/* ---- operations ---------------------------------------------------------------------------------- */

static tdm__blob *push_make(uint32_t count, uint32_t width, uint64_t first_key, float grad,
                            tdm__server_op_view *out)
{
    const tdm__server_op head = {
        .kind = TDM__SERVER_OP_PUSH, .client = 5, .number = 2, .lr = 0.5, .count = count};
    tdm__blob *blob = tdm__server_op_make(&head, width, out);
    if (!blob) check_stop();
    uint64_t *keys = (uint64_t *)(uintptr_t)out->keys;
    float *grads = (float *)(uintptr_t)out->grads;
    for (uint32_t i = 0; i < count; i++) keys[i] = first_key + i;
    for (uint32_t i = 0; i < count * width; i++) grads[i] = grad + (float)i;
    return blob;
}

static void operations_are_read_strictly(void)
{
    tdm__server_op_view op;
    tdm__blob *blob = push_make(3, 2, 10, 1, &op);
    tdm__server_op head = op.head, bad;
    CHECK(tdm__server_op_read(blob->data, blob->bytes, 2, &op));
    CHECK_INT(op.keys[2], 12);
    CHECK(!tdm__server_op_read(blob->data, blob->bytes, 3, &op));
    CHECK(!tdm__server_op_read(blob->data, blob->bytes - 1, 2, &op));
    const struct {
        uint32_t kind, count, part_count;
        int32_t worker;
        double lr;
    } cases[] = {{0, 3, 0, 0, 1},    {7, 3, 0, 0, 1},   {1, UINT32_MAX, 0, 0, 1},
                 {1, 3, 1, 0, 1},    {1, 3, 0, -2, 1},  {3, 3, 0, 0, 1},
                 {1, 3, 0, 5000, 1}, {1, 3, 0, 0, NAN}, {2, 3, 9, 0, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bad = head;
        bad.kind = cases[i].kind;
        bad.count = cases[i].count;
        bad.part_count = cases[i].part_count;
        bad.worker = cases[i].worker;
        bad.lr = cases[i].lr;
        memcpy(blob->data, &bad, sizeof(bad));
        CHECK(!tdm__server_op_read(blob->data, blob->bytes, 2, &op));
    }
    tdm__blob_release(blob);
}

/* ---- state --------------------------------------------------------------------------------------- */

static const tdm__server_state_ops *const table = &tdm__server_table_state;

static void *state_make(int optim, uint64_t limit_bytes)
{
    tdm_server_group group = {.width = 3, .optim = optim, .init_scale = 0.1, .seed = 7};
    tdm_error err;
    group.limit_bytes = limit_bytes;
    CHECK_INT(tdm__server_group_check(&group, &err), TDM_OK);
    void *state = table->create(NULL, &group, 2, &err);
    if (!state) check_stop();
    return state;
}

static void state_push(void *state, uint64_t first_key, uint32_t count, uint64_t version)
{
    tdm__server_op_view op;
    tdm_error err;
    tdm__blob *blob = push_make(count, 3, first_key, 0.25f, &op);
    CHECK_INT(table->check(state, &op, &err), TDM_OK);
    CHECK_INT(table->apply(state, &op, version, &err), TDM_OK);
    tdm__blob_release(blob);
}

/* A copy has the same rows, and they change in the same way. */
static void a_copy_continues_like_the_original(void)
{
    for (int optim = TDM_SERVER_SGD; optim <= TDM_SERVER_ADAM; optim++) {
        enum { KEYS = 40000 };
        static float a[3 * KEYS], b[3 * KEYS];
        static uint64_t keys[KEYS];
        tdm_error err;
        tdm__blob **parts = NULL;
        size_t count = 0;
        void *original = state_make(optim, 0), *copy = state_make(optim, 0);
        for (uint64_t i = 0; i < 4; i++) state_push(original, 1000 * i * i, 30000, i + 1);
        CHECK_INT(table->save(original, &parts, &count, &err), TDM_OK);
        CHECK(count > 1);
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(table->load(copy, parts[i]->data, parts[i]->bytes, &err), TDM_OK);
            CHECK_INT(table->load(copy, parts[i]->data, parts[i]->bytes - 1, &err), TDM_ERR_FORMAT);
            tdm__blob_release(parts[i]);
        }
        free(parts);
        state_push(original, 500, 2000, 5);
        state_push(copy, 500, 2000, 5);
        for (uint64_t i = 0; i < KEYS; i++) keys[i] = i;
        CHECK_INT(table->pull(original, keys, KEYS, a), TDM_OK);
        CHECK_INT(table->pull(copy, keys, KEYS, b), TDM_OK);
        CHECK(memcmp(a, b, sizeof(a)) == 0);
        table->destroy(original);
        table->destroy(copy);
    }
}

static void a_full_shard_says_so(void)
{
    tdm__server_op_view op;
    tdm_error err;
    void *state = state_make(TDM_SERVER_ADAGRAD, 2 << 20);
    tdm__blob *blob = push_make(100000, 3, 0, 0, &op);
    CHECK_INT(table->check(state, &op, &err), TDM_ERR_NO_SPACE);
    CHECK_HAS(err.message, "shard 2 is full: with 100000 new rows");
    CHECK_HAS(err.message, "raise the limit");
    tdm__blob_release(blob);
    state_push(state, 0, 5000, 1); /* it still takes what fits */
    table->destroy(state);
}

static void gradients_must_be_finite(void)
{
    tdm__server_op_view op;
    tdm_error err;
    void *state = state_make(TDM_SERVER_SGD, 0);
    tdm__blob *blob = push_make(4, 3, 20, 1, &op);
    ((float *)(uintptr_t)op.grads)[7] = INFINITY;
    CHECK_INT(table->check(state, &op, &err), TDM_ERR_DIVERGED);
    CHECK_HAS(err.message, "the gradient of key 22 is not finite");
    op.head.lr = -1;
    CHECK_INT(table->check(state, &op, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "lr is -1");
    tdm__blob_release(blob);
    table->destroy(state);
}

static const check_test tests[] = {CHECK_TEST(defaults_are_filled_in),
                                   CHECK_TEST(bad_settings_are_refused),
                                   CHECK_TEST(other_settings_are_named),
                                   CHECK_TEST(chains_begin_with_all_copies),
                                   CHECK_TEST(a_dead_member_is_removed_by_another),
                                   CHECK_TEST(the_last_member_is_never_removed),
                                   CHECK_TEST(a_leaving_server_is_replaced),
                                   CHECK_TEST(a_new_server_gets_its_share),
                                   CHECK_TEST(configurations_are_read_strictly),
                                   CHECK_TEST(operations_are_read_strictly),
                                   CHECK_TEST(a_copy_continues_like_the_original),
                                   CHECK_TEST(a_full_shard_says_so),
                                   CHECK_TEST(gradients_must_be_finite)};
CHECK_MAIN(tests)
