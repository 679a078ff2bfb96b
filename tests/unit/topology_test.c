/*
 * topology_test.c: how CPUs are divided among ranks: on synthetic machines of hwloc, with any of their CPUs
 * disallowed, and on this machine.
 */
#include "check.h"
#include "os/internal.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 64 };

static tdm_cpu_set places[MAX_RANKS];

static tdm_cpu_set set_of(int first, int count, int step)
{
    tdm_cpu_set set = {.memory_node = -1};
    for (int i = first; count > 0; i += step, count--)
        set.processors[i / 64] |= UINT64_C(1) << (i % 64);
    return set;
}

static int size_of(const tdm_cpu_set *place)
{
    int count = 0;
    for (int i = 0; i < TDM_PLACE_MAX_CPUS / 64; i++)
        count += __builtin_popcountll(place->processors[i]);
    return count;
}

static const char *text_of(const tdm_cpu_set *place)
{
    static char text[4][TDM_CPU_SET_TEXT_BYTES];
    static int turn;
    turn = (turn + 1) % 4;
    return tdm_os_cpu_set_text(place, text[turn]);
}

static bool with_hwloc(void)
{
    tdm_topology_info info;
    tdm_os_topology_info(&info);
    return info.library[0] != '\0';
}

/* Shares are disjoint, and contain only allowed CPUs. */
static void check_shares(const tdm_cpu_set *allowed, int count)
{
    tdm_cpu_set seen = {.memory_node = -1};
    for (int i = 0; i < count; i++) {
        CHECK(size_of(&places[i]) > 0);
        for (int w = 0; w < TDM_PLACE_MAX_CPUS / 64; w++) {
            CHECK((seen.processors[w] & places[i].processors[w]) == 0);
            CHECK((places[i].processors[w] & ~allowed->processors[w]) == 0);
            seen.processors[w] |= places[i].processors[w];
        }
    }
    CHECK_INT(size_of(&seen), size_of(allowed));
}

static void two_nodes_of_four_cores(void)
{
    if (!with_hwloc()) return;
    const char *machine = "numa:2 core:4 pu:2"; /* node 0: 0 to 7; cores are 0-1, 2-3, ... */
    tdm_cpu_set all = set_of(0, 16, 1);
    tdm_topology_info info;
    tdm__topology(machine, &all, &info);
    CHECK_INT(info.core_count, 8);
    CHECK_INT(info.processor_count, 16);
    CHECK_INT(info.memory_node_count, 2);
    for (int count = 1; count <= 16; count++) {
        CHECK(tdm__places(machine, &all, count, places));
        check_shares(&all, count);
    }
    CHECK(!tdm__places(machine, &all, 17, places));
    CHECK(!tdm__places(machine, &all, 0, places));
    CHECK(tdm__places(machine, &all, 1, places));
    CHECK_INT(places[0].memory_node, -1); /* it contains CPUs of both nodes */
    CHECK(tdm__places(machine, &all, 2, places));
    CHECK_TEXT(text_of(&places[0]), "0-7");
    CHECK_TEXT(text_of(&places[1]), "8-15");
    CHECK_INT(places[0].memory_node, 0);
    CHECK_INT(places[1].memory_node, 1);
    CHECK(tdm__places(machine, &all, 3, places)); /* 2, 3 and 3 cores; the second on both nodes */
    CHECK_TEXT(text_of(&places[0]), "0-3");
    CHECK_TEXT(text_of(&places[1]), "4-9");
    CHECK_TEXT(text_of(&places[2]), "10-15");
    CHECK_INT(places[0].memory_node, 0);
    CHECK_INT(places[1].memory_node, -1);
    CHECK_INT(places[2].memory_node, 1);
    CHECK(tdm__places(machine, &all, 8, places)); /* a whole core each */
    for (int i = 0; i < 8; i++) CHECK_INT(size_of(&places[i]), 2);
    CHECK_TEXT(text_of(&places[5]), "10-11");
    CHECK(tdm__places(machine, &all, 16, places)); /* a hardware thread each */
    CHECK_TEXT(text_of(&places[5]), "5");
}

