/*
 * job_round_trip_cases.c: random valid jobs must be read back unchanged from their text.
 *
 * The table of keys defines the values of each field; texts consist of pieces that are difficult to write and
 * read as YAML. Then the fields are adjusted to the rules that relate keys to each other.
 */
#include <math.h>

#include "base/base.h"
#include "job/internal.h"
#include "unit/job_cases.h"

/* ---- random jobs ----------------------------------------------------------------------------- */

/* Text with characters that break writers: quotes, colons, line ends, control characters, unusual Unicode. */
static const char *random_text(tdm_rng *rng, tdm_arena *arena, const char *prefix)
{
    static const char *const pieces[] = {
        "a",
        "Z9",
        "yes",
        "null",
        "~",
        "0",
        "1.5",
        " ",
        ": ",
        " #",
        "#",
        "- ",
        "\"",
        "'",
        "\\",
        "\n",
        "\r",
        "\t",
        "\x01",
        "\x7f",
        "\xc2\x85",
        "[",
        "{",
        "&a",
        "*",
        "!",
        "|",
        ">",
        "%",
        "@",
        "`",
        "\xe2\x80\xa8",
        "true",
        "\xef\xbb\xbf",
        ",",
        "é",
        "日本",
        "---\n",
        "\xef\xbf\xbe",
        "\xf0\x9f\x98\x80",
    };
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, prefix);
    size_t count = 1 + tdm_rng_below(rng, 6);
    for (size_t i = 0; i < count; i++)
        tdm_str_add(&text, pieces[tdm_rng_below(rng, sizeof(pieces) / sizeof(pieces[0]))]);
    const char *copy = tdm_arena_strdup(arena, tdm_str_text(&text));
    tdm_str_release(&text);
    return copy;
}

static int64_t random_int(tdm_rng *rng, const tdm_job_key *key)
{
    if (key->word && tdm_rng_below(rng, 3) == 0) return key->word_value;
    if (key->form == TDM_JOB_FORM_POWER_OF_TWO) return (int64_t)1 << tdm_rng_below(rng, 17);
    /* small ones as often as large ones */
    uint64_t any = tdm_rng_u64(rng) >> tdm_rng_below(rng, 64);
    return (int64_t)key->min + (int64_t)(any % (uint64_t)(key->max - key->min + 1));
}

static double random_real(tdm_rng *rng, const tdm_job_key *key)
{
    double value = (double)(tdm_rng_u64(rng) >> 11) / 9007199254740992.0; /* [0, 1) */
    if (tdm_rng_below(rng, 4) == 0 && !key->min_open) return key->min;
    if (isinf(key->max)) value = ldexp(value + 0.5, (int)tdm_rng_below(rng, 1800) - 900);
    return value < key->min ? value + key->min : value;
}

static tdm_job_int_list random_list(tdm_rng *rng, tdm_arena *arena, const tdm_job_key *key)
{
    size_t count = tdm_rng_below(rng, key->max_count + 1);
    int64_t *values = tdm_arena_array(arena, count + 1, sizeof(*values));
    for (size_t i = 0; i < count; i++) values[i] = random_int(rng, key);
    return (tdm_job_int_list){.values = values, .count = count};
}

/* In order of name, as every job has them. */
static tdm_job_option_list random_options(tdm_rng *rng, tdm_arena *arena)
{
    size_t count = tdm_rng_below(rng, 4);
    tdm_job_option *items = tdm_arena_array(arena, count + 1, sizeof(*items));
    for (size_t i = 0; i < count; i++)
        items[i] = (tdm_job_option){tdm_arena_printf(arena, "%zu-n", i),
                                    random_text(rng, arena, "")};
    return (tdm_job_option_list){.items = items, .count = count};
}

static void random_field(tdm_rng *rng, tdm_arena *arena, const tdm_job_key *key, void *base);

/* `count` structs of a mapping. */
static void *random_maps(tdm_rng *rng, tdm_arena *arena, const tdm_job_key *key, size_t count)
{
    char *items = tdm_arena_array(arena, count + 1, key->struct_bytes);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < key->field_count; k++)
            random_field(rng, arena, &key->fields[k], items + i * key->struct_bytes);
    return items;
}

