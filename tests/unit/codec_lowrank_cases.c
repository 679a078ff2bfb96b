/*
 * codec_lowrank_cases.c: PowerSGD: factors, feedback, and the sums over replicas as a caller makes them.
 */
#include "codec_trial.h"

#include <math.h>
#include <stdlib.h>

enum { REPLICAS = 2, ROWS = 300, COLS = 270, BIAS = 77, RANK = 4 };

/* A matrix, a vector, a gap, and a matrix that is too small for factors. */
static const tdm_codec_tensor tensors[] = {
    {"w", 0, ROWS *COLS, ROWS}, {"b", ROWS *COLS, BIAS, 0}, {"s", ROWS *COLS + BIAS + 3, 6 * 8, 6}};
enum { EXTENT = ROWS * COLS + BIAS + 3 + 6 * 8 };

typedef struct team {
    tdm_codec *codec;
    size_t p_count, q_count;
    float *grad[REPLICAS], *residual[REPLICAS], *p[REPLICAS], *q_part[REPLICAS];
    float *q, *out;
} team;

static float *team_block(size_t count)
{
    float *block = calloc(count + 1, sizeof(*block));
    REQUIRE(block);
    return block;
}

static void team_init(team *t, const tdm_codec_options *options)
{
    tdm_error err = {0};
    if (tdm_codec_create(options, tensors, 3, &t->codec, &err) != TDM_OK)
        CHECK_TEXT(err.message, "");
    t->p_count = tdm_codec_lowrank_p_elements(t->codec);
    t->q_count = tdm_codec_lowrank_q_elements(t->codec);
    for (int r = 0; r < REPLICAS; r++) {
        t->grad[r] = team_block(EXTENT);
        t->residual[r] = team_block(EXTENT);
        t->p[r] = team_block(t->p_count);
        t->q_part[r] = team_block(t->q_count);
        codec_trial_random(t->grad[r], EXTENT, (uint32_t)r);
    }
    t->q = team_block(t->q_count);
    t->out = team_block(EXTENT);
}

static void team_release(team *t)
{
    for (int r = 0; r < REPLICAS; r++) {
        free(t->grad[r]);
        free(t->residual[r]);
        free(t->p[r]);
        free(t->q_part[r]);
    }
    free(t->q);
    free(t->out);
    tdm_codec_destroy(t->codec);
}

/* A step, as codec.h describes it; M takes the place of the residual. */
static void team_step(team *t, uint64_t step)
{
    const tdm_codec_key key = {.seed = 5, .step = step};
    tdm_error err = {0};
    tdm_codec_lowrank_start(t->codec, &key, t->q);
    for (int r = 0; r < REPLICAS; r++) {
        const float *before[] = {t->residual[r]};
        tdm_status status = tdm_codec_lowrank_project(t->codec, t->grad[r], before, t->q,
                                                      t->residual[r], t->p[r], &err);
        if (status != TDM_OK) CHECK_TEXT(err.message, "");
    }
    for (size_t i = 0; i < t->p_count; i++) t->p[0][i] += t->p[1][i];
    tdm_codec_lowrank_orthogonalise(t->codec, t->p[0]);
    for (int r = 0; r < REPLICAS; r++)
        tdm_codec_lowrank_back(t->codec, t->residual[r], t->p[0], t->q_part[r]);
    for (size_t i = 0; i < t->q_count; i++) t->q[i] = t->q_part[0][i] + t->q_part[1][i];
    tdm_codec_lowrank_reconstruct(t->codec, t->p[0], t->q, 0, SIZE_MAX, t->out);
    for (int r = 0; r < REPLICAS; r++)
        tdm_codec_lowrank_residual(t->codec, t->residual[r], t->p[0], t->q, 1.0 / REPLICAS,
                                   t->residual[r]);
}

static const tdm_codec_options with_feedback = {.rank = RANK, .feedback = true};

