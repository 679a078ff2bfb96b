/*
 * train_summary.c: what `tandem train` prints at the end, for people and for programs.
 */
#include "table.h"
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_SHOWN = 16 };

/* ---- the ranks -------------------------------------------------------------------------------- */

void train_ranks_copy(const tdm_train_status *status, train_ranks *out)
{
    size_t count = (size_t)status->rank_count;
    if (!status->ranks || count < 2) return;
    train_ranks_release(out);
    out->items = calloc(count, sizeof(*out->items));
    if (!out->items) return; /* the summary omits them */
    memcpy(out->items, status->ranks, count * sizeof(*out->items));
    out->count = (int)count;
}

void train_ranks_release(train_ranks *ranks)
{
    free(ranks->items);
    *ranks = (train_ranks){0};
}

static void add_rank_table(const train_ranks *ranks, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "rank", .right = true},
                                         {.title = "host", .max = 24},
                                         {.title = "lanes", .right = true},
                                         {.title = "samples/s", .right = true},
                                         {.title = "waiting", .right = true}};
    cli_table table;
    cli_table_init(&table, columns, sizeof(columns) / sizeof(columns[0]));
    for (int i = 0; i < ranks->count; i++) {
        const tdm_train_rank *r = &ranks->items[i];
        cli_table_cell(&table, "%d", i);
        cli_table_cell(&table, "%s", r->host_name);
        cli_table_cell(&table, "%lld", (long long)r->lanes);
        cli_table_cell(&table, "%.0f", r->samples_per_s);
        cli_table_cell(&table, "%.0f %%", 100 * r->wait_share);
    }
    cli_table_print(&table, 2, out);
}

static void range_widen(double value, double *min, double *max)
{
    if (value < *min) *min = value;
    if (value > *max) *max = value;
}

