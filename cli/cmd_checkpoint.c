/*
 * cmd_checkpoint.c: `tandem checkpoint`: its table, what its arguments stand for, and the simpler of its
 * parts, verify and copy. (checkpoint_list.c lists and prunes, checkpoint_diff.c compares,
 * checkpoint_now.c asks for one.)
 *
 * Nothing here changes a checkpoint. What is written is written whole or not at all, and read back.
 */
#include "checkpoint.h"

#include "model.h"
#include "session.h"

#include <tandem/os.h>

#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 1,     /* the argument behind the subcommand */
    LOOKS_MAX = 16 /* at a folder whose checkpoints are pruned meanwhile */
};

/* ---- names ----------------------------------------------------------------------------------- */

static char *folder_of(const char *run, tdm_arena *arena)
{
    char *inside = tdm_path_join(arena, run, "checkpoints");
    if (inside && tdm_path_is_dir(inside)) return inside;
    return tdm_path_is_dir(run) ? tdm_arena_strdup(arena, run) : NULL;
}

/* Whether a folder without one called "checkpoints" is such a folder itself, or holds checkpoints all the
 * same: any other one is a mistake. */
static bool has_checkpoints(const char *folder, tdm_arena *arena)
{
    tdm_checkpoint_entry *entries;
    size_t count = 0;
    const char *path = tdm_path_absolute(arena, folder), *slash = path ? strrchr(path, '/') : NULL;
    if (slash && strcmp(slash + 1, "checkpoints") == 0) return true;
    return tdm_checkpoint_list(folder, arena, &entries, &count, NULL) == TDM_OK && count > 0;
}

const char *cli_checkpoint_folder(const char *run, tdm_arena *arena)
{
    const char *folder = folder_of(run, arena);
    if (folder && (strcmp(folder, run) != 0 || has_checkpoints(folder, arena))) return folder;
    if (folder)
        cli_error(
            "checkpoint: '%s' is no run: it has no folder 'checkpoints', and no checkpoint of "
            "its own; give the folder of a run, such as runs/digits-1",
            run);
    else
        cli_error("checkpoint: '%s' is no run; give the folder of one, such as runs/digits-1", run);
    return NULL;
}

/* RUN:STEP: *run and *step; false when the name is none of that kind. */
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
    const char *folder = folder_of(run, arena);
    if (!folder) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: there is no such run", run);
    tdm_checkpoint_entry *entries;
    size_t count;
    TDM_TRY(tdm_checkpoint_list(folder, arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (entries[i].step != step) continue;
        *out = entries[i].path;
        return TDM_OK;
    }
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "%s: has no checkpoint of step %llu; 'tandem checkpoint ls %s' lists all", run,
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
        if (!cli_checkpoint_folder(name, arena)) return CLI_USAGE;
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
    const char *state; /* when it is good */
    const char *why;   /* when it is not */
    tdm_model_code code;
} verdict;

static verdict verify(const char *path, tdm_arena *arena)
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
    (void)tdm_model_code_of(checkpoint, path, arena, &v.code, NULL); /* of a job it understands */
    tdm_checkpoint_destroy(checkpoint);
    return v;
}

