/*
 * vec_trial.c: see vec_trial.h.
 */
#include "kernel/vec_trial.h"

static unsigned char *guarded(size_t bytes)
{
    unsigned char *block = malloc(bytes + 2 * TRIAL_GUARD_BYTES);
    memset(block, 0xfe, bytes + 2 * TRIAL_GUARD_BYTES); /* as floats: -1.7e38 */
    return block + TRIAL_GUARD_BYTES;
}

static void check_and_free(unsigned char *data, size_t bytes)
{
    unsigned char expected[TRIAL_GUARD_BYTES];
    memset(expected, 0xfe, sizeof(expected));
    CHECK(memcmp(data - TRIAL_GUARD_BYTES, expected, sizeof(expected)) == 0);
    CHECK(memcmp(data + bytes, expected, sizeof(expected)) == 0);
    free(data - TRIAL_GUARD_BYTES);
}

void vec_trial_fill(const trial *t, int index, void *data, size_t count)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 3,
                                               .stream = TDM_RNG_STREAM_USER,
                                               .sub_stream = (uint32_t)index,
                                               .step = (uint64_t)t->op});
    if (t->class_count > 0 && index == 1) {
        for (size_t i = 0; i < count; i++)
            ((int32_t *)data)[i] = (int32_t)tdm_rng_below(&rng, (uint64_t)t->class_count);
        return;
    }
    float *x = data;
    double spread = t->spread > 0 ? t->spread : 3;
    for (size_t i = 0; i < count; i++) x[i] = (float)(tdm_rng_normal(&rng) * spread);
    if (!t->extremes || index != t->in_count - 1) return;
    size_t extreme_count = sizeof(trial_extremes) / sizeof(float);
    for (size_t i = 0; 3 * i < count && i < extreme_count; i++) x[3 * i] = trial_extremes[i];
    if (t->infinities && count > 2) x[count - 2] = INFINITY, x[count - 1] = -INFINITY;
}

static size_t trial_bytes(const tdm_shape *shape)
{
    return (size_t)tdm_shape_elements(shape) * sizeof(float);
}

static void prepare_and_run(const tdm_kernel_backend_ops *backend, const trial *t, void *const in[],
                            void *const out[])
{
    const tdm_kernel *kernel = tdm_kernel_find(backend, t->op, TDM_DTYPE_F32);
    CHECK(kernel != NULL);
    if (!kernel) return;
    tdm_kernel_call call = {.attrs = t->attrs};
    for (int i = 0; i < t->in_count; i++)
        call.in[i] = (tdm_tensor){t->class_count > 0 && i == 1 ? TDM_DTYPE_I32 : TDM_DTYPE_F32,
                                  t->in[i], NULL};
    for (int i = 0; i < t->out_count; i++)
        call.out[i] = (tdm_tensor){TDM_DTYPE_F32, t->out[i], NULL};
    tdm_error err = {0};
    if (kernel->prepare) CHECK_INT(kernel->prepare(NULL, &call, &err), TDM_OK);
    unsigned char *scratch = guarded(call.scratch_bytes);
    call.scratch = scratch;
    for (int i = 0; i < t->in_count; i++) call.in[i].data = in[i];
    for (int i = 0; i < t->out_count; i++) call.out[i].data = out[i];
    kernel->run(
        NULL, &call,
        &(tdm_step_key){.seed = TRIAL_SEED, .step = TRIAL_STEP, .first_row = TRIAL_FIRST_ROW});
    if (kernel->release) kernel->release(&call);
    check_and_free(scratch, call.scratch_bytes);
}

trial_result vec_trial_run(const tdm_kernel_backend_ops *backend, const trial *t)
{
    void *in[TRIAL_MAX_INPUTS] = {0}, *copy[TRIAL_MAX_INPUTS] = {0};
    void *out[TDM_OP_MAX_OUTPUTS] = {0};
    trial_result result = {0};
    for (int i = 0; i < t->in_count; i++) {
        in[i] = guarded(trial_bytes(&t->in[i]));
        vec_trial_fill(t, i, in[i], (size_t)tdm_shape_elements(&t->in[i]));
        copy[i] = malloc(trial_bytes(&t->in[i]) + 1);
        memcpy(copy[i], in[i], trial_bytes(&t->in[i]));
    }
    for (int i = 0; i < t->out_count; i++) {
        bool over = t->over_first && i == t->out_count - 1;
        out[i] = over ? in[0] : guarded(trial_bytes(&t->out[i]));
        if (!over) memset(out[i], 0xff, trial_bytes(&t->out[i]));
    }
    prepare_and_run(backend, t, in, out);
    for (int i = 0; i < t->out_count; i++) {
        result.count[i] = (size_t)tdm_shape_elements(&t->out[i]);
        result.out[i] = malloc(trial_bytes(&t->out[i]) + 1);
        memcpy(result.out[i], out[i], trial_bytes(&t->out[i]));
        if (out[i] != in[0]) check_and_free(out[i], trial_bytes(&t->out[i]));
    }
    for (int i = 0; i < t->in_count; i++) {
        if (i > 0 || !t->over_first) CHECK(memcmp(in[i], copy[i], trial_bytes(&t->in[i])) == 0);
        check_and_free(in[i], trial_bytes(&t->in[i]));
        free(copy[i]);
    }
    return result;
}

void vec_trial_free(trial_result *result)
{
    for (int i = 0; i < TDM_OP_MAX_OUTPUTS; i++) free(result->out[i]);
}

bool vec_trial_same_bits(const float *a, const float *b, size_t count)
{
    return memcmp(a, b, count * sizeof(float)) == 0;
}

/* NaN agrees with NaN, infinity with itself. */
static bool agrees(const trial *t, float got, float expected)
{
    if (t->relative == 0 && t->absolute == 0) return vec_trial_same_bits(&got, &expected, 1);
    if (isnan(expected) || isnan(got)) return isnan(expected) && isnan(got);
    if (isinf(expected) || isinf(got)) return got == expected;
    double off = fabs((double)got - (double)expected);
    return off <= t->relative * fabs((double)expected) + t->absolute;
}

void vec_trial_compare(const trial *t, int level, const trial_result *got,
                       const trial_result *expected)
{
    for (int o = 0; o < t->out_count; o++) {
        for (size_t i = 0; i < expected->count[o]; i++) {
            if (agrees(t, got->out[o][i], expected->out[o][i])) continue;
            char text[128];
            fprintf(stderr, "op %d, level %d, first input %s, output %d[%zu]: %.9g, not %.9g\n",
                    (int)t->op, level, tdm_shape_text(&t->in[0], text), o, i,
                    (double)got->out[o][i], (double)expected->out[o][i]);
            CHECK(false);
            return;
        }
        CHECK(true);
    }
}
