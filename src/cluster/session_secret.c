/*
 * session_secret.c: the secret that authenticates the workers of a session on all its hosts.
 *
 * It is never written to the store, a command line or the log. The launcher takes it from the
 * environment (TANDEM_SECRET, or the file named by TANDEM_SECRET_FILE) or creates a random one, and
 * writes it to a file of the session that only the user can read; agents of the same host read it
 * there. Agents on other hosts get it on their standard input, before the job (by ssh), or from
 * their environment (srun, mpirun, `tandem join`). The store has a hash of it, salted with the
 * session's name, so that an agent with another secret is rejected at once, before its workers are.
 */
#include "base/base.h"
#include "cluster/cluster.h"
#include "cluster/session.h"
#include "kv/kv.h"
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE "# tandem secret "

/* ---- sources --------------------------------------------------------------------------------- */

static bool secret_is_good(const char *text)
{
    size_t length = strlen(text);
    for (const char *c = text; *c; c++)
        if (*c < '!' || *c > '~') return false;
    return length > 0 && length < TDM_SECRET_BYTES;
}

static tdm_status secret_fail(const char *where, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s does not contain a valid secret: expected 1 to %d printable characters "
                    "without spaces (`openssl rand -hex 16` creates one)",
                    where, TDM_SECRET_BYTES - 1);
}

/* Reads a file that only its owner, this user or root, can read. */
static tdm_status secret_read_file(const char *path, char out[TDM_SECRET_BYTES], tdm_error *err)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tdm_os_fail(err, "cannot read the secret in", path);
    bool is_private = fstat(fd, &about) == 0 && (about.st_mode & 077) == 0 &&
                      (about.st_uid == geteuid() || about.st_uid == 0);
    ssize_t count = is_private ? read(fd, out, TDM_SECRET_BYTES) : -1;
    close(fd);
    if (!is_private)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "the secret in %s can be read by others: run `chmod 600 %s`, and make "
                        "sure the file belongs to you",
                        path, path);
    if (count < 0 || count == TDM_SECRET_BYTES) return secret_fail(path, err);
    while (count > 0 && strchr(" \t\r\n", out[count - 1])) count--;
    out[count] = '\0';
    return secret_is_good(out) ? TDM_OK : secret_fail(path, err);
}

/* TDM_ERR_NOT_FOUND: no secret in the environment. */
static tdm_status secret_of_environment(char out[TDM_SECRET_BYTES], tdm_error *err)
{
    const char *text = getenv("TANDEM_SECRET"), *path = getenv("TANDEM_SECRET_FILE");
    if (text && *text) {
        if (!secret_is_good(text)) return secret_fail("TANDEM_SECRET", err);
        snprintf(out, TDM_SECRET_BYTES, "%s", text);
        return TDM_OK;
    }
    if (path && *path) return secret_read_file(path, out, err);
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "the environment has no secret");
}

tdm_status tdm__session_secret_begin(const tdm_session_hold *hold, char out[TDM_SECRET_BYTES],
                                     tdm_error *err)
{
    tdm_status status = secret_of_environment(out, err);
    if (status == TDM_ERR_NOT_FOUND) {
        uint8_t drawn[16];
        status = tdm_os_random(drawn, sizeof(drawn), err);
        if (status == TDM_OK) tdm_hex(drawn, sizeof(drawn), out);
        explicit_bzero(drawn, sizeof(drawn));
    }
    TDM_TRY(status);
    return tdm__session_put_file(hold->place.secret, out, err);
}

tdm_status tdm_session_secret(const tdm_session_hold *hold, const char *given,
                              char out[TDM_SECRET_BYTES], tdm_error *err)
{
    if (given && *given) {
        snprintf(out, TDM_SECRET_BYTES, "%s", given);
        return TDM_OK;
    }
    tdm_status status = secret_of_environment(out, err);
    if (status != TDM_ERR_NOT_FOUND) return status;
    if (tdm_path_exists(hold->place.secret)) return secret_read_file(hold->place.secret, out, err);
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "this host does not have the secret of session %s: set TANDEM_SECRET to the "
                    "same text here and where the session is started, or TANDEM_SECRET_FILE to a "
                    "file of mode 600 that contains it",
                    hold->place.session);
}

