/*
 * json_write.c: writes JSON. The writer adds commas, newlines and quotes. Text must be UTF-8; invalid
 * bytes become the replacement character, so the output is always valid JSON.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

static void new_line(tdm_json_writer *w)
{
    if (w->indent == 0) return;
    tdm_str_add_char(w->out, '\n');
    for (int i = 0; i < w->indent * w->depth; i++) tdm_str_add_char(w->out, ' ');
}

/* Writes the comma and the line break before a value or a key. */
static void lead_in(tdm_json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->need_comma) tdm_str_add_char(w->out, ',');
    if (w->depth > 0) new_line(w);
}

static void open_with(tdm_json_writer *w, char bracket)
{
    lead_in(w);
    tdm_str_add_char(w->out, bracket);
    w->depth++;
    w->need_comma = false;
}

static void close_with(tdm_json_writer *w, char bracket)
{
    bool had_members = w->need_comma;
    w->depth--;
    if (had_members) new_line(w);
    tdm_str_add_char(w->out, bracket);
    w->need_comma = true;
}

void tdm_json_object_begin(tdm_json_writer *w)
{
    open_with(w, '{');
}

void tdm_json_object_end(tdm_json_writer *w)
{
    close_with(w, '}');
}

void tdm_json_array_begin(tdm_json_writer *w)
{
    open_with(w, '[');
}

void tdm_json_array_end(tdm_json_writer *w)
{
    close_with(w, ']');
}

static void add_escaped(tdm_str *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);
    tdm_str_add_char(out, '"');
    while (left > 0) {
        size_t length = tdm_text_utf8(p, left, NULL);
        if (length == 0) {
            tdm_str_add(out, "\xef\xbf\xbd");
            length = 1;
        } else if (length > 1) {
            tdm_str_add_bytes(out, p, length);
        } else if (*p == '"' || *p == '\\') {
            tdm_str_addf(out, "\\%c", *p);
        } else if (*p == '\n') {
            tdm_str_add(out, "\\n");
        } else if (*p == '\t') {
            tdm_str_add(out, "\\t");
        } else if (*p < 0x20 || *p == 0x7f) {
            tdm_str_addf(out, "\\u%04x", *p);
        } else {
            tdm_str_add_char(out, (char)*p);
        }
        p += length;
        left -= length;
    }
    tdm_str_add_char(out, '"');
}

void tdm_json_key(tdm_json_writer *w, const char *key)
{
    lead_in(w);
    add_escaped(w->out, key);
    tdm_str_add(w->out, w->indent ? ": " : ":");
    w->after_key = true;
}

static void add_plain(tdm_json_writer *w, const char *text)
{
    lead_in(w);
    tdm_str_add(w->out, text);
    w->need_comma = true;
}

void tdm_json_string(tdm_json_writer *w, const char *value)
{
    if (!value) {
        add_plain(w, "null");
        return;
    }
    lead_in(w);
    add_escaped(w->out, value);
    w->need_comma = true;
}

void tdm_json_int(tdm_json_writer *w, int64_t value)
{
    lead_in(w);
    tdm_str_addf(w->out, "%lld", (long long)value);
    w->need_comma = true;
}

void tdm_json_uint(tdm_json_writer *w, uint64_t value)
{
    lead_in(w);
    tdm_str_addf(w->out, "%llu", (unsigned long long)value);
    w->need_comma = true;
}

void tdm_json_double(tdm_json_writer *w, double value)
{
    char buffer[32];
    add_plain(w, isfinite(value) ? tdm_text_double(value, buffer) : "null");
}

void tdm_json_bool(tdm_json_writer *w, bool value)
{
    add_plain(w, value ? "true" : "false");
}
