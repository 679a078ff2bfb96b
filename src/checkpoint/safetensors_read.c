/*
 * safetensors_read.c: reads safetensors files, as hostile input.
 *
 * The layout is: eight bytes with the length of the header, little-endian; the header, one JSON
 * object, padded with spaces; the data. Each entry of the header names a dtype, a shape and the
 * half-open range of its bytes in the data. The results satisfy these invariants:
 *   1. Every range is inside the data, and its length is that of the dtype and the shape.
 *   2. The ranges cover the data from the first byte to the last, without holes or overlaps.
 *   3. Names are unique, contain no zero byte, and are in bytewise order.
 *   4. Data pointers are aligned for their dtype. The format does not guarantee alignment, so a
 *      misaligned tensor is copied; all others point into the file.
 * Fields of an entry that are unknown are ignored, as in the reference implementation.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <tandem/os.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tdm_safetensors {
    tdm_arena *arena;
    tdm_file_bytes bytes; /* owned when opened by path; empty otherwise */
    tdm_pages unpacked;   /* if the file was compressed; else empty */
    tdm_named_tensor *tensors;
    size_t tensor_count;
    tdm_named_text *metadata;
    size_t metadata_count;
};

/* One tensor of the header, before its range is checked. */
typedef struct entry {
    tdm_named_tensor item;
    uint64_t begin;
    uint64_t end;
} entry;

/* The state that the steps of one parse share. */
typedef struct parse {
    const char *name; /* of the file, for messages */
    const uint8_t *data;
    uint64_t data_bytes;
    tdm_arena *scratch; /* the header as JSON, and the entries */
    tdm_safetensors *file;
    entry *entries;
    size_t entry_count;
    tdm_error *err;
} parse;

static tdm_status no_memory(const parse *p)
{
    return tdm_fail_oom(p->err, "to read the header (%s)", p->name);
}

/* ---- the header ------------------------------------------------------------------------------ */

static tdm_status find_header(parse *p, const uint8_t *bytes, size_t count, size_t *out_length)
{
    if (count < 8) {
        return tdm_fail(
            p->err, TDM_ERR_FORMAT,
            "%s: too short (%zu bytes): a safetensors file begins with 8 bytes of length", p->name,
            count);
    }
    uint64_t length;
    memcpy(&length, bytes, sizeof(length));
    if (length > TDM__MAX_HEADER_BYTES) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: the header claims %" PRIu64 " bytes, more than the %u allowed; this "
                        "is not a safetensors file, or it is damaged",
                        p->name, length, TDM__MAX_HEADER_BYTES);
    }
    if (length > count - 8) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: the header claims %" PRIu64 " bytes, but only %zu follow; the file is "
                        "truncated, or it is not a safetensors file",
                        p->name, length, count - 8);
    }
    if (length == 0 || bytes[8] != '{') {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: the header does not begin with '{'; this is not a safetensors file",
                        p->name);
    }
    p->data = bytes + 8 + length;
    p->data_bytes = count - 8 - length;
    *out_length = (size_t)length;
    return TDM_OK;
}

/* The header without its padding, which must be spaces. */
static tdm_status parse_header(parse *p, const uint8_t *bytes, size_t length, const tdm_json **out)
{
    while (length > 0 && bytes[length - 1] == ' ') length--;
    if (length == 0 || bytes[length - 1] != '}') {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: the header does not end with '}' and spaces (byte %zu)", p->name,
                        8 + length);
    }
    const tdm_json *root = NULL;
    tdm_status status = tdm_json_parse((const char *)bytes, length, p->scratch, &root, p->err);
    if (status != TDM_OK) return tdm_error_context(p->err, status, "%s: header", p->name);
    *out = root;
    return TDM_OK;
}

