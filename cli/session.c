/*
 * session.c: finds running sessions, for the commands about them.
 *
 * A session of this host is found by its files in the runtime directory. They contain a copy of its
 * job, which has the user or certificates that its store may need. A session that ends during the
 * search is ignored.
 */
#include "session.h"

#include <tandem/os.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSWORD_BYTES = 4096 };

static int no_memory(void)
{
    cli_error("out of memory");
    return CLI_FAILED;
}

/* ---- stores ---------------------------------------------------------------------------------- */

static int read_password(const char *path, tdm_arena *arena, tdm_kv_options *out)
{
    tdm_file_bytes bytes;
    tdm_error err;
    if (tdm_file_read(path, PASSWORD_BYTES, &bytes, &err) != TDM_OK) return cli_fail(&err);
    size_t length = 0;
    while (length < bytes.count && bytes.data[length] != '\n' && bytes.data[length] != '\r')
        length++;
    out->password = tdm_arena_strndup(arena, (const char *)bytes.data, length);
    tdm_file_bytes_release(&bytes);
    return out->password ? CLI_OK : no_memory();
}

int session_store_of(const tdm_job *job, tdm_arena *arena, tdm_kv_options *out)
{
    *out = (tdm_kv_options){.url = NULL};
    if (job->store != TDM_JOB_KV_ETCD) return CLI_OK;
    out->url = tdm_arena_printf(arena, "etcd:%s", job->etcd.endpoints);
    out->user = job->etcd.user ? tdm_arena_strdup(arena, job->etcd.user) : NULL;
    out->ca = job->etcd.ca ? tdm_arena_strdup(arena, job->etcd.ca) : NULL;
    out->certificate = job->etcd.certificate ? tdm_arena_strdup(arena, job->etcd.certificate)
                                             : NULL;
    out->key = job->etcd.key ? tdm_arena_strdup(arena, job->etcd.key) : NULL;
    if (!out->url) return no_memory();
    return job->etcd.password_file ? read_password(job->etcd.password_file, arena, out) : CLI_OK;
}

static int load_store(const char *path, tdm_arena *arena, tdm_kv_options *out)
{
    tdm_job_options options = {.no_file_checks = true};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    if (tdm_job_load(path, &options, &document, &err) != TDM_OK) {
        cli_error("%s: %s", path,
                  document ? "the job has problems; 'tandem job check' lists them" : err.message);
        tdm_job_document_destroy(document);
        return CLI_USAGE;
    }
    int code = session_store_of(tdm_job_document_job(document), arena, out);
    tdm_job_document_destroy(document);
    return code;
}

int session_store_at(const char *url, const char *job, tdm_arena *arena, tdm_kv_options *out)
{
    *out = (tdm_kv_options){.url = NULL};
    int code = job && strncmp(url, "local:", 6) != 0 ? load_store(job, arena, out) : CLI_OK;
    out->url = url;
    out->must_exist =
        true; /* the launcher has created it; if it is missing, the session has ended */
    return code;
}

/* ---- searching ------------------------------------------------------------------------------- */

/* Reads the state of a session. False: it has ended or has not started yet. */
static bool session_read(const tdm_kv_options *kv_options, const char *session, tdm_arena *arena,
                         session_ref *out)
{
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    tdm_kv_options options = *kv_options;
    options.probe_s = TDM_KV_PROBE_S;
    tdm_status status = tdm_kv_open(&options, &kv, &err);
    if (status == TDM_OK) status = tdm_session_look(kv, session, arena, &out->view, &err);
    out->kv = *kv_options;
    out->why_unknown = NULL;
    tdm_kv_close(kv);
    if (status == TDM_OK || status == TDM_ERR_NOT_FOUND) return status == TDM_OK;
    /* The last process of a session may have removed its store between the two calls. */
    bool is_local = strncmp(kv_options->url, "local:", 6) == 0;
    if (is_local && !tdm_path_exists(kv_options->url + 6)) return false;
    out->view = (tdm_session_view){.session = session, .name = session};
    out->why_unknown = tdm_arena_printf(arena, "the store does not respond: %s", err.message);
    return out->why_unknown != NULL;
}

static int scan_here(tdm_arena *arena, session_ref **out, size_t *out_count)
{
    tdm_session_place *places;
    size_t count, found = 0;
    tdm_error err;
    if (tdm_session_list(arena, &places, &count, &err) != TDM_OK) return cli_fail(&err);
    session_ref *refs = tdm_arena_array(arena, count + 1, sizeof(*refs));
    if (!refs) return no_memory();
    for (size_t i = 0; i < count; i++) {
        tdm_kv_options kv;
        int code = session_store_at(places[i].store, places[i].job, arena, &kv);
        if (code != CLI_OK) return code;
        refs[found].job = places[i].job;
        if (session_read(&kv, places[i].session, arena, &refs[found])) found++;
    }
    *out = refs;
    *out_count = found;
    return CLI_OK;
}

