/*
 * sparse.c: models of sparse samples with two classes: logistic regression, the factorisation machine (Rendle, 2010),
 * wide & deep (Cheng et al., 2016) and DLRM (Naumov et al., 2019).
 *
 * Their input has sums of rows of a sparse table, which tdm_job_columns (job/job.h) describes: the table is outside the
 * graph, and gets the gradient of the input. Each model computes one number z, the log odds of the second class, and
 * its logits are 0 and z: their cross entropy is the binary cross entropy of z.
 */
#include "job/job.h"
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Columns [first, first + count) of x [B, columns]. */
static tdm_value columns_of(tdm_graph *graph, tdm_value x, int64_t first, int64_t count)
{
    if (first == 0 && tdm_graph_shape(graph, x).dim[1] == count) return x;
    return tdm_graph_slice(graph, x, 1, first, first + count);
}

static tdm_value with_bias(tdm_graph *graph, tdm_value z)
{
    tdm_value bias = tdm_graph_param(graph, "bias", tdm_shape_1(1),
                                     (tdm_init){.kind = TDM_INIT_ZERO});
    return tdm_graph_add(graph, z, bias);
}

/* From z [B, 1]. */
static tdm_value logits_of(tdm_graph *graph, tdm_value z)
{
    tdm_graph_scope(graph, "logits");
    const tdm_value both[] = {tdm_graph_scale(graph, z, 0.0), z};
    tdm_value logits = tdm_graph_concat(graph, both, 2, 1);
    tdm_graph_scope(graph, NULL);
    return logits;
}

/* Fully connected layers PREFIX1, PREFIX2, ...: those of `hidden`, then one of `out` numbers, if that is not 0. */
static tdm_value layers_of(tdm_graph *graph, const tdm_model_options *o, const char *prefix,
                           const tdm_job_int_list *hidden, int64_t out, tdm_value x)
{
    int activation = o->job->model.activation;
    bool rectifies = activation == TDM_JOB_ACTIVATION_RELU || activation == TDM_JOB_ACTIVATION_GELU;
    for (size_t i = 0; i < hidden->count + (out > 0); i++) {
        bool is_hidden = i < hidden->count;
        char name[48];
        snprintf(name, sizeof(name), "%s%zu", prefix, i + 1);
        tdm_graph_scope(graph, name);
        tdm_graph_block(graph);
        int64_t in = tdm_graph_shape(graph, x).dim[1];
        int64_t size = is_hidden ? hidden->values[i] : out;
        double fan = is_hidden && rectifies ? (double)in : (double)(in + size);
        x = tdm__layer_linear(graph, name, x, size,
                              (tdm_init){.kind = TDM_INIT_UNIFORM, .scale = sqrt(6.0 / fan)},
                              is_hidden ? tdm__activation_of(activation) : TDM_ACTIVATION_NONE);
        if (is_hidden && o->training) x = tdm_graph_dropout(graph, x, o->job->model.dropout);
    }
    tdm_graph_scope(graph, NULL);
    return x;
}

/* ---- logistic regression, factorisation machine ------------------------------------------------- */

static tdm_value lr_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    (void)o;
    return logits_of(graph, with_bias(graph, x));
}

/* The sum over all pairs of features of the product of their vectors is (sums^2 - squares) / 2, summed over the numbers
 * of a vector. */
static tdm_value fm_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    tdm_job_columns c = tdm_job_columns_of(o->job);
    tdm_graph_scope(graph, "pairs");
    tdm_value sums = columns_of(graph, x, c.sums, c.dim);
    tdm_value squares = columns_of(graph, x, c.squares, c.dim);
    tdm_value pairs = tdm_graph_add(graph, tdm_graph_mul(graph, sums, sums),
                                    tdm_graph_scale(graph, squares, -1.0));
    pairs = tdm_graph_scale(graph, tdm_graph_sum(graph, pairs, 1), 0.5);
    pairs = tdm_graph_reshape(graph, pairs, tdm_shape_2(o->batch, 1));
    tdm_graph_scope(graph, NULL);
    tdm_value z = tdm_graph_add(graph, columns_of(graph, x, c.wide, 1), pairs);
    return logits_of(graph, with_bias(graph, z));
}

/* ---- wide & deep -------------------------------------------------------------------------------- */

