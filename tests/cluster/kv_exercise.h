/*
 * kv_exercise.h: tests that every store must pass; they take the options of the store.
 *
 * The test of the local store and the test of etcd include this file. Keys are below
 * "tandem-test/", which is emptied first. A store may be slow, so all time limits are seconds or
 * more.
 */
#ifndef TANDEM_TESTS_KV_EXERCISE_H
#define TANDEM_TESTS_KV_EXERCISE_H

#include "check.h"
#include "kv/kv.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define BELOW "tandem-test/"
#define EXERCISE_S 150.0 /* limit for many small calls on a busy host */

tdm_kv *exercise_open(const tdm_kv_options *options);

#define WORKS(call)                                                                                \
    do {                                                                                           \
        tdm_error err = {0};                                                                       \
        tdm_status works_ = (call);                                                                \
        check_count++;                                                                             \
        if (works_ != TDM_OK) {                                                                    \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, err.message);            \
        }                                                                                          \
    } while (0)

/* The call must fail with this status and a message. */
#define FAILS(call, expected)                                                                      \
    do {                                                                                           \
        tdm_error err = {0};                                                                       \
        CHECK_INT(call, expected);                                                                 \
        CHECK_INT(err.status, expected);                                                           \
        CHECK(err.message[0] != '\0');                                                             \
    } while (0)

/* ---- one process ----------------------------------------------------------------------------- */

void exercise_keys(const tdm_kv_options *options);

void exercise_limits(const tdm_kv_options *options);

/* ---- leases and waiting ---------------------------------------------------------------------- */

uint64_t exercise_revision(tdm_kv *kv);

void exercise_leases(const tdm_kv_options *options);

typedef struct exercise_writer {
    const tdm_kv_options *options;
    int rounds;
    int failures;
} exercise_writer;

/* Two handles that wait for each other, many times: no change may be missed between a read and the following
 * wait. */
void exercise_waits(const tdm_kv_options *options, int rounds);

/* ---- several processes ----------------------------------------------------------------------- */

void exercise_race(const tdm_kv_options *options, int processes, int times);

#endif
