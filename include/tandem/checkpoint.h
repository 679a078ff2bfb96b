/*
 * checkpoint.h: state on disk.
 *
 * A checkpoint is one safetensors file, which Python's and Rust's safetensors packages open as it
 * is. Its bytes are canonical: a function of the state alone. Tensors stand in order of name, the
 * exact position of the run (and what is needed to build the model again) is JSON in the file's
 * `__metadata__`, and a SHA-256 of the tensors is checked on every load. Files are replaced
 * atomically: a kill at any instant leaves the last good one.
 *
 * A file whose name ends in ".zst" is the same packed by zstd. Whatever opens a file here takes either
 * kind; a build without zstd says so (TDM_ERR_UNSUPPORTED).
 */
#ifndef TANDEM_CHECKPOINT_H
#define TANDEM_CHECKPOINT_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_named_tensor {
    const char *name;
    tdm_tensor tensor;
} tdm_named_tensor;

typedef struct tdm_named_text {
    const char *name;
    const char *text;
} tdm_named_text;

/* ---- safetensors files ----------------------------------------------------------------------- */

/* An open file; the tensors' data point into it (read-only, valid until destroy). */
typedef struct tdm_safetensors tdm_safetensors;

/* Whether the file begins as a safetensors file does, packed or not, or has the name of one. Also true of a
 * file that cannot be opened: opening it says why. */
TDM_API bool tdm_safetensors_looks_like(const char *path);
TDM_API tdm_status tdm_safetensors_open(const char *path, tdm_safetensors **out, tdm_error *err);
/* The same from bytes, which are borrowed and must outlive the handle. */
TDM_API tdm_status tdm_safetensors_parse(const void *bytes, size_t count, const char *name,
                                         tdm_safetensors **out, tdm_error *err);
TDM_API void tdm_safetensors_destroy(tdm_safetensors *file);
TDM_API size_t tdm_safetensors_count(const tdm_safetensors *file);
/* In order of name. */
TDM_API const tdm_named_tensor *tdm_safetensors_at(const tdm_safetensors *file, size_t index);
TDM_API const tdm_named_tensor *tdm_safetensors_find(const tdm_safetensors *file, const char *name);
TDM_API size_t tdm_safetensors_metadata_count(const tdm_safetensors *file);
TDM_API const tdm_named_text *tdm_safetensors_metadata_at(const tdm_safetensors *file,
                                                          size_t index);
TDM_API const char *tdm_safetensors_metadata(const tdm_safetensors *file, const char *name);

/* Writes a file atomically. Order of the arguments does not matter: both lists are sorted by name.
 * Two tensors of one name are an error. */
TDM_API tdm_status tdm_safetensors_write(const char *path, const tdm_named_tensor *tensors,
                                         size_t tensor_count, const tdm_named_text *metadata,
                                         size_t metadata_count, tdm_error *err);

/* Whether this build packs and unpacks, and by what ("zstd 1.5.4"). */
TDM_API bool tdm_checkpoint_packs(char library[TDM_LIBRARY_BYTES]);

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Where a run stands: after `step` steps, about to train position `position` of `epoch`. */
typedef struct tdm_position {
    uint64_t step;
    uint64_t epoch;
    uint64_t position;
    uint64_t samples; /* trained so far, over all epochs */
    uint64_t seed;
} tdm_position;

typedef struct tdm_checkpoint_content {
    const tdm_named_tensor *tensors; /* parameters, buffers, optimiser state */
    size_t tensor_count;
    tdm_position position;
    const char *job_hash;  /* tdm_job_hash */
    const char *data_hash; /* tdm_dataset_hash of the training set, or NULL */
    const char
        *numerics; /* tdm_numerics_text of who computed it; NULL: before there were versions */
    const char *job_yaml; /* the resolved job */
    const char *const *class_names;
    int64_t class_count;
    tdm_shape sample_shape;
} tdm_checkpoint_content;

TDM_API tdm_status tdm_checkpoint_save(const char *path, const tdm_checkpoint_content *content,
                                       tdm_error *err);

/*
 * The same when the tensors do not lie in memory: names, types and shapes are given at the beginning
 * (data of content.tensors are not looked at), then all bytes are pushed, tensor after tensor in order
 * of name, in chunks of any size. The file is the one that tdm_checkpoint_save would write. `content`
 * is borrowed until the end. After a push that failed only commit, which fails the same way, and
 * abandon make sense. Memory: that of the header.
 */
typedef struct tdm_checkpoint_writer tdm_checkpoint_writer;
TDM_API tdm_status tdm_checkpoint_writer_create(const char *path,
                                                const tdm_checkpoint_content *content,
                                                tdm_checkpoint_writer **out, tdm_error *err);
/* For each tensor, in the order in which they are pushed, its place in content.tensors. */
TDM_API const size_t *tdm_checkpoint_writer_order(const tdm_checkpoint_writer *writer);
TDM_API tdm_status tdm_checkpoint_writer_push(tdm_checkpoint_writer *writer, const void *bytes,
                                              size_t count, tdm_error *err);
