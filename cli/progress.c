/*
 * progress.c: the progress line.
 *
 * The width of the terminal is read at every drawing, so the line adapts to a resized window. The line
 * never reaches the last column, and wrapping is off while it is drawn, in case the window has just
 * shrunk. The cursor stays at the start of the line: a terminal that wraps the line into several rows
 * when it becomes narrower puts all of them at or below the cursor, so erasing from there removes the
 * whole line. If there is not enough room, the least important parts are omitted first.
 */
#include "progress.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Erases the row of the cursor, so that the terminal no longer joins it to the row above. */
#define ERASE_ROW "\r\033[2K"
/* Erases from the cursor to the end of the screen. It must not be used in the first cell of the screen,
 * where tmux treats it as `clear` and moves everything into its history. */
#define ERASE_BELOW "\033[J"
#define WRAP_OFF "\033[?7l"
#define WRAP_ON "\033[?7h"

enum { MAX_PART = 8, MIN_BAR = 6, RANK_BAR = 4, MAX_BAR = 40, DEFAULT_COLUMNS = 80 };

void progress_init(progress *p, FILE *stream, bool quiet)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(fileno(stream)) == 1 && term && strcmp(term, "dumb") != 0;
    *p = (progress){.stream = stream,
                    .terminal = terminal,
                    .quiet = quiet,
                    .last_draw_s = terminal ? 0 : tdm_clock_s()};
}

static int columns_of(FILE *stream)
{
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return DEFAULT_COLUMNS;
}

/* A short text of a rate; `unit` follows the number. */
static const char *rate_text(double samples_per_s, const char *unit, char buffer[32])
{
    if (samples_per_s >= 9.995e5)
        snprintf(buffer, 32, "%.1fM%s", samples_per_s / 1e6, unit);
    else if (samples_per_s >= 9999.5)
        snprintf(buffer, 32, "%.0fk%s", samples_per_s / 1e3, unit);
    else
        snprintf(buffer, 32, "%.0f%s", samples_per_s, unit);
    return buffer;
}

/* A part of the line. All text is ASCII, so a byte is a column. Parts are in the order of the line; those
 * with the highest rank are omitted first, the bar (RANK_BAR) before the lower ranks. */
typedef struct part {
    char text[64];
    int rank;
} part;

/* Parts whose length varies are padded, so that the line does not flicker. */
static int make_parts(const tdm_train_status *s, part parts[MAX_PART])
{
    int n = 0;
    char text[64];
    size_t room = sizeof(parts[0].text);
    unsigned long long steps = (unsigned long long)s->step_count;
    unsigned long long epochs = (unsigned long long)s->epoch_count;
    unsigned long long epoch = s->epoch < s->epoch_count ? s->epoch + 1 : epochs;
    int widest = snprintf(NULL, 0, "step %llu/%llu", steps, steps);
    snprintf(text, sizeof(text), "step %llu/%llu", (unsigned long long)s->step, steps);
    snprintf(parts[n].text, room, "%-*s", widest, text);
    parts[n++].rank = 0;
    widest = snprintf(NULL, 0, "epoch %llu/%llu", epochs, epochs);
    snprintf(text, sizeof(text), "epoch %llu/%llu", epoch, epochs);
    snprintf(parts[n].text, room, "%-*s", widest, text);
    parts[n++].rank = 6;
    snprintf(parts[n].text, room, "loss %.4f", s->smooth_loss);
    parts[n++].rank = 1;
    if (s->has_test) {
        snprintf(parts[n].text, room, "test %.2f %%", 100 * s->test.accuracy);
        parts[n++].rank = 3;
    }
    if (s->skipped > 0) {
        snprintf(parts[n].text, room, "%llu skipped", (unsigned long long)s->skipped);
        parts[n++].rank = 3;
    }
    if (s->rank_count > 1 && s->straggler >= 0) {
        snprintf(parts[n].text, room, "rank %d slow", s->straggler);
        parts[n++].rank = 3;
    }
    snprintf(parts[n].text, room, "%7s", rate_text(s->samples_per_s, "/s", text));
    parts[n++].rank = 5;
    snprintf(parts[n].text, room, "%11s left", tdm_text_duration(s->left_s, text));
    parts[n++].rank = 2;
    return n;
}

