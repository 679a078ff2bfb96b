/*
 * cmd_inspect.c: `tandem inspect`: shows the model of a job, a run, a checkpoint or any safetensors
 * file. The path and the first bytes of the file determine the kind. inspect_job.c handles jobs, this
 * file the others.
 */
#include "inspect.h"
#include "model.h"
#include "table.h"

#include <tandem/os.h>

#include <string.h>
#include <sys/stat.h>

enum { NAME_MAX_COLUMNS = 72, METADATA_MAX_COLUMNS = 200 };

/* A safetensors file, which may be a checkpoint, which may be the newest of a run. */
typedef struct file_view {
    tdm_arena *arena;
    const char *run;  /* NULL: not from a run */
    const char *path; /* of the file */
    uint64_t file_bytes;
    tdm_safetensors *file;
    tdm_checkpoint *checkpoint; /* NULL: not a checkpoint of Tandem */
    tdm_position position;      /* zeros without a checkpoint */
    tdm_model_code code;
    char hash[TDM_SHA256_HEX];
    const char *const *names; /* of the files in the run's checkpoints */
    size_t name_count;
} file_view;

static uint64_t bytes_of_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > 0 ? (uint64_t)info.st_size : 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static tdm_status list_checkpoints(file_view *v, tdm_error *err)
{
    char *dir = tdm_path_join(v->arena, v->run, "checkpoints");
    if (!dir) return tdm_fail(err, TDM_ERR_NO_MEMORY, "inspect: out of memory");
    return tdm_dir_list(dir, v->arena, &v->names, &v->name_count, err);
}

static void close_files(file_view *v)
{
    tdm_checkpoint_destroy(v->checkpoint);
    tdm_safetensors_destroy(v->file);
    v->checkpoint = NULL;
    v->file = NULL;
}

static tdm_status view_open(const char *path, void *user, tdm_error *err)
{
    file_view *v = user;
    close_files(v); /* a retry after a file was pruned */
    v->path = tdm_arena_strdup(v->arena, path);
    if (!v->path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "inspect: out of memory");
    v->file_bytes = bytes_of_file(path);
    TDM_TRY(tdm_safetensors_open(path, &v->file, err));
    return cli_is_checkpoint(v->file) ? tdm_checkpoint_open(path, &v->checkpoint, err) : TDM_OK;
}

static tdm_status view_read(file_view *v, const char *path, tdm_error *err)
{
    v->arena = tdm_arena_create("command");
    if (!v->arena) return tdm_fail(err, TDM_ERR_NO_MEMORY, "inspect: out of memory");
    TDM_TRY(tdm_run_read(path, v->arena, view_open, v, err));
    if (v->checkpoint) /* fails for a job that this version does not support */
        (void)tdm_model_code_of(v->checkpoint, v->path, v->arena, &v->code, NULL);
    if (tdm_path_is_dir(path)) {
        v->run = path;
        TDM_TRY(list_checkpoints(v, err));
    }
    if (v->checkpoint) v->position = tdm_checkpoint_content_of(v->checkpoint)->position;
    size_t count = tdm_safetensors_count(v->file);
    return tdm_state_hash(&v->position, count > 0 ? tdm_safetensors_at(v->file, 0) : NULL, count,
                          v->hash, err);
}

static void view_release(file_view *v)
{
    close_files(v);
    tdm_arena_destroy(v->arena);
}

static char *checkpoint_file(const file_view *v, const char *name)
{
    return tdm_arena_printf(v->arena, "%s/checkpoints/%s", v->run, name);
}

static void count_numbers(const file_view *v, uint64_t *numbers, uint64_t *bytes)
{
    *numbers = *bytes = 0;
    for (size_t i = 0; i < tdm_safetensors_count(v->file); i++) {
        const tdm_tensor *t = &tdm_safetensors_at(v->file, i)->tensor;
        *numbers += (uint64_t)tdm_tensor_elements(t);
        *bytes += tdm_tensor_bytes(t);
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_checkpoint(const file_view *v, tdm_str *out)
{
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(v->checkpoint);
    const tdm_position *p = &v->position;
    char step[32], epoch[32], at[32], samples[32], shape[128];
    tdm_str_addf(out, "position    step %s, epoch %s at %s, %s samples trained, seed %llu\n",
                 tdm_text_count(p->step, step), tdm_text_count(p->epoch, epoch),
                 tdm_text_count(p->position, at), tdm_text_count(p->samples, samples),
                 (unsigned long long)p->seed);
    tdm_str_addf(out, "model       samples of shape %s, %lld classes\n",
                 tdm_shape_text(&c->sample_shape, shape), (long long)c->class_count);
    tdm_str_addf(out, "job hash    %s\n", c->job_hash);
    if (c->data_hash) tdm_str_addf(out, "data hash   %s\n", c->data_hash);
    tdm_str_addf(out, "numerics    %s\n", c->numerics ? c->numerics : "before version 1");
    if (v->code.library)
        tdm_str_addf(out, "code        the model is the shared object %s, SHA-256 %s\n",
                     v->code.library, v->code.sha256 ? v->code.sha256 : "unknown");
}

static void add_tensors(const file_view *v, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "tensor", .max = NAME_MAX_COLUMNS},
                                         {.title = "dtype"},
                                         {.title = "shape"},
                                         {.title = "bytes", .right = true}};
    cli_table table;
    char shape[128], bytes[32];
    cli_table_init(&table, columns, 4);
    for (size_t i = 0; i < tdm_safetensors_count(v->file); i++) {
        const tdm_named_tensor *t = tdm_safetensors_at(v->file, i);
        cli_table_cell(&table, "%s", t->name);
        cli_table_cell(&table, "%s", tdm_dtype_name(t->tensor.dtype));
        cli_table_cell(&table, "%s", tdm_shape_text(&t->tensor.shape, shape));
        cli_table_cell(&table, "%s", tdm_text_bytes(tdm_tensor_bytes(&t->tensor), bytes));
    }
    tdm_str_add_char(out, '\n');
    cli_table_print(&table, 0, out);
}

