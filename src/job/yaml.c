/*
 * yaml.c: parses bytes into a small tree of YAML nodes, each with its position.
 *
 * libyaml's events give line and column of every key and value. Only a subset of YAML is supported:
 * one document of maps, lists and scalars. Anchors, aliases, tags and merge keys are rejected with
 * advice, because they make a file hard to understand. The bytes are checked first, so that libyaml
 * reads only valid UTF-8; nesting is bounded, which bounds the recursion here. Lines and columns
 * count from 1, columns in characters.
 */
#include "job/job.h"
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "job/internal.h"

typedef struct reader {
    yaml_parser_t parser;
    const char *bytes;
    size_t count;
    const char *file;
    tdm_arena *arena;
    tdm__problem_list *problems;
    bool stopped; /* a syntax error, nested too deep, or out of memory: the tree is incomplete */
} reader;

const char *tdm_job_library(char buffer[TDM_LIBRARY_BYTES])
{
    snprintf(buffer, TDM_LIBRARY_BYTES, "libyaml %s", yaml_get_version_string());
    return buffer;
}

bool tdm__yaml_is_null(const tdm__yaml_node *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (node->kind != TDM__YAML_SCALAR || !node->plain) return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(node->text, words[i]) == 0) return true;
    }
    return false;
}

static tdm__job_position place_of(const reader *r, yaml_mark_t mark)
{
    return (tdm__job_position){
        .file = r->file, .line = (int)mark.line + 1, .column = (int)mark.column + 1};
}

/* The byte at a mark, whose index counts characters; 0 past the end. */
static char byte_at(const reader *r, yaml_mark_t mark)
{
    size_t at = 0;
    for (size_t i = 0; i < mark.index && at < r->count; i++) {
        uint32_t character;
        at += tdm__utf8_next(r->bytes + at, &character);
    }
    return at < r->count ? r->bytes[at] : '\0';
}

static void report_syntax(reader *r)
{
    const yaml_parser_t *p = &r->parser;
    r->stopped = true;
    if (p->error == YAML_MEMORY_ERROR) {
        r->problems->no_memory = true;
        return;
    }
    tdm__job_position place = place_of(r, p->problem_mark);
    const char *problem = p->problem ? p->problem : "cannot be read";
    char byte = byte_at(r, p->problem_mark);
    if (byte == '\t') {
        tdm__problem_add(r->problems, place,
                         "not valid YAML: there is a tab; indent with spaces instead");
    } else if (byte && strchr(",@`%", byte) && p->error != YAML_READER_ERROR) {
        tdm__problem_add(r->problems, place,
                         "not valid YAML: unexpected '%c'; quote a value that begins with it",
                         byte);
    } else if (p->context && p->context_mark.line != p->problem_mark.line) {
        tdm__problem_add(r->problems, place, "not valid YAML: %s %s that began at line %d", problem,
                         p->context, (int)p->context_mark.line + 1);
    } else if (p->context) {
        tdm__problem_add(r->problems, place, "not valid YAML: %s %s", problem, p->context);
    } else {
        tdm__problem_add(r->problems, place, "not valid YAML: %s", problem);
    }
}

static bool next_event(reader *r, yaml_event_t *event)
{
    if (r->stopped) return false;
    if (yaml_parser_parse(&r->parser, event)) return true;
    report_syntax(r);
    return false;
}

static tdm__yaml_node *new_node(reader *r, const yaml_event_t *event, tdm__yaml_kind kind)
{
    tdm__yaml_node *node = tdm_arena_alloc(r->arena, sizeof(*node), 0);
    if (!node) {
        r->problems->no_memory = true;
        r->stopped = true;
        return NULL;
    }
    node->kind = kind;
    node->place = place_of(r, event->start_mark);
    return node;
}

