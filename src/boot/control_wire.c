/*
 * control_wire.c: writes and reads the frames of the control connection.
 *
 * `layouts` has one string for each frame type, with one letter for each field of its body. `fields` maps a
 * letter to a member of tdm__frame and its encoding. The order of bytes is defined only here, so the writer
 * and the reader cannot disagree. Pure functions without state; fuzzed by fuzz/fuzz_control.c.
 */
#include "boot/control_wire.h"

#include <assert.h>
#include <string.h>

typedef enum field_kind { FIELD_U32, FIELD_U64, FIELD_BYTES, FIELD_TEXT, FIELD_REST } field_kind;

typedef struct field {
    char letter;
    field_kind kind;
    size_t offset, bytes; /* of the member of tdm__frame */
} field;

/* clang-format off */
#define MEMBER(name) offsetof(tdm__frame, name), sizeof(((tdm__frame *)NULL)->name)
/* clang-format on */

static const field fields[] = {
    {'p', FIELD_U32, MEMBER(protocol)},   {'r', FIELD_U32, MEMBER(rank)},
    {'z', FIELD_U32, MEMBER(size)},       {'e', FIELD_U32, MEMBER(epoch)},
    {'w', FIELD_U32, MEMBER(world)},      {'g', FIELD_U32, MEMBER(group)},
    {'s', FIELD_U32, MEMBER(status)},     {'i', FIELD_U32, MEMBER(id)},
    {'u', FIELD_U32, MEMBER(number)},     {'c', FIELD_U32, MEMBER(count)},
    {'k', FIELD_U32, MEMBER(kind)},       {'P', FIELD_U64, MEMBER(pid)},
    {'n', FIELD_BYTES, MEMBER(nonce)},    {'h', FIELD_BYTES, MEMBER(host)},
    {'m', FIELD_BYTES, MEMBER(mac)},      {'V', FIELD_TEXT, MEMBER(version)},
    {'H', FIELD_TEXT, MEMBER(host_name)}, {'J', FIELD_TEXT, MEMBER(job)},
    {'T', FIELD_TEXT, MEMBER(text)},      {'W', FIELD_TEXT, MEMBER(what)},
    {'x', FIELD_U32, MEMBER(protection)}, {'*', FIELD_REST, MEMBER(bytes)},
};

/* The protocol number is the first field of HELLO and PROVE, in this and every later version. */
static const char *const layouts[TDM__FRAME_TYPES] = {
    [TDM__FRAME_HELLO] = "pnx",      [TDM__FRAME_PROVE] = "pnxm",   [TDM__FRAME_ACCEPT] = "m",
    [TDM__FRAME_JOIN] = "przePhVHJ", [TDM__FRAME_WELCOME] = "wn",   [TDM__FRAME_REFUSED] = "sT",
    [TDM__FRAME_START] = "c*",       [TDM__FRAME_PING] = "T",       [TDM__FRAME_BEAT] = "T",
    [TDM__FRAME_EXCHANGE] = "u*",    [TDM__FRAME_GATHERED] = "uc*", [TDM__FRAME_NEWS] = "krgsiuTW",
    [TDM__FRAME_ASK] = "ikuc*",      [TDM__FRAME_ANSWER] = "iT",    [TDM__FRAME_BYE] = "",
    [TDM__FRAME_DATA] = "*",
};

static const field *wire_field_of(char letter)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].letter == letter) return &fields[i];
    assert(!"a layout has a letter that is not in fields");
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void wire_put_number(uint64_t value, int bytes, tdm_str *out)
{
    uint8_t raw[8];
    for (int i = 0; i < bytes; i++) raw[i] = (uint8_t)(value >> (8 * i));
    tdm_str_add_bytes(out, raw, (size_t)bytes);
}

void tdm__wire_put_u32(uint32_t value, tdm_str *out)
{
    wire_put_number(value, 4, out);
}

void tdm__wire_put_u64(uint64_t value, tdm_str *out)
{
    wire_put_number(value, 8, out);
}

static void wire_put_text(const char *text, size_t max, tdm_str *out)
{
    size_t length = strnlen(text, max - 1);
    wire_put_number(length, 2, out);
    tdm_str_add_bytes(out, text, length);
}

static void wire_put_field(const field *f, const tdm__frame *frame, tdm_str *out)
{
    const void *member = (const char *)frame + f->offset;
    switch (f->kind) {
    case FIELD_U32: wire_put_number(*(const uint32_t *)member, 4, out); break;
    case FIELD_U64: wire_put_number(*(const uint64_t *)member, 8, out); break;
    case FIELD_BYTES: tdm_str_add_bytes(out, member, f->bytes); break;
    case FIELD_TEXT: wire_put_text(member, f->bytes, out); break;
    case FIELD_REST: break; /* written by the caller */
    }
}

void tdm__wire_write_before(const tdm__frame *frame, size_t rest_bytes, tdm_str *out)
{
    assert(frame->type > 0 && frame->type < TDM__FRAME_TYPES && rest_bytes < UINT32_MAX / 2);
    tdm__wire_put_u32(TDM__WIRE_MAGIC, out);
    tdm__wire_put_u32(frame->type, out);
    tdm__wire_put_u32(0, out); /* placeholder of the length */
    size_t begin = out->length;
    for (const char *at = layouts[frame->type]; *at; at++)
        wire_put_field(wire_field_of(*at), frame, out);
    if (!tdm_str_ok(out)) return;
    uint32_t length = (uint32_t)(out->length - begin + rest_bytes);
    for (int i = 0; i < 4; i++) out->data[begin - 4 + (size_t)i] = (char)(length >> (8 * i));
}

