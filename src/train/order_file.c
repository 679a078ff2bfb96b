/*
 * order_file.c: the lines of the order of updates, and the reader of a recorded order. See order_file.h.
 */
#include "train/order_file.h"
#include "base/base.h"

#include <tandem/os.h>

#include <stdio.h>
#include <string.h>

#define ORDER_LIMIT_BYTES (UINT64_C(4) << 30)

/* ---- lines ----------------------------------------------------------------------------------- */

static uint64_t line_number(const void *record)
{
    const tdm__order_line *line = record;
    return line->update;
}

static int line_show(const void *record, char out[TDM__LINE_BYTES])
{
    const tdm__order_line *line = record;
    int length = snprintf(
        out, TDM__LINE_BYTES,
        "{\"update\":%llu,\"worker\":%u,\"of\":%llu,\"batch\":%llu,\"staleness\":%u,\"readers\":[",
        (unsigned long long)line->update, (unsigned)line->entry.worker,
        (unsigned long long)line->of, (unsigned long long)line->entry.batch + 1,
        (unsigned)line->entry.staleness);
    const char *comma = "";
    for (int w = 0; w < TDM_ORDER_MAX_WORKERS; w++) {
        if (!(line->entry.readers >> w & 1)) continue;
        length += snprintf(out + length, TDM__LINE_BYTES - (size_t)length, "%s%d", comma, w);
        comma = ",";
    }
    return length + snprintf(out + length, TDM__LINE_BYTES - (size_t)length, "]}\n");
}
_Static_assert(TDM__LINE_BYTES >= 160 + 3 * TDM_ORDER_MAX_WORKERS, "a line must fit");

static bool readers_read(const tdm_json *list, uint64_t workers, uint64_t *out)
{
    uint64_t readers = 0, worker;
    if (!list || list->type != TDM_JSON_ARRAY) return false;
    for (const tdm_json *item = list->first; item; item = item->next) {
        if (!tdm_json_as_u64(item, &worker) || worker >= workers || readers >> worker != 0)
            return false; /* in increasing order */
        readers |= UINT64_C(1) << worker;
    }
    *out = readers;
    return true;
}

bool tdm__order_line_read(const char *text, size_t length, tdm_arena *arena, tdm__order_line *out)
{
    const tdm_json *object;
    uint64_t update, worker, of, batch, staleness, readers;
    if (tdm_json_parse(text, length, arena, &object, NULL) != TDM_OK ||
        !tdm_json_as_u64(tdm_json_get(object, "update"), &update) || update < 1 ||
        !tdm_json_as_u64(tdm_json_get(object, "of"), &of) || of < 1 || of > TDM_ORDER_MAX_WORKERS ||
        !tdm_json_as_u64(tdm_json_get(object, "worker"), &worker) || worker >= of ||
        !tdm_json_as_u64(tdm_json_get(object, "batch"), &batch) || batch < 1 ||
        !tdm_json_as_u64(tdm_json_get(object, "staleness"), &staleness) || staleness >= update ||
        staleness > UINT32_MAX || !readers_read(tdm_json_get(object, "readers"), of, &readers))
        return false;
    *out = (tdm__order_line){.update = update,
                             .of = of,
                             .entry = {.worker = (uint32_t)worker,
                                       .staleness = (uint32_t)staleness,
                                       .readers = readers,
                                       .batch = batch - 1}};
    return true;
}

static bool line_read(const char *text, size_t length, tdm_arena *arena, void *record)
{
    return tdm__order_line_read(text, length, arena, record);
}

const tdm__lines_format tdm__order_format = {.name = TDM__ORDER_NAME,
                                             .record_bytes = sizeof(tdm__order_line),
                                             .number = line_number,
                                             .show = line_show,
                                             .read = line_read};
_Static_assert(sizeof(tdm__order_line) <= TDM__LINE_RECORD, "a record must fit");

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct order_reader {
    const char *path;
    int64_t workers;
    uint64_t line; /* number of the current line */
    uint64_t count;
    tdm__order_visit_fn visit;
    void *user;
} order_reader;

