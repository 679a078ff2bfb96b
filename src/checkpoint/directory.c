/*
 * directory.c: the directory with the checkpoints of a run.
 *
 * The name of a checkpoint contains its step, so the newest one is found without opening any. Files with
 * other names are neither opened nor removed. A run resumes from the newest valid file; damaged files are
 * reported in the log and not removed, so that the user can examine them. A checkpoint may be plain or
 * compressed; of two checkpoints of one step the plain one is used.
 *
 * Old checkpoints are removed by rules, the oldest first, and only if the caller names a valid one, which
 * is always kept. On a full disk the number of kept checkpoints shrinks to one.
 *
 * The names of temporary files contain the process id of the writer (see os/file_write.c). A file whose
 * writer is dead is a leftover. Files of this process count as leftovers as well: do not prune a directory
 * while another thread of this process saves to it.
 */
#include "base/base.h"
#include "checkpoint/internal.h"
#include "os/os.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME_PREFIX "step-"
#define NAME_SUFFIX ".safetensors"
#define PACKED_SUFFIX ".zst"
#define NAME_BYTES 64

/* How often a directory is read again if another process removes files from it meanwhile. */
enum { MAX_READS = 16 };

static void name_of_step(uint64_t step, bool packed, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, NAME_PREFIX "%012" PRIu64 NAME_SUFFIX "%s", step,
             packed ? PACKED_SUFFIX : "");
}

bool tdm_checkpoint_step_of(const char *name, uint64_t *out)
{
    if (strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) != 0) return false;
    const char *digits = name + strlen(NAME_PREFIX);
    if (*digits < '0' || *digits > '9') return false;
    errno = 0;
    uint64_t step = strtoull(digits, NULL, 10);
    char canonical[NAME_BYTES];
    name_of_step(step, tdm__is_packed_name(name), canonical);
    if (errno || strcmp(canonical, name) != 0) return false;
    *out = step;
    return true;
}

char *tdm_checkpoint_path(tdm_arena *arena, const char *dir, uint64_t step)
{
    char name[NAME_BYTES];
    name_of_step(step, false, name);
    return tdm_path_join(arena, dir, name);
}

char *tdm_checkpoint_packed_path(tdm_arena *arena, const char *dir, uint64_t step)
{
    char name[NAME_BYTES];
    name_of_step(step, true, name);
    return tdm_path_join(arena, dir, name);
}

/* ---- list ------------------------------------------------------------------------------------ */

static int compare_newest_first(const void *a, const void *b)
{
    const tdm_checkpoint_entry *x = a, *y = b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    return (int)x->packed - (int)y->packed;
}

/* Collects the checkpoints among `names`, newest first, without their size and time. */
static tdm_status entries_collect(const char *dir, const char *const *names, size_t count,
                                  tdm_arena *arena, tdm_checkpoint_entry **out, size_t *out_count,
                                  tdm_error *err)
{
    tdm_checkpoint_entry *entries = tdm_arena_array(arena, count + 1, sizeof(*entries));
    if (!entries) return tdm_fail_oom(err, "to list checkpoints");
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        tdm_checkpoint_entry *e = &entries[n];
        if (!tdm_checkpoint_step_of(names[i], &e->step)) continue;
        e->name = names[i];
        e->path = tdm_path_join(arena, dir, names[i]);
        e->packed = tdm__is_packed_name(names[i]);
        e->metrics = (tdm_checkpoint_metrics){.loss = NAN, .accuracy = NAN};
        if (!e->path) return tdm_fail_oom(err, "to list checkpoints");
        n++;
    }
    qsort(entries, n, sizeof(*entries), compare_newest_first);
    *out = entries;
    *out_count = n;
    return TDM_OK;
}

/* Lists the directory once. *seen: the number of names, including files that were removed
 * meanwhile. */
static tdm_status list_once(const char *dir, tdm_arena *arena, tdm_checkpoint_entry **out,
                            size_t *out_count, size_t *seen, tdm_error *err)
{
    const char *const *names = NULL;
    size_t name_count = 0, count = 0;
    tdm_checkpoint_entry *entries = NULL;
    tdm__index index;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &name_count, err));
    TDM_TRY(entries_collect(dir, names, name_count, arena, &entries, &count, err));
    TDM_TRY(tdm__index_read(dir, arena, &index, err));
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        struct stat info = {0};
        if (stat(entries[i].path, &info) != 0 && errno == ENOENT) continue; /* removed meanwhile */
        entries[n] = entries[i];
        entries[n].bytes = (uint64_t)info.st_size;
        entries[n].modified_unix_s = (double)info.st_mtim.tv_sec;
        entries[n].metrics = tdm__index_get(&index, entries[i].step);
        n++;
    }
    tdm__index_release(&index);
    *out = entries;
    *out_count = n;
    *seen = count;
    return TDM_OK;
}

