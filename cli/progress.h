/* progress.h: the progress line of training, redrawn in place on a terminal. */
#ifndef TANDEM_CLI_PROGRESS_H
#define TANDEM_CLI_PROGRESS_H

#include <tandem/base.h>
#include <tandem/train.h>

#include <stdio.h>

typedef struct progress {
    FILE *stream;
    bool terminal; /* redraw in place; otherwise print plain lines occasionally */
    bool quiet;
    bool drawn;            /* the line is on the screen, with the cursor at its start */
    int columns;           /* of the terminal when the line was drawn */
    double narrow_until_s; /* use a shorter line until then */
    double last_draw_s;
    uint64_t last_plain_step;
} progress;

void progress_init(progress *p, FILE *stream, bool quiet);
/* Shows a status: on a terminal at most ten times per second, elsewhere as an occasional line; sooner with
 * `now`. */
void progress_show(progress *p, const tdm_train_status *status, bool now);
/* Erases the line, so that other output can be printed. */
void progress_clear(progress *p);
/* The text of the line for a terminal with `columns`, at most columns - 1 wide. Also used by tests. */
void progress_text(const tdm_train_status *status, int columns, tdm_str *out);

#endif
