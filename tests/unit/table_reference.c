/*
 * table_reference.c: see table_reference.h.
 */
#include "unit/table_reference.h"
#include "tensor/kernel.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <tandem/optim.h>

reference *reference_create(const tdm_table_options *options)
{
    reference *map = calloc(1, sizeof(*map));
    map->options = *options;
    map->rows = calloc(REFERENCE_SLOTS, sizeof(*map->rows));
    return map;
}

void reference_destroy(reference *map)
{
    free(map->rows);
    free(map);
}

static reference_row *slot_of(const reference *map, uint64_t key)
{
    size_t slot = (size_t)(key * UINT64_C(0xd6e8feb86659fd93) >> 40) & (REFERENCE_SLOTS - 1);
    while (map->rows[slot].is_used && map->rows[slot].key != key)
        slot = (slot + 1) & (REFERENCE_SLOTS - 1);
    return &map->rows[slot];
}

reference_row *reference_find(const reference *map, uint64_t key)
{
    reference_row *row = slot_of(map, key);
    return row->is_used ? row : NULL;
}

static void initial_values(const tdm_table_options *o, uint64_t key, float *out)
{
    tdm_rng_address address = {.seed = o->seed,
                               .stream = TDM_RNG_STREAM_TABLE,
                               .sub_stream = o->number,
                               .step = key >> 48,
                               .sample = key & 0xffffffffffff};
    for (int64_t i = 0; i < o->width; i++) out[i] = 0;
    if (o->init == TDM_TABLE_INIT_UNIFORM)
        tdm_kernel_uniform(address, o->init_scale, 0, out, (size_t)o->width);
    if (o->init == TDM_TABLE_INIT_NORMAL)
        tdm_kernel_normal(address, o->init_scale, 0, out, (size_t)o->width);
}

static void row_begin(const tdm_table_options *o, reference_row *row, double lr)
{
    row->has_row = true;
    initial_values(o, row->key, row->numbers);
    if (o->optim != TDM_TABLE_OPTIM_FTRL) return;
    for (int64_t i = 0; i < o->width; i++) {
        double w = (double)row->numbers[i];
        double z = -w * (o->beta / lr + o->l2) - (w > 0 ? o->l1 : -o->l1);
        row->numbers[o->width + i] = w == 0 ? 0 : (float)z;
    }
}

static void ftrl_update(const tdm_table_options *o, double lr, reference_row *row,
                        const float *grad)
{
    for (int64_t i = 0; i < o->width; i++) {
        float *w = row->numbers + i, *z = w + o->width, *n = z + o->width;
        float next = *n + grad[i] * grad[i];
        float sigma = (sqrtf(next) - sqrtf(*n)) / (float)lr;
        *z += grad[i] - sigma * *w;
        *n = next;
        float sign = *z < 0 ? -1.0f : 1.0f;
        float divisor = ((float)o->beta + sqrtf(*n)) / (float)lr + (float)o->l2;
        *w = fabsf(*z) <= (float)o->l1 ? 0.0f : -(*z - sign * (float)o->l1) / divisor;
    }
}

static void row_update(const tdm_table_options *o, const tdm_table_step *step, reference_row *row,
                       const float *grad)
{
    row->updates++;
    row->last_step = step->step;
    if (o->optim == TDM_TABLE_OPTIM_FTRL) {
        ftrl_update(o, step->lr, row, grad);
        return;
    }
    static const int kinds[] = {[TDM_TABLE_OPTIM_SGD] = TDM_JOB_OPTIM_SGD,
                                [TDM_TABLE_OPTIM_ADAGRAD] = TDM_JOB_OPTIM_ADAGRAD,
                                [TDM_TABLE_OPTIM_ADAM] = TDM_JOB_OPTIM_ADAM};
    tdm_optim_settings settings = {.lr = step->lr,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .weight_decay = o->weight_decay};
    tdm_optim_range range = {.count = (size_t)o->width, .grad = grad, .param = row->numbers};
    for (int k = 0; k < 2; k++) range.state[k] = row->numbers + (k + 1) * o->width;
    tdm_optim_find(kinds[o->optim])->update(&settings, row->updates, &range);
}

void reference_push(reference *map, const tdm_table_step *step, const uint64_t *keys,
                    const float *grads, int64_t count)
{
    const tdm_table_options *o = &map->options;
    tdm_kernel_mode before = tdm_kernel_enter(1);
    for (int64_t i = 0; i < count; i++) {
        bool is_first = true;
        for (int64_t k = 0; k < i; k++) is_first = is_first && keys[k] != keys[i];
        if (!is_first) continue;
        float sum[REFERENCE_MAX_WIDTH];
        uint32_t occurrences = 0;
        for (int64_t k = i; k < count; k++) {
            if (keys[k] != keys[i]) continue;
            for (int64_t j = 0; j < o->width; j++) {
                float grad = grads[k * o->width + j];
                sum[j] = occurrences == 0 ? grad : sum[j] + grad;
            }
            occurrences++;
        }
        reference_row *row = slot_of(map, keys[i]);
        if (!row->is_used) {
            assert(++map->used < REFERENCE_SLOTS / 2);
            *row = (reference_row){.is_used = true, .key = keys[i]};
        }
        row->occurrences += occurrences;
        if (!row->has_row && row->occurrences >= o->admission) row_begin(o, row, step->lr);
        if (row->has_row) row_update(o, step, row, sum);
    }
    tdm_kernel_leave(&before);
}

void reference_pull(const reference *map, uint64_t key, float *out)
{
    const reference_row *row = reference_find(map, key);
    if (!row || !row->has_row)
        initial_values(&map->options, key, out);
    else
        memcpy(out, row->numbers, (size_t)map->options.width * sizeof(*out));
}

void reference_evict(reference *map, const tdm_table_evict_rule *rule)
{
    for (size_t i = 0; i < REFERENCE_SLOTS; i++) {
        reference_row *row = &map->rows[i];
        if (!row->is_used) continue;
        bool is_rare = rule->below_updates == 0 || row->updates < rule->below_updates;
        bool is_old = rule->before_step == 0 || row->last_step < rule->before_step;
        bool has_rule = rule->below_updates > 0 || rule->before_step > 0;
        bool is_removed = row->has_row ? has_rule && is_rare && is_old : rule->drop_pending;
        if (is_removed) *row = (reference_row){.is_used = true, .key = row->key};
    }
}
