/*
 * checkpoint.c: a training state as one safetensors file.
 *
 * Tensors are the file's tensors; everything else is text in its metadata:
 *   format        "tandem-checkpoint-1"
 *   position      {"step":…,"epoch":…,"position":…,"samples":…,"seed":…}, decimal numbers
 *   job           the resolved job file, and job_hash its hash
 *   data_hash     of the training set; absent when there is none
 *   classes       a JSON list of names; sample_shape a JSON list of sizes
 *   state         tdm_state_hash: SHA-256 over position and tensors
 *   sha256        SHA-256 over all the texts above, and so, through `state`, over everything
 * Opening recomputes both hashes before anything is believed, and then checks each text as hostile
 * input all the same: a checksum stops accidents, not people. Class names are for people: bytes in
 * them that are no UTF-8 are stored as the replacement character.
 */
#include "checkpoint/internal.h"

#include <tandem/text.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_PREFIX "tandem-checkpoint-"
#define FORMAT FORMAT_PREFIX "1"

struct tdm_checkpoint {
    tdm_safetensors *file;
    tdm_arena *arena;
    tdm_checkpoint_content content;
};

static const struct {
    const char *name;
    size_t offset;
} position_fields[] = {
    {"step", offsetof(tdm_position, step)},         {"epoch", offsetof(tdm_position, epoch)},
    {"position", offsetof(tdm_position, position)}, {"samples", offsetof(tdm_position, samples)},
    {"seed", offsetof(tdm_position, seed)},
};

#define POSITION_FIELD_COUNT (sizeof position_fields / sizeof position_fields[0])

/* Over all metadata but "sha256" itself. `texts` stand in order of name. */
static tdm_status hash_metadata(const tdm_named_text *texts, size_t count, char hex[TDM_SHA256_HEX],
                                tdm_error *err)
{
    tdm_sha256 *hash = tdm_sha256_create();
    if (!hash) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory to hash the metadata");
    for (size_t i = 0; i < count; i++) {
        if (strcmp(texts[i].name, "sha256") == 0) continue;
        tdm_sha256_text(hash, texts[i].name);
        tdm_sha256_text(hash, texts[i].text);
    }
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}

/* ---- save ------------------------------------------------------------------------------------ */

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
        return tdm_fail(err, TDM_ERR_INVALID, "the shape of a sample is impossible (rank %d)",
                        content->sample_shape.rank);
    }
    return TDM_OK;
}

static void add_position(tdm_str *out, const tdm_position *position)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    for (size_t i = 0; i < POSITION_FIELD_COUNT; i++) {
        uint64_t value;
        memcpy(&value, (const char *)position + position_fields[i].offset, sizeof value);
        tdm_json_put_uint(&w, position_fields[i].name, value);
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

tdm_status tdm_checkpoint_save(const char *path, const tdm_checkpoint_content *content,
                               tdm_error *err)
{
    tdm_str position = TDM_STR_INIT;
    tdm_str classes = TDM_STR_INIT;
    tdm_str shape = TDM_STR_INIT;
    char state[TDM_SHA256_HEX];
    char sha256[TDM_SHA256_HEX];
    tdm_status status = check_content(content, err);
    if (status != TDM_OK) goto release;
    add_position(&position, &content->position);
    add_classes(&classes, content);
    add_shape(&shape, &content->sample_shape);
    if (!tdm_str_ok(&position) || !tdm_str_ok(&classes) || !tdm_str_ok(&shape)) {
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory for the metadata");
        goto release;
    }
    status = tdm_state_hash(&content->position, content->tensors, content->tensor_count, state,
                            err);
    if (status != TDM_OK) goto release;

    tdm_named_text texts[9]; /* in order of name */
    size_t count = 0;
    texts[count++] = (tdm_named_text){"classes", tdm_str_text(&classes)};
    if (content->data_hash) texts[count++] = (tdm_named_text){"data_hash", content->data_hash};
    texts[count++] = (tdm_named_text){"format", FORMAT};
    texts[count++] = (tdm_named_text){"job", content->job_yaml};
    texts[count++] = (tdm_named_text){"job_hash", content->job_hash};
    texts[count++] = (tdm_named_text){"position", tdm_str_text(&position)};
    texts[count++] = (tdm_named_text){"sample_shape", tdm_str_text(&shape)};
    texts[count++] = (tdm_named_text){"state", state};
    status = hash_metadata(texts, count, sha256, err);
    if (status != TDM_OK) goto release;
    texts[count++] = (tdm_named_text){"sha256", sha256}; /* the writer sorts it into its place */

    status = tdm_safetensors_write(path, content->tensors, content->tensor_count, texts, count,
                                   err);

release:
    tdm_str_release(&position);
    tdm_str_release(&classes);
    tdm_str_release(&shape);
    if (status != TDM_OK) {
        return tdm_error_context(err, status, "checkpoint of step %" PRIu64,
                                 content->position.step);
    }
    return TDM_OK;
}

/* ---- open ------------------------------------------------------------------------------------ */

static tdm_status need_text(const char *path, const tdm_safetensors *file, const char *name,
                            const char **out, tdm_error *err)
{
    const char *text = tdm_safetensors_metadata(file, name);
    if (!text) {
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: the metadata lack \"%s\"; the file is damaged",
                        path, name);
    }
    *out = text;
    return TDM_OK;
}

