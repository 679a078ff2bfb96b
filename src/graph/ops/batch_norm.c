/*
 * batch_norm.c: batch norm over all dimensions but the last, with the statistics of the current
 * rows or with given ones.
 *
 * The gradient of x needs the sums that are also the gradients of gamma and beta, so those are
 * computed once and passed on. Gamma and beta get copies of them: the block of gradients is only
 * written by the steps, so that a gradient can be sent as soon as it is complete.
 *
 * Over the rows of all lanes it consists of three ops with a sum over lanes between them: this
 * lane's share of the sums, the batch's statistics from all shares, and y. The gradient of y also
 * adds its two sums over lanes and returns the whole gradient of x, so no gradient flows through
 * the statistics. This op does not update the running statistics: the builder only returns the
 * observed values.
 */
#include "graph/graph.h"
#include "graph/ops/ops.h"

static tdm_status wants_channels(const tdm__value *const in[], const char *const names[], int count,
                                 tdm_error *err)
{
    const tdm_shape *x = &in[0]->shape;
    if (x->rank < 1 || x->dim[x->rank - 1] < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "x must have a last dimension: its channels");
    for (int i = 1; i < count; i++)
        TDM_TRY(tdm__wants_columns(in[i], x->dim[x->rank - 1], names[i], err));
    return TDM_OK;
}

static tdm_status infer_batch_norm(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                   tdm__value out[], tdm_error *err)
{
    static const char *const names[] = {"x", "gamma", "beta"};
    TDM_TRY(tdm__infer_same(attrs, in, out, err));
    TDM_TRY(wants_channels(in, names, 3, err));
    int64_t C = out[0].shape.dim[out[0].shape.rank - 1];
    if (tdm_shape_elements(&out[0].shape) < 2 * C)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "one number in a channel has no variance: give it more rows (a larger "
                        "train.batch, fewer parallel.lanes, or data.last_batch: drop where the "
                        "last batch is short), those of all lanes (parallel.sync_batchnorm: "
                        "true), or fixed statistics");
    out[1] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_2(2, C)};
    return TDM_OK;
}

static tdm_status infer_share(const tdm_op_attrs *attrs, const tdm__value *const in[],
                              tdm__value out[], tdm_error *err)
{
    static const char *const names[] = {"x", "mean"};
    TDM_TRY(tdm__infer_same(attrs, in, out, err));
    TDM_TRY(wants_channels(in, names, 2, err));
    if (in[1]->needs_grad)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "mean is fixed: it is not trained");
    out[0].shape = tdm_shape_2(3, in[1]->shape.dim[0]);
    return TDM_OK;
}

static tdm_status infer_join(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    (void)attrs;
    (void)err;
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_2(2, in[1]->shape.dim[0])};
    return TDM_OK;
}

static tdm_status infer_given(const tdm_op_attrs *attrs, const tdm__value *const in[],
                              tdm__value out[], tdm_error *err)
{
    static const char *const names[] = {"x", "gamma", "beta"};
    TDM_TRY(tdm__infer_same(attrs, in, out, err));
    return wants_channels(in, names, 3, err);
}

static tdm_status infer_fixed(const tdm_op_attrs *attrs, const tdm__value *const in[],
                              tdm__value out[], tdm_error *err)
{
    static const char *const names[] = {"x", "gamma", "beta", "mean", "variance"};
    TDM_TRY(tdm__infer_same(attrs, in, out, err));
    TDM_TRY(wants_channels(in, names, 5, err));
    if (in[3]->needs_grad || in[4]->needs_grad)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "mean and variance are fixed: they are not trained");
    return TDM_OK;
}

static tdm_status infer_grad_params(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                    tdm__value out[], tdm_error *err)
{
    (void)attrs;
    (void)err;
    const tdm_shape *x = &in[0]->shape;
    for (int i = 0; i < 2; i++)
        out[i] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(x->dim[x->rank - 1])};
    return TDM_OK;
}

static tdm_value copy_of(tdm_graph *graph, tdm_value x)
{
    return tdm__graph_add_node(graph, TDM_OP_COPY, &(tdm_op_attrs){0}, &x, 1, NULL);
}