static void add_verdict(const verdict *v, bool json, tdm_str *out)
{
    if (!json) {
        if (v->good) tdm_str_addf(out, "good     %s\n", v->path);
        if (v->good && v->code.library)
            tdm_str_addf(out, "         its model is code: %s, SHA-256 %s\n", v->code.library,
                         v->code.sha256 ? v->code.sha256 : "unknown");
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

/* All checkpoints of a run, without those that a training prunes meanwhile. When that leaves none, the
 * folder is listed again: there are newer ones. An exit code; *good becomes false where one is damaged. */
static int verify_run(const char *run, bool json, tdm_arena *arena, bool *good, tdm_str *out)
{
    const char *folder = cli_checkpoint_folder(run, arena);
    tdm_checkpoint_entry *entries;
    size_t count = 0, found = 0;
    tdm_error err;
    if (!folder) return CLI_USAGE;
    for (int looks = 0; looks == 0 || (count > 0 && found == 0 && looks < LOOKS_MAX); looks++) {
        if (tdm_checkpoint_list(folder, arena, &entries, &count, &err) != TDM_OK)
            return cli_fail(&err);
        for (size_t i = 0; i < count; i++) {
            verdict v = verify(entries[i].path, arena);
            if (!v.good && !tdm_path_exists(entries[i].path)) continue;
            add_verdict(&v, json, out);
            *good = *good && v.good;
            found++;
        }
    }
    if (found > 0) return CLI_OK;
    cli_error("checkpoint verify: %s holds no checkpoint", folder);
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
    (void)err; /* what is wrong with a file is its verdict */
    const char *copy = tdm_arena_strdup(reader->arena, path);
    verdict v = verify(copy ? copy : path, reader->arena);
    add_verdict(&v, reader->json, reader->out);
    reader->good = reader->good && v.good;
    return TDM_OK;
}

int cli_checkpoint_verify(const cli_args *args, tdm_arena *arena)
{
    tdm_str out = TDM_STR_INIT;
    verify_reader reader = {.arena = arena, .json = cli_json(args), .good = true, .out = &out};
    int code = CLI_OK; /* of names that mean nothing; damage counts more */
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

/* Where a copy goes: a folder gets a file of the same name. */
static char *target_of(const char *to, const char *from, tdm_arena *arena)
{
    if (!tdm_path_is_dir(to)) return tdm_arena_strdup(arena, to);
    const char *slash = strrchr(from, '/');
    const char *folder = folder_of(to, arena);
    return folder ? tdm_path_join(arena, folder, slash ? slash + 1 : from) : NULL;
}

typedef struct copier {
    tdm_arena *arena;
    const char *name;      /* TO, as it was given */
    const char *from, *to; /* the files */
    bool force;
} copier;

static tdm_status copy(const char *from, void *user, tdm_error *err)
{
    copier *c = user;
    tdm_checkpoint *checkpoint, *back = NULL;
    c->from = tdm_arena_strdup(c->arena, from);
    c->to = target_of(c->name, from, c->arena);
    if (!c->from || !c->to) return tdm_fail(err, TDM_ERR_NO_MEMORY, "checkpoint copy: no memory");
    if (tdm_path_exists(c->to) && !c->force)
        return tdm_fail(err, TDM_ERR_EXISTS,
                        "checkpoint copy: %s is there already; --force replaces it", c->to);
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
        cli_error("checkpoint copy: from where to where? usage: tandem checkpoint copy FROM TO");
        return CLI_USAGE;
    }
    copier c = {
        .arena = arena, .name = args->arguments[FIRST + 1], .force = cli_has(args, "force")};
    int code = cli_checkpoint_read(args->arguments[FIRST], arena, copy, &c);
    if (code != CLI_OK) return code;
    tdm_str out = TDM_STR_INIT;
    tdm_str_addf(&out, "%s: copied from %s, and verified\n", c.to, c.from);
    return cli_print(&out);
}

/* ---- the table -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(const cli_args *args, tdm_arena *arena);
    int min; /* arguments behind it */
} parts[] = {{"ls", cli_checkpoint_list, 1},     {"verify", cli_checkpoint_verify, 1},
             {"prune", cli_checkpoint_prune, 1}, {"copy", cli_checkpoint_copy, 2},
             {"diff", cli_checkpoint_diff, 2},   {"now", cli_checkpoint_now, 1}};

static int run(const cli_args *args)
{
    const char *what = args->arguments[0];
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strcmp(what, parts[i].name) != 0) continue;
        if (args->argument_count < FIRST + parts[i].min) {
            cli_error("checkpoint %s: there is something missing; see 'tandem help checkpoint'",
                      what);
            return CLI_USAGE;
        }
        tdm_arena *arena = tdm_arena_create("command");
        if (!arena) {
            cli_error("checkpoint: no memory");
            return CLI_FAILED;
        }
        cli_show_warnings();
        int code = parts[i].run(args, arena);
        tdm_arena_destroy(arena);
        return code;
    }
    cli_error("checkpoint: '%s' is none of 'ls', 'verify', 'prune', 'copy', 'diff' and 'now'",
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
    "what would go if only these were kept?",
    "tandem checkpoint copy runs/digits-1:120 best.safetensors.zst",
    "keep a packed copy of the state after step 120",
    "tandem checkpoint diff runs/digits-1:120 runs/digits-2:120",
    "where do two runs differ, and by how much?",
    "tandem checkpoint now digits-1",
    "save after the step in progress; training goes on",
    NULL};
static const char *const subcommands[] = {"ls", "verify", "prune", "copy", "diff", "now", NULL};

const cli_command cli_checkpoint = {
    .name = "checkpoint",
    .summary = "List, verify, prune, copy, compare and ask for checkpoints",
    .usage = usage,
    .help =
        "'ls' lists the checkpoints of a run: step, epoch, size, when it was written, what the test "
        "set said, and by which of the job's rules it is kept. 'verify' checks all sums of all "
        "checkpoints of a run, or of single files, and ends with 1 when any is damaged. 'prune' "
        "removes those that no rule keeps, and what killed writers left behind; rules that are not "
        "given are the job's. The newest good checkpoint always stays. 'copy' verifies on the way, "
        "writes whole or not at all, and packs by zstd when TO ends in .zst; it unpacks when it "
        "does not. 'diff' says which tensors differ, in how many numbers and by how much, and ends "
        "with 1 when anything does. 'now' asks a run that is going on for a checkpoint after its "
        "step, and waits until that is written; RUN is what 'tandem stop' takes. A run in a single "
        "process (-n 1) does the same at a SIGUSR1.\n\n"
        "RUN is a run's folder, of which the newest good checkpoint is meant where one is needed; "
        "RUN:STEP is the one of that step.",
    .examples = examples,
    .subcommands = subcommands,
    .min_arguments = 1,
    .max_arguments = CLI_MAX_ARGUMENTS,
    .options = {{.name = "verify", .help = "ls: read all of them, and say which are good."},
                {.name = "keep", .value = "K", .help = "prune: keep the newest K; 0: all."},
                {.name = "keep-every",
                 .value = "E",
                 .help = "prune: keep those of steps that are multiples of E; 0: none for that."},
                {.name = "keep-best",
                 .value = "B",
                 .help =
                     "prune: keep the best B by the job's checkpoint.metric; 0: none for that."},
                {.name = "dry-run", .help = "prune: only say what would go."},
                {.name = "force", .help = "copy: replace TO when it is there."},
                {.name = "wait",
                 .value = "S",
                 .help = "now: wait so many seconds for it at most (600); 0: not at all."},
                SESSION_OPTION_STORE,
                SESSION_OPTION_JOB,
                CLI_OPTION_JSON},
    .run = run,
};
