/*
 * checkpoint_write.c: writes a training state to a checkpoint, in pieces. (checkpoint.c describes the
 * contents and reads them.)
 *
 * Both hashes have a fixed length, so the length of the header is known before the first byte of a
 * tensor. Tensors are pushed in order of name; the order in the file may be another. Alternatively, other
 * processes write chunks and pass their hashes to this one. At the end the hashes are put into the header,
 * the header is written, and the file gets its name. A kill before that changes nothing.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXTS = 10 };
#define NO_HASH_YET "0000000000000000000000000000000000000000000000000000000000000000"

struct tdm_checkpoint_writer {
    const tdm_checkpoint_content *content;
    tdm_str position, classes, shape;
    char state[TDM_SHA256_HEX];
    char sha256[TDM_SHA256_HEX];
    tdm_named_text texts[MAX_TEXTS]; /* sorted by name, except "sha256", which is last */
    size_t text_count;
    tdm_state_hasher *hasher;
    tdm__safetensors_writer *file;
    const tdm_commit_gate *gate; /* called before the commit; NULL: none */
    size_t at,
        offset;      /* the position of the next byte: tensor, in order of name, and offset in it */
    tdm_error error; /* of the push that failed; TDM_OK if none did */
};

static tdm_status check_content(const tdm_checkpoint_content *content, tdm_error *err)
{
    if (!content->job_yaml || !content->job_hash) {
        return tdm_fail(err, TDM_ERR_INVALID, "a checkpoint needs the job and its hash");
    }
    if (content->class_count < 0 || (content->class_count > 0 && !content->class_names)) {
        return tdm_fail(err, TDM_ERR_INVALID, "a checkpoint cannot have %lld class names",
                        (long long)content->class_count);
    }
    for (int64_t i = 0; i < content->class_count; i++) {
        if (!content->class_names[i]) {
            return tdm_fail(err, TDM_ERR_INVALID, "class %lld has no name", (long long)i);
        }
    }
    if (tdm_shape_elements(&content->sample_shape) < 0) {
        return tdm_fail(err, TDM_ERR_INVALID, "the shape of a sample is invalid (rank %d)",
                        content->sample_shape.rank);
    }
    return TDM_OK;
}

static void add_position(tdm_str *out, const tdm_position *position)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    for (size_t i = 0; i < TDM__POSITION_FIELDS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)position + tdm__position_fields[i].offset, sizeof(value));
        tdm_json_put_uint(&w, tdm__position_fields[i].name, value);
    }
    tdm_json_object_end(&w);
}

static void add_classes(tdm_str *out, const tdm_checkpoint_content *content)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_array_begin(&w);
    for (int64_t i = 0; i < content->class_count; i++) {
        tdm_json_string(&w, content->class_names[i]);
    }
    tdm_json_array_end(&w);
}

static void add_shape(tdm_str *out, const tdm_shape *shape)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_array_begin(&w);
    for (int d = 0; d < shape->rank; d++) tdm_json_int(&w, shape->dim[d]);
    tdm_json_array_end(&w);
}

static tdm_status add_texts(tdm_checkpoint_writer *w, tdm_error *err)
{
    const tdm_checkpoint_content *content = w->content;
    add_position(&w->position, &content->position);
    add_classes(&w->classes, content);
    add_shape(&w->shape, &content->sample_shape);
    if (!tdm_str_ok(&w->position) || !tdm_str_ok(&w->classes) || !tdm_str_ok(&w->shape)) {
        return tdm_fail_oom(err, "for the metadata");
    }
    memcpy(w->state, NO_HASH_YET, sizeof(w->state));
    memcpy(w->sha256, NO_HASH_YET, sizeof(w->sha256));
    tdm_named_text *texts = w->texts;
    size_t count = 0;
    texts[count++] = (tdm_named_text){"classes", tdm_str_text(&w->classes)};
    if (content->data_hash) texts[count++] = (tdm_named_text){"data_hash", content->data_hash};
    texts[count++] = (tdm_named_text){"format", TDM__CHECKPOINT_FORMAT};
    texts[count++] = (tdm_named_text){"job", content->job_yaml};
    texts[count++] = (tdm_named_text){"job_hash", content->job_hash};
    if (content->numerics) texts[count++] = (tdm_named_text){"numerics", content->numerics};
    texts[count++] = (tdm_named_text){"position", tdm_str_text(&w->position)};
    texts[count++] = (tdm_named_text){"sample_shape", tdm_str_text(&w->shape)};
    texts[count++] = (tdm_named_text){"state", w->state};
    texts[count++] = (tdm_named_text){"sha256",
                                      w->sha256}; /* the writer of the file sorts the texts */
    w->text_count = count;
    return TDM_OK;
}

static tdm_status writer_begin(const char *path, tdm_checkpoint_writer *w, tdm_error *err)
{
    const tdm_checkpoint_content *content = w->content;
    TDM_TRY(check_content(content, err));
    TDM_TRY(add_texts(w, err));
    TDM_TRY(tdm_state_hasher_create(&content->position, content->tensors, content->tensor_count,
                                    &w->hasher, err));
    return tdm__safetensors_begin(path, content->tensors, content->tensor_count, w->texts,
                                  w->text_count, &w->file, err);
}

static tdm_status add_context(const tdm_checkpoint_content *content, tdm_status status,
                              tdm_error *err)
{
    if (status == TDM_OK) return TDM_OK;
    return tdm_error_context(err, status, "checkpoint of step %" PRIu64, content->position.step);
}