static tdm_status reader_take(order_reader *r, const char *text, size_t length, tdm_arena *arena,
                              tdm_error *err)
{
    tdm__order_line line;
    tdm_error why = {0};
    if (!tdm__order_line_read(text, length, arena, &line))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu is not an update of an order; use the file as the run wrote "
                        "it",
                        r->path, (unsigned long long)r->line);
    if (line.of != (uint64_t)r->workers)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu: the order is that of %llu replicas, but the job has %lld; "
                        "set sync.replicas to %llu",
                        r->path, (unsigned long long)r->line, (unsigned long long)line.of,
                        (long long)r->workers, (unsigned long long)line.of);
    if (line.update != r->count + 1)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu has update %llu, but update %llu is next: the order has a "
                        "gap",
                        r->path, (unsigned long long)r->line, (unsigned long long)line.update,
                        (unsigned long long)r->count + 1);
    tdm_status status = r->visit(r->user, &line.entry, &why);
    if (status == TDM_ERR_FORMAT)
        return tdm_fail(err, status, "%s: line %llu: %s", r->path, (unsigned long long)r->line,
                        why.message);
    if (status != TDM_OK) return tdm_fail(err, status, "%s", why.message);
    r->count++;
    return TDM_OK;
}

tdm_status tdm__order_read(const char *path, int64_t workers, uint64_t max,
                           tdm__order_visit_fn visit, void *user, uint64_t *count, tdm_error *err)
{
    order_reader r = {.path = path, .workers = workers, .visit = visit, .user = user};
    tdm_file_bytes bytes;
    TDM_TRY(tdm_file_read(path, ORDER_LIMIT_BYTES, &bytes, err));
    tdm_arena *arena = tdm_arena_create("order");
    tdm_status status = arena ? TDM_OK : tdm_fail_oom(err, "for %s", path);
    const char *at = (const char *)bytes.data, *end = at + bytes.count;
    while (status == TDM_OK && at && at < end && r.count < max) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; /* truncated by a kill */
        r.line++;
        status = reader_take(&r, at, (size_t)(newline - at), arena, err);
        tdm_arena_reset(arena);
        at = newline + 1;
    }
    tdm_arena_destroy(arena);
    tdm_file_bytes_release(&bytes);
    *count = r.count;
    return status;
}

/* ---- a recorded order ------------------------------------------------------------------------- */

typedef struct order_loader {
    tdm_order *order;
    tdm_sha256 *hash;
} order_loader;

static tdm_status loader_add(void *user, const tdm_order_entry *entry, tdm_error *err)
{
    const order_loader *l = user;
    TDM_TRY(tdm_order_add(l->order, entry, err));
    tdm_sha256_u64(l->hash, entry->worker);
    tdm_sha256_u64(l->hash, entry->readers);
    tdm_sha256_u64(l->hash, entry->batch);
    return TDM_OK;
}

static tdm_status order_load(const char *path, int64_t workers, uint64_t updates, order_loader *l,
                             tdm_error *err)
{
    uint64_t count = 0;
    TDM_TRY(tdm__order_read(path, workers, updates, loader_add, l, &count, err));
    if (count >= updates) return TDM_OK;
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: the order ends after update %llu, but the job makes %llu updates; set "
                    "train.steps to at most %llu, or use the order of a longer run",
                    path, (unsigned long long)count, (unsigned long long)updates,
                    (unsigned long long)count);
}

tdm_status tdm__order_load(const char *from, int64_t workers, uint64_t updates, tdm_order *order,
                           char hash[TDM_SHA256_HEX], tdm_error *err)
{
    order_loader l = {.order = order, .hash = tdm_sha256_create()};
    tdm_arena *arena = tdm_arena_create("order");
    tdm_status status = l.hash && arena ? TDM_OK : tdm_fail_oom(err, "for the order of updates");
    const char *path = from;
    if (status == TDM_OK && tdm_path_is_dir(from)) {
        path = tdm_path_join(arena, from, TDM__ORDER_NAME);
        if (!path)
            status = tdm_fail_oom(err, "for the order of updates");
        else if (!tdm_path_is_file(path))
            status = tdm_fail(err, TDM_ERR_NOT_FOUND,
                              "%s has no %s; sync.order_from must be a run with sync.kind "
                              "server in mode async or stale",
                              from, TDM__ORDER_NAME);
    }
    if (status == TDM_OK) status = order_load(path, workers, updates, &l, err);
    if (status == TDM_OK) tdm_sha256_finish(l.hash, hash);
    tdm_sha256_destroy(l.hash);
    tdm_arena_destroy(arena);
    return status;
}
