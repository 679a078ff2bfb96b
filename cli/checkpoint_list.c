/*
 * checkpoint_list.c: `tandem checkpoint ls` and `prune`: lists the checkpoints of a run with the reason
 * why each is kept, and removes the others.
 *
 * The retention rules come from the run's job.yaml if it can be read; otherwise the defaults apply. The
 * epoch is read from the header of a file; for compressed files only if they are read anyway.
 */
#include "checkpoint.h"
#include "table.h"

#include <tandem/job.h>
#include <tandem/os.h>

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    RUN_ARGUMENT = 1,
    WHY_BYTES = 64, /* for all reasons */
    LOOKS_MAX = 16  /* retries if all listed checkpoints are pruned by a running training */
};

/* ---- rules ------------------------------------------------------------------------------------ */

static tdm_checkpoint_retention rules_of(const char *run, tdm_arena *arena)
{
    tdm_checkpoint_retention rules = {.keep = 3};
    char *path = tdm_path_join(arena, run, "job.yaml");
    tdm_job_document *document = NULL;
    if (!path || !tdm_path_is_file(path)) return rules;
    if (tdm_job_load(path, NULL, &document, NULL) == TDM_OK) {
        const tdm_job *job = tdm_job_document_job(document);
        rules = (tdm_checkpoint_retention){.keep = job->checkpoint.keep,
                                           .keep_every = job->checkpoint.keep_every,
                                           .keep_best = job->checkpoint.keep_best,
                                           .by_accuracy = job->checkpoint.metric ==
                                                          TDM_JOB_METRIC_TEST_ACCURACY};
    }
    tdm_job_document_destroy(document);
    return rules;
}

static const char *why_text(unsigned kept, char out[WHY_BYTES])
{
    static const struct {
        unsigned bit;
        const char *word;
    } words[] = {{TDM_KEPT_NEWEST, "newest"},
                 {TDM_KEPT_EVERY, "every"},
                 {TDM_KEPT_BEST, "best"},
                 {TDM_KEPT_GOOD, "last good"}};
    int length = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (kept & words[i].bit)
            length += snprintf(out + length, WHY_BYTES - (size_t)length, "%s%s",
                               length > 0 ? ", " : "", words[i].word);
    return out;
}

/* ---- one file ----------------------------------------------------------------------------------- */

typedef struct file_info {
    bool has_epoch, verified, good;
    bool vanished; /* pruned by a running training after it was listed */
    uint64_t epoch;
    char numerics[TDM_NUMERICS_BYTES]; /* "": unknown */
    char why[256];                     /* why it is damaged */
} file_info;

static void read_header(const char *path, tdm_arena *arena, file_info *out)
{
    tdm_safetensors *file = NULL;
    if (tdm_safetensors_open(path, &file, NULL) != TDM_OK) {
        out->vanished = !tdm_path_exists(path);
        return;
    }
    const char *text = tdm_safetensors_metadata(file, "position");
    const tdm_json *position = NULL;
    if (text && tdm_json_parse(text, strlen(text), arena, &position, NULL) == TDM_OK)
        out->has_epoch = tdm_json_as_u64(tdm_json_get(position, "epoch"), &out->epoch);
    const char *numerics = tdm_safetensors_metadata(file, "numerics");
    if (numerics) snprintf(out->numerics, sizeof(out->numerics), "%s", numerics);
    tdm_safetensors_destroy(file);
}

static file_info read_file_info(const tdm_checkpoint_entry *entry, bool verify, tdm_arena *arena)
{
    file_info l = {.verified = verify};
    tdm_checkpoint *checkpoint = NULL;
    tdm_error err;
    if (!verify) {
        if (!entry->packed) read_header(entry->path, arena, &l);
        return l;
    }
    l.good = tdm_checkpoint_open(entry->path, &checkpoint, &err) == TDM_OK;
    l.has_epoch = l.good;
    if (l.good) {
        const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
        l.epoch = c->position.epoch;
        if (c->numerics) snprintf(l.numerics, sizeof(l.numerics), "%s", c->numerics);
    } else
        snprintf(l.why, sizeof(l.why), "%.250s", err.message);
    l.vanished = !l.good && !tdm_path_exists(entry->path);
    tdm_checkpoint_destroy(checkpoint);
    return l;
}