tdm_status tdm_checkpoint_writer_create(const char *path, const tdm_checkpoint_content *content,
                                        tdm_checkpoint_writer **out, tdm_error *err)
{
    tdm_checkpoint_writer *w = calloc(1, sizeof(*w));
    if (!w) return tdm_fail_oom(err, "for a checkpoint (%s)", path);
    w->content = content;
    tdm_status status = writer_begin(path, w, err);
    if (status != TDM_OK) {
        tdm_checkpoint_writer_abandon(w);
        return add_context(content, status, err);
    }
    *out = w;
    return TDM_OK;
}

const size_t *tdm_checkpoint_writer_order(const tdm_checkpoint_writer *writer)
{
    return tdm_state_hasher_order(writer->hasher);
}

static tdm_status writer_push(tdm_checkpoint_writer *w, const uint8_t *bytes, size_t count,
                              tdm_error *err)
{
    const size_t *order = tdm_state_hasher_order(w->hasher);
    TDM_TRY(tdm_state_hasher_push(w->hasher, bytes, count, err));
    while (count > 0) { /* the hasher has already checked that each byte belongs to a tensor */
        size_t left = tdm_tensor_bytes(&w->content->tensors[order[w->at]].tensor) - w->offset;
        size_t some = count < left ? count : left;
        if (some > 0) {
            TDM_TRY(tdm__safetensors_put(w->file, w->at, w->offset, bytes, some, err));
        }
        bytes += some;
        count -= some;
        w->offset += some;
        if (some == left) {
            w->at++;
            w->offset = 0;
        }
    }
    return TDM_OK;
}

tdm_status tdm_checkpoint_writer_push(tdm_checkpoint_writer *writer, const void *bytes,
                                      size_t count, tdm_error *err)
{
    if (writer->error.status == TDM_OK &&
        writer_push(writer, bytes, count, &writer->error) != TDM_OK) {
        add_context(writer->content, writer->error.status, &writer->error);
    }
    if (writer->error.status != TDM_OK && err) *err = writer->error;
    return writer->error.status;
}

tdm_status tdm_checkpoint_writer_invite(const tdm_checkpoint_writer *writer,
                                        tdm_checkpoint_invitation *out, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("invitation");
    const char *path = arena ? tdm__safetensors_temporary(writer->file, arena) : NULL;
    tdm_status status = TDM_OK;
    if (!path) {
        status = tdm_fail_oom(err, "for a checkpoint");
    } else if (strlen(path) >= sizeof(out->temporary)) {
        status = tdm_fail(err, TDM_ERR_RANGE, "%s: the path is too long", path);
    } else {
        memset(out, 0, sizeof(*out));
        memcpy(out->temporary, path, strlen(path));
        out->data_at = tdm__safetensors_data_at(writer->file);
        out->is_read_back = tdm__safetensors_packs(writer->file);
    }
    tdm_arena_destroy(arena);
    return add_context(writer->content, status, err);
}

tdm_status tdm_checkpoint_writer_accept(tdm_checkpoint_writer *writer, size_t chunk,
                                        const char digest[TDM_SHA256_HEX], tdm_error *err)
{
    return tdm_state_hasher_accept(writer->hasher, chunk, digest, err);
}

void tdm_checkpoint_writer_gate(tdm_checkpoint_writer *writer, const tdm_commit_gate *gate)
{
    writer->gate = gate;
}

/* Writes the hashes into the buffers of `texts`. */
static tdm_status header_seal(tdm_checkpoint_writer *w, tdm_error *err)
{
    TDM_TRY(tdm_state_hasher_finish(w->hasher, w->state, err));
    return tdm__hash_metadata(w->texts, w->text_count, w->sha256, err);
}

tdm_status tdm_checkpoint_writer_commit(tdm_checkpoint_writer *writer,
                                        char state_hash[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_status status = writer->error.status;
    if (status != TDM_OK) {
        if (err) *err = writer->error;
    } else {
        status = header_seal(writer, err);
        if (status == TDM_OK) {
            status = tdm__safetensors_commit(writer->file, writer->gate, err);
            writer->file = NULL;
        }
        status = add_context(writer->content, status, err);
    }
    if (status == TDM_OK && state_hash) memcpy(state_hash, writer->state, TDM_SHA256_HEX);
    tdm_checkpoint_writer_abandon(writer);
    return status;
}

void tdm_checkpoint_writer_abandon(tdm_checkpoint_writer *writer)
{
    if (!writer) return;
    tdm__safetensors_abandon(writer->file);
    tdm_state_hasher_destroy(writer->hasher);
    tdm_str_release(&writer->position);
    tdm_str_release(&writer->classes);
    tdm_str_release(&writer->shape);
    free(writer);
}

tdm_status tdm_checkpoint_save(const char *path, const tdm_checkpoint_content *content,
                               tdm_error *err)
{
    const tdm_named_tensor **sorted = NULL;
    tdm_checkpoint_writer *w = NULL;
    tdm_status status = tdm__tensors_in_order(content->tensors, content->tensor_count, true,
                                              &sorted, err);
    if (status != TDM_OK) return add_context(content, status, err);
    status = tdm_checkpoint_writer_create(path, content, &w, err);
    for (size_t i = 0; i < content->tensor_count && status == TDM_OK; i++) {
        const tdm_tensor *tensor = &sorted[i]->tensor;
        status = tdm_checkpoint_writer_push(w, tensor->data, tdm_tensor_bytes(tensor), err);
    }
    free(sorted);
    if (status != TDM_OK) {
        tdm_checkpoint_writer_abandon(w);
        return status;
    }
    return tdm_checkpoint_writer_commit(w, NULL, err);
}
