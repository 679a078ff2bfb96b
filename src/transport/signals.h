/*
 * signals.h: preserves the program's signal handlers while a library starts that installs its own.
 *
 * UCX installs handlers when it is loaded, MPI when it is initialised. Signal handling belongs to
 * the program, so the previous handlers are restored.
 */
#ifndef TANDEM_TRANSPORT_SIGNALS_H
#define TANDEM_TRANSPORT_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

enum { TDM__SIGNALS = 65 };

typedef struct tdm__signals {
    struct sigaction actions[TDM__SIGNALS];
    bool known[TDM__SIGNALS];
} tdm__signals;

static inline void tdm__signals_keep(tdm__signals *kept)
{
    for (int s = 1; s < TDM__SIGNALS; s++)
        kept->known[s] = sigaction(s, NULL, &kept->actions[s]) == 0;
}

static inline void tdm__signals_put_back(const tdm__signals *kept)
{
    for (int s = 1; s < TDM__SIGNALS; s++) {
        struct sigaction now;
        if (!kept->known[s] || sigaction(s, NULL, &now) != 0) continue;
        if (now.sa_handler != kept->actions[s].sa_handler) sigaction(s, &kept->actions[s], NULL);
    }
}

#endif
