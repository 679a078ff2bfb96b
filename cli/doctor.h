/*
 * doctor.h: findings of `tandem doctor`, collected by cmd_doctor.c (the machine) and doctor_security.c (a
 * run or a job).
 */
#ifndef TANDEM_CLI_DOCTOR_H
#define TANDEM_CLI_DOCTOR_H

#include "cli.h"

typedef enum verdict { OK, NOTE, PROBLEM } verdict;

typedef struct finding {
    const char *group;
    char name[24];
    char value[400];
    verdict verdict;
    const char *advice; /* NULL if the verdict is OK */
} finding;

enum { MAX_FINDING = 64 };

typedef struct report {
    finding findings[MAX_FINDING];
    int count;
} report;

/* Adds a finding. `advice` is printed unless the verdict is OK. Findings beyond MAX_FINDING are dropped. */
void doctor_find(report *r, const char *group, const char *name, verdict v, const char *advice,
                 const char *fmt, ...) TDM_PRINTF(6, 7);

/* Checks which sockets listen, what is encrypted and who could join, for a job file or an active run.
 * Returns an exit code. */
int doctor_look_at_security(const cli_args *args, const char *target, report *r);

#endif
