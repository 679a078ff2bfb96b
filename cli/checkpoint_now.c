/*
 * checkpoint_now.c: `tandem checkpoint now`: requests a checkpoint of an active run, which continues.
 *
 * The request is written to the session's store, so it works from any terminal and any host that can reach
 * the store, whichever process is rank 0. The command prints the path of the checkpoint.
 */
#include "checkpoint.h"

#include "session.h"

enum { FIRST = 1, WAIT_S = 600, MAX_WAIT_S = 7 * 86400 };

static void add_saved(const tdm_session_saved *saved, bool json, tdm_str *out)
{
    if (!json) {
        tdm_str_addf(out, "step %llu: %s\n", (unsigned long long)saved->step,
                     cli_short_path(saved->path));
        return;
    }
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "step", saved->step);
    tdm_json_put_string(&w, "path", saved->path);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

static tdm_status request_save(const session_ref *ref, double wait_s, tdm_session_saved *saved,
                               tdm_error *err)
{
    tdm_kv *kv = NULL;
    char request[TDM_SAVE_REQUEST_BYTES];
    const char *session = ref->view.session;
    TDM_TRY(tdm_kv_open(&ref->kv, &kv, err));
    tdm_status status = tdm_session_ask_save(kv, session, "a user asked for it", request, err);
    if (status == TDM_OK && wait_s > 0)
        status = tdm_session_await_save(kv, session, request, wait_s, saved, err);
    tdm_kv_close(kv);
    return status;
}

int cli_checkpoint_now(const cli_args *args, tdm_arena *arena)
{
    session_ref ref;
    int64_t wait_s = WAIT_S;
    tdm_session_saved saved = {.status = TDM_OK};
    tdm_error err = {0};
    tdm_str out = TDM_STR_INIT;
    if (args->argument_count > FIRST + 1) {
        cli_error("checkpoint now: too many arguments; usage: tandem checkpoint now RUN");
        return CLI_USAGE;
    }
    if (!cli_int(args, "wait", 0, MAX_WAIT_S, &wait_s)) return CLI_USAGE;
    int code = session_find(args, args->arguments[FIRST], arena, &ref);
    if (code != CLI_OK) return code;
    if (request_save(&ref, (double)wait_s, &saved, &err) != TDM_OK) return cli_fail(&err);
    if (saved.status != TDM_OK) {
        cli_error("checkpoint now: step %llu: no checkpoint: %s; training continues",
                  (unsigned long long)saved.step, saved.message);
        return CLI_FAILED;
    }
    if (wait_s > 0)
        add_saved(&saved, cli_json(args), &out);
    else if (!cli_json(args))
        tdm_str_addf(&out, "%s writes a checkpoint after its step\n", session_title(&ref.view));
    return cli_print(&out);
}