static void backward_batch_norm(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                                tdm_value d_in[])
{
    tdm_value dy = d_out[0], x = tdm__node_in(node, 0), stats = {node->out[1]}, d_beta = {0};
    if (d_out[1].id)
        tdm__graph_break(graph, TDM_ERR_UNSUPPORTED,
                         "%s: a loss may not depend on the observed statistics", node->name);
    tdm_value d_gamma = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_GRAD_PARAMS, &node->attrs,
                                            (tdm_value[]){dy, x, stats}, 3, &d_beta);
    if (tdm__node_wants(graph, node, 1)) d_in[1] = copy_of(graph, d_gamma);
    if (tdm__node_wants(graph, node, 2)) d_in[2] = copy_of(graph, d_beta);
    if (!tdm__node_wants(graph, node, 0)) return;
    tdm_value in[] = {dy, x, tdm__node_in(node, 1), stats, d_gamma, d_beta};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_GRAD, &node->attrs, in, 6, NULL);
}

/* The sums of all lanes, times this lane's share of the numbers: the op divides by its own
 * count. */
static void backward_given(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                           tdm_value d_in[])
{
    tdm_value dy = d_out[0], x = tdm__node_in(node, 0), stats = tdm__node_in(node, 3), own[2];
    own[1] = TDM_VALUE_NONE;
    own[0] = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_GRAD_PARAMS, &node->attrs,
                                 (tdm_value[]){dy, x, stats}, 3, &own[1]);
    for (int i = 0; i < 2; i++)
        if (tdm__node_wants(graph, node, 1 + i)) d_in[1 + i] = copy_of(graph, own[i]);
    if (!tdm__node_wants(graph, node, 0)) return;
    tdm_value all = tdm_graph_lane_sum(graph, tdm_graph_concat(graph, own, 2, 0)), sums[2];
    tdm_graph_split(graph, tdm_graph_scale(graph, all, node->attrs.scale), 0, 2, sums);
    tdm_value in[] = {dy, x, tdm__node_in(node, 1), stats, sums[0], sums[1]};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_GRAD, &node->attrs, in, 6, NULL);
}

static void backward_fixed(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                           tdm_value d_in[])
{
    tdm_value dy = d_out[0], d_gamma, d_beta = {0};
    tdm_value in[] = {dy, tdm__node_in(node, 0), tdm__node_in(node, 3), tdm__node_in(node, 4)};
    bool gamma = tdm__node_wants(graph, node, 1), beta = tdm__node_wants(graph, node, 2);
    if (gamma || beta) {
        d_gamma = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS, &node->attrs, in,
                                      4, &d_beta);
        if (gamma) d_in[1] = d_gamma;
        if (beta) d_in[2] = d_beta;
    }
    if (!tdm__node_wants(graph, node, 0)) return;
    tdm_value on_x[] = {dy, tdm__node_in(node, 1), tdm__node_in(node, 4)};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_FIXED_GRAD, &node->attrs, on_x, 3, NULL);
}

/* Three for the sums and the squares, three to normalise. */
static uint64_t flops_batch_norm(const tdm_graph *graph, const tdm__node *node)
{
    return 6 * tdm__elements_of(graph, node->in[0]);
}

/* A few for each number. */
static uint64_t flops_pass(const tdm_graph *graph, const tdm__node *node)
{
    return 4 * tdm__elements_of(graph, node->in[0]);
}

static const tdm__op_row rows[] = {
    {TDM_OP_BATCH_NORM, "batch_norm", 3, 3, 2, infer_batch_norm, backward_batch_norm,
     flops_batch_norm, TDM__OVER_0, 0},
    {TDM_OP_BATCH_NORM_GRAD, "batch_norm_grad", 6, 6, 1, tdm__infer_same, NULL, flops_pass,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_BATCH_NORM_GRAD_PARAMS, "batch_norm_grad_params", 3, 3, 2, infer_grad_params, NULL,
     flops_pass, 0, 0},
    {TDM_OP_BATCH_NORM_FIXED, "batch_norm_fixed", 5, 5, 1, infer_fixed, backward_fixed, flops_pass,
     TDM__OVER_0, 0},
    {TDM_OP_BATCH_NORM_FIXED_GRAD, "batch_norm_fixed_grad", 3, 3, 1, tdm__infer_same, NULL,
     tdm__flops_per_input, TDM__OVER_0, 0},
    {TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS, "batch_norm_fixed_grad_params", 4, 4, 2,
     infer_grad_params, NULL, flops_pass, 0, 0},
    {TDM_OP_BATCH_NORM_SHARE, "batch_norm_share", 2, 2, 1, infer_share, NULL, flops_pass, 0, 0},
    {TDM_OP_BATCH_NORM_JOIN, "batch_norm_join", 2, 2, 1, infer_join, NULL, tdm__flops_per_input, 0,
     0},
    {TDM_OP_BATCH_NORM_GIVEN, "batch_norm_given", 4, 4, 1, infer_given, backward_given, flops_pass,
     TDM__OVER_0, 0},
};

