/*
 * doctor.h: findings of `tandem doctor`, which cmd_doctor.c (the machine) and doctor_security.c (a run or
 * a job) gather.
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
    const char *advice; /* NULL when all is well */
} finding;

enum { MAX_FINDING = 64 };

typedef struct report {
    finding findings[MAX_FINDING];
    int count;
} report;

/* `advice` is said unless the verdict is OK. What does not fit in the report is left out. */
void doctor_find(report *r, const char *group, const char *name, verdict v, const char *advice,
                 const char *fmt, ...) TDM_PRINTF(6, 7);

/* What listens where, what is encrypted, and who could join: of a job file, or of a run that is going on. An
 * exit code. */
int doctor_look_at_security(const cli_args *args, const char *target, report *r);

#endif
