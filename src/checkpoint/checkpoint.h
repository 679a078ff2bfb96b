/*
 * checkpoint.h: the part of module checkpoint that only other modules use.
 *
 * <tandem/checkpoint.h> declares how checkpoints are opened and inspected. This header adds how a training run
 * writes them, alone or with several ranks, and how a state is hashed. libtandem.so does not export it.
 */
#ifndef TANDEM_CHECKPOINT_CHECKPOINT_H
#define TANDEM_CHECKPOINT_CHECKPOINT_H

#include <tandem/checkpoint.h>

/* ---- checkpoints ----------------------------------------------------------------------------- */

/*
 * Like tdm_checkpoint_save, for tensors that are not in memory: names, types and shapes are given first
 * (the data of content.tensors is not read), then all bytes are pushed, tensor by tensor in order of name,
 * in chunks of any size. The file is the same. `content` is borrowed until the end. After a failed push
 * only commit, which fails in the same way, and abandon are allowed. Memory: that of the header.
 */
typedef struct tdm_checkpoint_writer tdm_checkpoint_writer;
tdm_status tdm_checkpoint_writer_create(const char *path, const tdm_checkpoint_content *content,
                                        tdm_checkpoint_writer **out, tdm_error *err);
/* The indices of the tensors in content.tensors, in the order in which they are pushed. */
const size_t *tdm_checkpoint_writer_order(const tdm_checkpoint_writer *writer);
tdm_status tdm_checkpoint_writer_push(tdm_checkpoint_writer *writer, const void *bytes,
                                      size_t count, tdm_error *err);
typedef struct tdm_state_chunk {
    size_t tensor; /* index in the list of tensors */
    size_t offset, bytes;
    uint64_t place; /* offset in the data of the file */
} tdm_state_chunk;
/* The chunks of a state, in order of the names of the tensors; allocated in `arena`. */
tdm_status tdm_state_chunks(const tdm_named_tensor *tensors, size_t tensor_count, tdm_arena *arena,
                            tdm_state_chunk **out, size_t *out_count, tdm_error *err);
enum { TDM_INVITATION_PATH_BYTES = 4096 };
typedef struct tdm_checkpoint_invitation {
    char temporary[TDM_INVITATION_PATH_BYTES]; /* absolute */
    uint64_t data_at;
    bool is_read_back; /* the file is read again before commit, for compression */
} tdm_checkpoint_invitation;
tdm_status tdm_checkpoint_writer_invite(const tdm_checkpoint_writer *writer,
                                        tdm_checkpoint_invitation *out, tdm_error *err);
tdm_status tdm_checkpoint_writer_accept(tdm_checkpoint_writer *writer, size_t chunk,
                                        const char digest[TDM_SHA256_HEX], tdm_error *err);

/* A callback before the file gets its name, when all bytes are on the disk: a status other than TDM_OK
 * prevents the commit, which then returns it. */
typedef struct tdm_commit_gate {
    tdm_status (*may_commit)(void *user, tdm_error *err);
    void *user;
} tdm_commit_gate;
void tdm_checkpoint_writer_gate(tdm_checkpoint_writer *writer, const tdm_commit_gate *gate);

/* Commit and abandon end the writer, even if commit fails. Commit replaces the file atomically;
 * TDM_ERR_INVALID if bytes are missing. `state_hash` (may be NULL) becomes the tdm_state_hash. */
tdm_status tdm_checkpoint_writer_commit(tdm_checkpoint_writer *writer,
                                        char state_hash[TDM_SHA256_HEX], tdm_error *err);
void tdm_checkpoint_writer_abandon(tdm_checkpoint_writer *writer); /* NULL is allowed */

/* Computes tdm_state_hash in pieces, with order and push as for tdm_checkpoint_writer. Tensors are
 * borrowed until the hasher is destroyed. */
typedef struct tdm_state_hasher tdm_state_hasher;
tdm_status tdm_state_hasher_create(const tdm_position *position, const tdm_named_tensor *tensors,
                                   size_t tensor_count, tdm_state_hasher **out, tdm_error *err);
void tdm_state_hasher_destroy(tdm_state_hasher *hasher);
const size_t *tdm_state_hasher_order(const tdm_state_hasher *hasher);
/* TDM_ERR_INVALID if there are more bytes than the tensors have. */
tdm_status tdm_state_hasher_push(tdm_state_hasher *hasher, const void *bytes, size_t count,
                                 tdm_error *err);
/* Instead of pushing: adds the hash of a chunk (tdm_state_chunks). */
tdm_status tdm_state_hasher_accept(tdm_state_hasher *hasher, size_t chunk,
                                   const char digest[TDM_SHA256_HEX], tdm_error *err);
/* TDM_ERR_INVALID if bytes are missing; more may be pushed then. */
tdm_status tdm_state_hasher_finish(tdm_state_hasher *hasher, char hex[TDM_SHA256_HEX],
                                   tdm_error *err);

/* ---- a directory of checkpoints -------------------------------------------------------------- */

/* "DIR/step-000000000120.safetensors" */
char *tdm_checkpoint_path(tdm_arena *arena, const char *dir, uint64_t step);
/* The same path with the suffix ".zst". */
char *tdm_checkpoint_packed_path(tdm_arena *arena, const char *dir, uint64_t step);
/* The step in the file name of a checkpoint; false for a name that these two functions do not make. */
bool tdm_checkpoint_step_of(const char *name, uint64_t *out);

/* Records the metrics of a step in the directory's index.json, for keep_best and for display; does nothing
 * if both are NaN. */
tdm_status tdm_checkpoint_note(const char *dir, uint64_t step,
                               const tdm_checkpoint_metrics *metrics, tdm_error *err);
/* The checkpoints that tdm_checkpoint_free_space has removed. */
typedef struct tdm_checkpoint_removed {
    int count;
    uint64_t bytes;
} tdm_checkpoint_removed;
/*
 * For a full disk: removes old checkpoints, oldest first, until there is space for one of `bytes`. Only
 * those are removed that `rules->keep` alone keeps (0 keeps all); the newest valid one and newer ones are
 * kept. Nothing is removed if that would not free enough space. *out is set even after an error. Reads the
 * newest checkpoint if there is anything to remove.
 */
tdm_status tdm_checkpoint_free_space(const char *dir, const tdm_checkpoint_retention *rules,
                                     uint64_t bytes, tdm_checkpoint_removed *out, tdm_error *err);

/* Whether this build supports compression, and its library ("zstd 1.5.4"). */
bool tdm_checkpoint_packs(char library[TDM_LIBRARY_BYTES]);

/* Like open, from bytes, which are borrowed and must outlive the handle. */
tdm_status tdm_safetensors_parse(const void *bytes, size_t count, const char *name,
                                 tdm_safetensors **out, tdm_error *err);
/*
 * The newest valid checkpoint; damaged ones are reported in the log and skipped. A checkpoint that cannot
 * be read for another reason (no permission, a failing disk, a newer version) is an error, because resuming
 * from an older one would lose work. A file that a running training prunes is ignored, and the directory is
 * listed again. TDM_ERR_NOT_FOUND if there is none.
 */
tdm_status tdm_checkpoint_newest(const char *dir, tdm_arena *arena, char **out_path,
                                 tdm_error *err);
/* Removes all except the `keep` newest (0: keeps all), and the leftovers of interrupted writes. */
tdm_status tdm_checkpoint_prune(const char *dir, int64_t keep, tdm_error *err);
#endif
