/*
 * environment_test.c: the rank and the rendezvous of a process according to the environment of its launcher.
 *
 * Every variable that could have a meaning is removed before a case sets its own. No process is started here.
 */
#include "check.h"

#include "boot/boot.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the environment -------------------------------------------------------------------------------------- */

static const char *const all_variables[] = {
    "TANDEM_RANK",
    "TANDEM_SIZE",
    "TANDEM_LOCAL_RANK",
    "TANDEM_LOCAL_SIZE",
    "TANDEM_RENDEZVOUS",
    "TANDEM_SECRET",
    "TANDEM_TRANSPORT",
    "TANDEM_JOB",
    "TANDEM_RUN",
    "TANDEM_TUNE",
    "TANDEM_DEADLINE",
    "TANDEM_SILENCE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_precondition_transports",
};

/* Sets exactly these, given as "NAME=value NAME=value". */
static void set_environment(const char *settings)
{
    for (size_t i = 0; i < sizeof(all_variables) / sizeof(all_variables[0]); i++)
        unsetenv(all_variables[i]);
    char text[512];
    snprintf(text, sizeof(text), "%s", settings);
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        setenv(word, value, 1);
    }
}

static void places_are_read_from_launchers(void)
{
    static const struct {
        const char *settings, *launcher;
        int rank, size, local_rank, local_size;
    } cases[] = {
        {"TANDEM_RANK=3 TANDEM_SIZE=4", "tandem", 3, 4, -1, -1},
        {"TANDEM_RANK=3 TANDEM_SIZE=4 TANDEM_LOCAL_RANK=1 TANDEM_LOCAL_SIZE=2", "tandem", 3, 4, 1,
         2},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=1",
         "openmpi", 1, 2, 0, 1},
        {"PMI_RANK=0 PMI_SIZE=3 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3", "mpich", 0, 3, 0, 3},
        {"PMI_RANK=5 PMI_SIZE=6 SLURM_PROCID=1 SLURM_NTASKS=2", "mpich", 5, 6, -1, -1},
        {"SLURM_PROCID=7 SLURM_NTASKS=8 SLURM_LOCALID=3", "slurm", 7, 8, 3, -1},
        {"SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2", "slurm", 1, 2, -1, -1},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 SLURM_PROCID=7 SLURM_NTASKS=8", "tandem", 0, 1, -1, -1},
        {"SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=3 "
         "SLURM_STEP_TASKS_PER_NODE=2(x3),1",
         "slurm", 6, 7, 0, 1},
        {"SLURM_PROCID=3 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_NODEID=1 "
         "SLURM_STEP_TASKS_PER_NODE=2(x3),1",
         "slurm", 3, 7, 1, 2},
        {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=4",
         "slurm", 3, 4, 3, 4},
        /* Combinations that are invalid. */
        {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_NODEID=1 SLURM_TASKS_PER_NODE=4",
         "slurm", 3, 4, 3, -1},
        {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=3",
         "slurm", 3, 4, 3, -1},
        {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=9",
         "slurm", 3, 4, 3, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_environment(cases[i].settings);
        tdm_comm_place place = {0};
        tdm_error err = {0};
        CHECK_INT(tdm_comm_environment(&place, &err), TDM_OK);
        CHECK_TEXT(err.message, "");
        CHECK_TEXT(place.launcher, cases[i].launcher);
        CHECK_INT(place.rank, cases[i].rank);
        CHECK_INT(place.size, cases[i].size);
        CHECK_INT(place.local_rank, cases[i].local_rank);
        CHECK_INT(place.local_size, cases[i].local_size);
    }
    set_environment("");
}

