/*
 * environment.c: the rank of this process and other options, from the variables of its launcher.
 *
 * One table has the variables of each launcher. Values are untrusted: an invalid number, or a rank outside
 * its world, is an error that names the variable and its value. No state is kept between calls. Returned
 * texts belong to the environment.
 */
#include "base/timing.h"
#include "boot/boot.h"
#include "trace/recorder.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_STREAMS = 64 }; /* more connections per pair need descriptors and are not faster */

typedef struct launcher {
    const char *name;
    const char *rank, *size, *size_else; /* size_else: used if size is not set */
    const char *local_rank, *local_size;
} launcher;

/* In order of precedence: mpiexec may run inside Slurm, whose variables then describe the helper processes of
 * mpiexec. */
static const launcher launchers[] = {
    {"tandem", "TANDEM_RANK", "TANDEM_SIZE", NULL, "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpich", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
};

/* NULL: the variable is not set, or empty. */
static const char *env_get(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

static tdm_status env_read_number(const char *name, long min, long max, int *out, tdm_error *err)
{
    const char *text = env_get(name);
    char *end = NULL;
    errno = 0;
    long value = text && isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
    if (!end || *end != '\0' || errno != 0 || value < min || value > max)
        return tdm_fail(err, TDM_ERR_INVALID, "%s is \"%.40s\": not a whole number from %ld to %ld",
                        name, text ? text : "", min, max);
    *out = (int)value;
    return TDM_OK;
}

static tdm_status env_read_local(const char *name, int max, int *out, tdm_error *err)
{
    *out = -1;
    return env_get(name) ? env_read_number(name, 0, max, out, err) : TDM_OK;
}

/* Slurm's "2(x3),1" means two tasks on each of the first three nodes and one on the fourth. */
int tdm__slurm_tasks_of(const char *list, long node)
{
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end = NULL;
        long tasks = strtol(at, &end, 10), nodes = 1;
        if (strncmp(end, "(x", 2) == 0 && isdigit((unsigned char)end[2])) {
            nodes = strtol(end + 2, &end, 10);
            if (*end++ != ')') return -1;
        }
        if (nodes < 1 || (*end != ',' && *end != '\0')) return -1;
        if (node < nodes) return tasks >= 1 && tasks <= TDM_MAX_RANKS ? (int)tasks : -1;
        node -= nodes;
        at = *end == ',' ? end + 1 : end;
    }
    return -1;
}

/* The number of tasks on this node, from Slurm's list of tasks per node and the number of this node; -1: unknown
 * or inconsistent. */
static int slurm_local_size(const tdm_comm_place *place)
{
    const char *list = env_get("SLURM_STEP_TASKS_PER_NODE");
    int node = 0;
    if (!list) list = env_get("SLURM_TASKS_PER_NODE");
    if (!list || env_read_number("SLURM_NODEID", 0, TDM_MAX_RANKS, &node, NULL) != TDM_OK)
        return -1;
    int size = tdm__slurm_tasks_of(list, node);
    return size > place->size || size <= place->local_rank ? -1 : size;
}

static tdm_status env_read_place(const launcher *row, tdm_comm_place *out, tdm_error *err)
{
    const char *size_name = !env_get(row->size) && env_get(row->size_else) ? row->size_else
                                                                           : row->size;
    if (!env_get(size_name) || !env_get(row->rank))
        return tdm_fail(err, TDM_ERR_INVALID, "%s is set, but %s is not: set both, or neither",
                        env_get(row->rank) ? row->rank : size_name,
                        env_get(row->rank) ? size_name : row->rank);
    tdm_comm_place place = {.launcher = row->name};
    TDM_TRY(env_read_number(size_name, 1, TDM_MAX_RANKS, &place.size, err));
    TDM_TRY(env_read_number(row->rank, 0, TDM_MAX_RANKS - 1, &place.rank, err));
    if (place.rank >= place.size)
        return tdm_fail(err, TDM_ERR_INVALID, "%s is %d, but %s is %d: ranks count from 0",
                        row->rank, place.rank, size_name, place.size);
    TDM_TRY(env_read_local(row->local_rank, TDM_MAX_RANKS - 1, &place.local_rank, err));
    TDM_TRY(env_read_local(row->local_size, TDM_MAX_RANKS, &place.local_size, err));
    if (place.local_size == 0 || place.local_size > place.size ||
        (place.local_size > 0 && place.local_rank >= place.local_size))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s is %d and %s is %d, which conflict in a world of %d", row->local_rank,
                        place.local_rank, row->local_size, place.local_size, place.size);
    if (strcmp(row->name, "slurm") == 0) place.local_size = slurm_local_size(&place);
    *out = place;
    return TDM_OK;
}

