/*
 * safetensors_write.c: writes safetensors files in a canonical form.
 *
 * The bytes are a function of the tensors and the metadata only:
 *   1. In the header, metadata come first and tensors follow, each in bytewise order of name; the
 *      JSON is compact, and the keys of an entry are dtype, shape, data_offsets.
 *   2. The header is padded with spaces until the data begin at a multiple of 64 in the file.
 *   3. The format allows no holes, so the data are ordered by element size, largest first, then by
 *      name: every tensor then begins at a multiple of its element size, without any padding.
 * Before anything is written, the header is read back and compared: a name that JSON cannot represent
 * (text that is not UTF-8) is an error, so a file never contains another name.
 *
 * The offset of every byte is known from the start, so tensors may be written in any order and in
 * pieces. The header is written last, into space that was reserved for it, so its texts may depend on
 * the data. If the file name ends in ".zst", the complete file is compressed at the end (pack.c).
 */
#include "base/base.h"
#include "checkpoint/internal.h"
#include "os/os.h"

#include <stdlib.h>
#include <string.h>

#define DATA_ALIGN 64

/* A tensor and its range in the data. */
typedef struct slot {
    const tdm_named_tensor *item;
    uint64_t begin;
    uint64_t end;
} slot;

typedef struct layout {
    slot *by_name;
    size_t count;
    const tdm_named_text **metadata; /* by name */
    size_t metadata_count;
} layout;

static void layout_release(layout *plan)
{
    free(plan->by_name);
    free(plan->metadata);
    *plan = (layout){0};
}

/* ---- layout ---------------------------------------------------------------------------------- */

static tdm_status place_slots(layout *plan, const tdm_named_tensor *const *sorted, tdm_error *err)
{
    uint64_t *begin = calloc(plan->count + 1, sizeof(*begin));
    if (!begin) {
        return tdm_fail_oom(err, "to lay out %zu tensors", plan->count);
    }
    tdm_status status = tdm__tensors_place(sorted, plan->count, begin, err);
    for (size_t i = 0; i < plan->count && status == TDM_OK; i++) {
        uint64_t end = begin[i] + tdm_tensor_bytes(&sorted[i]->tensor);
        plan->by_name[i] = (slot){.item = sorted[i], .begin = begin[i], .end = end};
    }
    free(begin);
    return status;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp((*(const tdm_named_text *const *)a)->name,
                  (*(const tdm_named_text *const *)b)->name);
}

static tdm_status sort_metadata(layout *plan, const tdm_named_text *texts, size_t count,
                                tdm_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!texts[i].name || !texts[i].text) {
            return tdm_fail(err, TDM_ERR_INVALID, "metadata %zu has no name or no text", i);
        }
        plan->metadata[i] = &texts[i];
    }
    qsort(plan->metadata, count, sizeof(*plan->metadata), compare_texts);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(plan->metadata[i - 1]->name, plan->metadata[i]->name) == 0) {
            return tdm_fail(err, TDM_ERR_INVALID, "metadata '%.200s' is given twice",
                            plan->metadata[i]->name);
        }
    }
    plan->metadata_count = count;
    return TDM_OK;
}

static tdm_status layout_init(layout *plan, const tdm_named_tensor *tensors, size_t tensor_count,
                              const tdm_named_text *metadata, size_t metadata_count, tdm_error *err)
{
    *plan = (layout){.count = tensor_count};
    const tdm_named_tensor **sorted = NULL;
    tdm_status status = tdm__tensors_in_order(tensors, tensor_count, false, &sorted, err);
    if (status != TDM_OK) return status;
    plan->by_name = calloc(tensor_count + 1, sizeof(*plan->by_name));
    plan->metadata = calloc(metadata_count + 1, sizeof(*plan->metadata));
    if (!plan->by_name || !plan->metadata) {
        status = tdm_fail_oom(err, "to lay out %zu tensors", tensor_count);
        goto release;
    }
    for (size_t i = 0; i < tensor_count; i++) {
        if (strcmp(sorted[i]->name, TDM__METADATA_KEY) != 0) continue;
        status = tdm_fail(err, TDM_ERR_INVALID, "a tensor cannot have the name %s",
                          TDM__METADATA_KEY);
        goto release;
    }
    status = place_slots(plan, sorted, err);
    if (status == TDM_OK) status = sort_metadata(plan, metadata, metadata_count, err);

release:
    free(sorted);
    if (status != TDM_OK) layout_release(plan);
    return status;
}

/* ---- header ---------------------------------------------------------------------------------- */