static void add_metadata(const file_view *v, tdm_str *out)
{
    size_t count = tdm_safetensors_metadata_count(v->file);
    if (count == 0) return;
    static const cli_column columns[] = {{.title = "metadata", .max = NAME_MAX_COLUMNS},
                                         {.title = "text", .max = METADATA_MAX_COLUMNS}};
    cli_table table;
    cli_table_init(&table, columns, 2);
    for (size_t i = 0; i < count; i++) {
        const tdm_named_text *m = tdm_safetensors_metadata_at(v->file, i);
        cli_table_cell(&table, "%s", m->name);
        cli_table_cell(&table, "%s", m->text);
    }
    tdm_str_add_char(out, '\n');
    cli_table_print(&table, 0, out);
}

static void add_list(const file_view *v, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "checkpoints"},
                                         {.title = "bytes", .right = true}};
    cli_table table;
    char bytes[32];
    cli_table_init(&table, columns, 2);
    for (size_t i = v->name_count; i-- > 0;) { /* newest first */
        char *path = checkpoint_file(v, v->names[i]);
        if (!path || !ends_with(path, ".safetensors")) continue;
        cli_table_cell(&table, "%s", v->names[i]);
        cli_table_cell(&table, "%s", tdm_text_bytes(bytes_of_file(path), bytes));
    }
    tdm_str_add_char(out, '\n');
    cli_table_print(&table, 0, out);
}

