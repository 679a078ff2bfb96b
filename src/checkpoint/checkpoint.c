/*
 * checkpoint.c: reads a training state from a safetensors file. (checkpoint_write.c writes it.)
 *
 * Tensors are the file's tensors; everything else is text in its metadata:
 *   format        "tandem-checkpoint-2"; files of "tandem-checkpoint-1" are read as well
 *   position      {"step":…,"epoch":…,"position":…,"samples":…,"seed":…}, decimal numbers
 *   job           the resolved job file, and job_hash its hash
 *   data_hash     of the training set; absent when there is none
 *   numerics      the numerics version, which affects bits besides job and data; absent in old files
 *   classes       a JSON list of names; sample_shape a JSON list of sizes
 *   state         tdm_state_hash: SHA-256 over position and tensors, by chunks; in format 1 in one go
 *   sha256        SHA-256 over all the texts above, and so, through `state`, over everything
 * Opening verifies both hashes first, and then checks each text as hostile input nevertheless: a checksum
 * detects accidents, not attacks. Bytes of class names that are not UTF-8 are stored as the replacement
 * character.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_PREFIX TDM__CHECKPOINT_FORMAT_PREFIX
#define FORMAT TDM__CHECKPOINT_FORMAT
#define FORMAT_1 TDM__CHECKPOINT_FORMAT_1

struct tdm_checkpoint {
    tdm_safetensors *file;
    tdm_arena *arena;
    tdm_checkpoint_content content;
};

const tdm__position_field tdm__position_fields[TDM__POSITION_FIELDS] = {
    {"step", offsetof(tdm_position, step)},         {"epoch", offsetof(tdm_position, epoch)},
    {"position", offsetof(tdm_position, position)}, {"samples", offsetof(tdm_position, samples)},
    {"seed", offsetof(tdm_position, seed)},
};

tdm_status tdm__hash_metadata(const tdm_named_text *texts, size_t count, char hex[TDM_SHA256_HEX],
                              tdm_error *err)
{
    tdm_sha256 *hash = tdm_sha256_create();
    if (!hash) return tdm_fail_oom(err, "to hash the metadata");
    for (size_t i = 0; i < count; i++) {
        if (strcmp(texts[i].name, "sha256") == 0) continue;
        tdm_sha256_text(hash, texts[i].name);
        tdm_sha256_text(hash, texts[i].text);
    }
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}

/* ---- open ------------------------------------------------------------------------------------ */

static tdm_status need_text(const char *path, const tdm_safetensors *file, const char *name,
                            const char **out, tdm_error *err)
{
    const char *text = tdm_safetensors_metadata(file, name);
    if (!text) {
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: the metadata have no \"%s\"; the file is damaged",
                        path, name);
    }
    *out = text;
    return TDM_OK;
}

static tdm_status check_format(const char *path, const tdm_safetensors *file, tdm_error *err)
{
    const char *format = tdm_safetensors_metadata(file, "format");
    if (format && (strcmp(format, FORMAT) == 0 || strcmp(format, FORMAT_1) == 0)) return TDM_OK;
    if (format && strncmp(format, FORMAT_PREFIX, strlen(FORMAT_PREFIX)) == 0) {
        return tdm_fail(
            err, TDM_ERR_UNSUPPORTED,
            "%s: the checkpoint has format %.60s, but this version reads formats up to %s; "
            "use the version of Tandem that wrote it",
            path, format, FORMAT);
    }
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: a safetensors file, but not a checkpoint of Tandem: its metadata have no "
                    "\"format\": \"%s\"",
                    path, FORMAT);
}

static tdm_status compare_hash(const char *path, const char *what, const char *expected,
                               const char *found, tdm_error *err)
{
    if (strcmp(expected, found) == 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_CHECKSUM,
                    "%s: the %s of the file is %s, expected %.64s: the file was damaged or "
                    "changed; remove it and resume from an older checkpoint",
                    path, what, found, expected);
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
    for (size_t i = 0; i < TDM__POSITION_FIELDS; i++) {
        uint64_t value = 0;
        if (!tdm_json_as_u64(tdm_json_get(object, tdm__position_fields[i].name), &value)) {
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: metadata \"position\" has no whole number \"%s\"", path,
                            tdm__position_fields[i].name);
        }
        memcpy((char *)&checkpoint->content.position + tdm__position_fields[i].offset, &value,
               sizeof(value));
    }
    return TDM_OK;
}

static tdm_status checkpoint_verify(const char *path, const tdm_checkpoint *checkpoint,
                                    tdm_error *err)
{
    const tdm_safetensors *file = checkpoint->file;
    const tdm_checkpoint_content *content = &checkpoint->content;
    const char *expected = NULL;
    char found[TDM_SHA256_HEX];
    TDM_TRY(need_text(path, file, "sha256", &expected, err));
    TDM_TRY(tdm__hash_metadata(tdm_safetensors_metadata_at(file, 0),
                               tdm_safetensors_metadata_count(file), found, err));
    TDM_TRY(compare_hash(path, "checksum (sha256)", expected, found, err));
    TDM_TRY(need_text(path, file, "state", &expected, err));
    const char *format = tdm_safetensors_metadata(file, "format");
    bool first = format && strcmp(format, FORMAT_1) == 0;
    TDM_TRY((first ? tdm__state_hash_1 : tdm_state_hash)(&content->position, content->tensors,
                                                         content->tensor_count, found, err));
    return compare_hash(path, "state hash (sha256 of the tensors)", expected, found, err);
}

static tdm_status read_classes(const char *path, tdm_checkpoint *checkpoint, tdm_error *err)
{
    const char *text = NULL;
    const tdm_json *list = NULL;
    TDM_TRY(need_text(path, checkpoint->file, "classes", &text, err));
    TDM_TRY(parse_text(path, "classes", text, TDM_JSON_ARRAY, checkpoint->arena, &list, err));
    if (list->count == 0) return TDM_OK;
    const char **names = tdm_arena_array(checkpoint->arena, list->count, sizeof(*names));
    if (!names) return tdm_fail_oom(err, "for %s", path);
    size_t n = 0;
    for (const tdm_json *child = list->first; child; child = child->next, n++) {
        names[n] = tdm_json_as_string(child);
        if (!names[n]) {
            return tdm_fail(err, TDM_ERR_FORMAT, "%s: metadata \"classes\": item %zu is not a name",
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
                            "%s: metadata \"sample_shape\": item %d is not a size", path,
                            shape.rank);
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
    TDM_TRY(checkpoint_verify(path, checkpoint, err));
    TDM_TRY(need_text(path, file, "job", &content->job_yaml, err));
    TDM_TRY(need_text(path, file, "job_hash", &content->job_hash, err));
    content->data_hash = tdm_safetensors_metadata(file, "data_hash");
    content->numerics = tdm_safetensors_metadata(file, "numerics");
    TDM_TRY(read_classes(path, checkpoint, err));
    return read_sample_shape(path, checkpoint, err);
}

tdm_status tdm_checkpoint_open(const char *path, tdm_checkpoint **out, tdm_error *err)
{
    tdm_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (checkpoint) checkpoint->arena = tdm_arena_create("checkpoint");
    if (!checkpoint || !checkpoint->arena) {
        tdm_checkpoint_destroy(checkpoint);
        return tdm_fail_oom(err, "for %s", path);
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