static tdm_value wide_deep_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    tdm_job_columns c = tdm_job_columns_of(o->job);
    tdm_value deep = columns_of(graph, x, 1, c.columns - 1);
    deep = layers_of(graph, o, "deep", &o->job->model.hidden, 1, deep);
    return logits_of(graph, tdm_graph_add(graph, columns_of(graph, x, c.wide, 1), deep));
}

/* ---- DLRM --------------------------------------------------------------------------------------- */

/* The numbers below the diagonal of each matrix: [B, N, N] -> [B, N (N - 1) / 2], row by row; and the reverse, with
 * zeros elsewhere. */
static tdm_status below_infer(const tdm_shape in[], const void *attrs, tdm_shape *out,
                              tdm_error *err)
{
    (void)attrs;
    if (in[0].rank != 3 || in[0].dim[1] != in[0].dim[2])
        return tdm_fail(err, TDM_ERR_INVALID, "below: it needs square matrices");
    *out = tdm_shape_2(in[0].dim[0], in[0].dim[1] * (in[0].dim[1] - 1) / 2);
    return TDM_OK;
}

static void below_run(const tdm_tensor in[], const void *attrs, tdm_tensor out)
{
    (void)attrs;
    int64_t N = in[0].shape.dim[1];
    float *to = out.data;
    for (int64_t b = 0; b < in[0].shape.dim[0]; b++) {
        const float *from = (const float *)in[0].data + b * N * N;
        for (int64_t i = 1; i < N; to += i++) memcpy(to, from + i * N, (size_t)i * sizeof(*to));
    }
}

static tdm_status above_infer(const tdm_shape in[], const void *attrs, tdm_shape *out,
                              tdm_error *err)
{
    (void)err;
    int64_t N = *(const int64_t *)attrs;
    *out = tdm_shape_3(in[0].dim[0], N, N);
    return TDM_OK;
}

static void above_run(const tdm_tensor in[], const void *attrs, tdm_tensor out)
{
    int64_t N = *(const int64_t *)attrs;
    const float *from = in[0].data;
    memset(out.data, 0, tdm_tensor_bytes(&out));
    for (int64_t b = 0; b < out.shape.dim[0]; b++) {
        float *to = (float *)out.data + b * N * N;
        for (int64_t i = 1; i < N; from += i++) memcpy(to + i * N, from, (size_t)i * sizeof(*to));
    }
}

static void below_backward(tdm_graph *graph, const tdm_value in[], tdm_value out, tdm_value d_out,
                           const void *attrs, tdm_value d_in[])
{
    static const tdm_custom_op above = {
        .name = "below_grad", .in_count = 1, .infer = above_infer, .run = above_run};
    (void)out;
    (void)attrs;
    int64_t *N = tdm_graph_memory(graph, sizeof(*N));
    if (!N) return;
    *N = tdm_graph_shape(graph, in[0]).dim[1];
    d_in[0] = tdm_graph_custom(graph, &above, &d_out, N);
}

static const tdm_custom_op below = {.name = "below",
                                    .in_count = 1,
                                    .infer = below_infer,
                                    .run = below_run,
                                    .backward = below_backward};

static tdm_value dlrm_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    tdm_job_columns c = tdm_job_columns_of(o->job);
    tdm_value numbers = columns_of(graph, x, c.numbers, c.number_count);
    tdm_value bottom = layers_of(graph, o, "bottom", &o->job->model.bottom, c.dim, numbers);
    tdm_graph_scope(graph, "pairs");
    const tdm_value all[] = {bottom, columns_of(graph, x, c.fields, c.field_count * c.dim)};
    tdm_value vectors = tdm_graph_concat(graph, all, 2, 1);
    vectors = tdm_graph_reshape(graph, vectors, tdm_shape_3(o->batch, c.field_count + 1, c.dim));
    tdm_value pairs = tdm_graph_matmul(graph, vectors, vectors,
                                       &(tdm_matmul_options){.trans_b = true});
    const tdm_value top[] = {bottom, tdm_graph_custom(graph, &below, &pairs, NULL)};
    tdm_value z = tdm_graph_concat(graph, top, 2, 1);
    return logits_of(graph, layers_of(graph, o, "top", &o->job->model.hidden, 1, z));
}

const tdm_model_ops tdm__model_lr = {.name = "lr", .build = lr_build};
const tdm_model_ops tdm__model_fm = {.name = "fm", .build = fm_build};
const tdm_model_ops tdm__model_wide_deep = {.name = "wide_deep", .build = wide_deep_build};
const tdm_model_ops tdm__model_dlrm = {.name = "dlrm", .build = dlrm_build};