static int width_of(const part *parts, int count, int max_rank)
{
    int width = 0;
    for (int i = 0; i < count; i++)
        if (parts[i].rank <= max_rank) width += (int)strlen(parts[i].text) + (width > 0 ? 2 : 0);
    return width;
}

void progress_text(const tdm_train_status *status, int columns, tdm_str *out)
{
    part parts[MAX_PART];
    int count = make_parts(status, parts), room = columns - 1, max_rank = MAX_PART;
    int bar_room = MIN_BAR + 4; /* with its brackets and the spaces after it */
    while (max_rank > 0 &&
           width_of(parts, count, max_rank) + (max_rank >= RANK_BAR ? bar_room : 0) > room)
        max_rank--;
    int text_width = width_of(parts, count, max_rank), bar = room - text_width - 4;
    size_t start = out->length;
    if (bar >= MIN_BAR) {
        if (bar > MAX_BAR) bar = MAX_BAR;
        double done = status->step_count > 0 ? (double)status->step / (double)status->step_count
                                             : 0;
        int full = (int)(done * bar);
        tdm_str_add_char(out, '[');
        for (int i = 0; i < bar; i++) tdm_str_add_char(out, i < full ? '=' : i == full ? '>' : ' ');
        tdm_str_add(out, "]  ");
    }
    bool first = true;
    for (int i = 0; i < count; i++) {
        if (parts[i].rank > max_rank) continue;
        tdm_str_addf(out, "%s%s", first ? "" : "  ", parts[i].text);
        first = false;
    }
    /* The terminal is too narrow even for the step: cut the text. */
    if (room > 0 && !out->failed && out->length - start > (size_t)room) {
        out->length = start + (size_t)room;
        out->data[out->length] = '\0';
    }
}

void progress_clear(progress *p)
{
    if (!p->drawn) return;
    fputs(ERASE_ROW " " ERASE_BELOW "\r", p->stream);
    fflush(p->stream);
    p->drawn = false;
}

static void progress_draw(progress *p, const tdm_train_status *status)
{
    int columns = columns_of(p->stream);
    if (columns < p->columns) p->narrow_until_s = tdm_clock_s() + 2;
    p->columns = columns;
    /* The user is making the window narrower, probably further: a shorter line is not wrapped by it.
     * (Each time a line is wrapped, tmux moves a row into its history.) */
    if (tdm_clock_s() < p->narrow_until_s) columns -= columns / 4;
    /* One write, so that no partial line is visible. */
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, ERASE_ROW WRAP_OFF);
    progress_text(status, columns, &text);
    tdm_str_add(&text, ERASE_BELOW WRAP_ON "\r");
    if (tdm_str_ok(&text)) fwrite(text.data, 1, text.length, p->stream);
    fflush(p->stream);
    p->drawn = true;
    tdm_str_release(&text);
}

/* Without a terminal: a line every ten seconds, and for evaluations at most once per second. */
static void progress_print_line(progress *p, const tdm_train_status *status)
{
    char left[32], rate[32];
    fprintf(p->stream, "step %llu/%llu  loss %.4f", (unsigned long long)status->step,
            (unsigned long long)status->step_count, status->smooth_loss);
    if (status->has_test) fprintf(p->stream, "  test %.2f %%", 100 * status->test.accuracy);
    if (status->skipped > 0)
        fprintf(p->stream, "  %llu skipped", (unsigned long long)status->skipped);
    if (status->rank_count > 1 && status->straggler >= 0)
        fprintf(p->stream, "  rank %d slow", status->straggler);
    fprintf(p->stream, "  %s  %s left\n", rate_text(status->samples_per_s, " samples/s", rate),
            tdm_text_duration(status->left_s, left));
    fflush(p->stream);
    p->last_plain_step = status->step;
}

void progress_show(progress *p, const tdm_train_status *status, bool now)
{
    if (p->quiet) return;
    double time_s = tdm_clock_s(), age_s = time_s - p->last_draw_s;
    /* The last evaluation follows the last step and has more information. */
    bool last = status->step == status->step_count &&
                (status->event == TDM_TRAIN_EVENT_EVAL || status->test_count == 0);
    if (p->terminal) {
        if (!now && age_s < 0.1) return;
        progress_draw(p, status);
    } else {
        if (age_s < (last ? 0.0 : now ? 1.0 : 10.0)) return;
        if (status->step == p->last_plain_step) return;
        progress_print_line(p, status);
    }
    p->last_draw_s = time_s;
}