/* Cores whose second thread is disallowed count as cores; those without an allowed thread do not. */
static void some_processors_are_forbidden(void)
{
    if (!with_hwloc()) return;
    const char *machine = "numa:2 core:4 pu:2";
    tdm_cpu_set even = set_of(0, 8, 2);
    CHECK(tdm__places(machine, &even, 8, places));
    check_shares(&even, 8);
    CHECK_TEXT(text_of(&places[7]), "14");
    tdm_cpu_set late = set_of(6, 10, 1); /* the last core of node 0, and node 1 */
    CHECK(tdm__places(machine, &late, 5, places));
    CHECK_TEXT(text_of(&places[0]), "6-7");
    CHECK_INT(places[0].memory_node, 0);
    CHECK_INT(places[4].memory_node, 1);
    CHECK(!tdm__places(machine, &late, 11, places));
    tdm_cpu_set one_node = set_of(8, 8, 1);
    CHECK(tdm__places(machine, &one_node, 4, places));
    for (int i = 0; i < 4; i++) CHECK_INT(places[i].memory_node, -1); /* the only node */
    tdm_cpu_set none = {.memory_node = -1};
    CHECK(!tdm__places(machine, &none, 1, places));
}

/* Most machines do not number the threads of a core consecutively. */
static void threads_of_a_core_stay_together(void)
{
    if (!with_hwloc()) return;
    const char *machine = "core:4 pu:2(indexes=0,4,1,5,2,6,3,7)"; /* core 0 has CPUs 0 and 4 */
    tdm_cpu_set all = set_of(0, 8, 1);
    CHECK(tdm__places(machine, &all, 4, places));
    CHECK_TEXT(text_of(&places[0]), "0,4");
    CHECK_TEXT(text_of(&places[3]), "3,7");
}

static void words(void)
{
    tdm_cpu_set place = {.memory_node = -1};
    CHECK_TEXT(text_of(&place), "");
    place = set_of(0, 4, 1);
    place.processors[1] = 3;
    place.processors[TDM_PLACE_MAX_CPUS / 64 - 1] = UINT64_C(1) << 63;
    CHECK_TEXT(text_of(&place), "0-3,64-65,4095");
    place = set_of(0, 2000, 2);
    CHECK(strlen(text_of(&place)) < TDM_CPU_SET_TEXT_BYTES);
    CHECK_HAS(text_of(&place), "0,2,4,");
    CHECK_HAS(text_of(&place), "...");
}

/* In a child, so that the CPUs of this process do not change. */
static void a_place_is_taken(void)
{
    tdm_cpu_set here;
    CHECK(tdm_os_cpu_set_here(&here));
    int usable = size_of(&here);
    int count = usable < MAX_RANKS ? usable : MAX_RANKS;
    CHECK(tdm_os_cpu_sets(count, places));
    if (usable <= MAX_RANKS) check_shares(&here, count);
    for (int i = 0; i<count; i += count> 1 ? count - 1 : 1) {
        pid_t pid = fork();
        if (pid == 0) {
            tdm_cpu_set now;
            bool same = tdm_os_cpu_set_apply(&places[i]) && tdm_os_cpu_set_here(&now) &&
                        memcmp(now.processors, places[i].processors, sizeof(now.processors)) == 0;
            _exit(same ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_INT(status, 0);
    }
    tdm_cpu_set none = {.memory_node = -1};
    errno = 0;
    CHECK(!tdm_os_cpu_set_apply(&none));
    CHECK_INT(errno, EINVAL);
}

static void this_machine(void)
{
    tdm_topology_info info;
    tdm_cpu_set here;
    tdm_os_topology_info(&info);
    CHECK(tdm_os_cpu_set_here(&here));
    CHECK_INT(info.processor_count, size_of(&here));
    CHECK(info.core_count >= 1 && info.core_count <= info.processor_count);
    CHECK(info.memory_node_count >= 1);
    if (info.library[0]) CHECK_HAS(info.library, "hwloc 2.");
}

static const check_test tests[] = {
    CHECK_TEST(two_nodes_of_four_cores),
    CHECK_TEST(some_processors_are_forbidden),
    CHECK_TEST(threads_of_a_core_stay_together),
    CHECK_TEST(words),
    CHECK_TEST(a_place_is_taken),
    CHECK_TEST(this_machine),
};

CHECK_MAIN(tests)