/* Creates the file with a random secret; TDM_ERR_EXISTS: another process was first. */
static tdm_status secret_create_file(const char *path, tdm_error *err)
{
    uint8_t drawn[16];
    char text[TDM_SECRET_BYTES];
    TDM_TRY(tdm_os_random(drawn, sizeof(drawn), err));
    tdm_hex(drawn, sizeof(drawn), text);
    explicit_bzero(drawn, sizeof(drawn));
    tdm_arena *arena = tdm_arena_create("secret");
    const char *fresh = arena ? tdm_arena_printf(arena, "%s.%ld", path, (long)getpid()) : NULL;
    tdm_status status = fresh ? tdm__session_put_file(fresh, text, err)
                              : tdm_fail_oom(err, "for a secret");
    /* A link, because it fails if the file exists: a reader never sees a file without its text. */
    if (status == TDM_OK && link(fresh, path) != 0)
        status = errno == EEXIST ? TDM_ERR_EXISTS : tdm_os_fail(err, "cannot create", path);
    if (fresh) (void)unlink(fresh);
    explicit_bzero(text, sizeof(text));
    tdm_arena_destroy(arena);
    return status;
}

tdm_status tdm_secret_find(const char *path, bool creates, char out[TDM_SECRET_BYTES],
                           tdm_error *err)
{
    tdm_status status = secret_of_environment(out, err);
    if (status != TDM_ERR_NOT_FOUND || !path) return status;
    if (creates && !tdm_path_exists(path)) {
        status = secret_create_file(path, err);
        if (status != TDM_OK && status != TDM_ERR_EXISTS) return status;
    }
    if (!tdm_path_exists(path)) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s does not exist", path);
    return secret_read_file(path, out, err);
}

/* ---- line before a job ----------------------------------------------------------------------- */

void tdm__session_secret_write(const char *secret, tdm_str *out)
{
    tdm_str_addf(out, LINE "%s\n", secret);
}

size_t tdm_session_secret_line(const char *text, char out[TDM_SECRET_BYTES])
{
    out[0] = '\0';
    if (strncmp(text, LINE, strlen(LINE)) != 0) return 0;
    const char *begin = text + strlen(LINE);
    size_t length = strcspn(begin, "\n");
    if (length >= TDM_SECRET_BYTES) return 0;
    memcpy(out, begin, length);
    out[length] = '\0';
    if (!secret_is_good(out)) out[0] = '\0';
    return strlen(LINE) + length + (begin[length] == '\n');
}

/* ---- hash in the store ----------------------------------------------------------------------- */

static tdm_status secret_hash(const char *session, const char *secret, char out[TDM_SHA256_HEX],
                              tdm_error *err)
{
    uint8_t raw[TDM_SHA256_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_str_addf(&text, "tandem session %s", session);
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (tdm_str_ok(&text))
        status = tdm_hmac_sha256(secret, strlen(secret), text.data, text.length, raw);
    tdm_str_release(&text);
    if (status != TDM_OK) return tdm_fail(err, status, "no memory for a hash");
    tdm_hex(raw, sizeof(raw), out);
    return TDM_OK;
}

tdm_status tdm__session_secret_publish(tdm_kv *kv, const char *session, const char *secret,
                                       tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES], hash[TDM_SHA256_HEX];
    TDM_TRY(secret_hash(session, secret, hash, err));
    return tdm_kv_put(kv, tdm__session_key(key, session, "secret_hash"), hash, 0, err);
}

tdm_status tdm_session_secret_check(tdm_kv *kv, const char *session, const char *secret,
                                    tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES], hash[TDM_SHA256_HEX];
    tdm_kv_item item = {.value = NULL};
    tdm_arena *arena = tdm_arena_create("secret");
    if (!arena) return tdm_fail_oom(err, "to read a session");
    tdm_status status = secret_hash(session, secret, hash, err);
    if (status == TDM_OK)
        status = tdm_kv_get(kv, tdm__session_key(key, session, "secret_hash"), arena, &item, err);
    if (status == TDM_OK && strcmp(item.value, hash) != 0)
        status = tdm_fail(err, TDM_ERR_PEER_REFUSED,
                          "the secret of this host differs from the secret of session %s: set "
                          "TANDEM_SECRET (or TANDEM_SECRET_FILE) to the secret with which the "
                          "session was started",
                          session);
    tdm_arena_destroy(arena);
    return status;
}