tdm_status tdm_comm_environment(tdm_comm_place *out, tdm_error *err)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const launcher *row = &launchers[i];
        bool ours = strcmp(row->name, "tandem") == 0;
        if (env_get(row->rank) || (ours && env_get(row->size)))
            return env_read_place(row, out, err);
    }
    return tdm_fail(
        err, TDM_ERR_NOT_FOUND,
        "the rank of this process is unknown: start it with `tandem run`, mpirun or srun, or "
        "set TANDEM_RANK and TANDEM_SIZE");
}

/* Checks a number of seconds in the options; 0 becomes `otherwise`. */
static tdm_status options_resolve_seconds(const char *what, double *seconds, double otherwise,
                                          tdm_error *err)
{
    if (!(*seconds >= 0 && *seconds <= TDM__MAX_SECONDS))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s is %g: must be between 0 (default, %g s) and %g seconds", what,
                        *seconds, otherwise, TDM__MAX_SECONDS);
    if (*seconds == 0) *seconds = otherwise;
    return TDM_OK;
}

/* Reads a number of seconds from a variable; *out is unchanged if it is not set. */
static tdm_status env_read_seconds(const char *name, double *out, tdm_error *err)
{
    const char *text = env_get(name);
    if (!text) return TDM_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    if (*end != '\0' || !(value > 0 && value <= TDM__MAX_SECONDS))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s is \"%.40s\": not a number of seconds above 0 and up to %g", name, text,
                        TDM__MAX_SECONDS);
    *out = value;
    return TDM_OK;
}

bool tdm_security_parse(const char *text, tdm_security *out)
{
    static const char *const names[] = {[TDM_SECURITY_AUTO] = "auto",
                                        [TDM_SECURITY_OFF] = "off",
                                        [TDM_SECURITY_PSK] = "psk",
                                        [TDM_SECURITY_TLS] = "tls"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (tdm_security)i;
            return true;
        }
    return false;
}

static tdm_status options_resolve_security(tdm_comm_security *security, tdm_error *err)
{
    const char *request = env_get("TANDEM_SECURITY");
    if (security->mode != TDM_SECURITY_AUTO || !request) return TDM_OK;
    if (tdm_security_parse(request, &security->mode)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "TANDEM_SECURITY is \"%.40s\": set it to auto, off, psk or tls", request);
}

tdm_status tdm__options_resolve(const tdm_comm_options *given, tdm_comm_options *out,
                                tdm_error *err)
{
    tdm_comm_options options = given ? *given : (tdm_comm_options){0};
    if (!options.has_place) {
        tdm_comm_place place;
        tdm_status status = tdm_comm_environment(&place, err);
        if (status == TDM_ERR_NOT_FOUND) {
            place = (tdm_comm_place){.size = 1};
        } else if (status != TDM_OK) {
            return status;
        }
        options.rank = place.rank;
        options.size = place.size;
        options.has_place = true;
    }
    if (options.size < 1 || options.size > TDM_MAX_RANKS || options.rank < 0 ||
        options.rank >= options.size)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "rank %d of %d: a world has 1 to %d ranks, which count from 0",
                        options.rank, options.size, TDM_MAX_RANKS);
    const struct {
        const char *name, **text;
    } texts[] = {{"TANDEM_TRANSPORT", &options.transport},
                 {"TANDEM_RENDEZVOUS", &options.rendezvous},
                 {"TANDEM_SECRET", &options.secret},
                 {"TANDEM_JOB", &options.job},
                 {"TANDEM_RUN", &options.trace},
                 {"TANDEM_TUNE", &options.tune},
                 {"TANDEM_TLS_CERTIFICATE", &options.security.certificate},
                 {"TANDEM_TLS_KEY", &options.security.private_key},
                 {"TANDEM_TLS_AUTHORITY", &options.security.authority}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (!*texts[i].text || !**texts[i].text) *texts[i].text = env_get(texts[i].name);
    TDM_TRY(options_resolve_security(&options.security, err));
    if (options.deadline_s == 0)
        TDM_TRY(env_read_seconds("TANDEM_DEADLINE", &options.deadline_s, err));
    double silence_s = 0;
    TDM_TRY(env_read_seconds("TANDEM_SILENCE", &silence_s, err)); /* see tdm__silence_s */
    TDM_TRY(options_resolve_seconds("deadline_s", &options.deadline_s, TDM__TIMING_BOOT_DEADLINE_S,
                                    err));
    TDM_TRY(options_resolve_seconds("join_s", &options.join_s, TDM__TIMING_BOOT_JOIN_S, err));
    const char *dump = env_get("TANDEM_DUMP_SIGNAL");
    if (!options.dump_signal && dump) {
        tdm_status status = tdm__dump_signal_read(dump, &options.dump_signal, err);
        if (status != TDM_OK) return tdm_error_context(err, status, "TANDEM_DUMP_SIGNAL");
    }
    if (options.streams < 0 || options.streams > MAX_STREAMS)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "streams is %d: must be between 0 (default, 1) and %d", options.streams,
                        MAX_STREAMS);
    if (options.streams == 0) options.streams = 1;
    *out = options;
    return TDM_OK;
}

