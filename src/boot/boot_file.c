/*
 * boot_file.c: the rendezvous as a file that all ranks can see.
 *
 * The file has lines "key value": the host and process of rank 0, its addresses and port, and a random
 * secret of this world, so that only processes that can read the file can join. It is written to a temporary
 * name and renamed, readable by its owner only; a reader sees all of it or nothing, and accepts only a file
 * of its user or of root. Its content is untrusted: every line is checked.
 */
#include "boot/boot.h"

#include <tandem/os.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TITLE "tandem rendezvous 1\n"

enum { MAX_FILE = 4096 };

static uint64_t file_stamp(const char *bytes, size_t count)
{
    char hex[TDM_SHA256_HEX] = "0";
    tdm_sha256_of(bytes, count, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

static tdm_status file_write_and_rename(const char *path, const char *temporary,
                                        const tdm_str *text, tdm_error *err)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return tdm_os_fail(err, "cannot write rendezvous", path);
    bool ok = write(fd, text->data, text->length) == (ssize_t)text->length && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    if (ok && rename(temporary, path) == 0) return TDM_OK;
    tdm_status status = tdm_os_fail(err, "cannot write rendezvous", path);
    unlink(temporary);
    return status;
}

tdm_status tdm__meeting_file_write(const char *path, const tdm__meeting_file *file,
                                   uint64_t *out_stamp, tdm_error *err)
{
    tdm_str text = TDM_STR_INIT, temporary = TDM_STR_INIT;
    uint32_t drawn = 0;
    TDM_TRY(tdm_os_random(&drawn, sizeof(drawn), err));
    tdm_str_addf(&text, TITLE "host %s\nprocess %ld\nname %s\nsecret %s\nport %d\n", file->host,
                 file->pid, file->host_name, file->secret, file->port);
    for (int i = 0; i < file->address_count; i++)
        tdm_str_addf(&text, "address %s\n", file->address[i]);
    tdm_str_add(&text, "end\n");
    tdm_str_addf(&temporary, "%s.%ld-%08" PRIx32 ".tmp", path, (long)getpid(), drawn);
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (tdm_str_ok(&text) && tdm_str_ok(&temporary))
        status = file_write_and_rename(path, temporary.data, &text, err);
    else
        tdm_fail(err, status, "no memory to write rendezvous %s", path);
    if (status == TDM_OK) *out_stamp = file_stamp(text.data, text.length);
    tdm_str_wipe(&text);
    tdm_str_release(&temporary);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

/* Copies a word that has only these characters. */
static bool file_take_word(const char *value, const char *allowed, char *out, size_t bytes)
{
    size_t length = strlen(value);
    if (length == 0 || length >= bytes || (allowed && strspn(value, allowed) != length))
        return false;
    memcpy(out, value, length + 1);
    return true;
}

static bool file_take_number(const char *value, long max, long *out)
{
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || digits > 10 || value[digits] != '\0') return false;
    *out = strtol(value, NULL, 10);
    return *out >= 1 && *out <= max;
}

/* Whether this is "%eth0" or empty. */
static bool text_is_device(const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (*text == '\0') return true;
    size_t length = strlen(text + 1);
    return length > 0 && length < IF_NAMESIZE && strspn(text + 1, allowed) == length;
}

static bool file_take_address(const char *value, tdm__meeting_file *out)
{
    struct in6_addr raw;
    char plain[INET6_ADDRSTRLEN] = "";
    const int max = (int)(sizeof(out->address) / sizeof(out->address[0]));
    size_t length = strcspn(value, "%");
    if (out->address_count == max || length >= sizeof(plain) || !text_is_device(value + length))
        return false;
    memcpy(plain, value, length);
    bool is_v6 = inet_pton(AF_INET6, plain, &raw) == 1;
    if (!is_v6 && (value[length] || inet_pton(AF_INET, plain, &raw) != 1)) return false;
    return file_take_word(value, NULL, out->address[out->address_count++], sizeof(out->address[0]));
}

static bool file_take_line(const char *line, tdm__meeting_file *out)
{
    static const char hex[] = "0123456789abcdef";
    const char *value = strchr(line, ' ');
    if (!value) return false;
    size_t key = (size_t)(value++ - line);
    long number = 0;
    if (key == 4 && memcmp(line, "host", key) == 0)
        return file_take_word(value, hex, out->host, sizeof(out->host));
    if (key == 7 && memcmp(line, "process", key) == 0)
        return file_take_number(value, 1L << 31, &out->pid);
    if (key == 4 && memcmp(line, "name", key) == 0) {
        if (strlen(value) >= sizeof(out->host_name)) return false;
        tdm__wire_clean((const uint8_t *)value, strlen(value), out->host_name);
        return true;
    }
    if (key == 6 && memcmp(line, "secret", key) == 0)
        return file_take_word(value, hex, out->secret, sizeof(out->secret));
    if (key == 4 && memcmp(line, "port", key) == 0 && file_take_number(value, 65535, &number)) {
        out->port = (int)number;
        return true;
    }
    return key == 7 && memcmp(line, "address", key) == 0 && file_take_address(value, out);
}

/* Parses the lines up to "end", which must be the last one. */
static bool file_take_lines(const char *bytes, size_t count, tdm__meeting_file *out)
{
    for (size_t at = 0; at < count;) {
        const char *end = memchr(bytes + at, '\n', count - at);
        char line[256];
        size_t length = end ? (size_t)(end - bytes) - at : sizeof(line);
        if (length >= sizeof(line) || memchr(bytes + at, '\0', length)) return false;
        memcpy(line, bytes + at, length);
        line[length] = '\0';
        at += length + 1;
        bool is_end = strcmp(line, "end") == 0, is_good = is_end || file_take_line(line, out);
        explicit_bzero(line, sizeof(line));
        if (is_end) return at == count;
        if (!is_good) return false;
    }
    return false;
}

bool tdm__meeting_file_parse(const char *bytes, size_t count, tdm__meeting_file *out)
{
    tdm__meeting_file file = {0};
    size_t title = strlen(TITLE);
    bool is_good = count >= title && memcmp(bytes, TITLE, title) == 0 &&
                   file_take_lines(bytes + title, count - title, &file) && file.port > 0 &&
                   file.pid > 0 && *file.secret && *file.host;
    if (is_good) *out = file;
    explicit_bzero(file.secret, sizeof(file.secret));
    return is_good;
}

static tdm_status file_check_owner(int fd, const char *path, tdm_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return tdm_os_fail(err, "cannot read rendezvous", path);
    if (!S_ISREG(info.st_mode))
        return tdm_fail(err, TDM_ERR_INVALID, "rendezvous %s is not a file", path);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "rendezvous %s belongs to another user: choose another path", path);
    return TDM_OK;
}

tdm_status tdm__meeting_file_read(const char *path, tdm__meeting_file *out, uint64_t *out_stamp,
                                  tdm_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno == ENOENT || errno == ESTALE)
            return tdm_fail(err, TDM_ERR_NOT_FOUND, "rank 0 has not written %s yet", path);
        return tdm_os_fail(err, "cannot read rendezvous", path);
    }
    char bytes[MAX_FILE];
    tdm_status status = file_check_owner(fd, path, err);
    ssize_t got = status == TDM_OK ? read(fd, bytes, sizeof(bytes)) : 0;
    close(fd);
    if (status != TDM_OK) return status;
    if (got == 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s is empty", path);
    bool is_good = got > 0 && tdm__meeting_file_parse(bytes, (size_t)got, out);
    if (is_good) *out_stamp = file_stamp(bytes, (size_t)got);
    explicit_bzero(bytes, sizeof(bytes));
    if (!is_good)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s exists but is not a rendezvous file of tandem: use another path, or "
                        "remove it",
                        path);
    return TDM_OK;
}
