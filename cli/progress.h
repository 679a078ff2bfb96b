/* progress.h: one line that tells how training goes, redrawn in place on a terminal. */
#ifndef TANDEM_CLI_PROGRESS_H
#define TANDEM_CLI_PROGRESS_H

#include <tandem/base.h>
#include <tandem/train.h>

#include <stdio.h>

typedef struct progress {
    FILE *stream;
    bool terminal; /* redraw in place; otherwise plain lines now and then */
    bool quiet;
    bool drawn;            /* a line stands on the screen, with the cursor at its start */
    int columns;           /* of the terminal, when the line was drawn */
    double narrow_until_s; /* leave some room until then */
    double last_draw_s;
    uint64_t last_plain_step;
} progress;

void progress_init(progress *p, FILE *stream, bool quiet);
/* Shows a state: on a terminal ten times a second, elsewhere a line now and then; sooner for `now`. */
void progress_show(progress *p, const tdm_train_status *status, bool now);
/* Takes the line off the screen, so that other words can be printed. */
void progress_clear(progress *p);
/* The text of the line for a terminal of `columns`, at most columns - 1 wide. For tests, too. */
void progress_text(const tdm_train_status *status, int columns, tdm_str *out);

#endif