tdm_status tdm_checkpoint_list(const char *dir, tdm_arena *arena, tdm_checkpoint_entry **out,
                               size_t *out_count, tdm_error *err)
{
    size_t seen = 1;
    *out_count = 0;
    /* If all were removed, a training prunes the directory and has written a newer checkpoint. */
    for (int i = 0; i < MAX_READS && seen > 0 && *out_count == 0; i++) {
        TDM_TRY(list_once(dir, arena, out, out_count, &seen, err));
    }
    return TDM_OK;
}

/* ---- newest ---------------------------------------------------------------------------------- */

/* Lists the directory once. *vanished: a listed file was removed before it could be opened, so a
 * running training prunes the directory and may have written a newer one. */
static tdm_status find_newest(const char *dir, tdm_arena *arena, char **out_path, bool *vanished,
                              tdm_error *err)
{
    const char *const *names = NULL;
    tdm_checkpoint_entry *entries = NULL;
    size_t name_count = 0;
    size_t count = 0;
    *vanished = false;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &name_count, err));
    TDM_TRY(entries_collect(dir, names, name_count, arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) {
        tdm_checkpoint *checkpoint = NULL;
        tdm_error why;
        tdm_status status = tdm_checkpoint_open(entries[i].path, &checkpoint, &why);
        tdm_checkpoint_destroy(checkpoint);
        if (status == TDM_OK) {
            *out_path = entries[i].path;
            return TDM_OK;
        }
        if (status == TDM_ERR_NOT_FOUND) {
            *vanished = true;
            continue;
        }
        if (status != TDM_ERR_FORMAT && status != TDM_ERR_CHECKSUM) {
            /* The file is not damaged, but cannot be read (no permission, a failing disk, no
             * memory, a newer version). Resuming from an older checkpoint would lose work. */
            return tdm_fail(err, status, "%s", why.message);
        }
        tdm_log(TDM_LOG_WARN, "checkpoint", "skipping a checkpoint: %s", why.message);
    }
    if (count > 0) {
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: none of its %zu checkpoints can be read; see the log for the reasons",
                        dir, count);
    }
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: no checkpoint found", dir);
}

tdm_status tdm_checkpoint_newest(const char *dir, tdm_arena *arena, char **out_path, tdm_error *err)
{
    char *path = NULL;
    bool vanished = false;
    tdm_status status = find_newest(dir, arena, &path, &vanished, err);
    for (int i = 1; vanished && i < MAX_READS; i++) {
        status = find_newest(dir, arena, &path, &vanished, err);
    }
    if (status == TDM_OK) *out_path = path;
    return status;
}

tdm_status tdm_checkpoint_read_newest(const char *dir, tdm_arena *arena,
                                      tdm_checkpoint_read_fn read, void *user, tdm_error *err)
{
    tdm_status status = TDM_OK;
    for (int i = 0; i < MAX_READS; i++) {
        char *path = NULL;
        TDM_TRY(tdm_checkpoint_newest(dir, arena, &path, err));
        status = read(path, user, err);
        if (status != TDM_ERR_NOT_FOUND || tdm_path_exists(path)) break;
    }
    return status;
}

/* ---- prune ----------------------------------------------------------------------------------- */

/* Whether the process is alive. A zombie is not: it has ended, and only its parent has not
 * noticed yet. */
static bool process_lives(long pid)
{
    char path[64], text[512];
    if (kill((pid_t)pid, 0) != 0) return errno != ESRCH;
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file) fclose(file);
    text[length] = '\0';
    const char *name_end = strrchr(text, ')'); /* "PID (NAME) STATE ..." */
    return !name_end || !name_end[1] || (name_end[2] != 'Z' && name_end[2] != 'X');
}

/* The position of the process ID in the name of a temporary file; NULL if the name has another
 * form. */
