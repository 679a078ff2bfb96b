/*
 * doctor_security.c: `tandem doctor --security`: what a job would expose, or an active run exposes.
 *
 * For a job it checks its keys and the environment. For an active run it also checks the sockets on which
 * its processes on this host listen, as listed by the kernel, and the files of its session.
 */
#include "doctor.h"
#include "session.h"

#include <tandem/job.h>
#include <tandem/os.h>
#include <tandem/train.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- connections ---------------------------------------------------------------------------------------- */

/* The mode that ranks would use: the environment overrides the job. An invalid value, with which ranks do
 * not start, is ignored here. */
static tdm_security mode_of(const tdm_job *job)
{
    tdm_comm_options options = {0};
    const char *set = getenv("TANDEM_SECURITY");
    tdm_train_comm(job, &options);
    if (set && *set) (void)tdm_security_parse(set, &options.security.mode);
    return options.security.mode;
}

static void look_at_connections(const tdm_job *job, report *r)
{
    tdm_security mode = mode_of(job);
    const char *set = getenv("TANDEM_TRANSPORT");
    const char *transport = set && *set ? set : tdm_job_transport_name(job->comm.transport);
    bool is_foreign = strstr(transport, "ucx") || strstr(transport, "mpi");
    doctor_find(
        r, "connections", "transport", is_foreign ? NOTE : OK,
        "ucx and mpi neither authenticate nor encrypt traffic between hosts: use them only on a "
        "network with trusted machines, or set comm.transport to auto",
        "%s", transport);
    if (mode == TDM_SECURITY_OFF)
        doctor_find(
            r, "connections", "security", NOTE,
            "ranks authenticate with the secret when they connect, but an attacker on the network can "
            "read and change parameters: set comm.security to auto",
            "off");
    else if (mode == TDM_SECURITY_TLS)
        doctor_find(r, "connections", "security", OK, NULL,
                    "tls: TLS 1.3 with certificates, in addition to the secret");
    else
        doctor_find(
            r, "connections", "security", OK, NULL, "%s",
            mode == TDM_SECURITY_AUTO
                ? "auto: TLS 1.3 with a key derived from the secret, for connections between hosts"
                : "psk: TLS 1.3 with a key derived from the secret, for all TCP connections");
    doctor_find(r, "connections", "within a host", OK, NULL,
                "shared memory, and UNIX sockets that reject other users: no TCP port");
}

/* Checks that a file is readable, and that other users cannot read it if it is private. */
static void look_at_file(report *r, const char *group, const char *name, const char *path,
                         bool is_private)
{
    struct stat about;
    if (!path) {
        doctor_find(r, group, name, PROBLEM, "set it to a PEM file", "not set");
        return;
    }
    if (stat(path, &about) != 0 || access(path, R_OK) != 0)
        doctor_find(r, group, name, PROBLEM, "use a file that this user can read", "%s", path);
    else
        doctor_find(r, group, name, is_private && (about.st_mode & 077) ? PROBLEM : OK,
                    "other users can read it: chmod 600", "%s (mode %o)", path,
                    (unsigned)about.st_mode & 0777);
}

static void look_at_certificates(const tdm_job *job, report *r)
{
    if (mode_of(job) != TDM_SECURITY_TLS) return;
    const char *certificate = getenv("TANDEM_TLS_CERTIFICATE"), *key = getenv("TANDEM_TLS_KEY");
    const char *authority = getenv("TANDEM_TLS_AUTHORITY");
    look_at_file(r, "certificates", "certificate",
                 job->comm.tls_certificate ? job->comm.tls_certificate : certificate, false);
    look_at_file(r, "certificates", "private key", job->comm.tls_key ? job->comm.tls_key : key,
                 true);
    look_at_file(r, "certificates", "authority",
                 job->comm.tls_authority ? job->comm.tls_authority : authority, false);
}

/* ---- the store ------------------------------------------------------------------------------------------ */

