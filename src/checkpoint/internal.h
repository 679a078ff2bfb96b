/*
 * internal.h: declarations shared by the files of the checkpoint module: the names of dtypes in
 * safetensors, tensors in canonical order, work for several threads, files that are written in
 * pieces or compressed, and the texts of a checkpoint.
 */
#ifndef TANDEM_CHECKPOINT_INTERNAL_H
#define TANDEM_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

#include <tandem/os.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files hold little-endian numbers, and are read and written without conversion"
#endif

/* The limit of the reference implementation. */
#define TDM__MAX_HEADER_BYTES 100000000u
#define TDM__METADATA_KEY "__metadata__"

/* "F32" for TDM_DTYPE_F32; NULL for a type that the format does not have. And the reverse: NONE
 * if unknown. */
const char *tdm__safetensors_dtype_name(tdm_dtype dtype);
tdm_dtype tdm__safetensors_dtype(const char *name);

/*
 * Allocates pointers to the tensors, sorted by name (bytewise); the caller frees them. Checks that
 * names are unique and that each tensor has a dtype and a valid shape and, with `need_data`, data
 * unless it is empty.
 */
tdm_status tdm__tensors_in_order(const tdm_named_tensor *tensors, size_t count, bool need_data,
                                 const tdm_named_tensor ***out, tdm_error *err);

/* The offset of each tensor, in order of name, in the data of a file. */
tdm_status tdm__tensors_place(const tdm_named_tensor *const *sorted, size_t count, uint64_t *begin,
                              tdm_error *err);

/* Calls `work` with each index below `count`, on several threads if `bytes`, the size of all
 * data, is large enough. The calling thread takes part, and does everything if no thread can be
 * started. */
typedef void (*tdm__work_fn)(void *user, size_t index);
void tdm__spread(size_t count, uint64_t bytes, tdm__work_fn work, void *user);

/* ---- packed files (pack.c) --------------------------------------------------------------------- */

bool tdm__is_packed_name(const char *path);
bool tdm__is_packed(const void *bytes, size_t count);
/* TDM_ERR_UNSUPPORTED in a build without zstd. */
tdm_status tdm__pack_usable(const char *path, tdm_error *err);
tdm_status tdm__pack(const void *bytes, size_t count, tdm_file_writer *out, tdm_error *err);
/*
 * Decompression in steps, so that the header can be checked before all of the file is in memory.
 * open determines the total size and rejects a file that does not fit into memory; head
 * decompresses the first bytes; rest decompresses everything and returns the pages, which the
 * caller unmaps. Bytes and name (for messages) are borrowed until close.
 */
typedef struct tdm__unpacking tdm__unpacking;
tdm_status tdm__unpack_open(const void *bytes, size_t count, const char *name, tdm__unpacking **out,
                            tdm_error *err);
size_t tdm__unpack_size(const tdm__unpacking *u);
const uint8_t *tdm__unpack_data(const tdm__unpacking *u); /* its address does not change */
tdm_status tdm__unpack_head(tdm__unpacking *u, size_t bytes, tdm_error *err);
tdm_status tdm__unpack_rest(tdm__unpacking *u, tdm_pages *out, tdm_error *err);
void tdm__unpack_close(tdm__unpacking *u);

/* ---- the metrics of the checkpoints of a directory (index.c) ------------------------------------ */

#define TDM__INDEX_NAME "index.json"

typedef struct tdm__index_line {
    uint64_t step;
    tdm_checkpoint_metrics metrics;
} tdm__index_line;
typedef struct tdm__index {
    tdm__index_line *lines;
    size_t count, room;
} tdm__index;
/* Reads the index of the directory; it is empty if nothing is known. Fails only if memory runs
 * out. */
tdm_status tdm__index_read(const char *dir, tdm_arena *arena, tdm__index *out, tdm_error *err);
void tdm__index_release(tdm__index *index);
/* False if memory runs out. */
bool tdm__index_put(tdm__index *index, uint64_t step, const tdm_checkpoint_metrics *metrics);
tdm_checkpoint_metrics tdm__index_get(const tdm__index *index, uint64_t step); /* NaN: unknown */

/* ---- safetensors files, piece by piece (safetensors_write.c) ---------------------------------- */

/* Tensors and texts are borrowed until the end. A text may be replaced by another of the same
 * length: the file gets the text at the time of the commit. */
typedef struct tdm__safetensors_writer tdm__safetensors_writer;

tdm_status tdm__safetensors_begin(const char *path, const tdm_named_tensor *tensors,
                                  size_t tensor_count, const tdm_named_text *metadata,
                                  size_t metadata_count, tdm__safetensors_writer **out,
                                  tdm_error *err);
/* Writes bytes [offset, offset + count) of the tensor with this index in order of name. */
tdm_status tdm__safetensors_put(tdm__safetensors_writer *writer, size_t index, size_t offset,
                                const void *bytes, size_t count, tdm_error *err);
/* For other processes that write parts: the offset of the data in the file, and the path of the
 * file. */
uint64_t tdm__safetensors_data_at(const tdm__safetensors_writer *writer);
/* Whether the file is read again and compressed at the end. */
bool tdm__safetensors_packs(const tdm__safetensors_writer *writer);
char *tdm__safetensors_temporary(const tdm__safetensors_writer *writer, tdm_arena *arena);
/* Both end the writer. All bytes must have been written before the commit. `gate` may be NULL. */
tdm_status tdm__safetensors_commit(tdm__safetensors_writer *writer, const tdm_commit_gate *gate,
                                   tdm_error *err);
void tdm__safetensors_abandon(tdm__safetensors_writer *writer);

/* ---- the texts of a checkpoint (checkpoint.c) -------------------------------------------------- */

#define TDM__CHECKPOINT_FORMAT_PREFIX "tandem-checkpoint-"
#define TDM__CHECKPOINT_FORMAT_1 TDM__CHECKPOINT_FORMAT_PREFIX "1" /* only for reading */
#define TDM__CHECKPOINT_FORMAT TDM__CHECKPOINT_FORMAT_PREFIX "2"

enum { TDM__POSITION_FIELDS = 5 };
typedef struct tdm__position_field {
    const char *name;
    size_t offset; /* of an uint64_t in a tdm_position */
} tdm__position_field;
extern const tdm__position_field tdm__position_fields[TDM__POSITION_FIELDS];

/* The state hash of format 1: over all bytes, without chunks. Tensors must have data. */
tdm_status tdm__state_hash_1(const tdm_position *position, const tdm_named_tensor *tensors,
                             size_t tensor_count, char hex[TDM_SHA256_HEX], tdm_error *err);

/* The hash over all metadata except "sha256" itself. `texts` are sorted by name. */
tdm_status tdm__hash_metadata(const tdm_named_text *texts, size_t count, char hex[TDM_SHA256_HEX],
                              tdm_error *err);

#endif