/* Layers within layers, at most `depth` deep; each alone is valid. */
static tdm_job_layer_list random_layers(tdm_rng *rng, tdm_arena *arena, int depth)
{
    size_t count = 1 + tdm_rng_below(rng, 4);
    tdm_job_layer *items = tdm_arena_array(arena, count, sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        tdm_job_layer *layer = &items[i];
        layer->kind = (int)tdm_rng_below(rng, TDM_JOB_LAYER_KIND_COUNT);
        bool has_layers = layer->kind == TDM_JOB_LAYER_RESIDUAL ||
                          layer->kind == TDM_JOB_LAYER_REPEAT;
        if (layer->kind == TDM_JOB_LAYER_EMBEDDING || (has_layers && depth == 0))
            layer->kind = TDM_JOB_LAYER_RELU;
        const tdm_job_key *key = &tdm__layer_keys[layer->kind];
        for (size_t k = 0; k < key->field_count; k++)
            if (key->fields[k].type != TDM_JOB_KEY_LAYERS)
                random_field(rng, arena, &key->fields[k], layer);
        layer->kernel |= 1;
        layer->padding = layer->kind == TDM_JOB_LAYER_CONV || layer->kind == TDM_JOB_LAYER_CONV1D
                             ? layer->padding
                             : layer->padding % (layer->kernel / 2 + 1);
        if (layer->groups > 0 && layer->size % layer->groups != 0) layer->groups = 1;
        if (has_layers && depth > 0) layer->layers = random_layers(rng, arena, depth - 1);
        if (layer->times > 2) layer->times = 2;
    }
    return (tdm_job_layer_list){.items = items, .count = count};
}

static void random_field(tdm_rng *rng, tdm_arena *arena, const tdm_job_key *key, void *base)
{
    void *field = (char *)base + key->offset;
    char choice[32];
    size_t count = 0;
    switch (key->type) {
    case TDM_JOB_KEY_STRING:
        if (key->form == TDM_JOB_FORM_SHA256) {
            static const char digits[] = "0123456789abcdef0123456789abcdef"
                                         "0123456789abcdef0123456789abcdef";
            *(const char **)field = digits;
        } else if (key->form == TDM_JOB_FORM_NAME) {
            *(const char **)field = tdm_arena_printf(arena, "n%u._-", tdm_rng_u32(rng));
        } else if (key->form == TDM_JOB_FORM_CHARACTER) {
            char c = (char)(' ' + (char)tdm_rng_below(rng, 95));
            *(const char **)field = c == 't' ? "tab" : tdm_arena_strndup(arena, &c, 1);
        } else {
            *(const char **)field = random_text(rng, arena, "");
        }
        break;
    case TDM_JOB_KEY_PATH:
        if (key->required || tdm_rng_below(rng, 2) == 0)
            *(const char **)field = random_text(rng, arena, "/");
        break;
    case TDM_JOB_KEY_DIR: *(const char **)field = random_text(rng, arena, "/"); break;
    case TDM_JOB_KEY_INT: *(int64_t *)field = random_int(rng, key); break;
    case TDM_JOB_KEY_REAL:
        *(double *)field = random_real(rng, key);
        if (!key->fallback && !key->required && tdm_rng_below(rng, 2) == 0) *(double *)field = NAN;
        break;
    case TDM_JOB_KEY_BOOL: *(bool *)field = tdm_rng_below(rng, 2) == 0; break;
    case TDM_JOB_KEY_CHOICE:
        while (tdm__choice_at(key->choices, count, choice)) count++;
        *(int *)field = (int)tdm_rng_below(rng, count);
        break;
    case TDM_JOB_KEY_INT_LIST: *(tdm_job_int_list *)field = random_list(rng, arena, key); break;
    case TDM_JOB_KEY_MAP: {
        void *item = tdm_rng_below(rng, 2) == 0 ? random_maps(rng, arena, key, 1) : NULL;
        memcpy(field, &item, sizeof(item));
        break;
    }
    case TDM_JOB_KEY_MAP_LIST: {
        tdm__map_list list = {.count = tdm_rng_below(rng, 3)};
        list.items = random_maps(rng, arena, key, list.count);
        memcpy(field, &list, sizeof(list));
        break;
    }
    case TDM_JOB_KEY_OPTIONS: *(tdm_job_option_list *)field = random_options(rng, arena); break;
    case TDM_JOB_KEY_LAYERS: *(tdm_job_layer_list *)field = random_layers(rng, arena, 4); break;
    }
}

