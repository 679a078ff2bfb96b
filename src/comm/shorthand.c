/*
 * shorthand.c: the common calls, each one line of tdm_call_run.
 */
#include <tandem/comm.h>

tdm_status tdm_group_barrier(tdm_group *group, tdm_error *err)
{
    tdm_call call = {.kind = TDM_CALL_BARRIER};
    return tdm_call_run(group, &call, err);
}

tdm_status tdm_group_broadcast(tdm_group *group, void *data, size_t count, tdm_dtype dtype,
                               int root, tdm_error *err)
{
    tdm_call call = {
        .kind = TDM_CALL_BROADCAST, .out = data, .count = count, .dtype = dtype, .root = root};
    return tdm_call_run(group, &call, err);
}

static tdm_status group_reduce_call(tdm_group *group, tdm_call call, tdm_reduce reduce,
                                    tdm_error *err)
{
    call.reduce = reduce;
    return tdm_call_run(group, &call, err);
}

tdm_status tdm_group_all_reduce(tdm_group *group, const void *in, void *out, size_t count,
                                tdm_dtype dtype, tdm_reduce reduce, tdm_error *err)
{
    tdm_call call = {
        .kind = TDM_CALL_ALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype};
    return group_reduce_call(group, call, reduce, err);
}

tdm_status tdm_group_reduce(tdm_group *group, const void *in, void *out, size_t count,
                            tdm_dtype dtype, tdm_reduce reduce, int root, tdm_error *err)
{
    tdm_call call = {.kind = TDM_CALL_REDUCE, .in = in, .out = out, .count = count, .dtype = dtype};
    call.root = root;
    return group_reduce_call(group, call, reduce, err);
}

tdm_status tdm_group_reduce_scatter(tdm_group *group, const void *in, void *out, size_t count,
                                    tdm_dtype dtype, tdm_reduce reduce, tdm_error *err)
{
    tdm_call call = {
        .kind = TDM_CALL_REDUCE_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype};
    return group_reduce_call(group, call, reduce, err);
}

static tdm_status group_move_call(tdm_group *group, tdm_call_kind kind, const void *in, void *out,
                                  size_t count, tdm_dtype dtype, int root, tdm_error *err)
{
    tdm_call call = {
        .kind = kind, .in = in, .out = out, .count = count, .dtype = dtype, .root = root};
    return tdm_call_run(group, &call, err);
}

tdm_status tdm_group_all_gather(tdm_group *group, const void *in, void *out, size_t count,
                                tdm_dtype dtype, tdm_error *err)
{
    return group_move_call(group, TDM_CALL_ALL_GATHER, in, out, count, dtype, 0, err);
}

tdm_status tdm_group_gather(tdm_group *group, const void *in, void *out, size_t count,
                            tdm_dtype dtype, int root, tdm_error *err)
{
    return group_move_call(group, TDM_CALL_GATHER, in, out, count, dtype, root, err);
}

tdm_status tdm_group_scatter(tdm_group *group, const void *in, void *out, size_t count,
                             tdm_dtype dtype, int root, tdm_error *err)
{
    return group_move_call(group, TDM_CALL_SCATTER, in, out, count, dtype, root, err);
}

tdm_status tdm_group_all_to_all(tdm_group *group, const void *in, void *out, size_t count,
                                tdm_dtype dtype, tdm_error *err)
{
    return group_move_call(group, TDM_CALL_ALL_TO_ALL, in, out, count, dtype, 0, err);
}

static tdm_status group_pair_call(tdm_group *group, tdm_call_kind kind, int peer, uint32_t tag,
                                  const void *in, void *out, size_t bytes, tdm_error *err)
{
    tdm_call call = {.kind = kind,
                     .in = in,
                     .out = out,
                     .count = bytes,
                     .dtype = TDM_DTYPE_U8,
                     .root = peer,
                     .tag = tag};
    return tdm_call_run(group, &call, err);
}

tdm_status tdm_group_send(tdm_group *group, int to, uint32_t tag, const void *data, size_t bytes,
                          tdm_error *err)
{
    return group_pair_call(group, TDM_CALL_SEND, to, tag, data, NULL, bytes, err);
}

tdm_status tdm_group_recv(tdm_group *group, int from, uint32_t tag, void *data, size_t bytes,
                          tdm_error *err)
{
    return group_pair_call(group, TDM_CALL_RECV, from, tag, NULL, data, bytes, err);
}
