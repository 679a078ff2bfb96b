/*
 * cmd_join.c: `tandem join`: adds workers of this host to a run.
 *
 * The process executes `tandem agent` for the session. Its workers wait until they are admitted at the end
 * of a step. On a host that already has workers of the session, they share its shared memory segment.
 */
#include "session.h"

#include <tandem/elastic.h>
#include <tandem/os.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* A file with the session's job, which is on this host or copied from the store. */
static const char *job_file(const session_ref *ref, tdm_arena *arena)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv *kv = NULL;
    tdm_kv_item item;
    tdm_error err;
    const char *dir, *path;
    if (ref->job) return ref->job;
    snprintf(key, sizeof(key), "tandem/%s/job", ref->view.session);
    tdm_status status = tdm_kv_open(&ref->kv, &kv, &err);
    if (status == TDM_OK) status = tdm_kv_get(kv, key, arena, &item, &err);
    tdm_kv_close(kv);
    if (status == TDM_OK) status = tdm_runtime_dir(arena, &dir, &err);
    path = status == TDM_OK ? tdm_arena_printf(arena, "%s/%s.yaml", dir, ref->view.session) : NULL;
    if (path) status = tdm_file_replace(path, item.value, strlen(item.value), &err);
    if (path && status == TDM_OK) return path;
    cli_error("join: cannot read the run's job: %s", err.message);
    return NULL;
}

static const char *host_name(const cli_args *args, tdm_arena *arena)
{
    char name[TDM_HOST_BYTES] = "";
    if (cli_has(args, "host")) return cli_value(args, "host");
    if (gethostname(name, sizeof(name) - 1) != 0) name[0] = '\0';
    return tdm_arena_strdup(arena, name[0] ? name : "here");
}

static void warn_about_limit(const tdm_session_view *view, int64_t workers)
{
    if (view->max > 0 && view->rank_count + workers > view->max)
        cli_warn(
            "%s accepts at most %d ranks (--max at its start) and has %d: further workers wait "
            "in reserve",
            session_title(view), view->max, view->rank_count);
}

/* Executes the agent; returns only on failure. */
static int become_agent(const cli_args *args, const session_ref *ref, int64_t workers,
                        tdm_arena *arena)
{
    const tdm_session_view *view = &ref->view;
    const char *self = session_self("join", arena), *job = self ? job_file(ref, arena) : NULL;
    size_t more = 0, n = 0;
    while (view->words && view->words[more]) more++;
    const char **words = tdm_arena_array(arena, 24 + more, sizeof(*words));
    if (!self || !job || !words) return CLI_FAILED;
    const char *first[] = {self,
                           "agent",
                           "--guest",
                           "--session",
                           view->session,
                           "--store",
                           ref->kv.url,
                           "--host",
                           host_name(args, arena),
                           "--workers",
                           tdm_arena_printf(arena, "%lld", (long long)workers),
                           "--job",
                           job};
    memcpy(words, first, sizeof(first));
    n = sizeof(first) / sizeof(first[0]);
    if (view->dir) {
        words[n++] = "--dir";
        words[n++] = view->dir;
    }
    words[n++] = "--";
    for (size_t i = 0; i < more; i++) words[n++] = view->words[i];
    for (size_t i = 0; i < n; i++)
        if (!words[i]) return CLI_FAILED;
    execv(self, (char *const *)(uintptr_t)words);
    cli_error("join: cannot run %s: %s", self, strerror(errno));
    return CLI_FAILED;
}

static int join_run(const cli_args *args)
{
    int64_t workers = 1;
    session_ref ref;
    if (!cli_int(args, "workers", 1, TDM_MAX_LAUNCH, &workers)) return CLI_USAGE;
    tdm_arena *arena = tdm_arena_create("command");
    int code = arena ? session_find(args, args->arguments[0], arena, &ref) : CLI_FAILED;
    if (code == CLI_OK && ref.view.stopping) {
        cli_error("join: %s is stopping", session_title(&ref.view));
        code = CLI_FAILED;
    }
    if (code == CLI_OK) {
        warn_about_limit(&ref.view, workers);
        code = become_agent(args, &ref, workers, arena);
    }
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem join RUN [-n N] [--store URL]", NULL};
static const char *const examples[] = {"tandem join digits-1 -n 2", "add two workers on this host",
                                       "tandem join digits-1 --store etcd:http://alpha:2379",
                                       "add one worker to a run that was started on another host",
                                       NULL};

const cli_command cli_join = {
    .name = "join",
    .summary = "Add workers of this host to an active run",
    .usage = usage,
    .help =
        "Starts an agent with N workers on this host. The workers are admitted at the end of a step: "
        "the lanes are redistributed, and the result keeps the same bits. The number of ranks is "
        "limited by '--max' of 'tandem train'. The data must exist on this host, under the same "
        "path.\n\n"
        "The command runs until the run ends. After Ctrl-C its workers leave, and the run continues "
        "without them. RUN is the name of the run, its directory, or the session that 'tandem ps' "
        "shows.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help = "The number of workers. Default: 1."},
         {.name = "host",
          .value = "NAME",
          .help =
              "The name of this host in the session. Workers of one host share memory. Default: "
              "the host name."},
         SESSION_OPTION_STORE,
         SESSION_OPTION_JOB},
    .run = join_run,
};
