/*
 * bench_allreduce.c: `tandem bench allreduce`: measures all-reduces, and finds the fastest algorithms.
 *
 * Within a world (under `tandem run`, mpirun or srun) this process is one of its ranks. Otherwise it
 * starts ranks of the same command. Rank 0 prints.
 */
#include "bench.h"
#include "table.h"
#include "world.h"

#include <tandem/cluster.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ----------------------------------------------------------------------------------- */

static const char DEFAULT_SIZES[] = "1K,32K,1M,8M,64M";
static const char TUNE_SIZES[] = "256,1K,4K,16K,64K,256K,1M,4M,16M,64M";

/* Parses a size such as "64M", in decimal units, and sets *end to its end; 0 if it is not a size. */
static size_t parse_size(const char *text, const char **end)
{
    char *after;
    if (*text < '0' || *text > '9') return 0;
    unsigned long long value = strtoull(text, &after, 10);
    size_t unit = 1;
    if (*after && strchr("KMG", *after)) {
        unit = *after == 'K' ? 1000 : *after == 'M' ? 1000 * 1000 : 1000 * 1000 * 1000;
        after++;
    }
    *end = after;
    return value > (SIZE_MAX >> 8) / unit ? 0 : (size_t)value * unit;
}

static bool parse_sizes(const char *text, bench_plan *plan)
{
    const char *at = text;
    while (plan->size_count < MAX_BENCH_SIZES) {
        size_t bytes = parse_size(at, &at);
        if (bytes == 0) break;
        plan->bytes[plan->size_count++] = bytes;
        if (*at == 0) return true;
        if (*at++ != ',') break;
    }
    cli_error("bench: '--sizes' expects up to %d sizes in bytes, such as 1K,64K,1M,64M, not '%s'",
              MAX_BENCH_SIZES, text);
    return false;
}

static bool parse_dtype(const char *name, tdm_dtype *out)
{
    static const tdm_dtype types[] = {TDM_DTYPE_F32,  TDM_DTYPE_F64, TDM_DTYPE_F16,
                                      TDM_DTYPE_BF16, TDM_DTYPE_I32, TDM_DTYPE_I64};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(tdm_dtype_name(types[i]), name) == 0) {
            *out = types[i];
            return true;
        }
    cli_error("bench: '--dtype' expects f32, f64, f16, bf16, i32 or i64, not '%s'", name);
    return false;
}

static bool parse_plan(const cli_args *args, bench_plan *plan)
{
    bool tune = cli_has(args, "tune");
    const char *sizes = cli_value(args, "sizes"), *dtype = cli_value(args, "dtype");
    const char *algorithm = cli_value(args, "algorithm");
    *plan = (bench_plan){
        .shared = cli_has(args, "shared"), .dtype = TDM_DTYPE_F32, .seconds = tune ? 0.1 : 1};
    if (!parse_sizes(sizes ? sizes : tune ? TUNE_SIZES : DEFAULT_SIZES, plan)) return false;
    if (dtype && !parse_dtype(dtype, &plan->dtype)) return false;
    if (!cli_transport(args, &plan->transport)) return false;
    if (!cli_real(args, "seconds", 0.001, 3600, &plan->seconds)) return false;
    tdm_error err;
    if (algorithm && tdm_algorithm_find(algorithm, &plan->algorithm, &err) != TDM_OK) {
        cli_error("bench: '--algorithm': %s", err.message);
        return false;
    }
    if (algorithm && tune) {
        cli_error("bench: '--tune' measures all algorithms; remove '--algorithm'");
        return false;
    }
    if (cli_has(args, "file") && !tune) {
        cli_error("bench: '--file' requires '--tune'");
        return false;
    }
    return true;
}

/* ---- starting ranks ---------------------------------------------------------------------------- */

static int launch_ranks(const cli_args *args, int count, tdm_arena *arena)
{
    const char *const *program = arena ? world_words(args, arena) : NULL;
    if (!program) return CLI_FAILED;
    const tdm_launch_options options = {
        .program = program, .count = count, .transport = cli_value(args, "transport")};
    tdm_launch_result result;
    tdm_error err = {0};
    if (tdm_launch(&options, &result, &err) != TDM_OK) return cli_fail(&err);
    if (result.interrupted) return CLI_INTERRUPTED;
    if (result.failed_rank < 0) return CLI_OK;
    cli_error("bench: %s", result.how);
    return result.exit_code == CLI_USAGE ? CLI_USAGE : CLI_FAILED;
}

