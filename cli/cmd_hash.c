/*
 * cmd_hash.c: `tandem hash`: prints the state hash of runs and checkpoints in the format of sha256sum.
 *
 * Two states with the same hash are bit-identical, whatever wrote them. A safetensors file from another
 * program has no position in a run; it is hashed with a position of zeros.
 */
#include "model.h"

#include <string.h>

typedef struct hashed {
    char hash[TDM_SHA256_HEX];
    char *path; /* the file that was hashed */
    tdm_position position;
    bool checkpoint;
} hashed;

/* tdm_checkpoint_open() verifies the checksums of the checkpoint. */
static tdm_status hash_checkpoint(const char *path, hashed *out, tdm_error *err)
{
    tdm_checkpoint *checkpoint;
    TDM_TRY(tdm_checkpoint_open(path, &checkpoint, err));
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    tdm_status status = tdm_state_hash(&c->position, c->tensors, c->tensor_count, out->hash, err);
    out->position = c->position;
    out->checkpoint = true;
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

typedef struct hash_reader {
    tdm_arena *arena;
    hashed result;
} hash_reader;

static tdm_status hash_file(const char *path, void *user, tdm_error *err)
{
    hash_reader *reader = user;
    hashed result = {.path = tdm_arena_strdup(reader->arena, path)};
    if (!result.path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "hash: out of memory");
    tdm_safetensors *file;
    TDM_TRY(tdm_safetensors_open(path, &file, err));
    tdm_status status;
    if (cli_is_checkpoint(file)) {
        status = hash_checkpoint(path, &result, err);
    } else {
        size_t count = tdm_safetensors_count(file);
        status = tdm_state_hash(&result.position, count > 0 ? tdm_safetensors_at(file, 0) : NULL,
                                count, result.hash, err);
    }
    tdm_safetensors_destroy(file);
    if (status == TDM_OK) reader->result = result;
    return status;
}

static tdm_status hash_path(const char *path, tdm_arena *arena, hashed *out, tdm_error *err)
{
    hash_reader reader = {.arena = arena};
    TDM_TRY(tdm_run_read(path, arena, hash_file, &reader, err));
    *out = reader.result;
    return TDM_OK;
}

static void add_json(const hashed *h, tdm_json_writer *w)
{
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "path", h->path);
    tdm_json_put_string(w, "hash", h->hash);
    tdm_json_put_bool(w, "checkpoint", h->checkpoint);
    if (h->checkpoint) tdm_json_put_uint(w, "step", h->position.step);
    tdm_json_object_end(w);
}

static int hash_run(const cli_args *args)
{
    tdm_arena *arena = tdm_arena_create("command");
    if (!arena) {
        cli_error("hash: out of memory");
        return CLI_FAILED;
    }
    cli_show_warnings();
    tdm_str out = TDM_STR_INIT;
    int code = CLI_OK;
    for (int i = 0; i < args->argument_count; i++) {
        hashed h;
        tdm_error err;
        int named = cli_check_model(args->arguments[i]);
        if (named != CLI_OK) { /* continue with the other files, like sha256sum */
            if (code == CLI_OK) code = named;
        } else if (hash_path(args->arguments[i], arena, &h, &err) != TDM_OK) {
            code = cli_fail(&err);
        } else if (cli_json(args)) {
            tdm_json_writer w = tdm_json_writer_init(&out, 0);
            add_json(&h, &w);
            tdm_str_add_char(&out, '\n');
        } else {
            tdm_str_addf(&out, "%s  %s\n", h.hash, h.path);
        }
    }
    tdm_arena_destroy(arena);
    int printed = cli_print(&out);
    return code != CLI_OK ? code : printed;
}

static const char *const usage[] = {"tandem hash RUN|FILE... [--json]", NULL};
static const char *const examples[] = {
    "tandem hash runs/digits-1 runs/digits-2", "compare the bits of two runs",
    "tandem hash runs/digits-1/checkpoints/*", "each checkpoint of a run", NULL};

const cli_command cli_hash = {
    .name = "hash",
    .summary = "Print the hash of a run's state, for bitwise comparison of runs",
    .usage = usage,
    .help =
        "Prints the SHA-256 of a state: its position in the run, and name, type, shape and bytes "
        "of every tensor. Equal hashes mean equal states, for any number of workers. For a run, the "
        "newest valid checkpoint is used. A checkpoint is verified first.\n\n"
        "A safetensors file from another program is hashed as if at step 0.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .options = {{.name = "json", .help = "Print one JSON object per line."}},
    .run = hash_run,
};
