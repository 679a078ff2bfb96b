/*
 * cmd_checkpoint.c: `tandem checkpoint`: its table, the resolution of its arguments, and the subcommands
 * verify and copy. (checkpoint_list.c: ls and prune; checkpoint_diff.c: diff; checkpoint_now.c: now.)
 *
 * Nothing here changes a checkpoint. Files are written atomically and read back.
 */
#include "checkpoint.h"

#include "model.h"
#include "session.h"

#include <tandem/os.h>

#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 1,     /* the argument after the subcommand */
    LOOKS_MAX = 16 /* retries if all listed checkpoints are pruned by a running training */
};

/* ---- names ----------------------------------------------------------------------------------- */

static char *dir_of(const char *run, tdm_arena *arena)
{
    char *inside = tdm_path_join(arena, run, "checkpoints");
    if (inside && tdm_path_is_dir(inside)) return inside;
    return tdm_path_is_dir(run) ? tdm_arena_strdup(arena, run) : NULL;
}

/* Whether a directory without a subdirectory "checkpoints" has that name itself, or contains checkpoints. */
static bool has_checkpoints(const char *dir, tdm_arena *arena)
{
    tdm_checkpoint_entry *entries;
    size_t count = 0;
    const char *path = tdm_path_absolute(arena, dir), *slash = path ? strrchr(path, '/') : NULL;
    if (slash && strcmp(slash + 1, "checkpoints") == 0) return true;
    return tdm_checkpoint_list(dir, arena, &entries, &count, NULL) == TDM_OK && count > 0;
}

const char *cli_checkpoint_dir(const char *run, tdm_arena *arena)
{
    const char *dir = dir_of(run, arena);
    if (dir && (strcmp(dir, run) != 0 || has_checkpoints(dir, arena))) return dir;
    if (dir)
        cli_error(
            "checkpoint: '%s' is not a run: it has no directory 'checkpoints' and contains no "
            "checkpoint; give the directory of a run, such as runs/digits-1",
            run);
    else
        cli_error(
            "checkpoint: '%s' is not a run; give the directory of a run, such as runs/digits-1",
            run);
    return NULL;
}

/* Splits RUN:STEP into *run and *step; false if the name does not have this form. */
static bool split_name(const char *name, tdm_arena *arena, char **run, uint64_t *step)
{
    const char *colon = strrchr(name, ':');
    if (!colon || colon == name || !colon[1]) return false;
    if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 19)
        return false;
    *run = tdm_arena_strndup(arena, name, (size_t)(colon - name));
    *step = strtoull(colon + 1, NULL, 10);
    return *run != NULL;
}

static tdm_status find_step(const char *run, uint64_t step, tdm_arena *arena, char **out,
                            tdm_error *err)
{
    const char *dir = dir_of(run, arena);
    if (!dir) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: this run does not exist", run);
    tdm_checkpoint_entry *entries;
    size_t count;
    TDM_TRY(tdm_checkpoint_list(dir, arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (entries[i].step != step) continue;
        *out = entries[i].path;
        return TDM_OK;
    }
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "%s: no checkpoint of step %llu; 'tandem checkpoint ls %s' lists all", run,
                    (unsigned long long)step, run);
}

int cli_checkpoint_read(const char *name, tdm_arena *arena, tdm_checkpoint_read_fn read, void *user)
{
    char *run, *path = NULL;
    uint64_t step;
    tdm_error err;
    tdm_status status;
    if (!tdm_path_exists(name) && split_name(name, arena, &run, &step)) {
        status = find_step(run, step, arena, &path, &err);
        if (status == TDM_OK) status = read(path, user, &err);
        if (status == TDM_OK) return CLI_OK;
        int code = cli_fail(&err);
        return status == TDM_ERR_NOT_FOUND ? CLI_USAGE : code;
    }
    char *inside = tdm_path_join(arena, name, "checkpoints");
    if (tdm_path_is_dir(name) && !(inside && tdm_path_is_dir(inside))) {
        if (!cli_checkpoint_dir(name, arena)) return CLI_USAGE;
        status = tdm_checkpoint_read_newest(name, arena, read, user, &err);
    } else {
        int named = cli_check_model(name);
        if (named != CLI_OK) return named;
        status = tdm_run_read(name, arena, read, user, &err);
    }
    return status == TDM_OK ? CLI_OK : cli_fail(&err);
}