static const char *number_in(const char *name)
{
    if (strncmp(name, "." TDM__INDEX_NAME ".", strlen("." TDM__INDEX_NAME ".")) == 0) {
        return name + strlen("." TDM__INDEX_NAME ".");
    }
    const char *infix = strstr(name, NAME_SUFFIX ".");
    if (strncmp(name, "." NAME_PREFIX, strlen("." NAME_PREFIX)) != 0 || !infix) return NULL;
    const char *digits = infix + strlen(NAME_SUFFIX ".");
    if (strncmp(digits - 1, PACKED_SUFFIX ".", strlen(PACKED_SUFFIX ".")) == 0) {
        digits += strlen(PACKED_SUFFIX);
    }
    return digits;
}

/* Whether this is the temporary file of a writer that has ended: ".step-….safetensors.PID.tmp"
 * or ".step-….safetensors.PID-N.tmp", with ".zst" before the process ID if the file was to be
 * compressed; or the same for the index. */
static bool is_leftover(const char *name)
{
    const char *digits = number_in(name);
    if (!digits || *digits < '1' || *digits > '9') return false;
    char *end = NULL;
    errno = 0;
    long pid = strtol(digits, &end, 10);
    if (errno || pid > INT32_MAX) return false;
    if (*end == '-') end += 1 + strspn(end + 1, "0123456789");
    if (strcmp(end, ".tmp") != 0) return false;
    if (pid == (long)getpid()) return true;
    return !process_lives(pid);
}

static tdm_status remove_file(const char *path, tdm_error *err)
{
    if (!path) return tdm_fail_oom(err, "to prune checkpoints");
    if (unlink(path) == 0 || errno == ENOENT)
        return TDM_OK; /* another process may have removed it */
    return tdm_os_fail(err, "cannot remove", path);
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* The quality of a checkpoint; more is better. NaN: unknown. */
static double entry_worth(const tdm_checkpoint_entry *entry, bool by_accuracy)
{
    return by_accuracy ? entry->metrics.accuracy : -entry->metrics.loss;
}

/* The number of steps whose checkpoints are better than this one, or equally good and newer. */
static int64_t better_count(const tdm_checkpoint_entry *entries, size_t count, size_t index,
                            bool by_accuracy)
{
    double mine = entry_worth(&entries[index], by_accuracy);
    int64_t better = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && entries[i].step == entries[i - 1].step) continue; /* plain and compressed */
        double its = entry_worth(&entries[i], by_accuracy);
        if (its > mine || (its == mine && entries[i].step > entries[index].step)) better++;
    }
    return better;
}

void tdm_checkpoint_choose(tdm_checkpoint_entry *entries, size_t count,
                           const tdm_checkpoint_retention *rules, uint64_t good)
{
    int64_t newer = -1; /* steps before this one in the list */
    for (size_t i = 0; i < count; i++) {
        tdm_checkpoint_entry *e = &entries[i];
        e->kept = 0;
        if (i == 0 || e->step != entries[i - 1].step) newer++;
        if (rules->keep <= 0 || newer < rules->keep) e->kept |= TDM_KEPT_NEWEST;
        if (rules->keep_every > 0 && e->step % (uint64_t)rules->keep_every == 0) {
            e->kept |= TDM_KEPT_EVERY;
        }
        if (rules->keep_best > 0 && !isnan(entry_worth(e, rules->by_accuracy)) &&
            better_count(entries, count, i, rules->by_accuracy) < rules->keep_best) {
            e->kept |= TDM_KEPT_BEST;
        }
        if (e->step == good) e->kept |= TDM_KEPT_GOOD;
    }
}

static tdm_status entries_retain(const char *dir, const tdm_checkpoint_retention *rules,
                                 uint64_t good, tdm_arena *arena, tdm_error *err)
{
    const char *const *names = NULL;
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (is_leftover(names[i])) TDM_TRY(remove_file(tdm_path_join(arena, dir, names[i]), err));
    }
    TDM_TRY(tdm_checkpoint_list(dir, arena, &entries, &count, err));
    tdm_checkpoint_choose(entries, count, rules, good);
    for (size_t i = count; i > 0; i--) { /* the oldest is removed first */
        if (entries[i - 1].kept == 0) TDM_TRY(remove_file(entries[i - 1].path, err));
    }
    return TDM_OK;
}