/* Reports anchors and tags; the node is then ignored. */
static void reject_anchor_and_tag(reader *r, tdm__yaml_node *node, const yaml_char_t *anchor,
                                  const yaml_char_t *tag)
{
    if (anchor) {
        tdm__problem_add(r->problems, node->place,
                         "anchors ('&%s') are not supported; write the value out where it is used",
                         tdm__clip_text((const char *)anchor).text);
        node->broken = true;
    }
    if (tag) {
        static const char standard[] = "tag:yaml.org,2002:"; /* written "!!" */
        const char *name = (const char *)tag;
        bool is_standard = strncmp(name, standard, strlen(standard)) == 0;
        if (is_standard) name += strlen(standard);
        tdm__problem_add(r->problems, node->place,
                         "tags ('%s%s') are not supported; remove the tag", is_standard ? "!!" : "",
                         tdm__clip_text(name).text);
        node->broken = true;
    }
}

static tdm__yaml_node *read_scalar(reader *r, const yaml_event_t *event)
{
    tdm__yaml_node *node = new_node(r, event, TDM__YAML_SCALAR);
    if (!node) return NULL;
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    reject_anchor_and_tag(r, node, event->data.scalar.anchor, event->data.scalar.tag);
    if (memchr(value, '\0', length)) {
        tdm__problem_add(r->problems, node->place,
                         "a text cannot contain a zero byte; remove '\\0'");
        node->broken = true;
    }
    node->text = tdm_arena_strndup(r->arena, value, strnlen(value, length));
    if (!node->text) {
        r->problems->no_memory = true;
        r->stopped = true;
        return NULL;
    }
    return node;
}

static tdm__yaml_node *read_alias(reader *r, const yaml_event_t *event)
{
    tdm__yaml_node *node = new_node(r, event, TDM__YAML_SCALAR);
    if (!node) return NULL;
    tdm__problem_add(r->problems, node->place,
                     "aliases ('*%s') are not supported; write the value out",
                     tdm__clip_text((const char *)event->data.alias.anchor).text);
    node->text = "";
    node->broken = true;
    return node;
}

static tdm__yaml_node *read_node(reader *r, const yaml_event_t *event, int depth);

/* Reads the next node of a list, map or document; NULL at its end or after an error. */
static tdm__yaml_node *read_child(reader *r, yaml_event_type_t end, int depth, bool *at_end)
{
    yaml_event_t event;
    *at_end = true;
    if (!next_event(r, &event)) return NULL;
    tdm__yaml_node *node = NULL;
    if (event.type != end) {
        node = read_node(r, &event, depth);
        *at_end = node == NULL;
    }
    yaml_event_delete(&event);
    return node;
}

static void read_list(reader *r, tdm__yaml_node *list, int depth)
{
    tdm__yaml_node **link = &list->first;
    for (;;) {
        bool at_end;
        tdm__yaml_node *item = read_child(r, YAML_SEQUENCE_END_EVENT, depth + 1, &at_end);
        if (at_end) return;
        *link = item;
        link = &item->next;
    }
}

static void read_map(reader *r, tdm__yaml_node *map, int depth)
{
    tdm__yaml_node **link = &map->first;
    for (;;) {
        bool at_end;
        tdm__yaml_node *key = read_child(r, YAML_MAPPING_END_EVENT, depth + 1, &at_end);
        if (at_end) return;
        tdm__yaml_node *value = read_child(r, YAML_NO_EVENT, depth + 1, &at_end);
        if (at_end) return;
        if (key->broken) continue; /* reported already */
        if (key->kind != TDM__YAML_SCALAR) {
            tdm__problem_add(r->problems, key->place, "a key must be a word, not a %s",
                             key->kind == TDM__YAML_LIST ? "list" : "mapping");
            continue;
        }
        if (key->plain && strcmp(key->text, "<<") == 0) {
            tdm__problem_add(r->problems, key->place,
                             "merge keys ('<<') are not supported; write the keys out");
            continue;
        }
        value->key = key->text;
        value->key_place = key->place;
        *link = value;
        link = &value->next;
    }
}