static void add_text(const file_view *v, tdm_str *out)
{
    char count[32], bytes[32];
    uint64_t numbers, tensor_bytes;
    count_numbers(v, &numbers, &tensor_bytes);
    if (v->run) tdm_str_addf(out, "run         %s\n", v->run);
    tdm_str_addf(out, "%s%s\n", v->checkpoint ? "checkpoint  " : "file        ", v->path);
    if (v->checkpoint) add_checkpoint(v, out);
    tdm_str_addf(out, "state hash  %s\n", v->hash);
    tdm_str_addf(out, "tensors     %zu with %s numbers, ", tdm_safetensors_count(v->file),
                 tdm_text_count(numbers, count));
    tdm_str_addf(out, "%s; ", tdm_text_bytes(tensor_bytes, bytes));
    tdm_str_addf(out, "file size %s\n", tdm_text_bytes(v->file_bytes, bytes));
    add_tensors(v, out);
    /* The metadata of a checkpoint are printed above, except its job: see `tandem job show`. */
    if (!v->checkpoint) add_metadata(v, out);
    if (v->run) add_list(v, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_position(tdm_json_writer *w, const file_view *v)
{
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(v->checkpoint);
    tdm_json_key(w, "position");
    tdm_json_object_begin(w);
    tdm_json_put_uint(w, "step", v->position.step);
    tdm_json_put_uint(w, "epoch", v->position.epoch);
    tdm_json_put_uint(w, "position", v->position.position);
    tdm_json_put_uint(w, "samples", v->position.samples);
    tdm_json_put_uint(w, "seed", v->position.seed);
    tdm_json_object_end(w);
    tdm_json_put_string(w, "job_hash", c->job_hash);
    tdm_json_put_string(w, "data_hash", c->data_hash);
    tdm_json_put_string(w, "numerics", c->numerics);
    if (v->code.library) {
        tdm_json_put_string(w, "library", v->code.library);
        tdm_json_put_string(w, "library_sha256", v->code.sha256);
    }
}

static void put_tensors(tdm_json_writer *w, const file_view *v)
{
    tdm_json_key(w, "tensors");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < tdm_safetensors_count(v->file); i++) {
        const tdm_named_tensor *t = tdm_safetensors_at(v->file, i);
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "name", t->name);
        tdm_json_put_string(w, "dtype", tdm_dtype_name(t->tensor.dtype));
        tdm_json_key(w, "shape");
        tdm_json_array_begin(w);
        for (int d = 0; d < t->tensor.shape.rank; d++) tdm_json_int(w, t->tensor.shape.dim[d]);
        tdm_json_array_end(w);
        tdm_json_put_uint(w, "bytes", tdm_tensor_bytes(&t->tensor));
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_metadata(tdm_json_writer *w, const file_view *v)
{
    tdm_json_key(w, "metadata");
    tdm_json_object_begin(w);
    for (size_t i = 0; i < tdm_safetensors_metadata_count(v->file); i++) {
        const tdm_named_text *m = tdm_safetensors_metadata_at(v->file, i);
        tdm_json_put_string(w, m->name, m->text);
    }
    tdm_json_object_end(w);
}

static void put_list(tdm_json_writer *w, const file_view *v)
{
    tdm_json_key(w, "checkpoints");
    tdm_json_array_begin(w);
    for (size_t i = v->name_count; i-- > 0;) {
        char *path = checkpoint_file(v, v->names[i]);
        if (!path || !ends_with(path, ".safetensors")) continue;
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "path", path);
        tdm_json_put_uint(w, "bytes", bytes_of_file(path));
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void add_json(const file_view *v, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "kind", v->run ? "run" : v->checkpoint ? "checkpoint" : "safetensors");
    if (v->run) tdm_json_put_string(&w, "run", v->run);
    tdm_json_put_string(&w, "path", v->path);
    tdm_json_put_uint(&w, "bytes", v->file_bytes);
    tdm_json_put_string(&w, "hash", v->hash);
    if (v->checkpoint) put_position(&w, v);
    put_tensors(&w, v);
    put_metadata(&w, v);
    if (v->run) put_list(&w, v);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- running --------------------------------------------------------------------------------- */

static int inspect_file(const cli_args *args, const char *path)
{
    file_view v = {.run = NULL};
    tdm_error err = {0};
    int code;
    if (view_read(&v, path, &err) != TDM_OK) {
        code = cli_fail(&err);
    } else {
        tdm_str out = TDM_STR_INIT;
        if (cli_json(args))
            add_json(&v, &out);
        else
            add_text(&v, &out);
        code = cli_print(&out);
    }
    view_release(&v);
    return code;
}

static int inspect_run(const cli_args *args)
{
    const char *path = args->arguments[0];
    cli_show_warnings();
    bool is_job = tdm_path_is_file(path) ? !tdm_safetensors_looks_like(path)
                                         : ends_with(path, ".yaml") || ends_with(path, ".yml");
    if (is_job && !tdm_path_is_dir(path)) return inspect_job(args, path);
    if (args->set_count > 0) {
        cli_error("inspect: '--set' requires a job file, but %s is not one", path);
        return CLI_USAGE;
    }
    if (cli_has(args, "workers") || cli_has(args, "hosts")) {
        cli_error("inspect: '-n' and '--hosts' require a job file, but %s is not one", path);
        return CLI_USAGE;
    }
    int named = cli_check_model(path);
    return named == CLI_OK ? inspect_file(args, path) : named;
}

static const char *const usage[] = {
    "tandem inspect JOB [-n N] [--hosts H] [--set KEY=VALUE] [--json]",
    "tandem inspect RUN|CHECKPOINT|FILE.safetensors [--json]", NULL};
static const char *const examples[] = {
    "tandem inspect job.yaml",
    "the ops of the model and the memory it needs",
    "tandem inspect job.yaml --set model.hidden='[512, 512]'",
    "the same for a larger model",
    "tandem inspect job.yaml -n 8 --hosts 2",
    "the memory of each of 8 ranks on 2 hosts with each ZeRO stage",
    "tandem inspect runs/digits-1",
    "the run's newest checkpoint, and a list of all",
    NULL};

const cli_command cli_inspect = {
    .name = "inspect",
    .summary = "Show the contents of a model, a run or a checkpoint",
    .usage = usage,
    .help =
        "For a job it shows the model as a worker runs it: each forward and backward op with the "
        "shape of its output, its kernel, its floating-point operations and bytes; then the memory "
        "that training needs on one host, and for each rank with each value of parallel.zero, next to "
        "the published formula. Nothing is trained.\n\n"
        "For a checkpoint, or any other safetensors file, it shows the tensors, the position in the "
        "run and the hashes. For a run it shows the newest valid checkpoint and lists all "
        "checkpoints.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help = "JOB: the number of ranks. Default: the number that training would start on this "
                  "host."},
         {.name = "hosts", .value = "H", .help = "JOB: the number of hosts. Default: 1."},
         CLI_OPTION_SET,
         CLI_OPTION_JSON},
    .run = inspect_run,
};