/* ---- ls ----------------------------------------------------------------------------------------- */

static void add_json(const tdm_checkpoint_entry *e, const file_info *l, tdm_str *out)
{
    char why[WHY_BYTES];
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "step", e->step);
    tdm_json_put_string(&w, "path", e->path);
    tdm_json_put_uint(&w, "bytes", e->bytes);
    tdm_json_put_bool(&w, "packed", e->packed);
    tdm_json_put_double(&w, "modified", e->modified_unix_s);
    if (l->has_epoch) tdm_json_put_uint(&w, "epoch", l->epoch);
    if (l->numerics[0]) tdm_json_put_string(&w, "numerics", l->numerics);
    tdm_json_put_double(&w, "test_loss", e->metrics.loss);
    tdm_json_put_double(&w, "test_accuracy", e->metrics.accuracy);
    tdm_json_put_string(&w, "kept", why_text(e->kept, why));
    if (l->verified) tdm_json_put_bool(&w, "good", l->good);
    if (l->verified && !l->good) tdm_json_put_string(&w, "error", l->why);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

static void add_row(const tdm_checkpoint_entry *e, const file_info *l, cli_table *table)
{
    char text[WHY_BYTES], when[32] = "?", epoch[32] = "", loss[32] = "", accuracy[32] = "";
    time_t seconds = (time_t)e->modified_unix_s;
    struct tm local;
    if (localtime_r(&seconds, &local)) strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &local);
    cli_table_cell(table, "%llu", (unsigned long long)e->step);
    if (l->has_epoch) snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)l->epoch);
    if (!isnan(e->metrics.loss)) snprintf(loss, sizeof(loss), "%.4f", e->metrics.loss);
    if (!isnan(e->metrics.accuracy))
        snprintf(accuracy, sizeof(accuracy), "%.2f %%", 100 * e->metrics.accuracy);
    cli_table_cell(table, "%s", epoch);
    cli_table_cell(table, "%s%s", tdm_text_bytes(e->bytes, (char[32]){0}),
                   e->packed ? " zstd" : "");
    cli_table_cell(table, "%s", when);
    cli_table_cell(table, "%s", loss);
    cli_table_cell(table, "%s", accuracy);
    cli_table_cell(table, "%s", e->kept ? why_text(e->kept, text) : "not kept");
    if (l->verified) cli_table_cell(table, "%s", l->good ? "good" : l->why);
}

typedef struct listing {
    bool json, verify, good;
    size_t count; /* rows */
    cli_table table;
    tdm_str lines; /* JSON */
} listing;

/* Adds the checkpoints of the directory, except those that are pruned before they can be read. *listed
 * counts these as well. */
static tdm_status list_directory(const char *directory, const tdm_checkpoint_retention *rules,
                                 tdm_arena *arena, listing *l, size_t *listed, tdm_error *err)
{
    tdm_checkpoint_entry *entries;
    TDM_TRY(tdm_checkpoint_list(directory, arena, &entries, listed, err));
    tdm_checkpoint_choose(entries, *listed, rules, UINT64_MAX);
    for (size_t i = 0; i < *listed; i++) {
        file_info seen = read_file_info(&entries[i], l->verify, arena);
        if (seen.vanished) continue;
        l->good = l->good && (!l->verify || seen.good);
        l->count++;
        if (l->json)
            add_json(&entries[i], &seen, &l->lines);
        else
            add_row(&entries[i], &seen, &l->table);
    }
    return TDM_OK;
}

