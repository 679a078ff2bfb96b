/*
 * exchange.c: see exchange.h.
 */
#include "parity/exchange.h"

void give_up(const char *what)
{
    fprintf(stderr, "parity: %s\n", what);
    exit(1);
}

void require(tdm_status status, const tdm_error *err)
{
    if (status != TDM_OK) give_up(err->message);
}

void begin_group(exchange *x, const char *name)
{
    printf(",\"%s\":{", name);
    x->has_item = false;
}

void end_group(exchange *x)
{
    printf("}");
    x->has_item = true;
}

void put_tensor(exchange *x, const char *name, const tdm_tensor *t)
{
    size_t count = (size_t)tdm_tensor_elements(t); /* both types have four bytes */
    printf("%s\"%s\":{\"at\":%zu,\"dtype\":\"%s\",\"shape\":[", x->has_item ? "," : "", name, x->at,
           tdm_dtype_name(t->dtype));
    for (int d = 0; d < t->shape.rank; d++)
        printf("%s%lld", d > 0 ? "," : "", (long long)t->shape.dim[d]);
    printf("]}");
    x->has_item = true;
    if (fwrite(t->data, 4, count, x->file) != count) give_up("cannot write the tensors");
    x->at += 4 * count;
}

/* ---- a graph, ready to run ------------------------------------------------------------------- */

float *lab_block(size_t float_count)
{
    size_t bytes = (float_count * sizeof(float) + 64) / 64 * 64;
    float *block = aligned_alloc(64, bytes);
    if (!block) give_up("no memory");
    return memset(block, 0, bytes);
}

lab lab_open(const tdm_graph *graph, const char *backend)
{
    tdm_error err = {0};
    lab l = {.graph = graph};
    require(tdm_plan_create(graph, &(tdm_plan_options){.backend = backend}, &l.plan, &err), &err);
    l.arena = lab_block(tdm_plan_arena_bytes(l.plan) / sizeof(float) + 1);
    l.params = lab_block(tdm_graph_param_extent(graph));
    l.grads = lab_block(tdm_graph_grad_extent(graph));
    tdm_plan_bind(l.plan, TDM_SPACE_ARENA, l.arena);
    tdm_plan_bind(l.plan, TDM_SPACE_PARAMS, l.params);
    tdm_plan_bind(l.plan, TDM_SPACE_GRADS, l.grads);
    return l;
}

void lab_close(lab *l)
{
    tdm_plan_destroy(l->plan);
    free(l->arena);
    free(l->params);
    free(l->grads);
}

void put_block(exchange *x, const char *group, const lab *l, float *block)
{
    begin_group(x, group);
    for (size_t i = 0; i < tdm_graph_param_count(l->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(l->graph, i);
        if (block == l->grads && !p->trained && !p->statistic) continue;
        tdm_tensor t = {.dtype = TDM_DTYPE_F32, .shape = p->shape, .data = block + p->offset};
        put_tensor(x, p->name, &t);
    }
    end_group(x);
}