/* Applies the rules for the optimiser and its schedule. */
static void random_schedule(tdm_rng *rng, tdm_arena *arena, tdm_job *job)
{
    int64_t *rising = tdm_arena_array(arena, 65, sizeof(*rising));
    size_t count = 1 + tdm_rng_below(rng, 64);
    for (size_t i = 0; i < count; i++)
        rising[i] = (i > 0 ? rising[i - 1] : 0) + 1 + (int64_t)tdm_rng_below(rng, 1000);
    job->schedule.milestones = (tdm_job_int_list){.values = rising, .count = count};
    if (job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU) job->schedule.gamma = 0.5;
    if (!job->data.test) job->data.test_fraction = 0.25;
    if (job->eval.every_epochs == 0) job->eval.every_epochs = 3;
    job->optim.centred = job->optim.centred && job->optim.kind == TDM_JOB_OPTIM_RMSPROP;
    if (job->eval.weights == TDM_JOB_WEIGHTS_EMA && job->sync.kind != TDM_JOB_SYNC_LOCAL &&
        job->sync.kind != TDM_JOB_SYNC_GOSSIP)
        job->optim.ema = 0.75;
    job->optim.nesterov = job->optim.nesterov && job->optim.kind == TDM_JOB_OPTIM_SGD &&
                          job->optim.momentum > 0;
}

/* Applies the rules for replicas. */
static void random_replicas(tdm_job *job)
{
    bool async = job->sync.kind == TDM_JOB_SYNC_SERVER && job->sync.mode != TDM_JOB_SERVER_SYNC;
    if (async && job->sync.order == TDM_JOB_ORDER_LIVE) {
        job->checkpoint.ledger = false;
        job->parallel.balance = TDM_JOB_BALANCE_OFF;
        job->compress.sparsify = TDM_JOB_SPARSIFY_NONE;
        job->compress.quantise = TDM_JOB_QUANTISE_NONE;
    }
    bool gossip = job->sync.kind == TDM_JOB_SYNC_GOSSIP;
    if (gossip) {
        job->compress.sparsify = TDM_JOB_SPARSIFY_NONE;
        job->compress.quantise = TDM_JOB_QUANTISE_NONE;
    }
    bool compresses = job->compress.sparsify != TDM_JOB_SPARSIFY_NONE ||
                      job->compress.quantise != TDM_JOB_QUANTISE_NONE;
    if (compresses || async || gossip) job->compress.automatic = false;
    if (compresses || async || gossip || job->compress.automatic) job->compress.rank = 0;
    if (job->compress.automatic) job->compress.feedback = compresses = true;
    if (job->compress.rank > 0) job->compress.feedback = compresses = true;
    bool local = job->sync.kind == TDM_JOB_SYNC_LOCAL || gossip;
    if (job->compress.sparsify == TDM_JOB_SPARSIFY_NONE) job->compress.momentum = 0;
    if (job->compress.momentum > 0) {
        job->compress.feedback = true;
        if (job->optim.kind == TDM_JOB_OPTIM_SGD) job->optim.momentum = 0;
    }
    if (job->sync.order != TDM_JOB_ORDER_RECORDED) job->sync.order_from = NULL;
    if (job->sync.order == TDM_JOB_ORDER_RECORDED && !job->sync.order_from)
        job->sync.order = TDM_JOB_ORDER_VIRTUAL;
    if (!async || job->sync.mode != TDM_JOB_SERVER_STALE) job->sync.staleness = 4;
    if (compresses || job->sync.adapt_lr > 0 || job->sync.replicas > 0)
        job->sync.adapt_divergence = 0;
    if (job->sync.max_period < job->sync.period) job->sync.max_period = job->sync.period;
    if (!async && !compresses && !local) return;
    job->parallel.zero %= gossip ? 1 : 2;
    job->parallel.reduce = TDM_JOB_REDUCE_TREE;
    job->parallel.sync_batchnorm = false;
    job->parallel.offload = NULL;
    if (job->sync.replicas > 1) job->sync.replicas = 1;
    if (gossip) job->sync.replicas = 0; /* the number of lanes */
    if (local) job->optim.ema = 0;
    if (local && job->eval.weights == TDM_JOB_WEIGHTS_EMA) job->eval.weights = TDM_JOB_WEIGHTS_RAW;
    if (!async) return;
    job->sync.speeds = (tdm_job_int_list){0};
    job->train.bad_numbers = TDM_JOB_BAD_NUMBERS_STOP;
    if (job->optim.kind == TDM_JOB_OPTIM_LAMB) job->optim.kind = TDM_JOB_OPTIM_ADAM;
}

