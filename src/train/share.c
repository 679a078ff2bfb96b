/*
 * share.c: one copy of the data for the processes of a node.
 *
 * Every process reads the data itself, because it needs all properties of the data set. Then the features, which are
 * nearly all of it, are copied once into a region of shared memory whose name has the hash of the data, and
 * every process that finds the same bytes there uses them and releases its own:
 *
 *     +----------------------------------+----------------------+
 *     | copy_head: complete, its process | the bytes of the set |   region "data-HASH"
 *     +----------------------------------+----------------------+
 *
 * The process whose number is in the head copies; the others wait for it. If it has died before the copy is complete,
 * another one takes its place. The samples do not change, so no result does. A process that cannot use the region
 * keeps its own memory.
 */
#include "base/base.h"
#include "base/timing.h"
#include "data/data.h"
#include "os/os.h"
#include "train/internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* At the beginning of the region; the bytes begin at the next multiple of 64. */
typedef struct copy_head {
    _Alignas(64) _Atomic uint32_t complete;
    _Atomic int64_t process; /* that copies; 0: none yet */
} copy_head;

/* Makes this process the one that copies, if there is none or if it has died. */
static bool copy_claim(copy_head *head)
{
    int64_t process = 0, own = (int64_t)getpid();
    tdm_process_info info;
    if (atomic_compare_exchange_strong(&head->process, &process, own)) return true;
    bool is_dead = !tdm_os_process(process, &info) || info.is_dead;
    return is_dead && atomic_compare_exchange_strong(&head->process, &process, own);
}

/* Copies the bytes, or waits until another process has done it. False: that takes too long. */
static bool copy_complete(copy_head *head, const void *from, size_t bytes)
{
    double until_s = tdm_clock_s() + TDM__TIMING_TRAIN_DATA_COPY_S +
                     (double)bytes * TDM__TIMING_TRAIN_DATA_COPY_BYTE_S;
    while (!atomic_load(&head->complete)) {
        if (copy_claim(head) && !atomic_load(&head->complete)) { /* completed before its death? */
            memcpy((char *)head + sizeof(*head), from, bytes);
            atomic_store(&head->complete, 1);
        } else if (tdm_clock_s() > until_s) {
            return false;
        } else {
            tdm_clock_sleep(TDM__TIMING_TRAIN_DATA_COPY_CHECK_S);
        }
    }
    return true;
}

static bool memory_has_room(size_t bytes)
{
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    return info.available_bytes == 0 || bytes <= info.available_bytes;
}

/* `set` owns its block; `parts` (may be NULL) are in it. */
static void dataset_share(tdm_dataset *set, tdm_dataset *const parts[2], const char *kind,
                          const char *hash, tdm_shm *shm)
{
    char name[TDM_SHM_NAME_BYTES];
    size_t bytes, found_bytes;
    void *memory = NULL;
    const void *from = tdm_dataset_block(set, &bytes);
    if (bytes == 0) return;
    snprintf(name, sizeof(name), "%s-%.16s", kind, hash);
    if (tdm_shm_region_find(shm, name, &found_bytes, &memory, NULL) == TDM_OK) {
        if (found_bytes != sizeof(copy_head) + bytes) goto release;
    } else if (!memory_has_room(bytes) || tdm_shm_region_take(shm, name, sizeof(copy_head) + bytes,
                                                              NULL, &memory, NULL) != TDM_OK) {
        return;
    }

    copy_head *head = memory;
    char *to = (char *)memory + sizeof(copy_head);
    if (!copy_complete(head, from, bytes) || memcmp(to, from, bytes) != 0) goto release;
    for (int i = 0; i < 2; i++)
        if (parts[i]) tdm_dataset_move(parts[i], from, to);
    tdm_dataset_move(set, from, to);
    return;

release:
    tdm_shm_region_release(shm, memory);
}

void tdm__data_share(tdm_job_data *data, const char *hash, tdm_shm *shm)
{
    tdm_dataset *none[2] = {NULL, NULL}, *both[2] = {data->train, data->test};
    if (data->whole) {
        dataset_share(data->whole, both, "data", hash, shm);
        return;
    }
    dataset_share(data->train, none, "data-train", hash, shm);
    if (data->test) dataset_share(data->test, none, "data-test", hash, shm);
}