static tdm_status check_format(const char *path, const tdm_safetensors *file, tdm_error *err)
{
    const char *format = tdm_safetensors_metadata(file, "format");
    if (format && strcmp(format, FORMAT) == 0) return TDM_OK;
    if (format && strncmp(format, FORMAT_PREFIX, strlen(FORMAT_PREFIX)) == 0) {
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: is a checkpoint of format %.60s, and this version reads %s; use the "
                        "version of Tandem that wrote it",
                        path, format, FORMAT);
    }
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: is a safetensors file, but no checkpoint of Tandem's: its metadata lack "
                    "\"format\": \"%s\"",
                    path, FORMAT);
}

static tdm_status compare_hash(const char *path, const char *what, const char *expected,
                               const char *found, tdm_error *err)
{
    if (strcmp(expected, found) == 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_CHECKSUM,
                    "%s: the %s of the file should be %.64s, but is %s: the file was damaged or "
                    "changed; remove it and resume from an older checkpoint",
                    path, what, expected, found);
}

static tdm_status parse_text(const char *path, const char *name, const char *text,
                             tdm_json_type type, tdm_arena *arena, const tdm_json **out,
                             tdm_error *err)
{
    const tdm_json *value = NULL;
    tdm_status status = tdm_json_parse(text, strlen(text), arena, &value, err);
    if (status != TDM_OK) {
        return tdm_error_context(err, status, "%s: metadata \"%s\"", path, name);
    }
    if (value->type != type) {
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: metadata \"%s\" is not %s", path, name,
                        type == TDM_JSON_OBJECT ? "an object" : "a list");
    }
    *out = value;
    return TDM_OK;
}

static tdm_status read_position(const char *path, tdm_checkpoint *checkpoint, tdm_error *err)
{
    const char *text = NULL;
    const tdm_json *object = NULL;
    TDM_TRY(need_text(path, checkpoint->file, "position", &text, err));
    TDM_TRY(parse_text(path, "position", text, TDM_JSON_OBJECT, checkpoint->arena, &object, err));
    for (size_t i = 0; i < POSITION_FIELD_COUNT; i++) {
        uint64_t value = 0;
        if (!tdm_json_as_u64(tdm_json_get(object, position_fields[i].name), &value)) {
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: metadata \"position\" has no whole number \"%s\"", path,
                            position_fields[i].name);
        }
        memcpy((char *)&checkpoint->content.position + position_fields[i].offset, &value,
               sizeof value);
    }
    return TDM_OK;
}

static tdm_status verify(const char *path, const tdm_checkpoint *checkpoint, tdm_error *err)
{
    const tdm_safetensors *file = checkpoint->file;
    const tdm_checkpoint_content *content = &checkpoint->content;
    const char *expected = NULL;
    char found[TDM_SHA256_HEX];
    TDM_TRY(need_text(path, file, "sha256", &expected, err));
    TDM_TRY(hash_metadata(tdm_safetensors_metadata_at(file, 0),
                          tdm_safetensors_metadata_count(file), found, err));
    TDM_TRY(compare_hash(path, "checksum (sha256)", expected, found, err));
    TDM_TRY(need_text(path, file, "state", &expected, err));
    TDM_TRY(
        tdm_state_hash(&content->position, content->tensors, content->tensor_count, found, err));
    return compare_hash(path, "state hash (sha256 of the tensors)", expected, found, err);
}

