/*
 * cmd_stop.c: `tandem stop`: ends a run, with a checkpoint or immediately.
 */
#include "session.h"

static int stop_run(const cli_args *args)
{
    tdm_arena *arena = tdm_arena_create("command");
    session_ref ref;
    bool now = cli_has(args, "now");
    int code = arena ? session_find(args, args->arguments[0], arena, &ref) : CLI_FAILED;
    if (code == CLI_OK) code = session_ask(&ref, now ? "now" : "stop");
    if (code == CLI_OK) {
        tdm_str text = TDM_STR_INIT;
        const char *title = session_title(&ref.view);
        if (now)
            tdm_str_addf(&text,
                         "%s: killing its workers; steps since the newest checkpoint are lost\n",
                         title);
        else
            tdm_str_addf(&text, "%s stops after its step, with a checkpoint\n", title);
        code = cli_print(&text);
    }
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem stop RUN [--now] [--store URL]", NULL};
static const char *const examples[] = {
    "tandem stop digits-1", "finish the step, save a checkpoint, end", "tandem stop digits-1 --now",
    "end immediately, without a checkpoint", NULL};

const cli_command cli_stop = {
    .name = "stop",
    .summary = "Stop an active run",
    .usage = usage,
    .help =
        "Stops a run after the current step, with a checkpoint; 'tandem train --resume' resumes from "
        "it. The command does not wait for the end of the run: 'tandem ps' shows the state. RUN is "
        "the name of the run, its directory, or the session that 'tandem ps' shows.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options = {{.name = "now",
                 .help =
                     "Kill the workers immediately. Steps since the newest checkpoint are repeated "
                     "when the run is resumed."},
                SESSION_OPTION_STORE,
                SESSION_OPTION_JOB},
    .run = stop_run,
};