static void nonsense_in_the_environment_is_named(void)
{
    static const struct {
        const char *settings, *first, *second;
    } cases[] = {
        {"TANDEM_RANK=x TANDEM_SIZE=4", "TANDEM_RANK", "\"x\""},
        {"TANDEM_RANK=4 TANDEM_SIZE=4", "TANDEM_RANK is 4", "TANDEM_SIZE is 4"},
        {"TANDEM_RANK=-1 TANDEM_SIZE=4", "TANDEM_RANK", "\"-1\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=0", "TANDEM_SIZE", "\"0\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=4294967297", "TANDEM_SIZE", "\"4294967297\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=99999999999999999999", "TANDEM_SIZE", "whole number"},
        {"TANDEM_RANK=1e1 TANDEM_SIZE=20", "TANDEM_RANK", "\"1e1\""},
        {"TANDEM_RANK=1", "TANDEM_RANK is set", "TANDEM_SIZE is not"},
        {"TANDEM_SIZE=1", "TANDEM_SIZE is set", "TANDEM_RANK is not"},
        {"TANDEM_RANK=1 TANDEM_SIZE=2 TANDEM_LOCAL_RANK=2 TANDEM_LOCAL_SIZE=2",
         "TANDEM_LOCAL_RANK is 2", "TANDEM_LOCAL_SIZE is 2"},
        {"TANDEM_RANK=1 TANDEM_SIZE=2 TANDEM_LOCAL_RANK=0 TANDEM_LOCAL_SIZE=3",
         "TANDEM_LOCAL_SIZE is 3", "a world of 2"},
        {"PMI_RANK=0 PMI_SIZE=", "PMI_RANK is set", "PMI_SIZE is not"},
        {"SLURM_PROCID=9 SLURM_NTASKS=8", "SLURM_PROCID is 9", "SLURM_NTASKS is 8"},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_DEADLINE=soon", "TANDEM_DEADLINE", "\"soon\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_DEADLINE=-3", "TANDEM_DEADLINE", "\"-3\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_DEADLINE=1e300", "TANDEM_DEADLINE", "\"1e300\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_DEADLINE=inf", "TANDEM_DEADLINE", "\"inf\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_DEADLINE=nan", "TANDEM_DEADLINE", "\"nan\""},
        {"TANDEM_RANK=0 TANDEM_SIZE=1 TANDEM_SILENCE=long", "TANDEM_SILENCE", "\"long\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        set_environment(cases[i].settings);
        tdm_comm_options options;
        tdm_error err = {0};
        CHECK_INT(tdm__options_resolve(NULL, &options, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, cases[i].first);
        CHECK_HAS(err.message, cases[i].second);
    }
    set_environment("");
    tdm_comm_place place;
    tdm_error err = {0};
    CHECK_INT(tdm_comm_environment(&place, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "tandem run");
}

static void options_override_the_environment(void)
{
    set_environment("TANDEM_RANK=1 TANDEM_SIZE=2 TANDEM_RENDEZVOUS=unix:e TANDEM_SECRET=s "
                    "TANDEM_TRANSPORT=shm TANDEM_JOB=j TANDEM_RUN=r TANDEM_TUNE=t "
                    "TANDEM_DEADLINE=2.5");
    tdm_comm_options out, given = {.rendezvous = "unix:o", .deadline_s = 7};
    CHECK_INT(tdm__options_resolve(NULL, &out, NULL), TDM_OK);
    CHECK_INT(out.rank, 1);
    CHECK_TEXT(out.rendezvous, "unix:e");
    CHECK_TEXT(out.secret, "s");
    CHECK_TEXT(out.transport, "shm");
    CHECK_TEXT(out.job, "j");
    CHECK_TEXT(out.trace, "r");
    CHECK_TEXT(out.tune, "t");
    CHECK_NEAR(out.deadline_s, 2.5, 0);
    CHECK_NEAR(out.join_s, 60, 0);
    CHECK_INT(tdm__options_resolve(&given, &out, NULL), TDM_OK);
    CHECK_TEXT(out.rendezvous, "unix:o");
    CHECK_NEAR(out.deadline_s, 7, 0);
    given = (tdm_comm_options){.has_place = true, .rank = 5, .size = 5};
    tdm_error err = {0};
    CHECK_INT(tdm__options_resolve(&given, &out, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "rank 5 of 5");
    set_environment("");
    CHECK_INT(tdm__options_resolve(NULL, &out, NULL), TDM_OK);
    CHECK_INT(out.size, 1);
    CHECK_NEAR(out.deadline_s, 30, 0);
}

/* A timeout that no clock can reach would never end; a million connections cannot be opened. */
static void numbers_of_the_options_have_bounds(void)
{
    set_environment("");
    static const double bad[] = {-1, NAN, INFINITY, 1e300, 1e9};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tdm_comm_options out;
        tdm_error err = {0};
        CHECK_INT(tdm__options_resolve(&(tdm_comm_options){.deadline_s = bad[i]}, &out, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, "deadline_s is ");
        CHECK_INT(tdm__options_resolve(&(tdm_comm_options){.join_s = bad[i]}, &out, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, "join_s is ");
    }
    static const int odd[] = {-1, 65, 1000000};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        tdm_comm_options out;
        tdm_error err = {0};
        CHECK_INT(tdm__options_resolve(&(tdm_comm_options){.streams = odd[i]}, &out, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, "streams is ");
    }
}

/* ---- where to meet ---------------------------------------------------------------------------------------- */

static void slurm_lists_begin_with_a_host(void)
{
    static const struct {
        const char *list, *host;
    } cases[] = {
        {"node[01-03,7],b", "node01"},
        {"alpha", "alpha"},
        {"alpha,beta", "alpha"},
        {"a-b.c_d", "a-b.c_d"},
        {"n[5]", "n5"},
        {"rack[2-3]node[010-12]-ib,x", "rack2node010-ib"},
        {"", NULL},
        {",a", NULL},
        {"n[", NULL},
        {"n[]", NULL},
        {"n[a]", NULL},
        {"n[1", NULL},
        {"a b", NULL},
        {"a;rm", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char host[64] = "";
        bool ok = tdm__slurm_first_host(cases[i].list, host, sizeof(host));
        CHECK_INT(ok, cases[i].host != NULL);
        if (ok) CHECK_TEXT(host, cases[i].host);
    }
    char small[4];
    CHECK(!tdm__slurm_first_host("abcd", small, sizeof(small)));
    CHECK(!tdm__slurm_first_host("a[1234]", small, sizeof(small)));
}

static tdm_status guess(const char *settings, char *out, tdm_error *err)
{
    set_environment(settings);
    tdm_comm_options options;
    tdm_status status = tdm__options_resolve(NULL, &options, err);
    if (status == TDM_OK) status = tdm__rendezvous_guess(&options, out, err);
    set_environment("");
    return status;
}

static void launchers_set_the_rendezvous(void)
{
    char one[TDM__MAX_RENDEZVOUS], two[TDM__MAX_RENDEZVOUS];
    tdm_error err = {0};
#define OPENMPI "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
    CHECK_INT(guess(OPENMPI "OMPI_COMM_WORLD_RANK=0 PMIX_NAMESPACE=77", one, &err), TDM_OK);
    CHECK_INT(guess(OPENMPI "OMPI_COMM_WORLD_RANK=1 PMIX_NAMESPACE=77", two, &err), TDM_OK);
    CHECK_TEXT(one, two);
    CHECK_HAS(one, "unix:tandem-openmpi-");
    CHECK_INT(guess(OPENMPI "OMPI_COMM_WORLD_RANK=0 PMIX_NAMESPACE=78", two, &err), TDM_OK);
    CHECK(strcmp(one, two) != 0);
    CHECK_INT(guess("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0", one, &err),
              TDM_OK);
    CHECK_HAS(one, "unix:tandem-mpich-");
    CHECK_INT(guess("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_JOB_ID=5 SLURM_STEP_ID=0",
                    one, &err),
              TDM_OK);
    CHECK_HAS(one, "unix:tandem-slurm-");
    CHECK_INT(guess("SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_NNODES=2 SLURM_JOB_ID=5 SLURM_STEP_ID=0 "
                    "SLURM_STEP_NODELIST=node[07-08]",
                    one, &err),
              TDM_OK);
    CHECK(strncmp(one, "node07:2", 8) == 0 || strncmp(one, "node07:3", 8) == 0);
    tdm__rendezvous meeting;
    CHECK_INT(tdm__rendezvous_init(&meeting, one, "s", &err), TDM_OK);
    CHECK_INT(guess("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
                    "OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=77",
                    one, &err),
              TDM_ERR_INVALID);
    CHECK_HAS(err.message, "TANDEM_RENDEZVOUS");
    CHECK_INT(guess("TANDEM_RANK=0 TANDEM_SIZE=2", one, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "--rendezvous");
}

static void slurm_counts_tasks(void)
{
    static const struct {
        const char *list;
        long node;
        int tasks;
    } cases[] = {
        {"4", 0, 4},
        {"4", 1, -1},
        {"2(x3),1", 2, 2},
        {"2(x3),1", 3, 1},
        {"2(x3),1", 4, -1},
        {"1,2,3", 1, 2},
        {"", 0, -1},
        {"x", 0, -1},
        {"2(x", 0, -1},
        {"2(x3", 0, -1},
        {"2(x0)", 0, -1},
        {"2(x3)4", 0, -1},
        {"0", 0, -1},
        {"-2", 0, -1},
        {"2,,3", 1, -1},
        {"2 ", 0, -1},
        {"99999999999999999999", 0, -1},
        {"2(x99999999999999999999)", 7, 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_INT(tdm__slurm_tasks_of(cases[i].list, cases[i].node), cases[i].tasks);
}

/* The ID that the processes of one start have in common; empty: there is none. */
static const char *name_of(const char *settings, char out[TDM_LAUNCH_NAME_BYTES])
{
    tdm_comm_place place;
    set_environment(settings);
    out[0] = '\0';
    if (tdm_comm_environment(&place, NULL) != TDM_OK || !tdm_comm_launch_name(&place, out))
        out[0] = '\0';
    set_environment("");
    return out;
}

static void launches_have_names(void)
{
    char one[TDM_LAUNCH_NAME_BYTES], two[TDM_LAUNCH_NAME_BYTES];
#define SLURM "SLURM_NTASKS=4 SLURM_JOB_ID=5 SLURM_NNODES=2 "
    name_of(SLURM "SLURM_PROCID=0 SLURM_STEP_ID=0", one);
    CHECK_INT(strlen(one), TDM_LAUNCH_NAME_BYTES - 1);
    CHECK_TEXT(name_of(SLURM "SLURM_PROCID=3 SLURM_STEP_ID=0", two), one);
    CHECK(strcmp(name_of(SLURM "SLURM_PROCID=0 SLURM_STEP_ID=1", two), one) != 0);
    CHECK(strcmp(name_of(SLURM "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_RESTART_COUNT=1", two), one) !=
          0);
    name_of(OPENMPI "OMPI_COMM_WORLD_RANK=0 PMIX_NAMESPACE=77", one);
    CHECK_TEXT(name_of(OPENMPI "OMPI_COMM_WORLD_RANK=1 PMIX_NAMESPACE=77", two), one);
    CHECK(strcmp(name_of(OPENMPI "OMPI_COMM_WORLD_RANK=1 PMIX_NAMESPACE=78", two), one) != 0);
    /* Their parent process alone does not identify processes of several hosts. */
    CHECK_INT(strlen(name_of("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0", one)),
              TDM_LAUNCH_NAME_BYTES - 1);
    CHECK_TEXT(name_of("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0", one), "");
    CHECK_TEXT(name_of("TANDEM_RANK=0 TANDEM_SIZE=2 SLURM_JOB_ID=5", one), "");
}

static void rendezvous_are_understood(void)
{
    static const struct {
        const char *text, *secret;
        int kind; /* -1: an error that contains `part` */
        const char *host, *port, *part;
    } cases[] = {
        {"127.0.0.1:5000", NULL, TDM__MEET_TCP, "127.0.0.1", "5000", NULL},
        {"[::1]:5000", "", TDM__MEET_TCP, "::1", "5000", NULL},
        {"[fe80::1%eth0]:5000", "s", TDM__MEET_TCP, "fe80::1%eth0", "5000", NULL},
        {"localhost:1", NULL, TDM__MEET_TCP, "localhost", "1", NULL},
        {"alpha:65535", "s", TDM__MEET_TCP, "alpha", "65535", NULL},
        {"unix:a:b/c", NULL, TDM__MEET_UNIX, "", "", NULL},
        {"/shared/run", NULL, TDM__MEET_FILE, "", "", NULL},
        {"meet.txt", NULL, TDM__MEET_FILE, "", "", NULL},
        {"./a:b", NULL, TDM__MEET_FILE, "", "", NULL},
        {"alpha:5000", NULL, -1, "", "", "TANDEM_SECRET"},
        {"10.0.0.1:5000", "", -1, "", "", "TANDEM_SECRET"},
        {"[2001:db8::1]:5000", NULL, -1, "", "", "TANDEM_SECRET"},
        {"::1:5000", NULL, -1, "", "", "brackets"},
        {"[::1:5000", NULL, -1, "", "", "not closed"},
        {":5000", NULL, -1, "", "", "host is missing"},
        {"[]:5000", NULL, -1, "", "", "bracket"},
        {"alpha:", NULL, -1, "", "", "port"},
        {"alpha:0", "s", TDM__MEET_TCP, "alpha", "0", NULL},
        {"alpha:00000x", NULL, -1, "", "", "port"},
        {"alpha:65536", NULL, -1, "", "", "port"},
        {"alpha:http", NULL, -1, "", "", "port"},
        {"alpha:5000x", NULL, -1, "", "", "port"},
        {"alpha:123456", NULL, -1, "", "", "port"},
        {"", NULL, -1, "", "", "empty"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm__rendezvous meeting;
        tdm_error err = {0};
        tdm_status status = tdm__rendezvous_init(&meeting, cases[i].text, cases[i].secret, &err);
        CHECK_INT(status, cases[i].kind < 0 ? TDM_ERR_INVALID : TDM_OK);
        if (cases[i].kind < 0) {
            CHECK_HAS(err.message, cases[i].part);
            continue;
        }
        CHECK_INT(meeting.kind, cases[i].kind);
        CHECK_TEXT(meeting.host, cases[i].host);
        CHECK_TEXT(meeting.port, cases[i].port);
    }
    char long_text[2000];
    memset(long_text, 'a', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = '\0';
    tdm__rendezvous meeting;
    CHECK_INT(tdm__rendezvous_init(&meeting, long_text, NULL, NULL), TDM_ERR_INVALID);
    CHECK_INT(tdm__rendezvous_init(&meeting, "unix:x", long_text, NULL), TDM_ERR_INVALID);
}

/* A process that computes without messages is only slow; one that is stopped or dead is not. */
static void a_silence_is_slowness_or_death(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (volatile uint64_t turns = 0;; turns++) {
        }
    }
    siginfo_t info;
    uint64_t pid = (uint64_t)child;
    tdm_process_watch watch = {.process = 0};
    CHECK(tdm__silence_is_slowness(&watch, pid, 6, 5));
    CHECK(tdm__silence_is_slowness(&watch, pid, 60, 5));
    CHECK(!tdm__silence_is_slowness(&watch, pid, 121, 5)); /* longer than any limit */
    CHECK_INT(kill(child, SIGSTOP), 0);
    CHECK_INT(waitid(P_PID, (id_t)child, &info, WSTOPPED), 0);
    CHECK(!tdm__silence_is_slowness(&watch, pid, 6, 5));
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    CHECK(!tdm__silence_is_slowness(&watch, pid, 6, 5)); /* the child was not waited for yet */
    CHECK_INT(waitpid(child, NULL, 0), child);
    CHECK(!tdm__silence_is_slowness(&watch, pid, 6, 5));
    watch.process = 0;
    CHECK(!tdm__silence_is_slowness(&watch, pid, 6, 5));
}

static const check_test tests[] = {
    CHECK_TEST(places_are_read_from_launchers),
    CHECK_TEST(nonsense_in_the_environment_is_named),
    CHECK_TEST(options_override_the_environment),
    CHECK_TEST(numbers_of_the_options_have_bounds),
    CHECK_TEST(slurm_lists_begin_with_a_host),
    CHECK_TEST(slurm_counts_tasks),
    CHECK_TEST(launches_have_names),
    CHECK_TEST(launchers_set_the_rendezvous),
    CHECK_TEST(rendezvous_are_understood),
    CHECK_TEST(a_silence_is_slowness_or_death),
};

int main(int argc, char **argv)
{
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