const tdm__op_family tdm__ops_batch_norm = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- building --------------------------------------------------------------------------------- */

/* Row `index` of stats [2, C], times `factor`. */
static tdm_value batch_norm_observed(tdm_graph *graph, tdm_value stats, int64_t index,
                                     double factor)
{
    tdm_value row = tdm_graph_slice(graph, stats, 0, index, index + 1);
    row = tdm_graph_reshape(graph, row, tdm_shape_1(tdm_graph_shape(graph, stats).dim[1]));
    return factor == 1.0 ? row : tdm_graph_scale(graph, row, factor);
}

static tdm_value batch_norm_refuse(tdm_graph *graph, tdm_status status, const char *what)
{
    tdm__graph_break(graph, status, "batch_norm: %s", what);
    return TDM_VALUE_NONE;
}

/* Returns y, and in *stats the statistics of the `numbers` numbers of each channel in all lanes. */
static tdm_value over_lanes(tdm_graph *graph, tdm_value x, const tdm_batch_norm_options *o,
                            tdm_op_attrs attrs, double numbers, tdm_value *stats)
{
    tdm_value about = o->mean;
    if (about.id == 0) {
        tdm_op_attrs zeros = {.shape = tdm_graph_shape(graph, o->gamma)};
        about = tdm__graph_add_node(graph, TDM_OP_FILL, &zeros, NULL, 0, NULL);
    }
    tdm_op_attrs share = {.scale = 1.0 / numbers};
    tdm_value sums = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_SHARE, &share,
                                         (tdm_value[]){x, about}, 2, NULL);
    sums = tdm_graph_lane_sum(graph, sums);
    *stats = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_JOIN, &(tdm_op_attrs){0},
                                 (tdm_value[]){sums, about}, 2, NULL);
    attrs.scale = (double)o->lane_rows / (double)o->batch_rows;
    return tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_GIVEN, &attrs,
                               (tdm_value[]){x, o->gamma, o->beta, *stats}, 4, NULL);
}

tdm_value tdm_graph_batch_norm(tdm_graph *graph, tdm_value x, const tdm_batch_norm_options *options)
{
    const tdm_batch_norm_options *o = options;
    if (o->observed_mean) *o->observed_mean = TDM_VALUE_NONE;
    if (o->observed_variance) *o->observed_variance = TDM_VALUE_NONE;
    if (!(o->eps >= 0)) {
        tdm__graph_break(graph, TDM_ERR_RANGE, "batch_norm: eps is %g; it must not be negative",
                         o->eps);
        return TDM_VALUE_NONE;
    }

    bool of_lane = o->mode == TDM_BATCH_NORM_TRAIN && o->batch_rows != 0;
    if (of_lane && (o->lane_rows < 1 || o->batch_rows < o->lane_rows))
        return batch_norm_refuse(
            graph, TDM_ERR_RANGE,
            "a lane must have at least 1 row and at most all rows of its batch");

    tdm_op_attrs attrs = {.eps = o->eps > 0 ? (float)o->eps : 1e-5f};
    if (o->mode == TDM_BATCH_NORM_FIXED)
        return tdm__graph_add_node(graph, TDM_OP_BATCH_NORM_FIXED, &attrs,
                                   (tdm_value[]){x, o->gamma, o->beta, o->mean, o->variance}, 5,
                                   NULL);

    tdm_shape shape = tdm_graph_shape(graph, x);
    double C = shape.rank > 0 ? (double)shape.dim[shape.rank - 1] : 1;
    double n = (double)tdm_shape_elements(&shape) / C;
    tdm_value stats = {0}, y;
    if (of_lane) {
        n = n * (double)o->batch_rows / (double)o->lane_rows;
        if (n < 2)
            return batch_norm_refuse(graph, TDM_ERR_INVALID,
                                     "one number in a channel has no variance");
        y = over_lanes(graph, x, o, attrs, n, &stats);
    } else {
        y = tdm__graph_add_node(graph, TDM_OP_BATCH_NORM, &attrs,
                                (tdm_value[]){x, o->gamma, o->beta}, 3, &stats);
    }

    if (y.id == 0) return y;
    if (o->observed_mean) *o->observed_mean = batch_norm_observed(graph, stats, 0, 1.0);
    if (o->observed_variance)
        *o->observed_variance = batch_norm_observed(graph, stats, 1, n / (n - 1));
    return y;
}
