/*
 * fuzz_control.c: any bytes from the control port, in a rendezvous file, or in Slurm's list of hosts.
 *
 * The first byte selects the source. Bytes from the port go through a real connection, in pieces, with the
 * limits for an unauthenticated peer, for a peer that has proved the secret, or for a member. Every accepted
 * frame must be printable, must be equal after it is written and read again, and must contain all of the
 * lists and blocks to which it refers.
 */
#include "boot/boot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_control: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

enum { RANKS = 64 };

static void check_text(const char *text, size_t bytes)
{
    size_t length = strnlen(text, bytes);
    NEED(length < bytes, "a text without an end");
    for (size_t at = 0; at < length;) {
        size_t one = tdm_text_utf8(text + at, length - at, NULL);
        NEED(one > 0 && (unsigned char)text[at] >= 0x20 && text[at] != 0x7f, "a text not to show");
        at += one;
    }
}

static void check_frame(const tdm__frame *frame)
{
    check_text(frame->version, sizeof(frame->version));
    check_text(frame->host_name, sizeof(frame->host_name));
    check_text(frame->job, sizeof(frame->job));
    check_text(frame->text, sizeof(frame->text));
    if (frame->type == TDM__FRAME_START && frame->count <= RANKS) {
        tdm__entry entries[RANKS];
        if (tdm__wire_entries(frame->bytes, frame->byte_count, frame->count, entries))
            for (uint32_t i = 0; i < frame->count; i++) {
                check_text(entries[i].name, sizeof(entries[i].name));
                NEED(entries[i].host <= i, "a host out of turn");
            }
    }
    if (frame->type == TDM__FRAME_GATHERED && frame->count <= RANKS) {
        size_t sizes[RANKS], total = 0;
        const uint8_t *first = NULL;
        if (tdm__wire_blocks(frame, sizes, &first)) {
            for (uint32_t i = 0; i < frame->count; i++) total += sizes[i];
            NEED(first + total == frame->bytes + frame->byte_count, "blocks beyond the frame");
        }
    }
    tdm_str text = TDM_STR_INIT;
    tdm__wire_write(frame, &text);
    if (!tdm_str_ok(&text)) {
        tdm_str_release(&text);
        return;
    }
    uint8_t type = 0;
    size_t body_bytes = 0;
    const uint8_t *raw = (const uint8_t *)text.data;
    NEED(tdm__wire_head(raw, &type, &body_bytes), "our own head is none");
    NEED(type == frame->type && body_bytes == text.length - TDM__WIRE_HEAD, "another length");
    tdm__frame *back = malloc(sizeof(*back));
    if (back) {
        NEED(tdm__wire_read(type, raw + TDM__WIRE_HEAD, body_bytes, back), "our own frame is none");
        NEED(back->byte_count == frame->byte_count, "another rest");
        NEED(back->byte_count == 0 || !memcmp(back->bytes, frame->bytes, back->byte_count),
             "other bytes in the rest");
        tdm_str again = TDM_STR_INIT;
        tdm__wire_write(back, &again);
        NEED(!tdm_str_ok(&again) ||
                 (again.length == text.length && memcmp(again.data, text.data, text.length) == 0),
             "another frame came back");
        tdm_str_release(&again);
    }
    free(back);
    tdm_str_release(&text);
}

static void take_frames(tdm__channel *channel, bool *over)
{
    tdm__frame *frame = malloc(sizeof(*frame));
    int got = frame ? 1 : -1;
    while (got > 0) {
        got = tdm__channel_next(channel, frame);
        if (got > 0) check_frame(frame);
    }
    if (got < 0) *over = true;
    NEED(channel->in_capacity <= channel->limit + TDM__WIRE_HEAD || channel->in_capacity <= 8192,
         "more memory than the limit allows");
    free(frame);
}

static void from_the_port(const uint8_t *bytes, size_t count, size_t piece, size_t limit)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return;
    tdm__channel channel;
    tdm__channel_init(&channel, pair[0], limit);
    bool over = false;
    for (size_t at = 0; at < count && !over;) {
        size_t some = count - at < piece ? count - at : piece;
        ssize_t sent = send(pair[1], bytes + at, some, MSG_NOSIGNAL);
        if (sent > 0) at += (size_t)sent;
        NEED(tdm__channel_read(&channel) == TDM__CHANNEL_OK, "the connection ended by itself");
        take_frames(&channel, &over);
    }
    close(pair[1]);
    if (!over) NEED(tdm__channel_read(&channel) == TDM__CHANNEL_END, "no end");
    uint32_t protocol = 0;
    if (channel.in_count > 0)
        tdm__wire_protocol(channel.in + channel.in_first, channel.in_count, &protocol);
    tdm__channel_release(&channel);
}

static void from_a_file(const uint8_t *bytes, size_t count)
{
    tdm__meeting_file file;
    if (!tdm__meeting_file_parse((const char *)bytes, count, &file)) return;
    NEED(file.port > 0 && file.port < 65536 && file.pid > 0, "a number out of range");
    NEED(file.address_count >= 0 && file.address_count <= 8, "too many addresses");
    check_text(file.host_name, sizeof(file.host_name));
    check_text(file.secret, sizeof(file.secret));
    check_text(file.host, sizeof(file.host));
    for (int i = 0; i < file.address_count; i++)
        check_text(file.address[i], sizeof(file.address[i]));
}

static void from_the_environment(const uint8_t *bytes, size_t count)
{
    char text[600], host[40];
    if (count >= sizeof(text)) return;
    memcpy(text, bytes, count);
    text[count] = '\0';
    if (tdm__slurm_first_host(text, host, sizeof(host))) {
        check_text(host, sizeof(host));
        NEED(*host && !strpbrk(host, "[], /:"), "no name of a host");
    }
    tdm__rendezvous *meeting = malloc(sizeof(*meeting));
    tdm_error err = {0};
    if (meeting && tdm__rendezvous_init(meeting, text, "secret", &err) != TDM_OK)
        NEED(err.message[0], "a failure without a message");
    free(meeting);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2) return 0;
    size_t piece = bytes[1] < 250 ? (size_t)bytes[1] + 1 : 1 << 16;
    switch (bytes[0] % 4) {
    case 0:
        from_the_port(bytes + 2, count - 2, piece,
                      bytes[0] & 4 ? TDM__MAX_WIRE_PROVE : TDM__MAX_WIRE_JOIN);
        break;
    case 1: from_the_port(bytes + 2, count - 2, piece, TDM__MAX_WIRE_BLOCK); break;
    case 2: from_a_file(bytes + 2, count - 2); break;
    default: from_the_environment(bytes + 2, count - 2);
    }
    return 0;
}