/*
 * Instead of pushing, several processes may write at once. A state is cut into chunks of a mebibyte (the
 * last of a tensor may be shorter), which are hashed one by one. Each process that was invited writes
 * chunks into the temporary file (tdm_file_writer_join), at data_at + place, and hands their SHA-256 to
 * the one that has the writer; it accepts them all, and commits.
 */
enum { TDM_STATE_CHUNK_BYTES = 1 << 20 };
typedef struct tdm_state_chunk {
    size_t tensor; /* its place in the list of tensors */
    size_t offset, bytes;
    uint64_t place; /* in the file's data */
} tdm_state_chunk;
/* In order of the tensors' names. From `arena`. */
TDM_API tdm_status tdm_state_chunks(const tdm_named_tensor *tensors, size_t tensor_count,
                                    tdm_arena *arena, tdm_state_chunk **out, size_t *out_count,
                                    tdm_error *err);
enum { TDM_INVITATION_PATH_BYTES = 4096 };
typedef struct tdm_checkpoint_invitation {
    char temporary[TDM_INVITATION_PATH_BYTES]; /* absolute */
    uint64_t data_at;
    bool is_read_back; /* before it takes its name: it is packed then */
} tdm_checkpoint_invitation;
TDM_API tdm_status tdm_checkpoint_writer_invite(const tdm_checkpoint_writer *writer,
                                                tdm_checkpoint_invitation *out, tdm_error *err);
TDM_API tdm_status tdm_checkpoint_writer_accept(tdm_checkpoint_writer *writer, size_t chunk,
                                                const char digest[TDM_SHA256_HEX], tdm_error *err);

/* Who is asked last, when all bytes are on the disk, before the file gets its name: any status but
 * TDM_OK keeps it from it, and is what commit returns. */
typedef struct tdm_commit_gate {
    tdm_status (*may_commit)(void *user, tdm_error *err);
    void *user;
} tdm_commit_gate;
TDM_API void tdm_checkpoint_writer_gate(tdm_checkpoint_writer *writer, const tdm_commit_gate *gate);

/* Both end the writer, whatever commit returns. Commit replaces the file atomically; TDM_ERR_INVALID
 * when bytes are missing. `state_hash`, which may be NULL, becomes tdm_state_hash of it all. */
TDM_API tdm_status tdm_checkpoint_writer_commit(tdm_checkpoint_writer *writer,
                                                char state_hash[TDM_SHA256_HEX], tdm_error *err);
TDM_API void tdm_checkpoint_writer_abandon(tdm_checkpoint_writer *writer); /* NULL is fine */

typedef struct tdm_checkpoint tdm_checkpoint;
/* Opens and verifies. A safetensors file that tandem did not write is TDM_ERR_FORMAT, one of a later
 * version TDM_ERR_UNSUPPORTED. */
TDM_API tdm_status tdm_checkpoint_open(const char *path, tdm_checkpoint **out, tdm_error *err);
TDM_API void tdm_checkpoint_destroy(tdm_checkpoint *checkpoint);
TDM_API const tdm_checkpoint_content *tdm_checkpoint_content_of(const tdm_checkpoint *checkpoint);
TDM_API const tdm_named_tensor *tdm_checkpoint_find(const tdm_checkpoint *checkpoint,
                                                    const char *name);

/*
 * SHA-256 over the canonical state: position, then each tensor in order of name (name, dtype,
 * shape, and the SHA-256 of each of its chunks). Equal for equal states, whatever wrote them and
 * wherever they lie. Large states are hashed by several threads.
 */
TDM_API tdm_status tdm_state_hash(const tdm_position *position, const tdm_named_tensor *tensors,
                                  size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err);

/* The same in pieces: order and push as with tdm_checkpoint_writer. Tensors are borrowed until the
 * hasher is destroyed. */
typedef struct tdm_state_hasher tdm_state_hasher;
TDM_API tdm_status tdm_state_hasher_create(const tdm_position *position,
                                           const tdm_named_tensor *tensors, size_t tensor_count,
                                           tdm_state_hasher **out, tdm_error *err);
TDM_API void tdm_state_hasher_destroy(tdm_state_hasher *hasher);
TDM_API const size_t *tdm_state_hasher_order(const tdm_state_hasher *hasher);
/* TDM_ERR_INVALID when there are more bytes than the tensors have. */
TDM_API tdm_status tdm_state_hasher_push(tdm_state_hasher *hasher, const void *bytes, size_t count,
                                         tdm_error *err);
/* Instead of pushing: what the bytes of a chunk (tdm_state_chunks) hash to. */
TDM_API tdm_status tdm_state_hasher_accept(tdm_state_hasher *hasher, size_t chunk,
                                           const char digest[TDM_SHA256_HEX], tdm_error *err);
/* TDM_ERR_INVALID when bytes are missing: more may be pushed then. */
TDM_API tdm_status tdm_state_hasher_finish(tdm_state_hasher *hasher, char hex[TDM_SHA256_HEX],
                                           tdm_error *err);

