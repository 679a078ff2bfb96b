/*
 * ranks.c: agreement between the ranks of a training run, between its phases.
 *
 * A phase that each rank executes alone (reading data, allocating memory) ends with tdm_comm_agree: all
 * ranks get the same result, success or the error of the lowest rank that failed. So an error that all
 * ranks have is reported once, and no rank continues alone. If a rank fails inside a collective phase,
 * the others cannot know; it calls tdm__call_off, which aborts their calls with its message.
 */
#include "base/base.h"
#include "job/job.h"
#include "train/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tdm__rank_of(tdm_comm *comm)
{
    return comm ? tdm_comm_rank(comm) : 0;
}

int tdm__size_of(tdm_comm *comm)
{
    return comm ? tdm_comm_size(comm) : 1;
}

void tdm__call_off(tdm_comm *comm, const tdm_error *err)
{
    char why[sizeof(err->message) + 32];
    if (tdm__size_of(comm) == 1 || tdm_status_group_of(err->status) == TDM_STATUS_GROUP_PEER)
        return;
    snprintf(why, sizeof(why), "rank %d: %s", tdm__rank_of(comm), err->message);
    tdm_comm_revoke(comm, why);
}

tdm_status tdm__same_text(tdm_comm *comm, char *text, size_t bytes, int *differs, tdm_error *err)
{
    int size = tdm__size_of(comm);
    *differs = -1;
    if (size == 1) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("comparison");
    char *all = arena ? tdm_arena_array(arena, (size_t)size, bytes) : NULL;
    tdm_status status = tdm_comm_agree(comm, all ? TDM_OK : tdm_fail_oom(err, "in training"), NULL,
                                       err);
    assert(all || status != TDM_OK);
    if (status == TDM_OK) {
        memcpy(all + (size_t)tdm__rank_of(comm) * bytes, text, bytes);
        status = tdm_group_all_gather(tdm_comm_world(comm), NULL, all, (size_t)size * bytes,
                                      TDM_DTYPE_U8, err);
    }
    for (int i = size - 1; status == TDM_OK && i > 0; i--) {
        const char *its = all + (size_t)i * bytes;
        if (its[0] && memcmp(all, its, bytes) != 0) *differs = i;
    }
    if (status == TDM_OK) memcpy(text, all, bytes);
    tdm_arena_destroy(arena);
    return status;
}

/* Keys that may differ between hosts. */
static bool key_is_per_host(const tdm_job_key *key)
{
    static const char *const own[] = {"name", "memory.limit", "comm.transport"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(key->path, own[i]) == 0) return true;
    return key->type == TDM_JOB_KEY_PATH || key->type == TDM_JOB_KEY_DIR;
}

/* A non-negative hash of the value of a key. */
static int64_t value_hash(const tdm_str *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < text->length; i++)
        hash = (hash ^ (unsigned char)tdm_str_text(text)[i]) * 0x100000001b3u;
    return (int64_t)(hash >> 1);
}

/* MIN of a number and of its negative shows every rank whether the number is the same everywhere. */
static tdm_status settings_compare(tdm_comm *comm, const tdm_job *job, bool resumes,
                                   int64_t *numbers, tdm_error *err)
{
    size_t keys = tdm_job_key_count(), count = keys + 1;
    tdm_str text = TDM_STR_INIT;
    for (size_t i = 0; i < keys; i++) {
        tdm_str_clear(&text);
        if (!key_is_per_host(tdm_job_key_at(i))) tdm_job_value_show(job, i, &text);
        numbers[i] = value_hash(&text);
    }
    numbers[keys] = resumes;
    for (size_t i = 0; i < count; i++) numbers[count + i] = -numbers[i];
    tdm_status status = tdm_group_all_reduce(tdm_comm_world(comm), NULL, numbers, 2 * count,
                                             TDM_DTYPE_I64, TDM_REDUCE_MIN, err);
    size_t at = 0;
    while (at < count && numbers[at] == -numbers[count + at]) at++;
    if (status == TDM_OK && at == keys)
        status = tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                          "some ranks were started with --resume, and others without; start all "
                          "with the same command");
    if (status == TDM_OK && at < keys) {
        tdm_str_clear(&text);
        tdm_job_value_show(job, at, &text);
        status = tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                          "ranks disagree on '%s', which is %s on rank %d; start all with "
                          "the same job and the same --set",
                          tdm_job_key_at(at)->path, tdm_str_text(&text), tdm__rank_of(comm));
    }
    tdm_str_release(&text);
    return status;
}