int cli_checkpoint_list(const cli_args *args, tdm_arena *arena)
{
    static const cli_column columns[] = {{.title = "step", .right = true},
                                         {.title = "epoch", .right = true},
                                         {.title = "size", .right = true},
                                         {.title = "written"},
                                         {.title = "test loss", .right = true},
                                         {.title = "accuracy", .right = true},
                                         {.title = "kept as"},
                                         {.title = "sums", .max = 60}};
    const char *run = args->arguments[RUN_ARGUMENT];
    const char *directory = cli_checkpoint_dir(run, arena);
    if (!directory) return CLI_USAGE;
    tdm_checkpoint_retention rules = rules_of(run, arena);
    listing l = {.json = cli_json(args),
                 .verify = cli_has(args, "verify"),
                 .good = true,
                 .lines = TDM_STR_INIT};
    cli_table_init(&l.table, columns, l.verify ? 8 : 7);
    tdm_error err;
    tdm_status status = TDM_OK;
    size_t listed = 1; /* if all have vanished, there are newer ones */
    for (int i = 0; status == TDM_OK && listed > 0 && l.count == 0 && i < LOOKS_MAX; i++)
        status = list_directory(directory, &rules, arena, &l, &listed, &err);
    cli_table_print(&l.table, 0, &l.lines);
    if (status != TDM_OK) {
        tdm_str_release(&l.lines);
        return cli_fail(&err);
    }
    if (l.count == 0 && !l.json) tdm_str_addf(&l.lines, "%s contains no checkpoint\n", directory);
    int printed = cli_print(&l.lines);
    return l.good ? printed : CLI_FAILED;
}

/* ---- prune -------------------------------------------------------------------------------------- */

/* The step of the newest valid checkpoint; UINT64_MAX: there is none. */
static uint64_t newest_good(const tdm_checkpoint_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tdm_checkpoint *checkpoint = NULL;
        tdm_status status = tdm_checkpoint_open(entries[i].path, &checkpoint, NULL);
        tdm_checkpoint_destroy(checkpoint);
        if (status == TDM_OK) return entries[i].step;
    }
    return UINT64_MAX;
}

static bool read_rules(const cli_args *args, tdm_checkpoint_retention *rules)
{
    const int64_t max = INT64_C(1) << 53;
    return cli_int(args, "keep", 0, max, &rules->keep) &&
           cli_int(args, "keep-every", 0, max, &rules->keep_every) &&
           cli_int(args, "keep-best", 0, max, &rules->keep_best);
}

static void add_pruned(const tdm_checkpoint_entry *entries, size_t count, bool dry, bool json,
                       tdm_str *out)
{
    char bytes[32], why[WHY_BYTES];
    for (size_t i = 0; i < count; i++) {
        const tdm_checkpoint_entry *e = &entries[i];
        if (json) {
            tdm_json_writer w = tdm_json_writer_init(out, 0);
            tdm_json_object_begin(&w);
            tdm_json_put_uint(&w, "step", e->step);
            tdm_json_put_string(&w, "path", e->path);
            tdm_json_put_uint(&w, "bytes", e->bytes);
            tdm_json_put_bool(&w, "removed", e->kept == 0 && !dry);
            tdm_json_put_string(&w, "kept", why_text(e->kept, why));
            tdm_json_object_end(&w);
            tdm_str_add_char(out, '\n');
        } else if (e->kept == 0) {
            tdm_str_addf(out, "%s %s (%s)\n", dry ? "would remove" : "removed", e->path,
                         tdm_text_bytes(e->bytes, bytes));
        } else {
            tdm_str_addf(out, "%s %s (%s)\n", dry ? "would keep" : "kept", e->path,
                         why_text(e->kept, why));
        }
    }
}

int cli_checkpoint_prune(const cli_args *args, tdm_arena *arena)
{
    const char *run = args->arguments[RUN_ARGUMENT];
    const char *directory = cli_checkpoint_dir(run, arena);
    if (!directory) return CLI_USAGE;
    tdm_checkpoint_retention rules = rules_of(run, arena);
    if (!read_rules(args, &rules)) return CLI_USAGE;
    tdm_checkpoint_entry *entries;
    size_t count;
    tdm_error err;
    if (tdm_checkpoint_list(directory, arena, &entries, &count, &err) != TDM_OK)
        return cli_fail(&err);
    uint64_t good = newest_good(entries, count);
    if (count > 0 && good == UINT64_MAX) {
        cli_error(
            "checkpoint prune: none of the %zu checkpoints in %s is valid; nothing was removed",
            count, directory);
        return CLI_FAILED;
    }
    tdm_checkpoint_choose(entries, count, &rules, good);
    bool dry = cli_has(args, "dry-run");
    if (!dry && tdm_checkpoint_retain(directory, &rules, good, &err) != TDM_OK)
        return cli_fail(&err);
    tdm_str out = TDM_STR_INIT;
    add_pruned(entries, count, dry, cli_json(args), &out);
    return cli_print(&out);
}