void tdm__wire_write(const tdm__frame *frame, tdm_str *out)
{
    tdm__wire_write_before(frame, frame->byte_count, out);
    if (frame->byte_count > 0) tdm_str_add_bytes(out, frame->bytes, frame->byte_count);
}

void tdm__wire_data_head(size_t body_bytes, uint8_t *out)
{
    const uint32_t words[] = {TDM__WIRE_MAGIC, TDM__FRAME_DATA, (uint32_t)body_bytes};
    for (size_t i = 0; i < TDM__WIRE_HEAD; i++) out[i] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
}

void tdm__wire_opening(const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                       tdm_str *out)
{
    tdm_str_add_bytes(out, hub_nonce, TDM__WIRE_NONCE);
    for (const char *at = layouts[TDM__FRAME_PROVE]; *at; at++)
        if (*at != 'm') wire_put_field(wire_field_of(*at), prove, out);
}

void tdm__wire_entry_write(const tdm__entry *entry, tdm_str *out)
{
    tdm__wire_put_u32(entry->host, out);
    tdm__wire_put_u64(entry->pid, out);
    wire_put_text(entry->name, sizeof(entry->name), out);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
} reader;

static const uint8_t *reader_take(reader *r, size_t bytes)
{
    if (r->bad || r->left < bytes) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *at = r->at;
    r->at += bytes;
    r->left -= bytes;
    return at;
}

static uint64_t reader_number(reader *r, int bytes)
{
    const uint8_t *raw = reader_take(r, (size_t)bytes);
    uint64_t value = 0;
    for (int i = 0; raw && i < bytes; i++) value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

void tdm__wire_clean(const uint8_t *bytes, size_t count, char *out)
{
    for (size_t at = 0; at < count;) {
        size_t length = tdm_text_utf8(bytes + at, count - at, NULL);
        if (length == 0 || bytes[at] < 0x20 || bytes[at] == 0x7f) {
            out[at++] = '?';
            continue;
        }
        memcpy(out + at, bytes + at, length);
        at += length;
    }
    out[count] = '\0';
}

static void reader_text(reader *r, char *out, size_t max)
{
    size_t length = (size_t)reader_number(r, 2);
    if (length >= max) r->bad = true;
    const uint8_t *raw = reader_take(r, length);
    if (raw) tdm__wire_clean(raw, length, out);
}

static void reader_field(reader *r, const field *f, tdm__frame *out)
{
    void *member = (char *)out + f->offset;
    const uint8_t *raw = NULL;
    switch (f->kind) {
    case FIELD_U32: *(uint32_t *)member = (uint32_t)reader_number(r, 4); break;
    case FIELD_U64: *(uint64_t *)member = reader_number(r, 8); break;
    case FIELD_BYTES:
        raw = reader_take(r, f->bytes);
        if (raw) memcpy(member, raw, f->bytes);
        break;
    case FIELD_TEXT: reader_text(r, member, f->bytes); break;
    case FIELD_REST:
        out->byte_count = r->left;
        out->bytes = reader_take(r, r->left);
        break;
    }
}

uint32_t tdm__wire_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

bool tdm__wire_head(const uint8_t *bytes, uint8_t *out_type, size_t *out_body_bytes)
{
    uint32_t type = tdm__wire_u32(bytes + 4);
    if (tdm__wire_u32(bytes) != TDM__WIRE_MAGIC || type == 0 || type >= TDM__FRAME_TYPES)
        return false;
    *out_type = (uint8_t)type;
    *out_body_bytes = tdm__wire_u32(bytes + 8);
    return true;
}

bool tdm__wire_protocol(const uint8_t *bytes, size_t count, uint32_t *out)
{
    uint8_t type = 0;
    size_t body_bytes = 0;
    if (count < TDM__WIRE_HEAD + 4 || !tdm__wire_head(bytes, &type, &body_bytes)) return false;
    if (body_bytes < 4 || (type != TDM__FRAME_HELLO && type != TDM__FRAME_PROVE)) return false;
    *out = tdm__wire_u32(bytes + TDM__WIRE_HEAD);
    return true;
}

bool tdm__wire_read(uint8_t type, const uint8_t *body, size_t body_bytes, tdm__frame *out)
{
    if (type == 0 || type >= TDM__FRAME_TYPES) return false;
    memset(out, 0, sizeof(*out));
    out->type = type;
    reader r = {.at = body, .left = body_bytes};
    for (const char *at = layouts[type]; *at && !r.bad; at++)
        reader_field(&r, wire_field_of(*at), out);
    return !r.bad && r.left == 0;
}

bool tdm__wire_entries(const uint8_t *bytes, size_t byte_count, uint32_t count, tdm__entry *out)
{
    reader r = {.at = bytes, .left = byte_count};
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < count && !r.bad; i++) {
        out[i].host = (uint32_t)reader_number(&r, 4);
        out[i].pid = reader_number(&r, 8);
        reader_text(&r, out[i].name, sizeof(out[i].name));
        if (out[i].host > hosts) r.bad = true;
        if (out[i].host == hosts) hosts++;
    }
    return !r.bad && r.left == 0;
}

bool tdm__wire_blocks(const tdm__frame *frame, size_t *out_sizes, const uint8_t **out_first)
{
    reader r = {.at = frame->bytes, .left = frame->byte_count};
    uint64_t total = 0;
    for (uint32_t i = 0; i < frame->count && !r.bad; i++) {
        uint64_t size = reader_number(&r, 8);
        if (size > TDM__MAX_WIRE_BLOCK) r.bad = true;
        out_sizes[i] = (size_t)size;
        total += size;
    }
    if (r.bad || total != r.left) return false;
    *out_first = r.at;
    return true;
}