double tdm__silence_s(void)
{
    double seconds = TDM__TIMING_BOOT_SILENCE_S;
    (void)env_read_seconds("TANDEM_SILENCE", &seconds,
                           NULL); /* tdm__options_resolve reports an error */
    return seconds;
}

double tdm__silence_max_s(double min_s, double longest_s, int size)
{
    double beats_s = TDM__TIMING_BOOT_SILENCE_BEATS * tdm__beat_s(size);
    if (size > 1024 && min_s < beats_s) min_s = beats_s;
    double max_s = TDM__TIMING_BOOT_SILENCE_FACTOR * longest_s;
    if (max_s > TDM__TIMING_BOOT_MAX_SILENCE_FACTOR * min_s)
        max_s = TDM__TIMING_BOOT_MAX_SILENCE_FACTOR * min_s;
    return max_s < min_s ? min_s : max_s;
}

bool tdm__silence_is_slowness(tdm_process_watch *watch, uint64_t pid, double silent_s, double min_s)
{
    if (silent_s > TDM__TIMING_BOOT_SLOW_FACTOR * min_s) return false;
    if (watch->process != (int64_t)pid) tdm_process_watch_init((int64_t)pid, watch);
    return tdm_process_lives(watch, TDM__TIMING_BOOT_IDLE_FACTOR * min_s);
}

/* ---- rendezvous of a launcher -------------------------------------------------------------------- */

/* Slurm abbreviates lists: "rack[1-2]node[03,05-7],login". The first name has the first number of each pair of
 * brackets. */
bool tdm__slurm_first_host(const char *list, char *out, size_t bytes)
{
    size_t length = 0;
    for (const char *at = list; *at && *at != ',';) {
        const char *end = NULL;
        if (*at == '[') {
            size_t digits = strspn(at + 1, "0123456789");
            end = strchr(at, ']');
            if (digits == 0 || !end || !strchr("-,]", at[1 + digits])) return false;
            if (length + digits >= bytes) return false;
            memcpy(out + length, at + 1, digits);
            length += digits;
            at = end + 1;
            continue;
        }
        if (!isalnum((unsigned char)*at) && !strchr("-_.", *at)) return false;
        if (length + 1 >= bytes) return false;
        out[length++] = *at++;
    }
    if (length == 0) return false;
    out[length] = '\0';
    return true;
}

/* The parent process and its start time: the proxy of Hydra is the parent of all its processes on this host. */
static bool launch_parent_identity(char *out, size_t bytes)
{
    char path[64], line[1024] = "";
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)getppid());
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(line, 1, sizeof(line) - 1, file) : 0;
    if (file) fclose(file);
    line[got] = '\0';
    /* The start time is the 22nd field; names may contain spaces, so count from the last bracket. */
    const char *at = strrchr(line, ')');
    for (int i = 2; at && i < 22; i++) at = strchr(at + 1, ' ');
    if (!at) return false;
    snprintf(out, bytes, "parent=%ld.%.*s", (long)getppid(), (int)strcspn(at + 1, " "), at + 1);
    return true;
}

/* A text that is the same for all processes of one launch and different for others. The job number of Open MPI is
 * short and reused, so its random transport key is added. A job that Slurm restarts keeps its numbers, so the
 * restart count is added. Without these variables, the identity is valid on this host only (*is_of_host). */
static bool launch_identity(char *out, size_t bytes, bool *is_of_host)
{
    static const char *const names[] = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"};
    const char *name = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !name; i++)
        if (env_get(names[i])) name = names[i];
    const char *drawn = env_get("OMPI_MCA_orte_precondition_transports");
    const char *job = env_get("SLURM_JOB_ID"), *step = env_get("SLURM_STEP_ID");
    const char *starts = env_get("SLURM_RESTART_COUNT");
    *is_of_host = !name && !job;
    if (name)
        snprintf(out, bytes, "%s=%s %s %s", name, env_get(name), drawn ? drawn : "",
                 starts ? starts : "");
    else if (job)
        snprintf(out, bytes, "SLURM=%s.%s %s", job, step ? step : "", starts ? starts : "");
    return name || job || launch_parent_identity(out, bytes);
}