static tdm__yaml_node *read_node(reader *r, const yaml_event_t *event, int depth)
{
    if (event->type == YAML_SCALAR_EVENT) return read_scalar(r, event);
    if (event->type == YAML_ALIAS_EVENT) return read_alias(r, event);
    bool is_list = event->type == YAML_SEQUENCE_START_EVENT;
    tdm__yaml_node *node = new_node(r, event, is_list ? TDM__YAML_LIST : TDM__YAML_MAP);
    if (!node) return NULL;
    if (depth >= TDM__JOB_DEPTH) {
        tdm__problem_add(r->problems, node->place, "nested deeper than %d levels; flatten the file",
                         TDM__JOB_DEPTH);
        r->stopped = true;
        return NULL;
    }
    if (is_list) {
        reject_anchor_and_tag(r, node, event->data.sequence_start.anchor,
                              event->data.sequence_start.tag);
        read_list(r, node, depth);
    } else {
        reject_anchor_and_tag(r, node, event->data.mapping_start.anchor,
                              event->data.mapping_start.tag);
        read_map(r, node, depth);
    }
    return r->stopped ? NULL : node;
}

/* Skips one event, which the grammar guarantees. */
static void skip_event(reader *r)
{
    yaml_event_t event;
    if (next_event(r, &event)) yaml_event_delete(&event);
}

static void reject_second_document(reader *r)
{
    yaml_event_t event;
    if (!next_event(r, &event)) return;
    if (event.type != YAML_STREAM_END_EVENT) {
        tdm__problem_add(r->problems, place_of(r, event.start_mark),
                         "a second document begins here; a job is one document: remove the '---' "
                         "and everything after it");
    }
    yaml_event_delete(&event);
}

static tdm__yaml_node *read_document(reader *r)
{
    yaml_event_t event;
    tdm__yaml_node *root = NULL;
    skip_event(r); /* the start of the stream */
    if (!next_event(r, &event)) return NULL;
    bool is_empty = event.type == YAML_STREAM_END_EVENT;
    if (is_empty) {
        root = new_node(r, &event, TDM__YAML_SCALAR);
        if (root) root->text = "";
        if (root) root->plain = true;
    }
    yaml_event_delete(&event); /* of the document's start, or of the stream's end */
    if (is_empty) return root;
    bool at_end;
    root = read_child(r, YAML_NO_EVENT, 0, &at_end);
    if (at_end) return NULL;
    skip_event(r); /* the end of the document */
    reject_second_document(r);
    return r->stopped ? NULL : root;
}

/* The position of a byte, counted as libyaml does. */
static tdm__job_position place_of_byte(const char *bytes, size_t at, const char *file)
{
    tdm__job_position place = {.file = file, .line = 1, .column = 1};
    for (size_t i = 0; i < at;) {
        uint32_t c;
        size_t length = tdm__utf8_next(bytes + i, &c);
        bool is_crlf = c == '\r' && i + 1 < at && bytes[i + 1] == '\n';
        i += length + (is_crlf ? 1 : 0);
        if (c == '\n' || c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029) {
            place.line++;
            place.column = 1;
        } else {
            place.column++;
        }
    }
    return place;
}

static bool check_bytes(const char *bytes, size_t count, const char *file,
                        tdm__problem_list *problems)
{
    size_t at = tdm__utf8_check(bytes, count);
    if (at == count) return true;
    unsigned char c = (unsigned char)bytes[at];
    tdm__job_position place = place_of_byte(bytes, at, file);
    if (c < 0x80) {
        tdm__problem_add(problems, place, "the control character 0x%02x is not allowed; remove it",
                         c);
    } else {
        tdm__problem_add(problems, place,
                         "the byte 0x%02x does not begin a printable UTF-8 character; save the "
                         "file as UTF-8",
                         c);
    }
    return false;
}

tdm__yaml_node *tdm__yaml_read(const char *bytes, size_t count, const char *file, tdm_arena *arena,
                               tdm__problem_list *problems)
{
    if (count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark */
        bytes += 3;
        count -= 3;
    }
    if (!check_bytes(bytes, count, file, problems)) return NULL;
    reader r = {.bytes = bytes, .count = count, .file = file, .arena = arena, .problems = problems};
    if (!yaml_parser_initialize(&r.parser)) {
        problems->no_memory = true;
        return NULL;
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, count);
    tdm__yaml_node *root = read_document(&r);
    yaml_parser_delete(&r.parser);
    return root;
}