/* ---- verify ---------------------------------------------------------------------------------- */

typedef struct verdict {
    const char *path;
    bool good;
    uint64_t step;
    const char *state; /* its hash, if it is good */
    const char *why;   /* the reason if it is not */
    tdm_model_code code;
} verdict;

static verdict verify_file(const char *path, tdm_arena *arena)
{
    verdict v = {.path = path};
    tdm_checkpoint *checkpoint;
    tdm_error err;
    if (tdm_checkpoint_open(path, &checkpoint, &err) != TDM_OK) {
        v.why = tdm_arena_strdup(arena, err.message);
        return v;
    }
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    char hash[TDM_SHA256_HEX];
    v.step = c->position.step;
    v.good = tdm_state_hash(&c->position, c->tensors, c->tensor_count, hash, &err) == TDM_OK;
    if (v.good)
        v.state = tdm_arena_strdup(arena, hash);
    else
        v.why = tdm_arena_strdup(arena, err.message);
    /* This fails for a job that this version does not support; the verdict then omits the code. */
    (void)tdm_model_code_of(checkpoint, path, arena, &v.code, NULL);
    tdm_checkpoint_destroy(checkpoint);
    return v;
}

static void add_verdict(const verdict *v, bool json, tdm_str *out)
{
    if (!json) {
        if (v->good) tdm_str_addf(out, "good     %s\n", v->path);
        if (v->good && v->code.library)
            tdm_str_addf(out, "         its model is the shared object %s, SHA-256 %s\n",
                         v->code.library, v->code.sha256 ? v->code.sha256 : "unknown");
        if (!v->good) tdm_str_addf(out, "DAMAGED  %s\n", v->why ? v->why : v->path);
        return;
    }
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "path", v->path);
    tdm_json_put_bool(&w, "good", v->good);
    if (v->good) tdm_json_put_uint(&w, "step", v->step);
    if (v->good) tdm_json_put_string(&w, "state", v->state);
    if (!v->good) tdm_json_put_string(&w, "error", v->why);
    if (v->good && v->code.library) {
        tdm_json_put_string(&w, "library", v->code.library);
        tdm_json_put_string(&w, "library_sha256", v->code.sha256);
    }
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* Verifies all checkpoints of a run, except those that a running training prunes. If that leaves none, the
 * directory is listed again, because there are newer ones. Returns an exit code; *good becomes false if a
 * checkpoint is damaged. */
static int verify_run(const char *run, bool json, tdm_arena *arena, bool *good, tdm_str *out)
{
    const char *dir = cli_checkpoint_dir(run, arena);
    tdm_checkpoint_entry *entries;
    size_t count = 0, found = 0;
    tdm_error err;
    if (!dir) return CLI_USAGE;
    for (int looks = 0; looks == 0 || (count > 0 && found == 0 && looks < LOOKS_MAX); looks++) {
        if (tdm_checkpoint_list(dir, arena, &entries, &count, &err) != TDM_OK)
            return cli_fail(&err);
        for (size_t i = 0; i < count; i++) {
            verdict v = verify_file(entries[i].path, arena);
            if (!v.good && !tdm_path_exists(entries[i].path)) continue;
            add_verdict(&v, json, out);
            *good = *good && v.good;
            found++;
        }
    }
    if (found > 0) return CLI_OK;
    cli_error("checkpoint verify: %s contains no checkpoint", dir);
    return CLI_FAILED;
}

typedef struct verify_reader {
    tdm_arena *arena;
    bool json, good;
    tdm_str *out;
} verify_reader;

