/*
 * lanes_bench.c: see lanes_bench.h.
 */
#include "kernel/lanes_bench.h"

void lanes_bench_add(lanes_bench *b, tdm_graph *graph, int64_t first_row)
{
    int i = b->count;
    b->graphs[i] = graph;
    b->first_rows[i] = first_row;
    if (graph && bench_open(&b->lanes[i], graph, NULL))
        b->count++;
    else
        tdm_graph_destroy(graph);
}

void lanes_bench_close(lanes_bench *b)
{
    for (int i = 0; i < b->count; i++) {
        bench_close(&b->lanes[i]);
        tdm_graph_destroy(b->graphs[i]);
    }
    *b = (lanes_bench){0};
}

/* Runs from step *at to the end of the next sum, which goes to *io; false: to the end of the plan. */
static bool lanes_bench_next(lanes_bench *b, int lane, size_t *at, tdm_tensor *io)
{
    tdm_plan *plan = b->lanes[lane].plan;
    size_t begin = *at, end = begin;
    bool is_sum = false;
    while (end < tdm_plan_step_count(plan) && !is_sum)
        is_sum = tdm_plan_lane_sum_at(plan, end++, io);
    tdm_step_key key = {.seed = 7, .step = 3, .first_row = (uint64_t)b->first_rows[lane]};
    tdm_plan_run_part(plan, &key, begin, end);
    *at = end;
    return is_sum;
}

/* One number of all lanes: the tree over lanes [first, first + count). */
static float lanes_bench_tree(const float *const numbers[], int64_t i, int first, int count)
{
    if (count == 1) return numbers[first][i];
    int left = 1;
    while (2 * left < count) left *= 2;
    return lanes_bench_tree(numbers, i, first, left) +
           lanes_bench_tree(numbers, i, first + left, count - left);
}

void lanes_bench_run(lanes_bench *b)
{
    size_t at[MAX_LANES] = {0};
    bool go_on = b->count > 0;
    for (b->sums = 0; go_on; b->sums += go_on) {
        tdm_tensor io[MAX_LANES] = {0};
        const float *numbers[MAX_LANES];
        for (int i = 0; i < b->count; i++) {
            bool is_sum = lanes_bench_next(b, i, &at[i], &io[i]);
            CHECK(i == 0 || is_sum == go_on); /* all of them, or none */
            go_on = is_sum;
            numbers[i] = io[i].data;
        }
        for (int64_t k = 0; go_on && k < tdm_tensor_elements(&io[0]); k++) {
            float sum = lanes_bench_tree(numbers, k, 0, b->count);
            for (int i = 0; i < b->count; i++) ((float *)io[i].data)[k] = sum;
        }
    }
}

double lanes_bench_grad(const lanes_bench *b, size_t index)
{
    double sum = 0;
    for (int i = 0; i < b->count; i++) sum += (double)b->lanes[i].grads[index];
    return sum;
}

double lanes_bench_loss(const lanes_bench *b)
{
    double sum = 0;
    for (int i = 0; i < b->count; i++)
        sum += (double)*(const float *)tdm_plan_output(b->lanes[i].plan, "loss").data;
    return sum;
}
