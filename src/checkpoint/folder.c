/*
 * folder.c: the checkpoints of one run, side by side in a folder.
 *
 * A checkpoint's name tells its step, so the newest is found without opening any. Names that do
 * not fit exactly are somebody else's: they are neither opened nor removed. A run is continued from
 * the newest file that verifies; damage is reported in the log, and never removed here, so that a
 * person can look at it.
 *
 * Temporary files carry the number of the process that wrote them (see os/file_write.c). One whose
 * writer is gone was left by a kill. Ours count as left, too: do not prune a folder while another
 * thread of this process saves into it.
 */
#include "checkpoint/internal.h"

#include <tandem/os.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_PREFIX "step-"
#define NAME_SUFFIX ".safetensors"
#define NAME_BYTES 64

static void name_of_step(uint64_t step, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, NAME_PREFIX "%012" PRIu64 NAME_SUFFIX, step);
}

bool tdm_checkpoint_step_of(const char *name, uint64_t *out)
{
    if (strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) != 0) return false;
    const char *digits = name + strlen(NAME_PREFIX);
    if (*digits < '0' || *digits > '9') return false;
    errno = 0;
    uint64_t step = strtoull(digits, NULL, 10);
    char canonical[NAME_BYTES];
    name_of_step(step, canonical);
    if (errno || strcmp(canonical, name) != 0) return false;
    *out = step;
    return true;
}

char *tdm_checkpoint_path(tdm_arena *arena, const char *dir, uint64_t step)
{
    char name[NAME_BYTES];
    name_of_step(step, name);
    return tdm_path_join(arena, dir, name);
}

static int compare_newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* The steps of all checkpoints among `names`, newest first. */
static tdm_status collect_steps(const char *const *names, size_t count, tdm_arena *arena,
                                const uint64_t **out, size_t *out_count, tdm_error *err)
{
    uint64_t *steps = tdm_arena_array(arena, count, sizeof *steps);
    if (!steps) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to list checkpoints");
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (tdm_checkpoint_step_of(names[i], &steps[n])) n++;
    }
    qsort(steps, n, sizeof *steps, compare_newest_first);
    *out = steps;
    *out_count = n;
    return TDM_OK;
}

/* ---- newest ---------------------------------------------------------------------------------- */

tdm_status tdm_checkpoint_newest(const char *dir, tdm_arena *arena, char **out_path, tdm_error *err)
{
    const char *const *names = NULL;
    const uint64_t *steps = NULL;
    size_t name_count = 0;
    size_t count = 0;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &name_count, err));
    TDM_TRY(collect_steps(names, name_count, arena, &steps, &count, err));
    for (size_t i = 0; i < count; i++) {
        char *path = tdm_checkpoint_path(arena, dir, steps[i]);
        if (!path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to list checkpoints");
        tdm_checkpoint *checkpoint = NULL;
        tdm_error why;
        tdm_status status = tdm_checkpoint_open(path, &checkpoint, &why);
        tdm_checkpoint_destroy(checkpoint);
        if (status == TDM_OK) {
            *out_path = path;
            return TDM_OK;
        }
        if (status != TDM_ERR_FORMAT && status != TDM_ERR_CHECKSUM) {
            /* Not damaged, but out of reach (no permission, a failing disk, no memory, a newer
             * version's): going on from an older one would throw work away. */
            return tdm_fail(err, status, "%s", why.message);
        }
        tdm_log(TDM_LOG_WARN, "checkpoint", "passing over a checkpoint: %s", why.message);
    }
    if (count > 0) {
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: none of its %zu checkpoints can be read; the log says why", dir,
                        count);
    }
    return tdm_fail(
        err, TDM_ERR_NOT_FOUND,
        "%s: holds no checkpoint yet; the run was stopped before its first one, so start "
        "a new run",
        dir);
}

/* ---- prune ----------------------------------------------------------------------------------- */

/* A process that has ended, and waits for nobody but its parent to hear of it, does not live. */
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

/* ".step-….safetensors.PID.tmp" or ".step-….safetensors.PID-N.tmp" of a writer that is gone. */
static bool is_leftover(const char *name)
{
    const char *infix = strstr(name, NAME_SUFFIX ".");
    if (strncmp(name, "." NAME_PREFIX, strlen("." NAME_PREFIX)) != 0 || !infix) return false;
    const char *digits = infix + strlen(NAME_SUFFIX ".");
    if (*digits < '1' || *digits > '9') return false;
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
    if (!path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to prune checkpoints");
    if (unlink(path) == 0 || errno == ENOENT) return TDM_OK; /* gone is gone */
    return tdm_os_fail(err, "cannot remove", path);
}

static tdm_status prune(const char *dir, int64_t keep, tdm_arena *arena, tdm_error *err)
{
    const char *const *names = NULL;
    const uint64_t *steps = NULL;
    size_t name_count = 0;
    size_t count = 0;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &name_count, err));
    for (size_t i = 0; i < name_count; i++) {
        if (is_leftover(names[i])) TDM_TRY(remove_file(tdm_path_join(arena, dir, names[i]), err));
    }
    if (keep == 0) return TDM_OK;
    TDM_TRY(collect_steps(names, name_count, arena, &steps, &count, err));
    for (size_t i = count; i > (uint64_t)keep; i--) { /* the oldest goes first */
        TDM_TRY(remove_file(tdm_checkpoint_path(arena, dir, steps[i - 1]), err));
    }
    return TDM_OK;
}

tdm_status tdm_checkpoint_prune(const char *dir, int64_t keep, tdm_error *err)
{
    if (keep < 0) {
        return tdm_fail(err, TDM_ERR_INVALID, "%s: cannot keep %lld checkpoints", dir,
                        (long long)keep);
    }
    tdm_arena *arena = tdm_arena_create("prune");
    if (!arena) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to prune %s", dir);
    tdm_status status = prune(dir, keep, arena, err);
    tdm_arena_destroy(arena);
    return status;
}