static void look_at_store(const tdm_kv_options *kv, const char *url, report *r)
{
    if (!url || strncmp(url, "etcd:", 5) != 0) {
        doctor_find(r, "store", "local", OK, NULL,
                    "a file in this user's runtime directory, which other users cannot access");
        return;
    }
    bool is_plain = strstr(url, "http://") != NULL;
    doctor_find(
        r, "store", "etcd", is_plain ? NOTE : OK,
        "an attacker on the network can read and change the traffic with etcd, including the "
        "membership of the run: use https:// endpoints and set etcd.ca",
        "%s%s", url + 5, is_plain ? " without TLS" : "");
    doctor_find(
        r, "store", "etcd's user", kv->user || kv->certificate ? OK : NOTE,
        "every client that can reach etcd can stop or disturb the run, but not join it or read its "
        "parameters: enable authentication (etcdctl auth enable) and set etcd.user",
        "%s",
        kv->user          ? kv->user
        : kv->certificate ? "by certificate"
                          : "none");
}

/* ---- the secret ------------------------------------------------------------------------------------------ */

static void look_at_environment_secret(report *r)
{
    const char *text = getenv("TANDEM_SECRET"), *path = getenv("TANDEM_SECRET_FILE");
    if (text && *text)
        doctor_find(r, "secret", "source", strlen(text) < 16 ? NOTE : OK,
                    "it is short enough to be guessed: use `openssl rand -hex 16`",
                    "TANDEM_SECRET, %zu characters", strlen(text));
    else if (path && *path)
        look_at_file(r, "secret", "source", path, true);
    else
        doctor_find(r, "secret", "source", OK, NULL,
                    "generated for each session; agents receive it through ssh's standard input");
    doctor_find(r, "secret", "who could join", OK, NULL,
                "processes with the secret: of this user and root on the hosts of the session");
}

/* ---- sockets of processes -------------------------------------------------------------------------------- */

enum { MAX_INODES = 1024 };
typedef struct sockets {
    unsigned long inodes[MAX_INODES];
    int count;
} sockets;

static void list_sockets(int64_t pid, sockets *out)
{
    char path[64], link[64];
    snprintf(path, sizeof(path), "/proc/%lld/fd", (long long)pid);
    DIR *dir = opendir(path);
    out->count = 0;
    for (struct dirent *e; dir && (e = readdir(dir)) && out->count < MAX_INODES;) {
        ssize_t length = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);
        if (length <= 0) continue;
        link[length] = '\0';
        if (sscanf(link, "socket:[%lu]", &out->inodes[out->count]) == 1) out->count++;
    }
    if (dir) closedir(dir);
}

static bool has_socket(const sockets *s, unsigned long inode)
{
    for (int i = 0; i < s->count; i++)
        if (s->inodes[i] == inode) return true;
    return false;
}

/* Parses "0100007F:1F90" of the kernel's table; each 32 bits are a number in host byte order. */
static void read_address(const char *hex, char *out, size_t bytes)
{
    uint8_t raw[16] = {0};
    size_t digits = strcspn(hex, ":"), words = digits / 8;
    for (size_t i = 0; i < words && i < 4; i++) {
        char part[9] = "";
        memcpy(part, hex + 8 * i, 8);
        uint32_t value = (uint32_t)strtoul(part, NULL, 16);
        memcpy(raw + 4 * i, &value, sizeof(value));
    }
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(words == 4 ? AF_INET6 : AF_INET, raw, text, sizeof(text));
    snprintf(out, bytes, "%s port %lu", text, strtoul(hex + digits + 1, NULL, 16));
}

/* Reports the TCP ports on which the process listens, and returns their number. */
static int look_at_tcp(int64_t pid, const sockets *s, const char *who, report *r)
{
    static const char *const tables[] = {"tcp", "tcp6"};
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char path[64], line[512];
        snprintf(path, sizeof(path), "/proc/%lld/net/%s", (long long)pid, tables[i]);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file)) {
            char local[64], text[96];
            unsigned state;
            unsigned long inode;
            if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*s %*s %lu", local, &state, &inode) !=
                3)
                continue;
            enum { LISTENS = 0x0a };
            if (state != LISTENS || !has_socket(s, inode)) continue;
            read_address(local, text, sizeof(text));
            found++;
            doctor_find(r, "listening", who, OK, NULL, "%s: accepts only peers with the secret",
                        text);
        }
        if (file) fclose(file);
    }
    return found;
}