static void small_tensors_stay_dense(void)
{
    team t;
    team_init(&t, &with_feedback);
    CHECK(tdm_codec_lowrank_has(t.codec, 0));
    CHECK(!tdm_codec_lowrank_has(t.codec, 1) && !tdm_codec_lowrank_has(t.codec, 2));
    CHECK(!tdm_codec_lowrank_has(t.codec, 3));
    CHECK_INT(t.p_count, RANK * ROWS + BIAS + 6 * 8);
    CHECK_INT(t.q_count, RANK * COLS);
    team_step(&t, 0);
    for (size_t i = ROWS * COLS; i < EXTENT; i++) {
        bool is_gap = i >= ROWS * COLS + BIAS && i < ROWS * COLS + BIAS + 3;
        CHECK(t.out[i] == (is_gap ? 0 : t.grad[0][i] + t.grad[1][i]));
        CHECK(t.residual[0][i] == 0 && t.residual[1][i] == 0);
    }
    size_t bytes;
    CHECK_INT(
        tdm_codec_encode(t.codec, &(tdm_codec_key){0}, t.out, NULL, NULL, t.out, &bytes, NULL),
        TDM_ERR_UNSUPPORTED);
    CHECK_INT(tdm_codec_decode(t.codec, t.out, 64, t.out, NULL), TDM_ERR_UNSUPPORTED);
    CHECK_INT(tdm_codec_max_bytes(t.codec), 0);
    team_release(&t);
}

/* The parts of the sum that ranks reconstruct are those of the whole. */
static void parts_are_those_of_the_whole(void)
{
    team t;
    team_init(&t, &with_feedback);
    team_step(&t, 0);
    float *part = team_block(EXTENT);
    for (size_t begin = 0; begin < EXTENT; begin += 37) {
        size_t end = begin + 37 < EXTENT ? begin + 37 : EXTENT;
        memset(part, 0, EXTENT * sizeof(*part));
        tdm_codec_lowrank_reconstruct(t.codec, t.p[0], t.q, begin, end, part);
        CHECK(memcmp(part + begin, t.out + begin, (end - begin) * sizeof(*part)) == 0);
        for (size_t i = 0; i < EXTENT; i++) /* at most a row more at each side */
            if (i + COLS < begin || i >= end + COLS) CHECK(part[i] == 0);
    }
    free(part);
    team_release(&t);
}

static double column_product(const float *p, int a, int b)
{
    double sum = 0;
    for (size_t i = 0; i < ROWS; i++)
        sum += (double)p[(size_t)a * ROWS + i] * (double)p[(size_t)b * ROWS + i];
    return sum;
}

static void columns_become_orthonormal(void)
{
    team t;
    team_init(&t, &with_feedback);
    team_step(&t, 0);
    for (int a = 0; a < RANK; a++)
        for (int b = 0; b <= a; b++) CHECK_NEAR(column_product(t.p[0], a, b), a == b ? 1 : 0, 2e-6);
    team_release(&t);
}

/* A matrix of lower rank is reproduced in the first step; dependent columns become zero, and later random. */
static void low_rank_matrices_are_exact(void)
{
    team t;
    float left[2 * ROWS], right[2 * COLS];
    team_init(&t, &with_feedback);
    codec_trial_random(left, 2 * ROWS, 50);
    codec_trial_random(right, 2 * COLS, 51);
    for (int r = 0; r < REPLICAS; r++)
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j++)
                t.grad[r][i * COLS + j] = left[i] * right[j] + left[ROWS + i] * right[COLS + j];
    for (uint64_t step = 0; step < 3; step++) {
        double worst = 0;
        memset(t.residual[0], 0, EXTENT * sizeof(float));
        memset(t.residual[1], 0, EXTENT * sizeof(float));
        team_step(&t, step);
        for (size_t i = 0; i < ROWS * COLS; i++)
            worst = fmax(worst, fabs((double)(t.out[i] - t.grad[0][i] - t.grad[1][i])));
        CHECK(worst < 1e-4);
        CHECK_NEAR(column_product(t.p[0], 1, 1), 1, 1e-5);
        CHECK_NEAR(column_product(t.p[0], 2, 2), 0, 0);
        CHECK_NEAR(column_product(t.p[0], 3, 3), 0, 0);
    }
    tdm_codec_lowrank_start(t.codec, &(tdm_codec_key){.seed = 5, .step = 9}, t.q);
    for (size_t k = 0; k < RANK; k++) CHECK(t.codec->loops->largest(t.q + k * COLS, COLS) != 0);
    team_release(&t);
}

