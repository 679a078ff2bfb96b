/*
 * ranks_test.c: agreement between the ranks of a training run, on simulated worlds: one result for all, the
 * error of the lowest rank, requests, texts that must be equal, and a rank that gives up while others wait for
 * it.
 */
#include "check.h"
#include "sim/simulator.h"

#include "train/internal.h"

enum { SIZE = 5 };

typedef struct scene {
    unsigned failing; /* a bit for each rank */
    unsigned requesting;
    tdm_status status[SIZE];
    tdm_error err[SIZE];
    unsigned requests[SIZE];
    int differs[SIZE];
    char text[SIZE][16];
} scene;

static void play(tdm_sim_fn fn, scene *s, int size)
{
    tdm_sim_result result = {0};
    tdm_sim_options options = {.seed = 11, .size = size};
    for (int i = 0; i < SIZE; i++) s->status[i] = TDM_ERR_INTERNAL;
    CHECK_INT(tdm_sim_run(&options, fn, s, &result, NULL), TDM_OK);
    CHECK_INT(result.finished_count, size);
}

static void agree(tdm_comm *comm, void *user)
{
    scene *s = user;
    int rank = tdm_comm_rank(comm);
    tdm_status own = s->failing >> rank & 1
                         ? tdm_fail(&s->err[rank], TDM_ERR_IO, "file %d is gone", rank)
                         : TDM_OK;
    s->requests[rank] = s->requesting >> rank & 1 ? 1u << rank : 0;
    s->status[rank] = tdm_comm_agree(comm, own, &s->requests[rank], &s->err[rank]);
}

static void all_get_the_same_outcome(void)
{
    static const struct {
        unsigned failing;
        const char *message; /* NULL: success */
    } rows[] = {{0, NULL},
                {1u << 3, "rank 3: file 3 is gone"},
                {1u << 2 | 1u << 4, "rank 2: file 2 is gone"},
                {1u, "file 0 is gone"},
                {0x1f, "file 0 is gone"}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        scene s = {.failing = rows[r].failing, .requesting = 1u << 1 | 1u << 4};
        play(agree, &s, SIZE);
        for (int i = 0; i < SIZE; i++) {
            CHECK_INT(s.status[i], rows[r].message ? TDM_ERR_IO : TDM_OK);
            CHECK_INT(s.requests[i], 1u << 1 | 1u << 4);
            if (!rows[r].message) continue;
            CHECK_INT(s.err[i].status, TDM_ERR_IO);
            CHECK_TEXT(s.err[i].message, rows[r].message);
        }
    }
}

static void one_agrees_with_itself(void)
{
    unsigned requests = 5;
    tdm_error err = {0};
    CHECK_INT(tdm_comm_agree(NULL, TDM_OK, &requests, &err), TDM_OK);
    CHECK_INT(requests, 5);
    CHECK_INT(tdm_comm_agree(NULL, tdm_fail(&err, TDM_ERR_IO, "gone"), NULL, &err), TDM_ERR_IO);
    CHECK_TEXT(err.message, "gone");
    CHECK(!tdm__shares_node(NULL));
    CHECK_INT(tdm__size_of(NULL), 1);
    CHECK_INT(tdm__rank_of(NULL), 0);
    scene s = {.failing = 1};
    play(agree, &s, 1);
    CHECK_TEXT(s.err[0].message, "file 0 is gone");
}

/* Rank 2 cannot continue; the others wait in a barrier, and receive its error. */
static void abort_world(tdm_comm *comm, void *user)
{
    scene *s = user;
    int rank = tdm_comm_rank(comm);
    if (rank == 2) {
        s->status[rank] = tdm_fail(&s->err[rank], TDM_ERR_NO_MEMORY, "no room for it");
        tdm__call_off(comm, &s->err[rank]);
    } else {
        s->status[rank] = tdm_group_barrier(tdm_comm_world(comm), &s->err[rank]);
    }
}

static void a_rank_that_gives_up_notifies_the_others(void)
{
    scene s = {0};
    play(abort_world, &s, SIZE);
    for (int i = 0; i < SIZE; i++) {
        CHECK_INT(s.status[i], i == 2 ? TDM_ERR_NO_MEMORY : TDM_ERR_PEER_FAILED);
        CHECK_HAS(s.err[i].message, i == 2 ? "no room for it" : "rank 2: no room for it");
    }
    /* A status of the world is not sent to it again, and nothing is sent without a world. */
    tdm__call_off(NULL, &s.err[2]);
    CHECK_INT(tdm_comm_agree(NULL, TDM_ERR_PEER_LEFT, NULL, &s.err[0]), TDM_ERR_PEER_LEFT);
}

static void compare(tdm_comm *comm, void *user)
{
    scene *s = user;
    int rank = tdm_comm_rank(comm);
    s->status[rank] = tdm__same_text(comm, s->text[rank], sizeof(s->text[rank]), &s->differs[rank],
                                     &s->err[rank]);
}

static void texts_are_compared_with_rank_0s(void)
{
    static const struct {
        const char *texts[SIZE];
        int differs;
    } rows[] = {{{"same", "same", "same", "same", "same"}, -1},
                {{"same", "", "same", "", ""}, -1}, /* no opinion */
                {{"same", "same", "same", "other", "other"}, 3},
                {{"odd", "same", "same", "same", "same"}, 1}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        scene s = {0};
        for (int i = 0; i < SIZE; i++)
            snprintf(s.text[i], sizeof(s.text[i]), "%s", rows[r].texts[i]);
        play(compare, &s, SIZE);
        for (int i = 0; i < SIZE; i++) {
            CHECK_INT(s.status[i], TDM_OK);
            CHECK_INT(s.differs[i], rows[r].differs);
            CHECK_TEXT(s.text[i], rows[r].texts[0]);
        }
    }
}

static const check_test tests[] = {
    CHECK_TEST(all_get_the_same_outcome),
    CHECK_TEST(one_agrees_with_itself),
    CHECK_TEST(a_rank_that_gives_up_notifies_the_others),
    CHECK_TEST(texts_are_compared_with_rank_0s),
};

CHECK_MAIN(tests)
