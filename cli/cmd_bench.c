/*
 * cmd_bench.c: `tandem bench step`: measures the time of a job's training step and of its ops, and
 * compares it with the limits of the machine; and the table of the command `tandem bench`.
 *
 * Ops of one kind and direction are one line, the slowest first; --all shows each op separately.
 * `tandem bench allreduce` is in other files: see bench.h.
 */
#include "bench.h"
#include "table.h"
#include "world.h"

#include <tandem/bench.h>

#include <stdlib.h>
#include <string.h>

/* One line of the table: the ops of one kind, or one op. */
typedef struct row {
    tdm_bench_op op; /* with the sums */
    int count;
} row;

static int slower_first(const void *left, const void *right)
{
    double a = ((const row *)left)->op.seconds, b = ((const row *)right)->op.seconds;
    return (a < b) - (a > b);
}

static bool same_kind(const tdm_bench_op *a, const tdm_bench_op *b)
{
    return a->backward == b->backward && strcmp(a->op, b->op) == 0 &&
           strcmp(a->kernel, b->kernel) == 0;
}

static size_t make_rows(const tdm_bench *bench, bool all, row *rows)
{
    size_t count = 0;
    for (size_t i = 0; i < bench->op_count; i++) {
        const tdm_bench_op *op = &bench->ops[i];
        size_t k = all ? count : 0;
        while (k < count && !same_kind(&rows[k].op, op)) k++;
        if (k == count) {
            rows[count++] = (row){.op = *op, .count = 1};
            continue;
        }
        rows[k].op.seconds += op->seconds;
        rows[k].op.bound_s += op->bound_s;
        rows[k].op.flops += op->flops;
        rows[k].op.bytes += op->bytes;
        rows[k].count++;
    }
    if (!all) qsort(rows, count, sizeof(*rows), slower_first);
    return count;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_rows(const tdm_bench *b, const row *rows, size_t count, bool all, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "op", .max = 60},
                                         {.title = "pass"},
                                         {.title = "kernel"},
                                         {.title = "times", .right = true},
                                         {.title = "ms", .right = true},
                                         {.title = "% of lane", .right = true},
                                         {.title = "GFLOP/s", .right = true},
                                         {.title = "GB/s", .right = true},
                                         {.title = "% of roofline", .right = true}};
    cli_table table;
    cli_table_init(&table, columns, 9);
    for (size_t i = 0; i < count; i++) {
        const tdm_bench_op *op = &rows[i].op;
        double s = op->seconds > 0 ? op->seconds : 1e-9;
        cli_table_cell(&table, "%s", all ? op->name : op->op);
        cli_table_cell(&table, "%s", op->backward ? "backward" : "forward");
        cli_table_cell(&table, "%s", op->kernel);
        cli_table_cell(&table, "%d", rows[i].count);
        cli_table_cell(&table, "%.3f", 1e3 * op->seconds);
        cli_table_cell(&table, "%.1f", 100 * op->seconds / b->lane_s);
        cli_table_cell(&table, "%.1f", (double)op->flops / s * 1e-9);
        cli_table_cell(&table, "%.1f", (double)op->bytes / s * 1e-9);
        cli_table_cell(&table, "%.0f", 100 * op->bound_s / s);
    }
    cli_table_print(&table, 0, out);
}

static double bound_of(const tdm_bench *b)
{
    return b->products_s + (double)b->update_bytes / b->peak_bytes;
}