static void add_entry(tdm_json_writer *w, const slot *s)
{
    const tdm_tensor *tensor = &s->item->tensor;
    tdm_json_key(w, s->item->name);
    tdm_json_object_begin(w);
    tdm_json_put_string(w, "dtype", tdm__safetensors_dtype_name(tensor->dtype));
    tdm_json_key(w, "shape");
    tdm_json_array_begin(w);
    for (int d = 0; d < tensor->shape.rank; d++) tdm_json_int(w, tensor->shape.dim[d]);
    tdm_json_array_end(w);
    tdm_json_key(w, "data_offsets");
    tdm_json_array_begin(w);
    tdm_json_uint(w, s->begin);
    tdm_json_uint(w, s->end);
    tdm_json_array_end(w);
    tdm_json_object_end(w);
}

/* The length and the padded header: everything before the data. */
static tdm_status header_compose(const layout *plan, tdm_str *out, tdm_error *err)
{
    uint64_t length = 0;
    tdm_str_add_bytes(out, &length, sizeof(length));
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    if (plan->metadata_count > 0) {
        tdm_json_key(&w, TDM__METADATA_KEY);
        tdm_json_object_begin(&w);
        for (size_t i = 0; i < plan->metadata_count; i++) {
            tdm_json_put_string(&w, plan->metadata[i]->name, plan->metadata[i]->text);
        }
        tdm_json_object_end(&w);
    }
    for (size_t i = 0; i < plan->count; i++) add_entry(&w, &plan->by_name[i]);
    tdm_json_object_end(&w);
    while (out->length % DATA_ALIGN != 0 && !out->failed) tdm_str_add_char(out, ' ');
    if (!tdm_str_ok(out)) return tdm_fail_oom(err, "for the header");
    length = out->length - sizeof(length);
    if (length > TDM__MAX_HEADER_BYTES) {
        return tdm_fail(err, TDM_ERR_RANGE,
                        "the header has %llu bytes, more than the %u the format allows; use fewer "
                        "tensors or shorter names and metadata",
                        (unsigned long long)length, TDM__MAX_HEADER_BYTES);
    }
    memcpy(out->data, &length, sizeof(length));
    return TDM_OK;
}

static tdm_status fail_text(const char *what, const char *text, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_INVALID, "the %s '%.200s' is not valid UTF-8", what, text);
}

static tdm_status compare_back(const layout *plan, const tdm_json *root, tdm_error *err)
{
    const tdm_json *child = root->first;
    if (plan->metadata_count > 0) {
        const tdm_json *item = child->first;
        for (size_t i = 0; i < plan->metadata_count; i++, item = item->next) {
            const tdm_named_text *text = plan->metadata[i];
            if (strcmp(item->key, text->name) != 0) {
                return fail_text("name of metadata", text->name, err);
            }
            if (strcmp(item->string, text->text) != 0) {
                return fail_text("text of metadata", text->name, err);
            }
        }
        child = child->next;
    }
    for (size_t i = 0; i < plan->count; i++, child = child->next) {
        const char *name = plan->by_name[i].item->name;
        if (strcmp(child->key, name) != 0) return fail_text("tensor name", name, err);
    }
    return TDM_OK;
}

static tdm_status check_reads_back(const layout *plan, const tdm_str *header, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("header check");
    if (!arena) return tdm_fail_oom(err, "to check the header");
    const tdm_json *root = NULL;
    tdm_status status = tdm_json_parse(header->data + 8, header->length - 8, arena, &root, err);
    if (status == TDM_OK) status = compare_back(plan, root, err);
    tdm_arena_destroy(arena);
    return status;
}

/* ---- file ------------------------------------------------------------------------------------ */

struct tdm__safetensors_writer {
    layout plan;
    tdm_file_writer *file;
    size_t header_bytes; /* with the length before it: the offset of the data */
    bool packs; /* the file is written uncompressed first, then compressed into another file */
    char *path; /* the destination if it is compressed */
};

static tdm_status make_header(const layout *plan, tdm_str *out, tdm_error *err)
{
    TDM_TRY(header_compose(plan, out, err));
    return check_reads_back(plan, out, err);
}

static tdm_status file_begin(const char *path, tdm__safetensors_writer *writer, tdm_error *err)
{
    tdm_str header = TDM_STR_INIT;
    tdm_status status = make_header(&writer->plan, &header, err);
    writer->header_bytes = header.length;
    tdm_str_release(&header);
    if (status != TDM_OK) return tdm_error_context(err, status, "cannot write %s", path);
    writer->packs = tdm__is_packed_name(path);
    if (writer->packs) {
        TDM_TRY(tdm__pack_usable(path, err));
        writer->path = strdup(path);
        if (!writer->path) return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s", path);
    }
    return tdm_file_writer_create(path, &writer->file, err);
}