static tdm_status verify_read(const char *path, void *user, tdm_error *err)
{
    verify_reader *reader = user;
    (void)err; /* errors of the file are part of the verdict */
    const char *copy = tdm_arena_strdup(reader->arena, path);
    verdict v = verify_file(copy ? copy : path, reader->arena);
    add_verdict(&v, reader->json, reader->out);
    reader->good = reader->good && v.good;
    return TDM_OK;
}

int cli_checkpoint_verify(const cli_args *args, tdm_arena *arena)
{
    tdm_str out = TDM_STR_INIT;
    verify_reader reader = {.arena = arena, .json = cli_json(args), .good = true, .out = &out};
    int code = CLI_OK; /* of names that do not exist; damage has precedence */
    for (int i = FIRST; i < args->argument_count; i++) {
        const char *name = args->arguments[i];
        int named = tdm_path_is_dir(name) ? verify_run(name, reader.json, arena, &reader.good, &out)
                                          : cli_checkpoint_read(name, arena, verify_read, &reader);
        if (named != CLI_OK && code != CLI_FAILED) code = named;
    }
    int printed = cli_print(&out);
    if (!reader.good) return CLI_FAILED;
    return code != CLI_OK ? code : printed;
}

/* ---- copy ------------------------------------------------------------------------------------ */

/* The path of the copy; in a directory it has the name of the original. */
static char *target_of(const char *to, const char *from, tdm_arena *arena)
{
    if (!tdm_path_is_dir(to)) return tdm_arena_strdup(arena, to);
    const char *slash = strrchr(from, '/');
    const char *dir = dir_of(to, arena);
    return dir ? tdm_path_join(arena, dir, slash ? slash + 1 : from) : NULL;
}

typedef struct copier {
    tdm_arena *arena;
    const char *name;      /* TO, as it was given */
    const char *from, *to; /* the files */
    bool force;
} copier;

static tdm_status copy_checkpoint(const char *from, void *user, tdm_error *err)
{
    copier *c = user;
    tdm_checkpoint *checkpoint, *back = NULL;
    c->from = tdm_arena_strdup(c->arena, from);
    c->to = target_of(c->name, from, c->arena);
    if (!c->from || !c->to)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "checkpoint copy: out of memory");
    if (tdm_path_exists(c->to) && !c->force)
        return tdm_fail(err, TDM_ERR_EXISTS,
                        "checkpoint copy: %s already exists; use --force to replace it", c->to);
    TDM_TRY(tdm_checkpoint_open(from, &checkpoint, err));
    tdm_status status = tdm_checkpoint_save(c->to, tdm_checkpoint_content_of(checkpoint), err);
    tdm_checkpoint_destroy(checkpoint);
    if (status == TDM_OK) status = tdm_checkpoint_open(c->to, &back, err);
    tdm_checkpoint_destroy(back);
    return status;
}

int cli_checkpoint_copy(const cli_args *args, tdm_arena *arena)
{
    if (args->argument_count != FIRST + 2) {
        cli_error("checkpoint copy: expected two arguments; usage: tandem checkpoint copy FROM TO");
        return CLI_USAGE;
    }
    copier c = {
        .arena = arena, .name = args->arguments[FIRST + 1], .force = cli_has(args, "force")};
    int code = cli_checkpoint_read(args->arguments[FIRST], arena, copy_checkpoint, &c);
    if (code != CLI_OK) return code;
    tdm_str out = TDM_STR_INIT;
    tdm_str_addf(&out, "%s: copied from %s and verified\n", c.to, c.from);
    return cli_print(&out);
}

/* ---- the table -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(const cli_args *args, tdm_arena *arena);
    int min; /* number of arguments after it */
} parts[] = {{"ls", cli_checkpoint_list, 1},     {"verify", cli_checkpoint_verify, 1},
             {"prune", cli_checkpoint_prune, 1}, {"copy", cli_checkpoint_copy, 2},
             {"diff", cli_checkpoint_diff, 2},   {"now", cli_checkpoint_now, 1}};

