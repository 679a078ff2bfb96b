/*
 * The file of measured choices: written rows are read back, rows of other groups are kept, and a damaged file
 * is created again. And the memory bound, which is a time.
 */
#include <tandem/os.h>

#include "cli/bench_bound.h"
#include "comm/choices.h"

#include "check.h"

#include <stdlib.h>
#include <unistd.h>

static const char *directory;

static const char *place(const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", directory, name);
    return out;
}

static void paths(void)
{
    char out[128];
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    CHECK(tdm_tune_path(out, sizeof(out)));
    CHECK_TEXT(out, "/somewhere/tandem/tune.json");
    CHECK(!tdm_tune_path(out, 10));
    setenv("XDG_CACHE_HOME", "not/absolute", 1);
    setenv("HOME", "/elsewhere", 1);
    CHECK(tdm_tune_path(out, sizeof(out)));
    CHECK_TEXT(out, "/elsewhere/.cache/tandem/tune.json");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(!tdm_tune_path(out, sizeof(out)));
}

static void check_row(const tdm__choice *row, const tdm_tune_row *expected)
{
    CHECK_INT(row->kind, expected->kind);
    CHECK_INT(row->place == TDM__GROUP_PLACE_HOST, expected->one_host);
    CHECK_INT(row->size, expected->size);
    CHECK_INT(row->bytes, expected->bytes);
    CHECK_INT(row->algorithm, expected->algorithm);
    CHECK_INT(row->segment_bytes, expected->segment_bytes);
}

static void rows(void)
{
    const tdm_tune_row two[] = {
        {TDM_CALL_ALL_REDUCE, true, 2, 0, TDM_ALGORITHM_DIRECT, 0},
        {TDM_CALL_ALL_REDUCE, true, 2, 65536, TDM_ALGORITHM_WINDOW, 4096},
    };
    const tdm_tune_row three[] = {
        {TDM_CALL_ALL_REDUCE, true, 3, 0, TDM_ALGORITHM_TREE, 0},
        {TDM_CALL_BROADCAST, false, 3, INT64_MAX, TDM_ALGORITHM_RING, 0},
    };
    const tdm_tune_row again = {TDM_CALL_ALL_REDUCE, true, 2, 7, TDM_ALGORITHM_DOUBLING, 0};
    char path[128];
    tdm_error err;
    place("new/directory/tune.json", path);
    CHECK_INT(tdm_tune_write(path, two, 2, &err), TDM_OK);
    CHECK_INT(tdm_tune_write(path, three, 2, &err), TDM_OK);
    tdm__choices choices;
    CHECK_INT(tdm__choices_read(path, &choices, &err), TDM_OK);
    CHECK_INT(choices.count, 4);
    for (int i = 0; i < 2; i++) check_row(&choices.rows[i], &two[i]);
    for (int i = 0; i < 2; i++) check_row(&choices.rows[2 + i], &three[i]);
    tdm__choices_release(&choices);
    CHECK_INT(tdm_tune_write(path, &again, 1, &err), TDM_OK);
    CHECK_INT(tdm__choices_read(path, &choices, &err), TDM_OK);
    CHECK_INT(choices.count, 3);
    check_row(&choices.rows[0], &three[0]);
    check_row(&choices.rows[2], &again);
    tdm__choices_release(&choices);
}

static void damaged(void)
{
    const tdm_tune_row row = {TDM_CALL_REDUCE, true, 2, 0, TDM_ALGORITHM_TREE, 0};
    char path[128];
    tdm_error err;
    place("damaged.json", path);
    CHECK_INT(tdm_file_replace(path, "{\"tandem_tune\": 1, \"choi", 24, &err), TDM_OK);
    CHECK_INT(tdm_tune_write(path, &row, 1, &err), TDM_OK);
    tdm__choices choices;
    CHECK_INT(tdm__choices_read(path, &choices, &err), TDM_OK);
    CHECK_INT(choices.count, 1);
    tdm__choices_release(&choices);
}

/* The default path is read if none is given, and a damaged file there has no effect. */
static void usual_place(void)
{
    const tdm_tune_row row = {TDM_CALL_REDUCE, true, 2, 0, TDM_ALGORITHM_TREE, 0};
    char path[128];
    tdm_error err;
    setenv("XDG_CACHE_HOME", directory, 1);
    tdm__choices builtin, found;
    CHECK_INT(tdm__choices_load(NULL, &builtin, &err), TDM_OK);
    CHECK_INT(tdm__choices_find(NULL, &found, &err), TDM_OK);
    CHECK_INT(found.count, builtin.count);
    tdm__choices_release(&found);
    CHECK_INT(tdm_tune_write(place("tandem/tune.json", path), &row, 1, &err), TDM_OK);
    CHECK_INT(tdm__choices_find(NULL, &found, &err), TDM_OK);
    bool there = false;
    for (int i = 0; i < found.count; i++)
        there |= found.rows[i].kind == TDM_CALL_REDUCE &&
                 found.rows[i].algorithm == TDM_ALGORITHM_TREE && found.rows[i].size == 2;
    CHECK(there);
    tdm__choices_release(&found);
    CHECK_INT(tdm_file_replace(path, "nonsense", 8, &err), TDM_OK);
    CHECK_INT(tdm__choices_find(NULL, &found, &err), TDM_OK);
    CHECK_INT(found.count, builtin.count);
    tdm__choices_release(&found);
    tdm__choices_release(&builtin);
    CHECK(tdm__choices_find(path, &found, &err) != TDM_OK); /* requested by name */
    unlink(path);
    rmdir(place("tandem", path));
    unsetenv("XDG_CACHE_HOME");
}

static void refused(void)
{
    const tdm_tune_row bad[] = {
        {TDM_CALL_REDUCE, true, 0, 0, TDM_ALGORITHM_TREE, 0},
        {TDM_CALL_REDUCE, true, 70000, 0, TDM_ALGORITHM_TREE, 0},
        {TDM_CALL_REDUCE, true, 2, 0, TDM_ALGORITHM_AUTO, 0},
        {(tdm_call_kind)0, true, 2, 0, TDM_ALGORITHM_TREE, 0},
    };
    char path[128];
    tdm_error err;
    place("refused.json", path);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK_INT(tdm_tune_write(path, &bad[i], 1, &err), TDM_ERR_INVALID);
    CHECK(!tdm_path_exists(path));
    CHECK(tdm_tune_write("/proc/nowhere/tune.json", NULL, 0, &err) != TDM_OK);
}

static void bound(void)
{
    tdm_error err;
    double one = -1, seconds = -1;
    for (int threads = 2; threads <= 5; threads++) {
        CHECK_INT(bench_memory_bound(100003, threads, 0.001, &seconds, &err), TDM_OK);
        CHECK(seconds > 0 && seconds < 10);
    }
    CHECK_INT(bench_memory_bound(0, 3, 0, &seconds, &err), TDM_OK);
    CHECK_INT(bench_memory_bound(1000, 1, 0, &one, &err), TDM_OK);
    CHECK(one >= 0);
    CHECK_INT(bench_memory_bound(8, 0, 0, &seconds, &err), TDM_ERR_RANGE);
    CHECK_INT(bench_memory_bound(SIZE_MAX, 2, 0, &seconds, &err), TDM_ERR_RANGE);
}

static const check_test tests[] = {CHECK_TEST(paths),   CHECK_TEST(rows),
                                   CHECK_TEST(damaged), CHECK_TEST(usual_place),
                                   CHECK_TEST(refused), CHECK_TEST(bound)};

int main(int argc, char **argv)
{
    directory = check_dir();
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