/* ---- metadata -------------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(((const tdm_named_text *)a)->name, ((const tdm_named_text *)b)->name);
}

static tdm_status read_metadata(parse *p, const tdm_json *object)
{
    if (object->type == TDM_JSON_NULL) return TDM_OK;
    if (object->type != TDM_JSON_OBJECT) {
        return tdm_fail(p->err, TDM_ERR_FORMAT, "%s: %s is not an object (byte %zu)", p->name,
                        TDM__METADATA_KEY, 8 + object->offset);
    }
    tdm_arena *arena = p->file->arena;
    tdm_named_text *texts = tdm_arena_array(arena, object->count, sizeof(*texts));
    if (!texts) return no_memory(p);
    size_t n = 0;
    for (const tdm_json *child = object->first; child; child = child->next, n++) {
        if (child->type != TDM_JSON_STRING) {
            return tdm_fail(p->err, TDM_ERR_FORMAT,
                            "%s: metadata '%.200s' is not a string (byte %zu)", p->name, child->key,
                            8 + child->offset);
        }
        if (strlen(child->key) != child->key_length || !tdm_json_as_string(child)) {
            return tdm_fail(p->err, TDM_ERR_UNSUPPORTED,
                            "%s: metadata '%.200s' contains a zero byte", p->name, child->key);
        }
        texts[n].name = tdm_arena_strdup(arena, child->key);
        texts[n].text = tdm_arena_strdup(arena, child->string);
        if (!texts[n].name || !texts[n].text) return no_memory(p);
    }
    qsort(texts, n, sizeof(*texts), compare_texts);
    p->file->metadata = texts;
    p->file->metadata_count = n;
    return TDM_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

static tdm_status read_dtype(const parse *p, const char *name, const tdm_json *value,
                             tdm_dtype *out)
{
    const char *text = tdm_json_as_string(value);
    if (!text) {
        return tdm_fail(p->err, TDM_ERR_FORMAT, "%s: tensor '%.200s' has no \"dtype\" text",
                        p->name, name);
    }
    tdm_dtype dtype = tdm__safetensors_dtype(text);
    if (dtype == TDM_DTYPE_NONE) {
        return tdm_fail(
            p->err, TDM_ERR_UNSUPPORTED,
            "%s: tensor '%.200s' has dtype %.40s, which Tandem does not support; convert "
            "it to F32 or BF16 first",
            p->name, name, text);
    }
    *out = dtype;
    return TDM_OK;
}

static tdm_status read_shape(const parse *p, const char *name, const tdm_json *value,
                             tdm_shape *out)
{
    if (!value || value->type != TDM_JSON_ARRAY) {
        return tdm_fail(p->err, TDM_ERR_FORMAT, "%s: tensor '%.200s' has no \"shape\" list",
                        p->name, name);
    }
    if (value->count > TDM_MAX_DIMS) {
        return tdm_fail(p->err, TDM_ERR_UNSUPPORTED,
                        "%s: tensor '%.200s' has %zu dimensions; the maximum is %d", p->name, name,
                        value->count, TDM_MAX_DIMS);
    }
    tdm_shape shape = {.rank = (int)value->count};
    int d = 0;
    for (const tdm_json *child = value->first; child; child = child->next, d++) {
        uint64_t dim = 0;
        if (!tdm_json_as_u64(child, &dim) || dim > INT64_MAX) {
            return tdm_fail(p->err, TDM_ERR_FORMAT,
                            "%s: tensor '%.200s': dimension %d is not a size (byte %zu)", p->name,
                            name, d, 8 + child->offset);
        }
        shape.dim[d] = (int64_t)dim;
    }
    *out = shape;
    return TDM_OK;
}

static tdm_status read_offsets(const parse *p, const char *name, const tdm_json *value, entry *out)
{
    if (!value || value->type != TDM_JSON_ARRAY || value->count != 2 ||
        !tdm_json_as_u64(value->first, &out->begin) ||
        !tdm_json_as_u64(value->first->next, &out->end)) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: tensor '%.200s' has no \"data_offsets\" of two sizes", p->name, name);
    }
    if (out->begin > out->end || out->end > p->data_bytes) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: tensor '%.200s' is at bytes %" PRIu64 " to %" PRIu64
                        ", but the data have %" PRIu64 " bytes; the file is truncated or damaged",
                        p->name, name, out->begin, out->end, p->data_bytes);
    }
    return TDM_OK;
}

static tdm_status read_entry(const parse *p, const tdm_json *value, entry *out)
{
    if (strlen(value->key) != value->key_length) {
        return tdm_fail(p->err, TDM_ERR_UNSUPPORTED,
                        "%s: the tensor name '%.200s' contains a zero byte", p->name, value->key);
    }
    const char *name = tdm_arena_strdup(p->file->arena, value->key);
    if (!name) return no_memory(p);
    if (value->type != TDM_JSON_OBJECT) {
        return tdm_fail(p->err, TDM_ERR_FORMAT, "%s: tensor '%.200s' is not an object (byte %zu)",
                        p->name, name, 8 + value->offset);
    }
    tdm_tensor *tensor = &out->item.tensor;
    out->item.name = name;
    TDM_TRY(read_dtype(p, name, tdm_json_get(value, "dtype"), &tensor->dtype));
    TDM_TRY(read_shape(p, name, tdm_json_get(value, "shape"), &tensor->shape));
    TDM_TRY(read_offsets(p, name, tdm_json_get(value, "data_offsets"), out));

    char shape_text[128];
    uint64_t bytes = 0;
    int64_t elements = tdm_tensor_elements(tensor);
    if (elements < 0 ||
        __builtin_mul_overflow((uint64_t)elements, tdm_dtype_bytes(tensor->dtype), &bytes)) {
        return tdm_fail(p->err, TDM_ERR_FORMAT, "%s: tensor '%.200s': the shape %s overflows",
                        p->name, name, tdm_shape_text(&tensor->shape, shape_text));
    }
    if (out->end - out->begin != bytes) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: tensor '%.200s' of %s %s needs %" PRIu64
                        " bytes, but its offsets %" PRIu64 " to %" PRIu64 " hold %" PRIu64,
                        p->name, name, tdm_dtype_name(tensor->dtype),
                        tdm_shape_text(&tensor->shape, shape_text), bytes, out->begin, out->end,
                        out->end - out->begin);
    }
    return TDM_OK;
}

static tdm_status read_entries(parse *p, const tdm_json *root)
{
    p->entries = tdm_arena_array(p->scratch, root->count, sizeof(*p->entries));
    if (!p->entries) return no_memory(p);
    for (const tdm_json *child = root->first; child; child = child->next) {
        if (child->key_length == strlen(TDM__METADATA_KEY) &&
            strcmp(child->key, TDM__METADATA_KEY) == 0) {
            TDM_TRY(read_metadata(p, child));
        } else {
            TDM_TRY(read_entry(p, child, &p->entries[p->entry_count]));
            p->entry_count++;
        }
    }
    return TDM_OK;
}

/* ---- the data -------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    const entry *x = a;
    const entry *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->item.name, y->item.name);
}

/* Every byte of the data belongs to exactly one tensor. */
static tdm_status check_cover(const parse *p)
{
    qsort(p->entries, p->entry_count, sizeof(*p->entries), compare_places);
    uint64_t expected = 0;
    for (size_t i = 0; i < p->entry_count; i++) {
        const entry *e = &p->entries[i];
        if (e->begin != expected) {
            return tdm_fail(p->err, TDM_ERR_FORMAT,
                            "%s: tensor '%.200s' begins at byte %" PRIu64
                            " of the data, not at %" PRIu64 " where the one before it ends: %s",
                            p->name, e->item.name, e->begin, expected,
                            e->begin < expected ? "they overlap" : "there is a hole");
        }
        expected = e->end;
    }
    if (expected != p->data_bytes) {
        return tdm_fail(p->err, TDM_ERR_FORMAT,
                        "%s: the tensors hold %" PRIu64 " bytes, but the data have %" PRIu64
                        "; the file was truncated or extended",
                        p->name, expected, p->data_bytes);
    }
    return TDM_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tdm_named_tensor *)a)->name, ((const tdm_named_tensor *)b)->name);
}