static void add_text(const tdm_bench *b, const row *rows, size_t count, bool all, tdm_str *out)
{
    char a[32], c[32];
    tdm_str_addf(out, "model       %s parameters; %lld rows in %lld lane%s of %lld\n",
                 tdm_text_count(b->parameter_count, a), (long long)b->batch,
                 (long long)b->lane_count, b->lane_count == 1 ? "" : "s", (long long)b->lane_rows);
    tdm_str_addf(out, "workers     %d with %d thread%s each\n", b->rank_count, b->thread_count,
                 b->thread_count == 1 ? "" : "s");
    tdm_str_addf(out, "machine     %.1f GFLOP/s in a 1024^3 product, ", b->peak_flops * 1e-9);
    if (b->peak_bf16_flops > 0) tdm_str_addf(out, "%.1f in bf16, ", b->peak_bf16_flops * 1e-9);
    tdm_str_addf(out, "%.1f GB/s memory bandwidth\n", b->peak_bytes * 1e-9);
    tdm_str_addf(out,
                 "step        %.3f ms (median of %d; fastest %.3f), %.1f GFLOP/s, %.0f rows/s\n",
                 1e3 * b->step_s, b->step_count, 1e3 * b->min_step_s,
                 (double)b->flops / b->step_s * 1e-9, (double)b->batch / b->step_s);
    tdm_str_addf(out, "  update    %.3f ms for %s of memory traffic, %.1f GB/s\n",
                 1e3 * b->update_s, tdm_text_bytes(b->update_bytes, a),
                 (double)b->update_bytes / b->update_s * 1e-9);
    tdm_str_addf(out,
                 "products    %.3f ms for the step's matrix products alone: %.1f %% of the step\n",
                 1e3 * b->products_s, 100 * b->products_s / b->step_s);
    tdm_str_addf(out,
                 "bound       %.3f ms with the optimiser's memory traffic: %.1f %% of the step\n",
                 1e3 * bound_of(b), 100 * bound_of(b) / b->step_s);
    tdm_str_addf(out,
                 "start       %.3f s to the first step, which took %.3f s; at most %s resident\n\n",
                 b->start_s, b->first_step_s, tdm_text_bytes(b->peak_resident_bytes, c));
    add_rows(b, rows, count, all, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_row(tdm_json_writer *w, const row *r, bool all)
{
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "op", r->op.op);
    if (all) tdm_json_put_string(w, "name", r->op.name);
    tdm_json_put_bool(w, "backward", r->op.backward);
    tdm_json_put_string(w, "kernel", r->op.kernel);
    tdm_json_put_int(w, "count", r->count);
    tdm_json_put_double(w, "seconds", r->op.seconds);
    tdm_json_put_double(w, "bound_s", r->op.bound_s);
    tdm_json_put_uint(w, "flops", r->op.flops);
    tdm_json_put_uint(w, "bytes", r->op.bytes);
    tdm_json_object_end(w);
}

static void add_json(const tdm_bench *b, const row *rows, size_t count, bool all, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "workers", b->rank_count);
    tdm_json_put_int(&w, "threads", b->thread_count);
    tdm_json_put_int(&w, "batch", b->batch);
    tdm_json_put_int(&w, "lanes", b->lane_count);
    tdm_json_put_uint(&w, "parameters", b->parameter_count);
    tdm_json_put_uint(&w, "flops", b->flops);
    tdm_json_put_double(&w, "step_s", b->step_s);
    tdm_json_put_double(&w, "step_least_s", b->min_step_s);
    tdm_json_put_int(&w, "steps", b->step_count);
    tdm_json_put_double(&w, "update_s", b->update_s);
    tdm_json_put_uint(&w, "update_bytes", b->update_bytes);
    tdm_json_put_double(&w, "start_s", b->start_s);
    tdm_json_put_double(&w, "first_step_s", b->first_step_s);
    tdm_json_put_double(&w, "peak_flops", b->peak_flops);
    if (b->peak_bf16_flops > 0) tdm_json_put_double(&w, "peak_bf16_flops", b->peak_bf16_flops);
    tdm_json_put_double(&w, "peak_bytes", b->peak_bytes);
    tdm_json_put_double(&w, "products_s", b->products_s);
    tdm_json_put_double(&w, "bound_s", bound_of(b));
    tdm_json_put_double(&w, "lane_s", b->lane_s);
    tdm_json_put_uint(&w, "peak_resident_bytes", b->peak_resident_bytes);
    tdm_json_key(&w, "ops");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < count; i++) put_row(&w, &rows[i], all);
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- the command ----------------------------------------------------------------------------- */

