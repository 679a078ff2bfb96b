/*
 * graph_bench.c: see graph_bench.h.
 */
#include "graph_bench.h"

void *bench_alloc(size_t bytes)
{
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

float bench_random(tdm_rng *rng)
{
    float x = 2.0f * tdm_rng_uniform(rng) - 1.0f;
    return x < 0 ? x - 0.01f : x + 0.01f;
}

tdm_rng bench_rng(uint64_t seed, uint32_t what)
{
    return tdm_rng_at(
        (tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER, .sub_stream = what});
}

void bench_fill_params(bench *b, uint64_t seed)
{
    memset(b->params, 0, b->param_bytes);
    for (size_t p = 0; p < tdm_graph_param_count(b->graph); p++) {
        const tdm_param_info *info = tdm_graph_param_at(b->graph, p);
        tdm_rng rng = bench_rng(seed, (uint32_t)p);
        for (size_t i = 0; i < info->elements; i++)
            b->params[info->offset + i] = bench_random(&rng);
    }
}

void bench_fill(bench *b, uint64_t seed, uint64_t class_count)
{
    memset(b->arena, 0xff, b->arena_bytes);
    for (size_t id = 1; id < b->graph->value_count; id++) {
        const tdm__value *v = &b->graph->values[id];
        if (v->role != TDM__ROLE_INPUT) continue;
        tdm_tensor t = tdm_plan_input(b->plan, v->name);
        tdm_rng rng = bench_rng(seed, 1000 + (uint32_t)id);
        for (int64_t i = 0; i < tdm_tensor_elements(&t); i++) {
            if (t.dtype == TDM_DTYPE_F32)
                ((float *)t.data)[i] = bench_random(&rng);
            else
                ((int32_t *)t.data)[i] = (int32_t)tdm_rng_below(&rng, class_count);
        }
    }
}

bool bench_open(bench *b, const tdm_graph *graph, const tdm_plan_options *options)
{
    tdm_error err = {0};
    *b = (bench){.graph = graph};
    tdm_status status = tdm_plan_create(graph, options, &b->plan, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) {
        fprintf(stderr, "  %s\n", err.message);
        return false;
    }
    b->arena_bytes = tdm_plan_arena_bytes(b->plan);
    b->param_bytes = tdm_graph_param_extent(graph) * sizeof(float);
    b->grad_bytes = tdm_graph_grad_extent(graph) * sizeof(float);
    b->arena = bench_alloc(b->arena_bytes);
    b->params = bench_alloc(b->param_bytes);
    b->grads = bench_alloc(b->grad_bytes);
    tdm_plan_bind(b->plan, TDM_SPACE_ARENA, b->arena);
    tdm_plan_bind(b->plan, TDM_SPACE_PARAMS, b->params);
    tdm_plan_bind(b->plan, TDM_SPACE_GRADS, b->grads);
    memset(b->grads, 0, b->grad_bytes);
    bench_fill_params(b, 1);
    return true;
}

void bench_close(bench *b)
{
    tdm_plan_destroy(b->plan);
    free(b->arena);
    free(b->params);
    free(b->grads);
    *b = (bench){0};
}

void bench_run(bench *b)
{
    tdm_plan_run(b->plan, &(tdm_step_key){.seed = 7, .step = 3, .first_row = 5});
}