/* Applies the rules for models of sparse samples. */
static void random_sparse(tdm_job *job)
{
    int kind = job->model.kind;
    if (kind != TDM_JOB_MODEL_LR && kind != TDM_JOB_MODEL_FM && kind != TDM_JOB_MODEL_WIDE_DEEP &&
        kind != TDM_JOB_MODEL_DLRM)
        return;
    job->data.format = TDM_JOB_FORMAT_CRITEO;
    job->data.shape = (tdm_job_int_list){0};
    job->data.normalise = TDM_JOB_NORMALISE_NONE;
    job->model.init_from = NULL;
    job->parallel.offload = NULL;
    job->optim.ema = 0;
    if (job->eval.weights == TDM_JOB_WEIGHTS_EMA) job->eval.weights = TDM_JOB_WEIGHTS_RAW;
    job->sync.kind = TDM_JOB_SYNC_ALL_REDUCE;
    job->sync.staleness = 4;
    job->compress.sparsify = TDM_JOB_SPARSIFY_NONE;
    job->compress.quantise = TDM_JOB_QUANTISE_NONE;
    job->compress.automatic = false;
    job->compress.rank = 0;
    job->compress.momentum = 0;
}

static tdm_job random_job(tdm_rng *rng, tdm_arena *arena)
{
    tdm_job job = {0};
    for (size_t i = 0; i < tdm_job_key_count(); i++)
        random_field(rng, arena, tdm_job_key_at(i), &job);
    random_replicas(&job);
    random_schedule(rng, arena, &job);
    if (tdm_rng_below(rng, 2) == 0) {
        job.train.steps = 0;
    } else {
        job.train.epochs = 0;
    }
    if (job.data.test) job.data.test_fraction = 0;
    job.data.format = TDM_JOB_FORMAT_AUTO;
    random_sparse(&job);
    if (!job.data.test || !job.data.train_labels) job.data.test_labels = NULL;
    if (job.data.train_labels && job.data.test && !job.data.test_labels)
        job.data.test_labels = "/labels";
    if (job.model.kind == TDM_JOB_MODEL_GPT) {
        job.model.width = job.model.heads * (1 + job.model.width % 64);
        job.data.train_labels = job.data.test_labels = NULL;
    } else {
        job.model.preset = TDM_JOB_PRESET_NONE;
    }
    if (job.model.kind == TDM_JOB_MODEL_LIBRARY) {
        if (!job.model.library) job.model.library = "/model.so";
    } else {
        job.model.library = job.model.library_sha256 = NULL;
        job.model.options = (tdm_job_option_list){0};
    }
    if (job.model.kind != TDM_JOB_MODEL_LAYERS) job.layers = (tdm_job_layer_list){0};
    if (job.train.batch < job.parallel.lanes) job.train.batch = job.parallel.lanes;
    return job;
}

/* ---- round trips ----------------------------------------------------------------------------- */

static bool is_same_field(const tdm_job_key *key, const void *a, const void *b);

static bool is_same_map(const tdm_job_key *key, const void *a, const void *b)
{
    if (!a || !b) return a == b;
    for (size_t i = 0; i < key->field_count; i++)
        if (!is_same_field(&key->fields[i], a, b)) return false;
    return true;
}

static bool is_same_options(const tdm_job_option_list *a, const tdm_job_option_list *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (!check_text_equal(a->items[i].name, b->items[i].name) ||
            !check_text_equal(a->items[i].value, b->items[i].value))
            return false;
    return true;
}