static tdm_status place_tensors(const parse *p)
{
    tdm_safetensors *file = p->file;
    file->tensors = tdm_arena_array(file->arena, p->entry_count, sizeof(*file->tensors));
    if (!file->tensors) return no_memory(p);
    for (size_t i = 0; i < p->entry_count; i++) {
        const entry *e = &p->entries[i];
        const uint8_t *source = p->data + e->begin;
        size_t bytes = (size_t)(e->end - e->begin);
        size_t align = tdm_dtype_bytes(e->item.tensor.dtype);
        file->tensors[i] = e->item;
        if ((uintptr_t)source % align == 0) {
            file->tensors[i].tensor.data = (void *)(uintptr_t)source;
            continue;
        }
        void *copy = tdm_arena_alloc(file->arena, bytes, align);
        if (!copy) return no_memory(p);
        memcpy(copy, source, bytes);
        file->tensors[i].tensor.data = copy;
    }
    file->tensor_count = p->entry_count;
    qsort(file->tensors, file->tensor_count, sizeof(*file->tensors), compare_names);
    return TDM_OK;
}

static tdm_status parse_all(parse *p, const uint8_t *bytes, size_t count)
{
    size_t header_bytes = 0;
    const tdm_json *root = NULL;
    TDM_TRY(find_header(p, bytes, count, &header_bytes));
    TDM_TRY(parse_header(p, bytes + 8, header_bytes, &root));
    TDM_TRY(read_entries(p, root));
    TDM_TRY(check_cover(p));
    return place_tensors(p);
}

/* ---- handles --------------------------------------------------------------------------------- */