static int print_bench(const cli_args *args, const tdm_bench *bench)
{
    bool all = cli_has(args, "all");
    row *rows = calloc(bench->op_count + 1, sizeof(*rows));
    if (!rows) {
        cli_error("bench: out of memory");
        return CLI_FAILED;
    }
    size_t count = make_rows(bench, all, rows);
    tdm_str out = TDM_STR_INIT;
    (cli_json(args) ? add_json : add_text)(bench, rows, count, all, &out);
    free(rows);
    return cli_print(&out);
}

/* Measures as a rank of `comm`, or alone. All ranks do the same; rank 0 prints. */
static int measure_step(const cli_args *args, const tdm_job *job, tdm_bench_options options)
{
    tdm_bench bench;
    tdm_error err = {0};
    if (tdm_bench_step(job, &options, &bench, &err) != TDM_OK)
        return world_fail(&err, options.comm);
    int code = CLI_OK;
    if (!options.comm || tdm_comm_rank(options.comm) == 0) code = print_bench(args, &bench);
    tdm_bench_release(&bench);
    return code;
}

static int measure_as_rank(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                           tdm_bench_options options)
{
    int code = world_join(job, place, &options.comm);
    if (code == CLI_OK) code = measure_step(args, job, options);
    tdm_comm_close(options.comm);
    return code;
}

static int bench_step(const cli_args *args)
{
    int64_t workers = 0;
    tdm_comm_place place;
    tdm_bench_options options = {.seconds = 2};
    if (!world_place(args, &place)) return CLI_USAGE;
    if (args->argument_count < 2) {
        cli_error("bench: JOB is missing; usage: tandem bench step JOB [options]");
        return CLI_USAGE;
    }
    if (!cli_int(args, "workers", 1, TDM_MAX_RANKS, &workers)) return CLI_USAGE;
    if (!cli_real(args, "seconds", 0.01, 3600, &options.seconds)) return CLI_USAGE;
    int code;
    tdm_job_document *document = cli_load_job(args, args->arguments[1], &code);
    if (!document) return code;
    const tdm_job *job = tdm_job_document_job(document);
    int count = world_count(args, job, &place, workers, 1);
    if (count < 1)
        code = CLI_USAGE;
    else if (count == 1)
        code = measure_step(args, job, options);
    else if (place.size > 0)
        code = measure_as_rank(args, job, &place, options);
    else
        code = world_launch(args, job, count);
    tdm_job_document_destroy(document);
    return code;
}

/* Options of only one of the two subcommands. */
static const char *const step_options[] = {"all", "set", NULL};
static const char *const allreduce_options[] = {"sizes", "transport", "shared", "algorithm",
                                                "dtype", "tune",      "file",   NULL};

static const struct {
    const char *name;
    int (*run)(const cli_args *args);
    const char *const *not_its; /* options of the other subcommand */
} measures[] = {{"step", bench_step, allreduce_options},
                {"allreduce", bench_allreduce, step_options}};
enum { MEASURES = sizeof(measures) / sizeof(measures[0]) };

static int bench_run(const cli_args *args)
{
    for (int i = 0; i < MEASURES; i++) {
        if (strcmp(args->arguments[0], measures[i].name) != 0) continue;
        for (const char *const *option = measures[i].not_its; *option; option++)
            if (cli_has(args, *option)) {
                cli_error("bench: '--%s' is not an option of 'tandem bench %s'", *option,
                          measures[i].name);
                return CLI_USAGE;
            }
        return measures[i].run(args);
    }
    cli_error("bench: unknown subcommand '%s'; use 'step' or 'allreduce'", args->arguments[0]);
    return CLI_USAGE;
}

static const char *const usage[] = {"tandem bench step JOB [options]",
                                    "tandem bench allreduce [options]", NULL};