/* ---- a folder of checkpoints ----------------------------------------------------------------- */

/* "DIR/step-000000000120.safetensors" */
TDM_API char *tdm_checkpoint_path(tdm_arena *arena, const char *dir, uint64_t step);
/* The same with ".zst" behind it. */
TDM_API char *tdm_checkpoint_packed_path(tdm_arena *arena, const char *dir, uint64_t step);
/* The step of a checkpoint's file name; false for every name that these two would not make. */
TDM_API bool tdm_checkpoint_step_of(const char *name, uint64_t *out);
/*
 * The newest checkpoint that opens and verifies; damaged ones are named in the log and passed over.
 * One that is out of reach for another reason (no permission, a failing disk, a newer version's) is
 * an error: going on from an older one would throw work away. A file that a training prunes meanwhile is
 * left out, and the folder is listed again. TDM_ERR_NOT_FOUND when there is none.
 */
TDM_API tdm_status tdm_checkpoint_newest(const char *dir, tdm_arena *arena, char **out_path,
                                         tdm_error *err);
/* Reads the checkpoint file `path`; TDM_ERR_NOT_FOUND when it is not there. */
typedef tdm_status (*tdm_checkpoint_read_fn)(const char *path, void *user, tdm_error *err);
/* Calls `read` with the newest good checkpoint. When a training prunes that file before `read` has opened
 * it, calls `read` again with the newest one that is there then. */
TDM_API tdm_status tdm_checkpoint_read_newest(const char *dir, tdm_arena *arena,
                                              tdm_checkpoint_read_fn read, void *user,
                                              tdm_error *err);
/* Which checkpoints stay: what any of these keeps. */
typedef struct tdm_checkpoint_retention {
    int64_t keep;       /* so many of the newest; 0: all */
    int64_t keep_every; /* those of steps that are multiples of it; 0: none for that reason */
    int64_t keep_best;  /* so many of the best, of those that were measured; 0: none for that */
    bool by_accuracy;   /* best is the highest accuracy; else the lowest loss */
} tdm_checkpoint_retention;
/* What the test set said of a step's state; NaN: it was not asked. */
typedef struct tdm_checkpoint_metrics {
    double loss, accuracy;
} tdm_checkpoint_metrics;
/* Why one stays: a set of these. */
enum {
    TDM_KEPT_NEWEST = 1,
    TDM_KEPT_EVERY = 2,
    TDM_KEPT_BEST = 4,
    TDM_KEPT_GOOD = 8 /* it was named as a good one */
};
typedef struct tdm_checkpoint_entry {
    const char *name;
    char *path;
    uint64_t step;
    bool packed;
    uint64_t bytes; /* of the file */
    double modified_unix_s;
    tdm_checkpoint_metrics metrics;
    unsigned kept; /* by tdm_checkpoint_choose */
} tdm_checkpoint_entry;
/* The checkpoints of a folder, newest first, unopened. From `arena`. */
TDM_API tdm_status tdm_checkpoint_list(const char *dir, tdm_arena *arena,
                                       tdm_checkpoint_entry **out, size_t *out_count,
                                       tdm_error *err);
/* Says of each why it stays; 0: it may go. Entries stand as tdm_checkpoint_list gives them. `good`: that
 * step's stays in any case; UINT64_MAX: none. */
TDM_API void tdm_checkpoint_choose(tdm_checkpoint_entry *entries, size_t count,
                                   const tdm_checkpoint_retention *rules, uint64_t good);

/* Notes that down in the folder's index.json, for keep_best and for people; nothing when both are NaN. */
TDM_API tdm_status tdm_checkpoint_note(const char *dir, uint64_t step,
                                       const tdm_checkpoint_metrics *metrics, tdm_error *err);
/* Removes what the rules do not keep, oldest first, and what interrupted writes left behind. That of step
 * `good` stays in any case. */
TDM_API tdm_status tdm_checkpoint_retain(const char *dir, const tdm_checkpoint_retention *rules,
                                         uint64_t good, tdm_error *err);
/* What tdm_checkpoint_free_space has removed. */
typedef struct tdm_checkpoint_removed {
    int count;
    uint64_t bytes;
} tdm_checkpoint_removed;
/*
 * For a disk that is full: removes old checkpoints, the oldest first, until there is room for one of `bytes`.
 * Only those go that `rules->keep` alone keeps (0 keeps all); the newest that verifies stays, and whatever is
 * newer. Nothing is removed where all of them together would not make enough room. *out: what was removed,
 * also after an error. Reads the newest checkpoint, if there is anything to remove.
 */
TDM_API tdm_status tdm_checkpoint_free_space(const char *dir, const tdm_checkpoint_retention *rules,
                                             uint64_t bytes, tdm_checkpoint_removed *out,
                                             tdm_error *err);
/* Removes all but the `keep` newest (0: keeps all), and what interrupted writes left behind. */
TDM_API tdm_status tdm_checkpoint_prune(const char *dir, int64_t keep, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