tdm_status tdm__same_settings(tdm_comm *comm, const tdm_job *job, bool resumes, tdm_error *err)
{
    if (tdm__size_of(comm) == 1) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("comparison");
    int64_t *numbers = arena
                           ? tdm_arena_array(arena, 2 * (tdm_job_key_count() + 1), sizeof(*numbers))
                           : NULL;
    tdm_status status = tdm_comm_agree(comm, numbers ? TDM_OK : tdm_fail_oom(err, "in training"),
                                       NULL, err);
    assert(numbers || status != TDM_OK);
    if (status == TDM_OK) {
        status = settings_compare(comm, job, resumes, numbers, err);
        status = tdm_comm_agree(comm, status, NULL,
                                err); /* no rank leaves before all have compared */
    }
    tdm_arena_destroy(arena);
    return status;
}

bool tdm__shares_node(tdm_comm *comm)
{
    int rank = tdm__rank_of(comm);
    for (int i = 0; i < tdm__size_of(comm); i++)
        if (i != rank && tdm_comm_node_of(comm, i) == tdm_comm_node_of(comm, rank)) return true;
    return false;
}

tdm_status tdm__host_names(tdm_comm *comm, tdm__host_name *out, tdm_error *err)
{
    tdm__host_name *own = &out[tdm__rank_of(comm)];
    memset(own->text, 0, sizeof(own->text));
    if (gethostname(own->text, sizeof(own->text) - 1) != 0)
        snprintf(own->text, sizeof(own->text), "unknown");
    if (tdm__size_of(comm) == 1) return TDM_OK;
    TDM_TRY(tdm_group_all_gather(tdm_comm_world(comm), NULL, out,
                                 (size_t)tdm__size_of(comm) * sizeof(*out), TDM_DTYPE_U8, err));
    for (int i = 0; i < tdm__size_of(comm); i++) out[i].text[sizeof(out[i].text) - 1] = '\0';
    return TDM_OK;
}

int tdm_train_rank_count(const tdm_job *job)
{
    return tdm__workers_of(job, 0);
}

const char *tdm_train_transport(const tdm_job *job)
{
    const char *set = getenv("TANDEM_TRANSPORT");
    bool is_open = (set && *set) || job->comm.transport == TDM_JOB_TRANSPORT_AUTO;
    return is_open ? NULL : tdm_job_transport_name(job->comm.transport);
}

void tdm_train_comm(const tdm_job *job, tdm_comm_options *out)
{
    static const tdm_security modes[] = {[TDM_JOB_SECURITY_AUTO] = TDM_SECURITY_AUTO,
                                         [TDM_JOB_SECURITY_OFF] = TDM_SECURITY_OFF,
                                         [TDM_JOB_SECURITY_PSK] = TDM_SECURITY_PSK,
                                         [TDM_JOB_SECURITY_TLS] = TDM_SECURITY_TLS};
    const char *set = getenv("TANDEM_SECURITY");
    out->transport = tdm_train_transport(job);
    out->streams = (int)job->comm.streams;
    out->security = (tdm_comm_security){.mode = set && *set ? TDM_SECURITY_AUTO
                                                            : modes[job->comm.security],
                                        .certificate = job->comm.tls_certificate,
                                        .private_key = job->comm.tls_key,
                                        .authority = job->comm.tls_authority};
}