static int look_at_unix(int64_t pid, const sockets *s, const char *who, report *r)
{
    char path[64], line[512];
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%lld/net/unix", (long long)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        char name[200] = "";
        unsigned flags;
        unsigned long inode;
        enum { ACCEPTS = 0x10000 };
        if (sscanf(line, "%*s %*s %*s %x %*s %*s %lu %199s", &flags, &inode, name) < 2) continue;
        if (!(flags & ACCEPTS) || !has_socket(s, inode)) continue;
        found++;
        doctor_find(r, "listening", who, OK, NULL,
                    "UNIX socket %s: accepts only this user and root", name);
    }
    if (file) fclose(file);
    return found;
}

static void look_at_processes(const tdm_session_view *view, report *r)
{
    int elsewhere = 0, found = 0, here = 0;
    sockets *s = malloc(sizeof(*s));
    for (size_t i = 0; s && i < view->member_count; i++) {
        const tdm_session_member *m = &view->members[i];
        char who[24];
        list_sockets(m->pid, s);
        if (s->count == 0) {
            elsewhere++;
            continue;
        }
        here++;
        snprintf(who, sizeof(who), m->rank >= 0 ? "rank %d" : "a waiting worker", m->rank);
        found += look_at_tcp(m->pid, s, who, r) + look_at_unix(m->pid, s, who, r);
    }
    free(s);
    if (here > 0 && found == 0)
        doctor_find(r, "listening", "ranks", OK, NULL,
                    "none of the %d processes listens on a socket", here);
    if (elsewhere > 0)
        doctor_find(
            r, "listening", "other hosts", NOTE,
            "run this command there as well: sockets of other hosts and users are not visible here",
            "%d processes", elsewhere);
}

/* ---- a run or a job -------------------------------------------------------------------------------------- */

static int look_at_job(const cli_args *args, const char *path, report *r)
{
    int code = CLI_OK;
    tdm_arena *arena = tdm_arena_create("doctor");
    tdm_job_document *document = arena ? cli_load_job(args, path, &code) : NULL;
    if (document) {
        const tdm_job *job = tdm_job_document_job(document);
        tdm_kv_options kv = {0};
        code = session_store_of(job, arena, &kv);
        look_at_connections(job, r);
        look_at_certificates(job, r);
        look_at_environment_secret(r);
        if (code == CLI_OK) look_at_store(&kv, kv.url, r);
        tdm_job_document_destroy(document);
    }
    tdm_arena_destroy(arena);
    return document ? code : code == CLI_OK ? CLI_FAILED : code;
}

static void look_at_session_files(const session_ref *ref, tdm_arena *arena, report *r)
{
    tdm_session_place *places = NULL;
    size_t count = 0;
    if (tdm_session_list(arena, &places, &count, NULL) != TDM_OK) return;
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i].session, ref->view.session) == 0 && tdm_path_exists(places[i].secret))
            look_at_file(r, "secret", "file", places[i].secret, true);
}

static int look_at_run(const cli_args *args, const char *word, report *r)
{
    tdm_arena *arena = tdm_arena_create("doctor");
    session_ref ref;
    if (!arena) return CLI_FAILED;
    int code = session_find(args, word, arena, &ref);
    if (code == CLI_OK && ref.job) code = look_at_job(args, ref.job, r);
    if (code == CLI_OK) {
        if (!ref.job) look_at_store(&ref.kv, ref.kv.url, r);
        look_at_session_files(&ref, arena, r);
        look_at_processes(&ref.view, r);
    }
    tdm_arena_destroy(arena);
    return code;
}

int doctor_look_at_security(const cli_args *args, const char *target, report *r)
{
    struct stat about;
    bool is_file = stat(target, &about) == 0 && S_ISREG(about.st_mode);
    return is_file ? look_at_job(args, target, r) : look_at_run(args, target, r);
}