tdm_status tdm_checkpoint_retain(const char *dir, const tdm_checkpoint_retention *rules,
                                 uint64_t good, tdm_error *err)
{
    if (rules->keep < 0 || rules->keep_every < 0 || rules->keep_best < 0) {
        return tdm_fail(err, TDM_ERR_INVALID, "%s: cannot keep a negative number of checkpoints",
                        dir);
    }
    tdm_arena *arena = tdm_arena_create("retention");
    if (!arena) return tdm_fail_oom(err, "to prune %s", dir);
    tdm_status status = entries_retain(dir, rules, good, arena, err);
    tdm_arena_destroy(arena);
    return status;
}

/* ---- a full disk ------------------------------------------------------------------------------- */

/* The number of bytes to free before `bytes` more fit. If the disk has enough space, a quota is
 * the limit. */
static uint64_t shortage_of(const char *dir, uint64_t bytes)
{
    struct statvfs disk;
    if (statvfs(dir, &disk) != 0) return bytes;
    uint64_t available = (uint64_t)disk.f_bavail * disk.f_frsize;
    return available < bytes ? bytes - available : bytes;
}

static void min_choose(tdm_checkpoint_entry *entries, size_t count,
                       const tdm_checkpoint_retention *rules, uint64_t good)
{
    tdm_checkpoint_retention min = *rules;
    min.keep = 1;
    tdm_checkpoint_choose(entries, count, &min, good);
}

/* Whether any checkpoint may be removed if the newest is valid. If it is not, fewer may be. */
static bool has_removable(tdm_checkpoint_entry *entries, size_t count,
                          const tdm_checkpoint_retention *rules)
{
    bool has = false;
    min_choose(entries, count, rules, UINT64_MAX);
    for (size_t i = 0; i < count; i++) has = has || entries[i].kept == 0;
    return has;
}

/* Keeps in `entries` only those that may be removed: older than step `good`, and kept by `keep`
 * only. */
static size_t list_removable(tdm_checkpoint_entry *entries, size_t count,
                             const tdm_checkpoint_retention *rules, uint64_t good)
{
    size_t n = 0;
    min_choose(entries, count, rules, good);
    for (size_t i = 0; i < count; i++)
        if (entries[i].kept == 0 && entries[i].step < good) entries[n++] = entries[i];
    return n;
}

static tdm_status make_room(const char *dir, const tdm_checkpoint_retention *rules, uint64_t bytes,
                            tdm_arena *arena, tdm_checkpoint_removed *out, tdm_error *err)
{
    tdm_checkpoint_entry *entries = NULL;
    size_t count = 0;
    char *newest = NULL;
    uint64_t good = 0, in_all = 0;
    TDM_TRY(tdm_checkpoint_list(dir, arena, &entries, &count, err));
    if (!has_removable(entries, count, rules)) return TDM_OK;
    TDM_TRY(tdm_checkpoint_newest(dir, arena, &newest, err));
    if (!tdm_checkpoint_step_of(strrchr(newest, '/') + 1, &good)) return TDM_OK;
    count = list_removable(entries, count, rules, good);
    uint64_t shortage = shortage_of(dir, bytes);
    for (size_t i = 0; i < count; i++) in_all += entries[i].bytes;
    if (in_all < shortage) return TDM_OK;
    for (size_t i = count; i > 0 && out->bytes < shortage; i--) { /* the oldest is removed first */
        TDM_TRY(remove_file(entries[i - 1].path, err));
        out->bytes += entries[i - 1].bytes;
        out->count++;
    }
    return TDM_OK;
}

tdm_status tdm_checkpoint_free_space(const char *dir, const tdm_checkpoint_retention *rules,
                                     uint64_t bytes, tdm_checkpoint_removed *out, tdm_error *err)
{
    *out = (tdm_checkpoint_removed){0};
    if (rules->keep <= 0) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("room");
    if (!arena) return tdm_fail_oom(err, "to free space in %s", dir);
    tdm_status status = make_room(dir, rules, bytes, arena, out, err);
    tdm_arena_destroy(arena);
    return status;
}

tdm_status tdm_checkpoint_prune(const char *dir, int64_t keep, tdm_error *err)
{
    if (keep < 0) {
        return tdm_fail(err, TDM_ERR_INVALID, "%s: cannot keep %lld checkpoints", dir,
                        (long long)keep);
    }
    tdm_checkpoint_retention rules = {.keep = keep};
    return tdm_checkpoint_retain(dir, &rules, UINT64_MAX, err);
}
