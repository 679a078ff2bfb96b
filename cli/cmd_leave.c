/*
 * cmd_leave.c: `tandem leave`: removes a rank from a run, between two steps.
 */
#include "session.h"

#include <errno.h>
#include <stdlib.h>

/* The member with this rank; NULL after an error message. */
static const tdm_session_member *member_of(const tdm_session_view *view, const char *text)
{
    char *end;
    errno = 0;
    long rank = strtol(text, &end, 10);
    if (!*text || *end || errno || rank < 0 || rank >= view->rank_count) {
        if (view->rank_count > 0)
            cli_error("leave: '%s' is not a rank of %s, which has ranks 0 to %d", text,
                      session_title(view), view->rank_count - 1);
        else
            cli_error("leave: %s has no ranks yet", session_title(view));
        return NULL;
    }
    for (size_t i = 0; i < view->member_count; i++)
        if (view->members[i].rank == rank) return &view->members[i];
    cli_error("leave: rank %ld of %s is not responding and is being removed", rank,
              session_title(view));
    return NULL;
}

static int leave_request(const cli_args *args, tdm_arena *arena)
{
    session_ref ref;
    int code = session_find(args, args->arguments[0], arena, &ref);
    if (code != CLI_OK) return code;
    const tdm_session_member *member = member_of(&ref.view, args->arguments[1]);
    if (!member) return CLI_USAGE;
    int min = ref.view.min > 1 ? ref.view.min : 1;
    if (ref.view.rank_count - 1 < min) {
        cli_error("leave: %s needs at least %d rank%s and has %d; use 'tandem stop' to end it",
                  session_title(&ref.view), min, min == 1 ? "" : "s", ref.view.rank_count);
        return CLI_USAGE;
    }
    code = session_ask(&ref, tdm_arena_printf(arena, "leave/%s", member->id));
    if (code != CLI_OK) return code;
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(&text, "rank %d of %s (%s, process %lld) leaves after its step\n", member->rank,
                 session_title(&ref.view), member->host, (long long)member->pid);
    return cli_print(&text);
}

static int leave_run(const cli_args *args)
{
    tdm_arena *arena = tdm_arena_create("command");
    int code = arena ? leave_request(args, arena) : CLI_FAILED;
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem leave RUN RANK [--store URL]", NULL};
static const char *const examples[] = {"tandem leave digits-1 3",
                                       "rank 3 ends; the run continues without it", NULL};

const cli_command cli_leave = {
    .name = "leave",
    .summary = "Remove a rank from an active run",
    .usage = usage,
    .help =
        "The rank ends between two steps and is not restarted. The other ranks execute its lanes, "
        "and the result keeps the same bits. The ranks are then renumbered: 'tandem ps -l' shows "
        "them. 'tandem join' adds workers. RUN is the name of the run, its directory, or the "
        "session.",
    .examples = examples,
    .min_arguments = 2,
    .max_arguments = 2,
    .options = {SESSION_OPTION_STORE, SESSION_OPTION_JOB},
    .run = leave_run,
};
