/*
 * names.c: the names of kinds of calls, reductions and algorithms: one table for each.
 */
#include <tandem/comm.h>

#include <string.h>

static const char *const kind_names[] = {
    [TDM_CALL_BARRIER] = "barrier",
    [TDM_CALL_BROADCAST] = "broadcast",
    [TDM_CALL_REDUCE] = "reduce",
    [TDM_CALL_ALL_REDUCE] = "all_reduce",
    [TDM_CALL_REDUCE_SCATTER] = "reduce_scatter",
    [TDM_CALL_ALL_GATHER] = "all_gather",
    [TDM_CALL_GATHER] = "gather",
    [TDM_CALL_SCATTER] = "scatter",
    [TDM_CALL_ALL_TO_ALL] = "all_to_all",
    [TDM_CALL_SEND] = "send",
    [TDM_CALL_RECV] = "recv",
};

static const char *const reduce_names[] = {
    [TDM_REDUCE_SUM] = "sum",
    [TDM_REDUCE_MIN] = "min",
    [TDM_REDUCE_MAX] = "max",
    [TDM_REDUCE_USER] = "user",
};

static const char *const algorithm_names[] = {
    [TDM_ALGORITHM_AUTO] = "auto",     [TDM_ALGORITHM_DIRECT] = "direct",
    [TDM_ALGORITHM_RING] = "ring",     [TDM_ALGORITHM_DOUBLING] = "doubling",
    [TDM_ALGORITHM_TREE] = "tree",     [TDM_ALGORITHM_HIERARCHY] = "hierarchy",
    [TDM_ALGORITHM_WINDOW] = "window",
};

static const char *names_find(const char *const *names, size_t count, size_t index)
{
    return index < count && names[index] ? names[index] : "unknown";
}

const char *tdm_call_kind_name(tdm_call_kind kind)
{
    return names_find(kind_names, sizeof(kind_names) / sizeof(kind_names[0]), (size_t)kind);
}

const char *tdm_reduce_name(tdm_reduce reduce)
{
    return names_find(reduce_names, sizeof(reduce_names) / sizeof(reduce_names[0]), (size_t)reduce);
}

const char *tdm_algorithm_name(tdm_algorithm algorithm)
{
    return names_find(algorithm_names, sizeof(algorithm_names) / sizeof(algorithm_names[0]),
                      (size_t)algorithm);
}

tdm_status tdm_algorithm_find(const char *name, tdm_algorithm *out, tdm_error *err)
{
    for (int i = 0; i <= TDM_ALGORITHM_WINDOW; i++)
        if (strcmp(algorithm_names[i], name) == 0) {
            *out = (tdm_algorithm)i;
            return TDM_OK;
        }
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "unknown algorithm \"%s\"; valid are auto, direct, ring, doubling, tree, "
                    "hierarchy and window",
                    name);
}
