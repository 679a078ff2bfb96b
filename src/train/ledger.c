/*
 * ledger.c: the lines of a run's ledger. See ledger.h for its purpose, lines.c for the file, ledger_check.c for its
 * verification.
 */
#include "train/ledger.h"
#include "base/base.h"

#include <stdio.h>
#include <string.h>

enum { DIGEST_DIGITS = 16 };

/* A multiply-xorshift finaliser after each of the two numbers makes it unlikely that another set of samples has
 * the same sum. */
static uint64_t hash_mix(uint64_t z)
{
    z ^= z >> 30;
    z *= UINT64_C(0xbf58476d1ce4e5b9);
    z ^= z >> 27;
    z *= UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t tdm__ledger_mix(uint64_t epoch, uint64_t index)
{
    return hash_mix(hash_mix(epoch + UINT64_C(0x9e3779b97f4a7c15)) + index);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static uint64_t line_number(const void *record)
{
    const tdm__ledger_line *line = record;
    return line->step;
}

static int line_show(const void *record, char out[TDM__LINE_BYTES])
{
    const tdm__ledger_line *line = record;
    char steps[48] = "";
    if (line->steps > 1)
        snprintf(steps, sizeof(steps), "\"steps\":%llu,", (unsigned long long)line->steps);
    return snprintf(out, TDM__LINE_BYTES,
                    "{\"step\":%llu,%s\"epoch\":%llu,\"position\":%llu,\"count\":%llu,"
                    "\"digest\":\"%016llx\"}\n",
                    (unsigned long long)line->step, steps, (unsigned long long)line->epoch,
                    (unsigned long long)line->position, (unsigned long long)line->count,
                    (unsigned long long)line->digest);
}

static bool read_digest(const char *text, uint64_t *out)
{
    if (!text || strlen(text) != DIGEST_DIGITS) return false;
    uint64_t value = 0;
    for (const char *c = text; *c; c++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, *c);
        if (!digit) return false;
        value = value << 4 | (uint64_t)(digit - digits);
    }
    *out = value;
    return true;
}

bool tdm__ledger_read(const char *text, size_t length, tdm_arena *arena, tdm__ledger_line *out)
{
    const tdm_json *object;
    tdm__ledger_line line;
    if (tdm_json_parse(text, length, arena, &object, NULL) != TDM_OK) return false;
    const tdm_json *steps = tdm_json_get(object, "steps");
    line.steps = 1;
    if (steps && (!tdm_json_as_u64(steps, &line.steps) || line.steps < 1)) return false;
    bool whole = tdm_json_as_u64(tdm_json_get(object, "step"), &line.step) && line.step > 0 &&
                 line.steps <= line.step &&
                 tdm_json_as_u64(tdm_json_get(object, "epoch"), &line.epoch) &&
                 tdm_json_as_u64(tdm_json_get(object, "position"), &line.position) &&
                 tdm_json_as_u64(tdm_json_get(object, "count"), &line.count) &&
                 read_digest(tdm_json_as_string(tdm_json_get(object, "digest")), &line.digest);
    if (whole) *out = line;
    return whole;
}

static bool line_read(const char *text, size_t length, tdm_arena *arena, void *record)
{
    return tdm__ledger_read(text, length, arena, record);
}

const tdm__lines_format tdm__ledger_format = {.name = TDM__LEDGER_NAME,
                                              .record_bytes = sizeof(tdm__ledger_line),
                                              .number = line_number,
                                              .show = line_show,
                                              .read = line_read};
_Static_assert(sizeof(tdm__ledger_line) <= TDM__LINE_RECORD, "a record must fit");