static tdm_status parse_plain(const void *bytes, size_t count, const char *name,
                              tdm_safetensors **out, tdm_error *err)
{
    tdm_status status;
    tdm_safetensors *file = calloc(1, sizeof(*file));
    tdm_arena *scratch = tdm_arena_create("safetensors header");
    parse p = {.name = name, .scratch = scratch, .file = file, .err = err};
    if (file) file->arena = tdm_arena_create("safetensors file");
    if (!file || !file->arena || !scratch) {
        status = no_memory(&p);
    } else {
        status = parse_all(&p, bytes, count);
    }
    tdm_arena_destroy(scratch);
    if (status != TDM_OK) {
        tdm_safetensors_destroy(file);
        return status;
    }
    *out = file;
    return TDM_OK;
}

/* The header is read and compared with the length of the file before anything else is
 * decompressed. */
static tdm_status parse_packed(tdm__unpacking *u, const char *name, tdm_safetensors **out,
                               tdm_error *err)
{
    const uint8_t *data = tdm__unpack_data(u);
    size_t size = tdm__unpack_size(u);
    uint64_t header = 0;
    TDM_TRY(tdm__unpack_head(u, sizeof(header), err));
    if (size >= sizeof(header)) memcpy(&header, data, sizeof(header));
    if (header <= TDM__MAX_HEADER_BYTES)
        TDM_TRY(tdm__unpack_head(u, sizeof(header) + (size_t)header, err));
    tdm_safetensors *file = NULL;
    tdm_pages pages = {0};
    TDM_TRY(parse_plain(data, size, name, &file, err));
    tdm_status status = tdm__unpack_rest(u, &pages, err);
    if (status != TDM_OK) {
        tdm_safetensors_destroy(file);
        return status;
    }
    file->unpacked = pages;
    *out = file;
    return TDM_OK;
}

tdm_status tdm_safetensors_parse(const void *bytes, size_t count, const char *name,
                                 tdm_safetensors **out, tdm_error *err)
{
    tdm__unpacking *u = NULL;
    if (!tdm__is_packed(bytes, count)) return parse_plain(bytes, count, name, out, err);
    TDM_TRY(tdm__unpack_open(bytes, count, name, &u, err));
    tdm_status status = parse_packed(u, name, out, err);
    tdm__unpack_close(u);
    return status;
}

bool tdm_safetensors_looks_like(const char *path)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(path), suffix_length = strlen(suffix);
    if (length >= suffix_length && strcmp(path + length - suffix_length, suffix) == 0) return true;
    uint8_t head[9] = {0};
    FILE *file = fopen(path, "rbe");
    if (!file) return true;
    size_t count = fread(head, 1, sizeof(head), file);
    fclose(file);
    /* A file begins with the length of the header and a brace. In a text, the eighth byte is not
     * zero. */
    return tdm__is_packed(head, count) ||
           (count == sizeof(head) && head[8] == '{' && head[7] == 0 && head[6] == 0);
}

tdm_status tdm_safetensors_open(const char *path, tdm_safetensors **out, tdm_error *err)
{
    tdm_file_bytes bytes = {0};
    TDM_TRY(tdm_file_read(path, 0, &bytes, err));
    tdm_safetensors *file = NULL;
    tdm_status status = tdm_safetensors_parse(bytes.data, bytes.count, path, &file, err);
    if (status != TDM_OK) {
        tdm_file_bytes_release(&bytes);
        return status;
    }
    if (file->unpacked.data) {
        tdm_file_bytes_release(&bytes); /* nothing points to it */
    } else {
        file->bytes = bytes;
    }
    *out = file;
    return TDM_OK;
}

void tdm_safetensors_destroy(tdm_safetensors *file)
{
    if (!file) return;
    tdm_file_bytes_release(&file->bytes);
    tdm_pages_unmap(&file->unpacked);
    tdm_arena_destroy(file->arena);
    free(file);
}

size_t tdm_safetensors_count(const tdm_safetensors *file)
{
    return file->tensor_count;
}

const tdm_named_tensor *tdm_safetensors_at(const tdm_safetensors *file, size_t index)
{
    return index < file->tensor_count ? &file->tensors[index] : NULL;
}

const tdm_named_tensor *tdm_safetensors_find(const tdm_safetensors *file, const char *name)
{
    const tdm_named_tensor key = {.name = name};
    return bsearch(&key, file->tensors, file->tensor_count, sizeof(*file->tensors), compare_names);
}

size_t tdm_safetensors_metadata_count(const tdm_safetensors *file)
{
    return file->metadata_count;
}

const tdm_named_text *tdm_safetensors_metadata_at(const tdm_safetensors *file, size_t index)
{
    return index < file->metadata_count ? &file->metadata[index] : NULL;
}

const char *tdm_safetensors_metadata(const tdm_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[i].name, name) == 0) return file->metadata[i].text;
    }
    return NULL;
}