/* Compresses what was written so far, and replaces the file by the compressed one. */
static tdm_status file_compress(tdm__safetensors_writer *writer, tdm_error *err)
{
    tdm_file_writer *packed = NULL;
    tdm_file_bytes bytes = {0};
    tdm_arena *arena = tdm_arena_create("packing");
    char *plain = arena ? tdm_file_writer_temporary(writer->file, arena) : NULL;
    tdm_status status = plain ? tdm_file_read(plain, 0, &bytes, err)
                              : tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s: out of memory",
                                         writer->path);
    if (status == TDM_OK) status = tdm_file_writer_create(writer->path, &packed, err);
    if (status == TDM_OK) status = tdm__pack(bytes.data, bytes.count, packed, err);
    tdm_file_bytes_release(&bytes);
    tdm_arena_destroy(arena);
    if (status != TDM_OK) {
        tdm_file_writer_abandon(packed);
        return status;
    }
    tdm_file_writer_abandon(writer->file);
    writer->file = packed;
    return TDM_OK;
}

tdm_status tdm__safetensors_begin(const char *path, const tdm_named_tensor *tensors,
                                  size_t tensor_count, const tdm_named_text *metadata,
                                  size_t metadata_count, tdm__safetensors_writer **out,
                                  tdm_error *err)
{
    tdm__safetensors_writer *writer = calloc(1, sizeof(*writer));
    if (!writer) return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s: out of memory", path);
    tdm_status status = layout_init(&writer->plan, tensors, tensor_count, metadata, metadata_count,
                                    err);
    if (status != TDM_OK) {
        tdm_error_context(err, status, "cannot write %s", path);
    } else {
        status = file_begin(path, writer, err);
    }
    if (status != TDM_OK) {
        tdm__safetensors_abandon(writer);
        return status;
    }
    *out = writer;
    return TDM_OK;
}

tdm_status tdm__safetensors_put(tdm__safetensors_writer *writer, size_t index, size_t offset,
                                const void *bytes, size_t count, tdm_error *err)
{
    uint64_t at = writer->header_bytes + writer->plan.by_name[index].begin + offset;
    return tdm_file_writer_write_at(writer->file, at, bytes, count, err);
}

uint64_t tdm__safetensors_data_at(const tdm__safetensors_writer *writer)
{
    return writer->header_bytes;
}

bool tdm__safetensors_packs(const tdm__safetensors_writer *writer)
{
    return writer->packs;
}

char *tdm__safetensors_temporary(const tdm__safetensors_writer *writer, tdm_arena *arena)
{
    return tdm_file_writer_temporary(writer->file, arena);
}

static void file_release(tdm__safetensors_writer *writer)
{
    layout_release(&writer->plan);
    free(writer->path);
    free(writer);
}

static tdm_status put_header(tdm__safetensors_writer *writer, tdm_error *err)
{
    tdm_str header = TDM_STR_INIT;
    tdm_status status = make_header(&writer->plan, &header, err);
    if (status == TDM_OK && header.length != writer->header_bytes) {
        status = tdm_fail(err, TDM_ERR_INTERNAL,
                          "the header should have %zu bytes, but has %zu: its texts have changed",
                          writer->header_bytes, header.length);
    }
    if (status == TDM_OK) {
        status = tdm_file_writer_write_at(writer->file, 0, header.data, header.length, err);
    }
    tdm_str_release(&header);
    return status;
}

tdm_status tdm__safetensors_commit(tdm__safetensors_writer *writer, const tdm_commit_gate *gate,
                                   tdm_error *err)
{
    tdm_status status = put_header(writer, err);
    if (status == TDM_OK && writer->packs) status = file_compress(writer, err);
    if (status == TDM_OK && gate) {
        /* The slow steps are first, so that little time passes between the callback and the
         * rename. */
        status = tdm_file_writer_sync(writer->file, err);
        if (status == TDM_OK) status = gate->may_commit(gate->user, err);
    }
    if (status != TDM_OK) {
        tdm__safetensors_abandon(writer);
        return status;
    }
    status = tdm_file_writer_commit(writer->file, err);
    file_release(writer);
    return status;
}

void tdm__safetensors_abandon(tdm__safetensors_writer *writer)
{
    if (!writer) return;
    tdm_file_writer_abandon(writer->file);
    file_release(writer);
}

tdm_status tdm_safetensors_write(const char *path, const tdm_named_tensor *tensors,
                                 size_t tensor_count, const tdm_named_text *metadata,
                                 size_t metadata_count, tdm_error *err)
{
    tdm__safetensors_writer *writer = NULL;
    const tdm_named_tensor **sorted = NULL;
    tdm_status status = tdm__tensors_in_order(tensors, tensor_count, true, &sorted, err);
    if (status != TDM_OK) return tdm_error_context(err, status, "cannot write %s", path);
    status = tdm__safetensors_begin(path, tensors, tensor_count, metadata, metadata_count, &writer,
                                    err);
    for (size_t i = 0; i < tensor_count && status == TDM_OK; i++) {
        const tdm_tensor *tensor = &sorted[i]->tensor;
        status = tdm__safetensors_put(writer, i, 0, tensor->data, tdm_tensor_bytes(tensor), err);
    }
    free(sorted);
    if (status != TDM_OK) {
        tdm__safetensors_abandon(writer);
        return status;
    }
    return tdm__safetensors_commit(writer, NULL, err);
}
