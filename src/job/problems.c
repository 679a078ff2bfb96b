/*
 * problems.c: the list of all problems of a job.
 *
 * Stages add problems in the order in which they find them; the list is sorted once, at the end, by
 * position in the file. It is bounded, because a hostile file could have a problem in every other
 * byte. Values from the file are clipped, and control characters in them replaced, before they
 * appear in a message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/internal.h"

bool tdm__problem_list_full(const tdm__problem_list *list)
{
    return list->count >= TDM__JOB_PROBLEMS;
}

/* Makes room for one more problem. The arena cannot grow an allocation, so the array is copied. */
static bool problem_list_grow(tdm__problem_list *list)
{
    if (list->count < list->capacity) return true;
    size_t capacity = list->capacity == 0 ? 8 : list->capacity * 2;
    tdm_job_problem *items = tdm_arena_array(list->arena, capacity, sizeof(*items));
    if (!items) return false;
    if (list->count > 0) memcpy(items, list->items, list->count * sizeof(*items));
    list->items = items;
    list->capacity = capacity;
    return true;
}

static void problem_list_append(tdm__problem_list *list, tdm__job_position place,
                                const char *message)
{
    if (!message || !problem_list_grow(list)) {
        list->no_memory = true;
        return;
    }
    list->items[list->count++] = (tdm_job_problem){
        .file = place.file, .line = place.line, .column = place.column, .message = message};
}

void tdm__problem_add(tdm__problem_list *list, tdm__job_position place, const char *fmt, ...)
{
    if (tdm__problem_list_full(list)) {
        list->unlisted++;
        return;
    }
    if (strcmp(place.file, TDM__JOB_OVERRIDE_FILE) == 0) { /* overrides have no lines */
        place.line = 0;
        place.column = 0;
    }
    tdm_str text = TDM_STR_INIT;
    va_list args;
    va_start(args, fmt);
    tdm_str_addv(&text, fmt, args);
    va_end(args);
    char *message = tdm_str_ok(&text) ? tdm_arena_strdup(list->arena, tdm_str_text(&text)) : NULL;
    for (char *c = message; c && *c; c++) /* paths may contain terminal control characters */
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    problem_list_append(list, place, message);
    tdm_str_release(&text);
}

/* Sort order: 0 for a position in the file, 1 for the file as a whole, 2 for an override. */
static int problem_class(const tdm_job_problem *problem)
{
    if (strcmp(problem->file, TDM__JOB_OVERRIDE_FILE) == 0) return 2;
    return problem->line == 0 ? 1 : 0;
}

static bool problem_is_before(const tdm_job_problem *a, const tdm_job_problem *b)
{
    int class_a = problem_class(a), class_b = problem_class(b);
    if (class_a != class_b) return class_a < class_b;
    if (a->line != b->line) return a->line < b->line;
    return a->column < b->column;
}

void tdm__problem_list_finish(tdm__problem_list *list, const char *file)
{
    /* Insertion sort is stable, so problems without a position keep the order of the table of keys;
     * the list is short. */
    for (size_t i = 1; i < list->count; i++) {
        tdm_job_problem moving = list->items[i];
        size_t at = i;
        while (at > 0 && problem_is_before(&moving, &list->items[at - 1])) {
            list->items[at] = list->items[at - 1];
            at--;
        }
        list->items[at] = moving;
    }
    if (list->unlisted == 0) return;
    problem_list_append(list, (tdm__job_position){.file = file},
                        tdm_arena_printf(list->arena,
                                         "%zu more problems are not listed; fix these first",
                                         list->unlisted));
}

tdm__clip tdm__clip_text(const char *text)
{
    const size_t limit = 48;
    tdm__clip clip = {{0}};
    size_t length = strlen(text);
    size_t keep = length < limit ? length : limit;
    if (keep < length) {
        while (keep > 0 && ((unsigned char)text[keep] & 0xc0) == 0x80) keep--;
    }
    for (size_t i = 0; i < keep; i++) {
        unsigned char c = (unsigned char)text[i];
        clip.text[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    if (keep < length) memcpy(clip.text + keep, "...", 4);
    return clip;
}

void tdm_job_problem_text(const tdm_job_problem *problem, tdm_str *out)
{
    if (problem->line > 0) {
        tdm_str_addf(out, "%s:%d:%d: %s", problem->file, problem->line, problem->column,
                     problem->message);
    } else {
        tdm_str_addf(out, "%s: %s", problem->file, problem->message);
    }
}