static int checkpoint_run(const cli_args *args)
{
    const char *what = args->arguments[0];
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strcmp(what, parts[i].name) != 0) continue;
        if (args->argument_count < FIRST + parts[i].min) {
            cli_error("checkpoint %s: an argument is missing; see 'tandem help checkpoint'", what);
            return CLI_USAGE;
        }
        tdm_arena *arena = tdm_arena_create("command");
        if (!arena) {
            cli_error("checkpoint: out of memory");
            return CLI_FAILED;
        }
        cli_show_warnings();
        int code = parts[i].run(args, arena);
        tdm_arena_destroy(arena);
        return code;
    }
    cli_error("checkpoint: unknown subcommand '%s'; use 'ls', 'verify', 'prune', 'copy', 'diff' or "
              "'now'",
              what);
    return CLI_USAGE;
}

static const char *const usage[] = {
    "tandem checkpoint ls RUN [--verify] [--json]",
    "tandem checkpoint verify RUN|FILE... [--json]",
    "tandem checkpoint prune RUN [--keep K] [--keep-every E] [--keep-best B] [--dry-run]",
    "tandem checkpoint copy FROM TO [--force]",
    "tandem checkpoint diff A B [--json]",
    "tandem checkpoint now RUN [--wait S] [--store URL] [--json]",
    NULL};
static const char *const examples[] = {
    "tandem checkpoint ls runs/digits-1",
    "all checkpoints of a run, and why each is kept",
    "tandem checkpoint prune runs/digits-1 --keep 2 --keep-best 1 --dry-run",
    "what would be removed with these rules",
    "tandem checkpoint copy runs/digits-1:120 best.safetensors.zst",
    "make a compressed copy of the state after step 120",
    "tandem checkpoint diff runs/digits-1:120 runs/digits-2:120",
    "in which tensors two runs differ, and by how much",
    "tandem checkpoint now digits-1",
    "save after the current step; training continues",
    NULL};
static const char *const subcommands[] = {"ls", "verify", "prune", "copy", "diff", "now", NULL};

const cli_command cli_checkpoint = {
    .name = "checkpoint",
    .summary = "List, verify, prune, copy, compare and request checkpoints",
    .usage = usage,
    .help =
        "'ls' lists the checkpoints of a run: step, epoch, size, time, test metrics, and the rule of "
        "the job that keeps it. 'verify' checks the checksums of all checkpoints of a run, or of "
        "single files; the exit code is 1 if one is damaged. 'prune' removes checkpoints that no rule "
        "keeps, and the leftovers of killed writers; rules that are not given are those of the job. "
        "The newest valid checkpoint is always kept. 'copy' verifies the checkpoint and writes the "
        "copy atomically; it compresses with zstd if TO ends in .zst, and decompresses otherwise. "
        "'diff' prints which tensors differ, in how many numbers and by how much; the exit code is 1 "
        "if anything differs. 'now' requests a checkpoint of an active run after its current step and "
        "waits until it is written; RUN is as in 'tandem stop'. A run in a single process (-n 1) does "
        "the same on SIGUSR1.\n\n"
        "RUN is the directory of a run; where one checkpoint is needed, its newest valid one is used. "
        "RUN:STEP is the checkpoint of that step.",
    .examples = examples,
    .subcommands = subcommands,
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .options =
        {{.name = "verify", .help = "ls: read all checkpoints and show which are good."},
         {.name = "keep", .value = "K", .help = "prune: keep the newest K; 0 keeps all."},
         {.name = "keep-every",
          .value = "E",
          .help = "prune: keep those of steps that are multiples of E; 0 disables the rule."},
         {.name = "keep-best",
          .value = "B",
          .help = "prune: keep the best B by the job's checkpoint.metric; 0 disables the rule."},
         {.name = "dry-run", .help = "prune: only print what would be removed."},
         {.name = "force", .help = "copy: replace TO if it exists."},
         {.name = "wait",
          .value = "S",
          .help = "now: wait at most S seconds for the checkpoint; 0 does not wait. Default: "
                  "600."},
         SESSION_OPTION_STORE,
         SESSION_OPTION_JOB,
         CLI_OPTION_JSON},
    .run = checkpoint_run,
};