static bool is_same_field(const tdm_job_key *key, const void *a, const void *b)
{
    const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
    const tdm_job_int_list *p = (const void *)x, *q = (const void *)y;
    tdm__map_list maps[2];
    const void *items[2];
    switch (key->type) {
    case TDM_JOB_KEY_STRING:
    case TDM_JOB_KEY_PATH:
    case TDM_JOB_KEY_DIR: return check_text_equal(*(const char *const *)x, *(const char *const *)y);
    case TDM_JOB_KEY_INT: return *(const int64_t *)x == *(const int64_t *)y;
    case TDM_JOB_KEY_REAL:
        if (isnan(*(const double *)x)) return isnan(*(const double *)y);
        return memcmp(x, y, sizeof(double)) == 0;
    case TDM_JOB_KEY_BOOL: return *(const bool *)x == *(const bool *)y;
    case TDM_JOB_KEY_CHOICE: return *(const int *)x == *(const int *)y;
    case TDM_JOB_KEY_INT_LIST:
        return p->count == q->count &&
               (p->count == 0 || memcmp(p->values, q->values, p->count * sizeof(int64_t)) == 0);
    case TDM_JOB_KEY_MAP:
        memcpy(&items[0], x, sizeof(items[0]));
        memcpy(&items[1], y, sizeof(items[1]));
        return is_same_map(key, items[0], items[1]);
    case TDM_JOB_KEY_MAP_LIST:
        memcpy(&maps[0], x, sizeof(maps[0]));
        memcpy(&maps[1], y, sizeof(maps[1]));
        if (maps[0].count != maps[1].count) return false;
        for (size_t i = 0; i < maps[0].count; i++)
            if (!is_same_map(key, (const char *)maps[0].items + i * key->struct_bytes,
                             (const char *)maps[1].items + i * key->struct_bytes))
                return false;
        return true;
    case TDM_JOB_KEY_OPTIONS: return is_same_options((const void *)x, (const void *)y);
    case TDM_JOB_KEY_LAYERS: return is_same_list((const void *)x, (const void *)y);
    }
    return false;
}

bool is_same_list(const tdm_job_layer_list *a, const tdm_job_layer_list *b)
{
    if (a->count != b->count || !a->items != !b->items) return false;
    for (size_t i = 0; i < a->count; i++) {
        const tdm_job_layer *x = &a->items[i], *y = &b->items[i];
        if (x->kind != y->kind || !is_same_map(&tdm__layer_keys[x->kind], x, y)) return false;
    }
    return true;
}

void check_round_trip(const tdm_job *job, const char *text, bool is_yaml)
{
    tdm_job_document *document = parse_good(text, NULL);
    if (!document) return;
    const tdm_job *back = tdm_job_document_job(document);
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        const tdm_job_key *key = tdm_job_key_at(i);
        bool is_same = is_same_field(key, job, back);
        CHECK(is_same);
        if (!is_same) fprintf(stderr, "  %s differs in\n%s\n", key->path, text);
    }
    if (is_yaml) check_shows(back, text);
    tdm_job_document_destroy(document);
}

/* A value as shown can be given by --set as well. */
static void check_as_override(const tdm_job *job)
{
    const tdm_job_key *key = tdm_job_key_at(tdm__key_find("data.label"));
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, "data.label=");
    tdm__value_show(key, job, &text);
    tdm_job_document *document = parse_good(SMALLEST,
                                            set_list(tdm_str_text(&text), NULL, NULL, NULL));
    if (document) CHECK_TEXT(tdm_job_document_job(document)->data.label, job->data.label);
    tdm_job_document_destroy(document);
    tdm_str_release(&text);
}

static void test_round_trip_of_random_jobs(void)
{
    int json_count = 0;
    for (uint64_t i = 0; i < 500; i++) {
        tdm_rng rng = tdm_rng_at(
            (tdm_rng_address){.seed = 42, .stream = TDM_RNG_STREAM_USER, .sample = i});
        tdm_arena *arena = tdm_arena_create("random job");
        tdm_job job = random_job(&rng, arena);
        tdm_str yaml = TDM_STR_INIT, json = TDM_STR_INIT;
        tdm_job_show(&job, &yaml);
        tdm_job_show_json(&job, &json);
        check_round_trip(&job, tdm_str_text(&yaml), true);
        check_as_override(&job);
        /* A job file may also be JSON; characters that JSON need not escape and YAML must are tested in the
         * YAML form only. */
        if (tdm__utf8_check(json.data, json.length) == json.length &&
            !strstr(json.data, "\xc2\x85") && !strstr(json.data, "\xe2\x80\xa8")) {
            check_round_trip(&job, tdm_str_text(&json), false);
            json_count++;
        }
        tdm_str_release(&yaml);
        tdm_str_release(&json);
        tdm_arena_destroy(arena);
    }
    CHECK(json_count > 3);
}

static const check_test job_round_trip_tests[] = {
    CHECK_TEST(test_round_trip_of_random_jobs),
};
CHECK_SUITE(job_round_trip, job_round_trip_tests);
