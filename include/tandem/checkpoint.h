/*
 * checkpoint.h: states on disk.
 *
 * A checkpoint is one safetensors file, which the safetensors packages of Python and Rust can open. Its
 * bytes are canonical: a function of the state only. Tensors are sorted by name; the position of the run
 * and everything needed to rebuild the model is JSON in `__metadata__`; a SHA-256 of the tensors is
 * verified on every load. Files are replaced atomically: a kill at any time leaves the last valid one.
 *
 * A file whose name ends in ".zst" is compressed with zstd. All functions open both kinds; a build without
 * zstd returns TDM_ERR_UNSUPPORTED.
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

/* An open file; the data of the tensors point into it (read-only, valid until destroy). */
typedef struct tdm_safetensors tdm_safetensors;

/* Whether the file begins like a safetensors file, compressed or not, or has the name of one. Also true for
 * a file that cannot be read: opening it gives the reason. */
TDM_API bool tdm_safetensors_looks_like(const char *path);
TDM_API tdm_status tdm_safetensors_open(const char *path, tdm_safetensors **out, tdm_error *err);
TDM_API void tdm_safetensors_destroy(tdm_safetensors *file);
TDM_API size_t tdm_safetensors_count(const tdm_safetensors *file);
/* In order of name. */
TDM_API const tdm_named_tensor *tdm_safetensors_at(const tdm_safetensors *file, size_t index);
TDM_API const tdm_named_tensor *tdm_safetensors_find(const tdm_safetensors *file, const char *name);
TDM_API size_t tdm_safetensors_metadata_count(const tdm_safetensors *file);
TDM_API const tdm_named_text *tdm_safetensors_metadata_at(const tdm_safetensors *file,
                                                          size_t index);
TDM_API const char *tdm_safetensors_metadata(const tdm_safetensors *file, const char *name);

/* Writes a file atomically. Both lists are sorted by name, so their order does not matter. Two tensors
 * with the same name are an error. */
TDM_API tdm_status tdm_safetensors_write(const char *path, const tdm_named_tensor *tensors,
                                         size_t tensor_count, const tdm_named_text *metadata,
                                         size_t metadata_count, tdm_error *err);

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* The position of a run: after `step` steps, before sample `position` of `epoch`. */
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
 * Instead of pushing, several processes may write in parallel. A state is divided into chunks of a
 * mebibyte (the last one of a tensor may be shorter), which are hashed separately. Each invited process
 * writes chunks to the temporary file (tdm_file_writer_join), at data_at + place, and sends their SHA-256
 * to the process with the writer, which accepts all of them and commits.
 */
enum { TDM_STATE_CHUNK_BYTES = 1 << 20 };

typedef struct tdm_checkpoint tdm_checkpoint;
/* Opens and verifies a checkpoint. A safetensors file from another program is TDM_ERR_FORMAT, one of a
 * later version TDM_ERR_UNSUPPORTED. */
TDM_API tdm_status tdm_checkpoint_open(const char *path, tdm_checkpoint **out, tdm_error *err);
TDM_API void tdm_checkpoint_destroy(tdm_checkpoint *checkpoint);
TDM_API const tdm_checkpoint_content *tdm_checkpoint_content_of(const tdm_checkpoint *checkpoint);
TDM_API const tdm_named_tensor *tdm_checkpoint_find(const tdm_checkpoint *checkpoint,
                                                    const char *name);

/*
 * SHA-256 over the canonical state: position, then each tensor in order of name (name, dtype,
 * shape, and the SHA-256 of each of its chunks). Equal states have equal hashes, whatever wrote them and
 * wherever they are stored. Large states are hashed by several threads.
 */
TDM_API tdm_status tdm_state_hash(const tdm_position *position, const tdm_named_tensor *tensors,
                                  size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err);

/* ---- a directory of checkpoints -------------------------------------------------------------- */

/* Reads the checkpoint file `path`; TDM_ERR_NOT_FOUND if it does not exist. */
typedef tdm_status (*tdm_checkpoint_read_fn)(const char *path, void *user, tdm_error *err);
/* Calls `read` with the newest valid checkpoint. Damaged ones are reported in the log and skipped. A checkpoint
 * that cannot be read for another reason (no permission, a failing disk, a newer version) is an error, because
 * resuming from an older one would lose work. TDM_ERR_NOT_FOUND if there is none. If a running training prunes that file before `read` has
 * opened it, calls `read` again with the newest one. */
TDM_API tdm_status tdm_checkpoint_read_newest(const char *dir, tdm_arena *arena,
                                              tdm_checkpoint_read_fn read, void *user,
                                              tdm_error *err);
/* Which checkpoints are kept: those that any of these rules keeps. */
typedef struct tdm_checkpoint_retention {
    int64_t keep;       /* number of newest ones; 0: all */
    int64_t keep_every; /* those of steps that are multiples of it; 0: rule disabled */
    int64_t keep_best;  /* number of best ones among those with metrics; 0: rule disabled */
    bool by_accuracy;   /* best is the highest accuracy; else the lowest loss */
} tdm_checkpoint_retention;
/* Test metrics of a step; NaN: not evaluated. */
typedef struct tdm_checkpoint_metrics {
    double loss, accuracy;
} tdm_checkpoint_metrics;
/* Why a checkpoint is kept: a set of these. */
enum {
    TDM_KEPT_NEWEST = 1,
    TDM_KEPT_EVERY = 2,
    TDM_KEPT_BEST = 4,
    TDM_KEPT_GOOD = 8 /* named as valid by the caller */
};
typedef struct tdm_checkpoint_entry {
    const char *name;
    char *path;
    uint64_t step;
    bool packed;
    uint64_t bytes; /* of the file */
    double modified_unix_s;
    tdm_checkpoint_metrics metrics;
    unsigned kept; /* set by tdm_checkpoint_choose */
} tdm_checkpoint_entry;
/* The checkpoints of a directory, newest first, without opening them; allocated in `arena`. */
TDM_API tdm_status tdm_checkpoint_list(const char *dir, tdm_arena *arena,
                                       tdm_checkpoint_entry **out, size_t *out_count,
                                       tdm_error *err);
/* Sets `kept` of each entry; 0: it may be removed. Entries are in the order of tdm_checkpoint_list. The
 * checkpoint of step `good` is always kept; UINT64_MAX: none. */
TDM_API void tdm_checkpoint_choose(tdm_checkpoint_entry *entries, size_t count,
                                   const tdm_checkpoint_retention *rules, uint64_t good);

/* Removes checkpoints that the rules do not keep, oldest first, and the leftovers of interrupted writes.
 * The checkpoint of step `good` is always kept. */
TDM_API tdm_status tdm_checkpoint_retain(const char *dir, const tdm_checkpoint_retention *rules,
                                         uint64_t good, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