static tdm_status read_classes(const char *path, tdm_checkpoint *checkpoint, tdm_error *err)
{
    const char *text = NULL;
    const tdm_json *list = NULL;
    TDM_TRY(need_text(path, checkpoint->file, "classes", &text, err));
    TDM_TRY(parse_text(path, "classes", text, TDM_JSON_ARRAY, checkpoint->arena, &list, err));
    if (list->count == 0) return TDM_OK;
    const char **names = tdm_arena_array(checkpoint->arena, list->count, sizeof *names);
    if (!names) return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: out of memory", path);
    size_t n = 0;
    for (const tdm_json *child = list->first; child; child = child->next, n++) {
        names[n] = tdm_json_as_string(child);
        if (!names[n]) {
            return tdm_fail(err, TDM_ERR_FORMAT, "%s: metadata \"classes\": item %zu is no name",
                            path, n);
        }
    }
    checkpoint->content.class_names = names;
    checkpoint->content.class_count = (int64_t)n;
    return TDM_OK;
}

static tdm_status read_sample_shape(const char *path, tdm_checkpoint *checkpoint, tdm_error *err)
{
    const char *text = NULL;
    const tdm_json *list = NULL;
    TDM_TRY(need_text(path, checkpoint->file, "sample_shape", &text, err));
    TDM_TRY(parse_text(path, "sample_shape", text, TDM_JSON_ARRAY, checkpoint->arena, &list, err));
    tdm_shape shape = {0};
    for (const tdm_json *child = list->first; child; child = child->next) {
        int64_t dim = -1;
        if (shape.rank == TDM_MAX_DIMS || !tdm_json_as_i64(child, &dim) || dim < 0) {
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: metadata \"sample_shape\" is no shape: item %d", path, shape.rank);
        }
        shape.dim[shape.rank++] = dim;
    }
    if (tdm_shape_elements(&shape) < 0) {
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: metadata \"sample_shape\" overflows", path);
    }
    checkpoint->content.sample_shape = shape;
    return TDM_OK;
}

static tdm_status read_all(const char *path, tdm_checkpoint *checkpoint, tdm_error *err)
{
    tdm_checkpoint_content *content = &checkpoint->content;
    TDM_TRY(tdm_safetensors_open(path, &checkpoint->file, err));
    const tdm_safetensors *file = checkpoint->file;
    content->tensors = tdm_safetensors_at(file, 0);
    content->tensor_count = tdm_safetensors_count(file);
    TDM_TRY(check_format(path, file, err));
    TDM_TRY(read_position(path, checkpoint, err));
    TDM_TRY(verify(path, checkpoint, err));
    TDM_TRY(need_text(path, file, "job", &content->job_yaml, err));
    TDM_TRY(need_text(path, file, "job_hash", &content->job_hash, err));
    content->data_hash = tdm_safetensors_metadata(file, "data_hash");
    TDM_TRY(read_classes(path, checkpoint, err));
    return read_sample_shape(path, checkpoint, err);
}

tdm_status tdm_checkpoint_open(const char *path, tdm_checkpoint **out, tdm_error *err)
{
    tdm_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint) checkpoint->arena = tdm_arena_create("checkpoint");
    if (!checkpoint || !checkpoint->arena) {
        tdm_checkpoint_destroy(checkpoint);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    tdm_status status = read_all(path, checkpoint, err);
    if (status != TDM_OK) {
        tdm_checkpoint_destroy(checkpoint);
        return status;
    }
    *out = checkpoint;
    return TDM_OK;
}

void tdm_checkpoint_destroy(tdm_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    tdm_safetensors_destroy(checkpoint->file);
    tdm_arena_destroy(checkpoint->arena);
    free(checkpoint);
}

const tdm_checkpoint_content *tdm_checkpoint_content_of(const tdm_checkpoint *checkpoint)
{
    return &checkpoint->content;
}

const tdm_named_tensor *tdm_checkpoint_find(const tdm_checkpoint *checkpoint, const char *name)
{
    return tdm_safetensors_find(checkpoint->file, name);
}
