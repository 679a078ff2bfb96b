/*
 * load.c: turns a file and overrides into a job, or into a list of problems.
 *
 * The stages run in sequence and continue after errors, unless the text is not a YAML mapping. A
 * job with problems is not returned to the caller. Running out of memory is not a problem of the
 * job: it ends the load with TDM_ERR_NO_MEMORY and without a document.
 */
#include <string.h>

#include "base/base.h"
#include "job/internal.h"
#include "os/os.h"

struct tdm_job_document {
    tdm_arena *arena; /* holds everything, this struct included */
    tdm_job job;
    bool is_valid;
    tdm_job_problems problems;
    tdm_job_problems warnings;
};

void tdm_job_document_destroy(tdm_job_document *document)
{
    if (document) tdm_arena_destroy(document->arena);
}

const tdm_job *tdm_job_document_job(const tdm_job_document *document)
{
    return document->is_valid ? &document->job : NULL;
}

tdm_job_problems tdm_job_document_problems(const tdm_job_document *document)
{
    return document->problems;
}

tdm_job_problems tdm_job_document_warnings(const tdm_job_document *document)
{
    return document->warnings;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Derives a valid name from the file name: "my job.yaml" becomes "my-job". */
static void store_default_name(tdm__loader *loader)
{
    char *stem = tdm_path_stem(loader->arena, loader->file);
    if (!stem) {
        loader->problems.no_memory = true;
        return;
    }
    while (*stem == '.' || *stem == '-') stem++;
    if (strlen(stem) > 64) stem[64] = '\0';
    for (char *c = stem; *c; c++) {
        char one[2] = {*c, '\0'};
        if (*c != '.' && *c != '-' && !tdm__name_is_valid(one)) *c = '-';
    }
    while (*stem == '-') stem++;
    loader->job->name = tdm__name_is_valid(stem) ? stem : "job";
}

static void report_required(tdm__loader *loader, const tdm_job_key *key)
{
    /* The problem is reported at the key's group, if the file has it. */
    tdm__job_position place = {.file = loader->file};
    for (size_t i = 0; i < tdm__job_group_count(); i++) {
        if (tdm__job_group_has(tdm__job_group_at(i), key) && loader->group_places[i].line > 0)
            place = loader->group_places[i];
    }
    tdm_str wanted = TDM_STR_INIT;
    tdm__key_wants(key, &wanted);
    tdm__problem_add(&loader->problems, place, "'%s' is required but missing: give %s", key->path,
                     tdm_str_text(&wanted));
    if (!tdm_str_ok(&wanted)) loader->problems.no_memory = true;
    tdm_str_release(&wanted);
}

static void store_default(tdm__loader *loader, size_t index)
{
    const tdm_job_key *key = tdm_job_key_at(index);
    tdm__job_slot *slot = &loader->slots[index];
    if (key->required) {
        report_required(loader, key);
        return;
    }
    bool is_ruled_out = key->excludes && loader->slots[tdm__key_find(key->excludes)].node;
    if (key->form == TDM_JOB_FORM_NAME) {
        store_default_name(loader);
    } else if (key->fallback && !is_ruled_out) {
        tdm__job_slot fallback = {.node = tdm__node_from_text(loader, key, key->fallback),
                                  .place = {.file = loader->file}};
        if (!fallback.node || !tdm__value_store(loader, key, &fallback, loader->job)) return;
    }
    slot->ok = true;
}

static void store_values(tdm__loader *loader, bool with_defaults)
{
    for (size_t i = 0; i < tdm_job_key_count(); i++) {
        tdm__job_slot *slot = &loader->slots[i];
        if (slot->node) {
            slot->ok = tdm__value_store(loader, tdm_job_key_at(i), slot, loader->job);
        } else if (with_defaults) {
            store_default(loader, i);
        }
    }
}

/* ---- the load -------------------------------------------------------------------------------- */

static void load_run_stages(tdm__loader *loader, const char *bytes, size_t count,
                            const tdm_job_options *options)
{
    bool is_job = false;
    if (count > TDM__JOB_FILE_BYTES) {
        tdm__problem_add(&loader->problems, (tdm__job_position){.file = loader->file},
                         "the file has %zu bytes; a job file has at most %u", count,
                         TDM__JOB_FILE_BYTES);
    } else {
        const tdm__yaml_node *root = tdm__yaml_read(bytes, count, loader->file, loader->scratch,
                                                    &loader->problems);
        is_job = root && tdm__slots_fill(loader, root);
    }
    for (size_t i = 0; i < options->override_count; i++)
        tdm__slots_override(loader, options->overrides[i]);
    store_values(loader, is_job);
    tdm__presets_apply(loader);
    tdm__library_identify(loader);
    if (is_job) {
        tdm__slots_check_pairs(loader);
        tdm__rules_check(loader);
        tdm__rules_warn(loader);
    }
    tdm__problem_list_finish(&loader->warnings, loader->file);
    if (loader->warnings.no_memory) loader->problems.no_memory = true;
    tdm__problem_list_finish(&loader->problems, loader->file);
}

static bool loader_init(tdm__loader *loader, const char *name, const char *dir)
{
    loader->file = tdm_arena_strdup(loader->arena, name);
    loader->dir = tdm_path_absolute(loader->scratch, dir && *dir ? dir : ".");
    loader->slots = tdm_arena_array(loader->scratch, tdm_job_key_count(), sizeof(tdm__job_slot));
    loader->group_places = tdm_arena_array(loader->scratch, tdm__job_group_count(),
                                           sizeof(tdm__job_position));
    loader->problems.arena = loader->warnings.arena = loader->arena;
    return loader->file && loader->dir && loader->slots && loader->group_places;
}

static tdm_status fail_with_first(const tdm_job_document *document, tdm_status status,
                                  tdm_error *err)
{
    tdm_str text = TDM_STR_INIT;
    const tdm_job_problem *first = &document->problems.items[0];
    tdm_job_problem_text(first, &text);
    tdm_fail(err, status, "%s", tdm_str_ok(&text) ? tdm_str_text(&text) : first->message);
    tdm_str_release(&text);
    return status;
}

tdm_status tdm_job_parse(const char *bytes, size_t count, const char *name, const char *dir,
                         const tdm_job_options *options, tdm_job_document **out, tdm_error *err)
{
    static const tdm_job_options no_options;
    if (!options) options = &no_options;
    *out = NULL;
    tdm_arena *arena = tdm_arena_create("job");
    tdm_arena *scratch = tdm_arena_create("reading a job");
    tdm_job_document *document = arena && scratch ? tdm_arena_alloc(arena, sizeof(*document), 0)
                                                  : NULL;
    if (!document) goto no_memory;
    document->arena = arena;
    tdm__loader loader = {.arena = arena,
                          .scratch = scratch,
                          .job = &document->job,
                          .no_file_checks = options->no_file_checks};
    if (!loader_init(&loader, name, dir)) goto no_memory;
    load_run_stages(&loader, bytes, count, options);
    if (loader.problems.no_memory) goto no_memory;
    tdm_arena_destroy(scratch);
    document->problems = (tdm_job_problems){.items = loader.problems.items,
                                            .count = loader.problems.count};
    document->warnings = (tdm_job_problems){.items = loader.warnings.items,
                                            .count = loader.warnings.count};
    document->is_valid = document->problems.count == 0;
    *out = document;
    if (document->is_valid) return TDM_OK;
    bool is_other = loader.other_library && document->problems.count == 1;
    return fail_with_first(document, is_other ? TDM_ERR_JOB_MISMATCH : TDM_ERR_JOB_INVALID, err);

no_memory:
    tdm_arena_destroy(scratch);
    tdm_arena_destroy(arena);
    return tdm_fail_oom(err, "while reading the job (%s)", name);
}

tdm_status tdm_job_load(const char *path, const tdm_job_options *options, tdm_job_document **out,
                        tdm_error *err)
{
    tdm_file_bytes bytes = {0};
    *out = NULL;
    tdm_status status = tdm_file_read(path, TDM__JOB_FILE_BYTES, &bytes, err);
    if (status != TDM_OK) return tdm_error_context(err, status, "job file");
    tdm_arena *arena = tdm_arena_create("job directory");
    char *dir = arena ? tdm_path_dirname(arena, path) : NULL;
    if (dir) {
        status = tdm_job_parse((const char *)bytes.data, bytes.count, path, dir, options, out, err);
    } else {
        status = tdm_fail_oom(err, "while reading the job (%s)", path);
    }
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&bytes);
    return status;
}