/* For many ranks, prints ranges instead of a table. */
static void add_rank_range(const train_ranks *ranks, tdm_str *out)
{
    tdm_train_rank min = ranks->items[0], max = min;
    int hosts = 0;
    for (int i = 0; i < ranks->count; i++) {
        const tdm_train_rank *r = &ranks->items[i];
        if (r->host >= hosts) hosts = r->host + 1;
        if (r->lanes < min.lanes) min.lanes = r->lanes;
        if (r->lanes > max.lanes) max.lanes = r->lanes;
        range_widen(r->samples_per_s, &min.samples_per_s, &max.samples_per_s);
        range_widen(r->wait_share, &min.wait_share, &max.wait_share);
    }
    tdm_str_addf(out,
                 "ranks          %d on %d host%s, each with %lld to %lld lanes, %.0f to %.0f "
                 "samples/s, %.0f to %.0f %% waiting time\n",
                 ranks->count, hosts, hosts == 1 ? "" : "s", (long long)min.lanes,
                 (long long)max.lanes, min.samples_per_s, max.samples_per_s, 100 * min.wait_share,
                 100 * max.wait_share);
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static void put_ranks(tdm_json_writer *w, const train_ranks *ranks)
{
    tdm_json_key(w, "ranks");
    tdm_json_array_begin(w);
    for (int i = 0; i < ranks->count; i++) {
        const tdm_train_rank *r = &ranks->items[i];
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "host", r->host_name);
        tdm_json_put_int(w, "lanes", r->lanes);
        tdm_json_put_double(w, "samples_per_s", r->samples_per_s);
        tdm_json_put_double(w, "lane_share", r->lane_share);
        tdm_json_put_double(w, "update_share", r->update_share);
        tdm_json_put_double(w, "wait_share", r->wait_share);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

void train_summary_json(const tdm_train_result *r, const train_ranks *ranks, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "run", r->run_path);
    tdm_json_put_string(&w, "checkpoint", r->checkpoint_path);
    tdm_json_put_string(&w, "hash", r->state_hash);
    tdm_json_put_bool(&w, "interrupted", r->interrupted);
    tdm_json_put_bool(&w, "ended_early", r->ended_early);
    tdm_json_put_uint(&w, "steps", r->steps);
    tdm_json_put_uint(&w, "samples", r->samples);
    tdm_json_put_uint(&w, "skipped", r->skipped);
    tdm_json_put_double(&w, "seconds", r->seconds);
    tdm_json_put_double(&w, "start_seconds", r->start_seconds);
    if (!r->nothing_to_do) tdm_json_put_double(&w, "loss", r->loss);
    if (r->has_test) {
        tdm_json_put_double(&w, "test_loss", r->test.loss);
        tdm_json_put_double(&w, "test_accuracy", r->test.accuracy);
        if (r->test.has_auc) tdm_json_put_double(&w, "test_auc", r->test.auc);
        tdm_json_put_int(&w, "test_samples", r->test.sample_count);
    }
    if (ranks->count > 0) put_ranks(&w, ranks);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- text ------------------------------------------------------------------------------------- */

/* Adds a word of a command line, quoted for a shell if needed. */
static void add_shell_word(tdm_str *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./=,:+@%";
    tdm_str_add_char(out, ' ');
    if (*word && strspn(word, plain) == strlen(word)) {
        tdm_str_add(out, word);
        return;
    }
    tdm_str_add_char(out, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            tdm_str_add(out, "'\\''");
        else
            tdm_str_add_char(out, *word);
    }
    tdm_str_add_char(out, '\'');
}

/* The same command with its overrides, without which the job would be another one. */
void train_way_on(const cli_args *args, const char *run_path, tdm_str *out)
{
    tdm_str_add(out, "to resume      tandem train");
    if (args->argument_count > 0) add_shell_word(out, args->arguments[0]);
    tdm_str_add(out, " --resume");
    add_shell_word(out, cli_short_path(run_path));
    for (int i = 0; i < args->set_count; i++) {
        tdm_str_add(out, " --set");
        add_shell_word(out, args->sets[i]);
    }
    if (cli_has(args, "workers")) tdm_str_addf(out, " -n %s", cli_value(args, "workers"));
    tdm_str_add_char(out, '\n');
}

/* For a text, every token of a window is a prediction and counts separately. */
static void add_test(const tdm_train_result *r, tdm_str *out)
{
    tdm_str_addf(out, "test accuracy  %.2f %% of ", 100 * r->test.accuracy);
    if (r->test.target_count > r->test.sample_count)
        tdm_str_addf(out, "%lld tokens in %lld windows", (long long)r->test.target_count,
                     (long long)r->test.sample_count);
    else
        tdm_str_addf(out, "%lld samples", (long long)r->test.sample_count);
    tdm_str_addf(out, " (loss %.4f)%s\n", r->test.loss,
                 r->interrupted ? ", at the last evaluation" : "");
}

void train_summary_text(const cli_args *args, const tdm_train_result *r, const train_ranks *ranks,
                        tdm_str *out)
{
    char time_text[32], samples[32];
    const char *length_key = r->ends_by_steps ? "train.steps" : "train.epochs";
    if (r->nothing_to_do && r->ended_early) {
        tdm_str_addf(out,
                     "nothing to do: early stopping ended the run at step %llu; to train further, "
                     "increase train.early_stop.patience\n",
                     (unsigned long long)r->steps);
    } else if (r->nothing_to_do && r->steps > r->step_count) {
        tdm_str_addf(out,
                     "nothing to do: the run is at step %llu, after its last step %llu; to train "
                     "further, increase %s\n",
                     (unsigned long long)r->steps, (unsigned long long)r->step_count, length_key);
    } else if (r->nothing_to_do) {
        tdm_str_addf(out,
                     "nothing to do: the run is at its last step, %llu; to train further, increase "
                     "%s\n",
                     (unsigned long long)r->steps, length_key);
    } else {
        const char *how = r->interrupted   ? "stopped"
                          : r->ended_early ? "stopped early, without improvement,"
                                           : "done";
        tdm_str_addf(out, "%s at step %llu: %s samples in %s", how, (unsigned long long)r->steps,
                     tdm_text_count(r->samples, samples), tdm_text_duration(r->seconds, time_text));
        if (r->samples > 0 && !isnan(r->loss)) tdm_str_addf(out, ", loss %.4f", r->loss);
        tdm_str_add_char(out, '\n');
    }
    if (r->skipped > 0)
        tdm_str_addf(out, "skipped        %llu step%s with NaN or infinity; see log.jsonl\n",
                     (unsigned long long)r->skipped, r->skipped == 1 ? "" : "s");
    if (r->has_test) add_test(r, out);
    tdm_str_addf(out, "checkpoint     %s\nstate hash     %s\n", cli_short_path(r->checkpoint_path),
                 r->state_hash);
    if (ranks->count > RANKS_SHOWN) add_rank_range(ranks, out);
    if (r->interrupted) train_way_on(args, r->run_path, out);
    if (ranks->count > 0 && ranks->count <= RANKS_SHOWN) add_rank_table(ranks, out);
}