/* The residuals and what is sent add up to the gradients and the residuals before. */
static void sums_are_conserved(void)
{
    team t;
    float *sum = team_block(EXTENT);
    team_init(&t, &with_feedback);
    for (uint64_t step = 0; step < 5; step++) {
        double worst = 0;
        for (size_t i = 0; i < ROWS * COLS; i++)
            sum[i] = t.grad[0][i] + t.grad[1][i] + t.residual[0][i] + t.residual[1][i];
        team_step(&t, step);
        for (size_t i = 0; i < ROWS * COLS; i++)
            worst = fmax(worst,
                         fabs((double)(sum[i] - t.out[i] - t.residual[0][i] - t.residual[1][i])));
        CHECK(worst < 1e-4);
    }
    team_release(&t);
    free(sum);
}

/* With feedback a constant gradient arrives completely, on average over the steps. */
static void feedback_sends_everything(void)
{
    enum { STEPS = 400 };
    team t;
    double *sum = calloc(ROWS * COLS, sizeof(*sum)), off = 0, size = 0;
    REQUIRE(sum);
    team_init(&t, &with_feedback);
    for (uint64_t step = 0; step < STEPS; step++) {
        team_step(&t, step);
        for (size_t i = 0; i < ROWS * COLS; i++) sum[i] += (double)t.out[i];
    }
    for (size_t i = 0; i < ROWS * COLS; i++) {
        double all = (double)t.grad[0][i] + (double)t.grad[1][i], lost = sum[i] / STEPS - all;
        off += lost * lost;
        size += all * all;
    }
    CHECK(sqrt(off / size) < 0.2); /* one step alone: 0.96 */
    team_release(&t);
    free(sum);
}

static uint64_t steps_hash(int level, int thread_count)
{
    tdm_codec_options o = with_feedback;
    team t;
    o.clip_norm = 100;
    team_init(&t, &o);
    t.codec->loops = tdm__codec_loops_at(level);
    int before = tdm_kernel_threads_set(thread_count);
    for (uint64_t step = 0; step < 3; step++) team_step(&t, step);
    tdm_kernel_threads_set(before);
    uint64_t hash = tdm_hash64(t.out, EXTENT * sizeof(float));
    hash = tdm_hash64_add(hash, tdm_hash64(t.q, t.q_count * sizeof(float)));
    hash = tdm_hash64_add(hash, tdm_hash64(t.residual[1], EXTENT * sizeof(float)));
    team_release(&t);
    return hash;
}

static void factors_do_not_depend_on_levels_and_threads(void)
{
    uint64_t expected = steps_hash(0, 1);
    char text[32];
    for (int level = 2; level <= tdm_kernel_cpu_level(); level++)
        CHECK(steps_hash(level, 1) == expected);
    CHECK(steps_hash(tdm_kernel_cpu_level(), 3) == expected);
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)expected);
    CHECK_TEXT(text, "0b316ad1d60e4cc0");
}

static void bad_numbers_are_named(void)
{
    team t;
    tdm_error err = {0};
    team_init(&t, &with_feedback);
    const float *before[] = {t.residual[0]};
    t.grad[0][ROWS * COLS + 2] = NAN;
    CHECK_INT(
        tdm_codec_lowrank_project(t.codec, t.grad[0], before, t.q, t.residual[1], t.p[0], &err),
        TDM_ERR_DIVERGED);
    CHECK_HAS(err.message, "tensor 'b'");
    team_release(&t);
}

static const check_test tests[] = {
    CHECK_TEST(small_tensors_stay_dense),
    CHECK_TEST(parts_are_those_of_the_whole),
    CHECK_TEST(columns_become_orthonormal),
    CHECK_TEST(low_rank_matrices_are_exact),
    CHECK_TEST(sums_are_conserved),
    CHECK_TEST(feedback_sends_everything),
    CHECK_TEST(factors_do_not_depend_on_levels_and_threads),
    CHECK_TEST(bad_numbers_are_named),
};
CHECK_SUITE(codec_lowrank, tests);