static uint64_t launch_hash(const char *text)
{
    char hex[TDM_SHA256_HEX] = "0";
    tdm_sha256_of(text, strlen(text), hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

static bool place_is_one_host(const tdm_comm_place *place)
{
    if (place->local_size == place->size) return true;
    const char *nodes = env_get("SLURM_STEP_NUM_NODES");
    if (!nodes) nodes = env_get("SLURM_NNODES");
    return strcmp(place->launcher, "slurm") == 0 && nodes && strcmp(nodes, "1") == 0;
}

bool tdm_comm_launch_name(const tdm_comm_place *place, char out[TDM_LAUNCH_NAME_BYTES])
{
    char identity[512];
    bool is_of_host = true;
    if (strcmp(place->launcher, "tandem") == 0 ||
        !launch_identity(identity, sizeof(identity), &is_of_host) ||
        (is_of_host && !place_is_one_host(place)))
        return false;
    snprintf(out, TDM_LAUNCH_NAME_BYTES, "%016llx", (unsigned long long)launch_hash(identity));
    return true;
}

tdm_status tdm__rendezvous_guess(const tdm_comm_options *options, char out[TDM__MAX_RENDEZVOUS],
                                 tdm_error *err)
{
    char identity[512];
    bool is_of_host;
    tdm_comm_place place = {.size = 0};
    bool known = tdm_comm_environment(&place, NULL) == TDM_OK && place.size == options->size;
    if (known && place_is_one_host(&place) && strcmp(place.launcher, "tandem") != 0 &&
        launch_identity(identity, sizeof(identity), &is_of_host)) {
        snprintf(out, TDM__MAX_RENDEZVOUS, "unix:tandem-%s-%lu-%016llx", place.launcher,
                 (unsigned long)geteuid(), (unsigned long long)launch_hash(identity));
        return TDM_OK;
    }
    const char *nodes = env_get("SLURM_STEP_NODELIST"), *job = env_get("SLURM_JOB_ID");
    if (!nodes) nodes = env_get("SLURM_JOB_NODELIST");
    char host[256];
    if (known && nodes && job && tdm__slurm_first_host(nodes, host, sizeof(host)) &&
        launch_identity(identity, sizeof(identity), &is_of_host)) {
        snprintf(out, TDM__MAX_RENDEZVOUS, "%s:%d", host,
                 20000 + (int)(launch_hash(identity) % 12000));
        return TDM_OK;
    }
    return tdm_fail(err, TDM_ERR_INVALID,
                    "rank %d of %d has no rendezvous: set TANDEM_RENDEZVOUS "
                    "(or --rendezvous) to HOST:PORT of rank 0, or to a file that all ranks can see",
                    options->rank, options->size);
}

/* ---- this host ------------------------------------------------------------------------------------- */

static void host_read_line(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file || !fgets(out, (int)bytes, file)) out[0] = '\0';
    if (file) fclose(file);
    out[strcspn(out, "\n")] = '\0';
}

/* Processes can share memory if they have the same kernel, user and network namespace (which abstract sockets
 * belong to). With `given` or TANDEM_HOST, the user asserts that they can. */
tdm_status tdm__host_identity(const char *given, uint8_t out[TDM_SHA256_BYTES], char name[64],
                              tdm_error *err)
{
    char boot[64] = "";
    struct stat net = {0};
    if (!given || !*given) given = env_get("TANDEM_HOST");
    snprintf(name, 64, "%s", given ? given : "");
    if (!given) {
        host_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
        if (stat("/proc/self/ns/net", &net) != 0) net = (struct stat){0};
        if (gethostname(name, 63) != 0) snprintf(name, 64, "unnamed");
        name[63] = '\0';
    }
    char shown[64];
    tdm__wire_clean((const uint8_t *)name, strlen(name), shown);
    memcpy(name, shown, sizeof(shown));
    char text[320];
    int length = snprintf(text, sizeof(text), "%s|%s|%llu.%llu|%lu", given ? given : "",
                          given || *boot ? boot : name, (unsigned long long)net.st_dev,
                          (unsigned long long)net.st_ino, (unsigned long)geteuid());
    static const char purpose[] = "tandem host";
    if (tdm_hmac_sha256(purpose, strlen(purpose), text, (size_t)length, out) != TDM_OK)
        return tdm_fail_oom(err, "for the identity of this host");
    return TDM_OK;
}