static int start_ranks(const cli_args *args, int64_t count)
{
    tdm_arena *arena = tdm_arena_create("command");
    int code = launch_ranks(args, (int)count, arena);
    tdm_arena_destroy(arena);
    return code;
}

/* ---- output ------------------------------------------------------------------------------------ */

static double rate(const bench_row *row)
{
    return (double)row->bytes / row->seconds * 1e-9;
}

static void add_time(cli_table *table, double seconds)
{
    if (seconds < 1e-3)
        cli_table_cell(table, "%.2f us", 1e6 * seconds);
    else
        cli_table_cell(table, "%.3f ms", 1e3 * seconds);
}

static void add_text(const bench_plan *plan, const bench_result *r, bool tune, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "size", .right = true},
                                         {.title = "call"},
                                         {.title = "algorithm"},
                                         {.title = "time", .right = true},
                                         {.title = "fastest", .right = true},
                                         {.title = "GB/s", .right = true},
                                         {.title = "bound", .right = true},
                                         {.title = "% of bound", .right = true},
                                         {.title = "CPU", .right = true},
                                         {.title = ""}};
    tdm_str_addf(out, "%d rank%s over %s, %s, %s buffers\n\n", r->size, r->size == 1 ? "" : "s",
                 r->transport, tdm_dtype_name(plan->dtype), plan->shared ? "shared" : "private");
    cli_table table;
    cli_table_init(&table, columns, 10);
    for (int i = 0; i < r->row_count; i++) {
        const bench_row *row = &r->rows[i];
        char size[32];
        cli_table_cell(&table, "%s", tdm_text_bytes(row->bytes, size));
        cli_table_cell(&table, "%s", tdm_call_kind_name(row->kind));
        cli_table_cell(&table, "%s", tdm_algorithm_name(row->algorithm));
        add_time(&table, row->seconds);
        add_time(&table, row->min_seconds);
        cli_table_cell(&table, "%.3f", rate(row));
        if (row->bound_s > 0) {
            add_time(&table, row->bound_s);
            cli_table_cell(&table, "%.0f", 100 * row->bound_s / row->seconds);
        } else {
            cli_table_cell(&table, "-");
            cli_table_cell(&table, "-");
        }
        add_time(&table, row->cpu_s);
        cli_table_cell(&table, "%s", tune && row->chosen ? "chosen" : "");
    }
    cli_table_print(&table, 0, out);
    if (!tune && r->size > 1)
        tdm_str_addf(out, "\nwaiting for a late rank uses %.3f CPUs, over all ranks\n",
                     r->waiting_cpu);
}