static const char *const subcommands[] = {"step", "allreduce", NULL};
static const char *const examples[] = {"tandem bench step job.yaml",
                                       "the time of each kind of op, and the limits of the machine",
                                       "tandem bench step job.yaml --set compute.threads=2",
                                       "the same with two threads",
                                       "tandem bench step job.yaml --all --json",
                                       "every op, as JSON",
                                       "tandem bench allreduce -n 2 --sizes 1K,1M,64M",
                                       "the speed of all-reduce with two ranks on this host",
                                       "tandem bench allreduce -n 4 --tune",
                                       "find and store the fastest algorithms for four ranks",
                                       NULL};

const cli_command cli_bench = {
    .name = "bench",
    .summary = "Measure a training step or an all-reduce against the machine's limits",
    .usage = usage,
    .help =
        "step: trains for some seconds, in memory only, and prints the time of a step; the time of "
        "each kind of op in a lane; and the limits of the machine: the rate of a large matrix product "
        "and of a pass over memory, and the time of the step's matrix products alone. The last column "
        "is the time that these rates allow for an op, divided by the measured time: an op with a low "
        "value and a high '% of lane' can be improved. An op whose numbers are in a cache can be "
        "faster than memory allows and exceed 100 %. The line 'bound' counts the optimiser's traffic "
        "as memory traffic, so it is not a bound for small models, which stay in the caches. With -n, "
        "or under 'tandem run', mpirun or srun, the ranks step together and then measure their ops at "
        "the same time; the line 'machine' is the total of all ranks, the ops are those of rank 0, "
        "and 'update' includes the time in which it waits for other ranks.\n\n"
        "allreduce: ranks add buffers of each size, in place, and check the sum. Within a world "
        "(under 'tandem run', mpirun or srun) this process is one of its ranks; otherwise it starts "
        "ranks on this host. 'time' is the median over several calls of the slowest rank's time, "
        "'GB/s' the size divided by it, and 'CPU' the CPU time of a call, over all ranks. 'bound' is "
        "the limit of the memory of this host: as many threads as ranks, each of which adds its share "
        "of the same bytes and copies the rest. Buffers in shared memory (--shared) are not copied "
        "and can be faster. With --tune, every applicable algorithm is measured at every size, for "
        "all-reduce and related collectives; the fastest ones are stored in a file, which every world "
        "uses whose rank 0 finds it there (or in TANDEM_TUNE).\n\n"
        "Nothing else is written. Other load on the machine affects the measurement.",
    .examples = examples,
    .subcommands = subcommands,
    .min_arguments = 1,
    .max_arguments = 2,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help =
              "step: the number of workers. Default: 1. allreduce: the number of ranks to start. "
              "Default: one per CPU."},
         {.name = "seconds",
          .value = "S",
          .help =
              "The duration of each measurement in seconds. Default: 2 for a step, 1 for a size, "
              "0.1 with --tune."},
         {.name = "all", .help = "step: print one line for each op, in order."},
         CLI_OPTION_SET,
         {.name = "sizes",
          .value = "LIST",
          .help = "allreduce: sizes in bytes, with K, M or G for thousands, millions and "
                  "billions. Default: 1K,32K,1M,8M,64M."},
         {.name = "transport",
          .value = "NAME",
          .help =
              "allreduce: shm, tcp, ucx, mpi, or shm+tcp, shm+ucx, shm+mpi. Default: chosen by the "
              "hosts of the ranks."},
         {.name = "shared",
          .help = "allreduce: use buffers in memory that the ranks of a host share."},
         {.name = "algorithm",
          .value = "NAME",
          .help = "allreduce: direct, ring, doubling, tree, hierarchy or window. Default: "
                  "auto, by size and hosts."},
         {.name = "dtype",
          .value = "TYPE",
          .help = "allreduce: f32, f64, f16, bf16, i32 or i64. Default: f32."},
         {.name = "tune", .help = "allreduce: measure all algorithms and store the fastest."},
         {.name = "file",
          .value = "FILE",
          .help = "allreduce: the file of --tune. Default: tandem/tune.json in the cache directory "
                  "(XDG_CACHE_HOME, or ~/.cache)."},
         CLI_OPTION_JSON},
    .run = bench_run,
};