static int scan_store(const tdm_kv_options *kv_options, tdm_arena *arena, session_ref **out,
                      size_t *out_count)
{
    tdm_kv *kv = NULL;
    tdm_error err;
    const char *const *names;
    size_t count = 0, found = 0;
    tdm_kv_options options = *kv_options;
    options.probe_s = TDM_KV_PROBE_S;
    tdm_status status = tdm_kv_open(&options, &kv, &err);
    if (status == TDM_OK) status = tdm_session_names(kv, arena, &names, &count, &err);
    session_ref *refs = tdm_arena_array(arena, count + 1, sizeof(*refs));
    for (size_t i = 0; status == TDM_OK && refs && i < count; i++) {
        refs[found].kv = *kv_options;
        if (tdm_session_look(kv, names[i], arena, &refs[found].view, NULL) == TDM_OK) found++;
    }
    tdm_kv_close(kv);
    if (status != TDM_OK) {
        int code = cli_fail(&err);
        return status == TDM_ERR_INVALID ? CLI_USAGE : code;
    }
    *out = refs;
    *out_count = found;
    return refs ? CLI_OK : no_memory();
}

int session_scan(const cli_args *args, tdm_arena *arena, session_ref **out, size_t *out_count)
{
    const char *url = cli_value(args, "store"), *job = cli_value(args, "job");
    tdm_kv_options kv = {.url = NULL};
    int code = job ? load_store(job, arena, &kv) : CLI_OK;
    if (url) kv.url = url;
    kv.must_exist = true;
    if (code != CLI_OK) return code;
    return kv.url ? scan_store(&kv, arena, out, out_count) : scan_here(arena, out, out_count);
}

/* ---- one session ----------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const char *session_title(const tdm_session_view *view)
{
    return view->run ? base_name(view->run) : view->session;
}

bool session_is_meant(const tdm_session_view *view, const char *word)
{
    char given[PATH_MAX], run[PATH_MAX];
    char pid[32];
    if (strcmp(view->session, word) == 0 || strcmp(view->name, word) == 0) return true;
    snprintf(pid, sizeof(pid), "%lld", (long long)view->launcher_pid);
    if (strcmp(pid, word) == 0) return true;
    if (!view->run) return false;
    if (strcmp(base_name(view->run), word) == 0) return true;
    return realpath(word, given) && realpath(view->run, run) && strcmp(given, run) == 0;
}

int session_find(const cli_args *args, const char *word, tdm_arena *arena, session_ref *out)
{
    const char *command = args->command->name;
    session_ref *refs = NULL;
    size_t count = 0, found = 0;
    const char *unreachable = NULL;
    int code = session_scan(args, arena, &refs, &count);
    if (code != CLI_OK) return code;
    for (size_t i = 0; i < count; i++) {
        if (refs[i].why_unknown) unreachable = refs[i].why_unknown;
        if (refs[i].view.ended || !session_is_meant(&refs[i].view, word)) continue;
        *out = refs[i];
        found++;
    }
    if (found == 1) return CLI_OK;
    if (found > 1)
        cli_error(
            "%s: '%s' matches %zu active sessions; give the name of the session, which 'tandem "
            "ps' lists",
            command, word, found);
    else if (unreachable)
        cli_error("%s: cannot tell whether run '%s' is active: %s", command, word, unreachable);
    else if (cli_has(args, "store") || cli_has(args, "job"))
        cli_error("%s: the store has no active run '%s'", command, word);
    else
        cli_error("%s: no active run '%s' on this host; 'tandem ps' lists the active runs, and "
                  "--store or --job selects the store of runs on other hosts",
                  command, word);
    return CLI_USAGE;
}

int session_ask(const session_ref *ref, const char *request)
{
    tdm_kv *kv = NULL;
    tdm_error err;
    tdm_status status = tdm_kv_open(&ref->kv, &kv, &err);
    if (status == TDM_OK)
        status = tdm_session_request(kv, ref->view.session, request, "a user asked for it", &err);
    tdm_kv_close(kv);
    return status == TDM_OK ? CLI_OK : cli_fail(&err);
}

bool session_name_is_valid(const char *text, size_t bytes)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return *text && *text != '.' && strlen(text) < bytes && strspn(text, good) == strlen(text);
}

const char *session_self(const char *command, tdm_arena *arena)
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    const char *copy = length > 0 ? tdm_arena_strndup(arena, self, (size_t)length) : NULL;
    if (!copy) cli_error("%s: cannot read the path of this program from /proc/self/exe", command);
    return copy;
}