static void add_json(const bench_plan *plan, const bench_result *r, bool tune, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "ranks", r->size);
    tdm_json_put_string(&w, "transport", r->transport);
    tdm_json_put_bool(&w, "one_host", r->one_host);
    tdm_json_put_string(&w, "dtype", tdm_dtype_name(plan->dtype));
    tdm_json_put_bool(&w, "shared", plan->shared);
    if (!tune) tdm_json_put_double(&w, "waiting_cpu", r->waiting_cpu);
    tdm_json_key(&w, "rows");
    tdm_json_array_begin(&w);
    for (int i = 0; i < r->row_count; i++) {
        const bench_row *row = &r->rows[i];
        tdm_json_object_begin(&w);
        tdm_json_put_uint(&w, "bytes", row->bytes);
        tdm_json_put_string(&w, "kind", tdm_call_kind_name(row->kind));
        tdm_json_put_string(&w, "algorithm", tdm_algorithm_name(row->algorithm));
        tdm_json_put_double(&w, "seconds", row->seconds);
        tdm_json_put_double(&w, "least_seconds", row->min_seconds);
        tdm_json_put_double(&w, "cpu_s", row->cpu_s);
        if (row->bound_s > 0) tdm_json_put_double(&w, "bound_s", row->bound_s);
        if (tune) tdm_json_put_bool(&w, "chosen", row->chosen);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- tuning ------------------------------------------------------------------------------------ */

/* Makes one row for each change of the fastest algorithm, in order of size; the first row applies from
 * zero bytes. A new algorithm must be faster by 5 %; smaller differences are noise. */
static int make_choices(const bench_result *r, tdm_tune_row *out)
{
    int count = 0;
    for (int i = 0; i < r->row_count; i++) {
        const bench_row *row = &r->rows[i];
        if (!row->chosen) continue;
        tdm_tune_row *last = count > 0 && out[count - 1].kind == row->kind ? &out[count - 1] : NULL;
        if (last && last->algorithm == row->algorithm) continue;
        bool clearly = true;
        for (int k = 0; last && k < r->row_count; k++) {
            const bench_row *other = &r->rows[k];
            if (other->kind == row->kind && other->bytes == row->bytes &&
                other->algorithm == last->algorithm)
                clearly = row->seconds < 0.95 * other->seconds;
        }
        if (!clearly) continue;
        out[count++] = (tdm_tune_row){.kind = row->kind,
                                      .one_host = r->one_host,
                                      .size = r->size,
                                      .bytes = last ? row->bytes : 0,
                                      .algorithm = row->algorithm};
    }
    return count;
}

static int store_choices(const cli_args *args, const bench_result *r, tdm_str *words)
{
    tdm_tune_row rows[MAX_BENCH_ROWS];
    int count = make_choices(r, rows);
    char usual[PATH_MAX];
    const char *path = cli_value(args, "file");
    if (!path && tdm_tune_path(usual, sizeof(usual))) path = usual;
    if (!path) {
        cli_error(
            "bench: no cache directory for the result (neither XDG_CACHE_HOME nor HOME is set); give "
            "a file with '--file'");
        return CLI_FAILED;
    }
    tdm_error err = {0};
    if (tdm_tune_write(path, rows, count, &err) != TDM_OK) return cli_fail(&err);
    tdm_str_addf(words, "\nchosen for %d ranks on %s:\n", r->size,
                 r->one_host ? "one host" : "several hosts");
    for (int i = 0; i < count; i++) {
        char size[32];
        tdm_str_addf(words, "  %-15s from %-8s %s\n", tdm_call_kind_name(rows[i].kind),
                     tdm_text_bytes(rows[i].bytes, size), tdm_algorithm_name(rows[i].algorithm));
    }
    tdm_str_addf(words, "written to %s\n", path);
    return CLI_OK;
}

/* ---- the command ------------------------------------------------------------------------------- */

static int run_rank(const cli_args *args, const bench_plan *plan)
{
    bool tune = cli_has(args, "tune");
    bench_result *result = calloc(1, sizeof(*result));
    tdm_error err = {0};
    if (!result) {
        cli_error("bench: out of memory");
        return CLI_FAILED;
    }
    int code = CLI_OK;
    if (bench_measure(plan, tune, result, &err) != TDM_OK) {
        /* An error of all ranks is printed once. */
        bool said = err.status == TDM_ERR_UNSUPPORTED && result->rank > 0;
        code = said ? CLI_FAILED : cli_fail(&err);
    } else if (result->rank == 0) {
        tdm_str out = TDM_STR_INIT, words = TDM_STR_INIT;
        if (tune) code = store_choices(args, result, &words);
        (cli_json(args) ? add_json : add_text)(plan, result, tune, &out);
        if (!cli_json(args)) tdm_str_add_bytes(&out, tdm_str_text(&words), words.length);
        tdm_str_release(&words);
        int printed = cli_print(&out);
        if (code == CLI_OK) code = printed;
    }
    free(result);
    return code;
}

int bench_allreduce(const cli_args *args)
{
    bench_plan plan;
    int64_t ranks = 0;
    if (args->argument_count > 1) {
        cli_error("bench: unexpected argument '%s' of 'allreduce'", args->arguments[1]);
        return CLI_USAGE;
    }
    if (!parse_plan(args, &plan) || !cli_int(args, "workers", 1, 1024, &ranks)) return CLI_USAGE;
    tdm_comm_place place;
    tdm_error err = {0};
    tdm_status status = tdm_comm_environment(&place, &err);
    if (status == TDM_ERR_NOT_FOUND) return start_ranks(args, ranks);
    if (status != TDM_OK) return cli_fail(&err);
    if (ranks != 0 && ranks != place.size) {
        cli_error(
            "bench: -n %d conflicts with the launcher: this process is rank %d of %d, started "
            "by %s; remove -n",
            (int)ranks, place.rank, place.size, place.launcher);
        return CLI_USAGE;
    }
    return run_rank(args, &plan);
}
