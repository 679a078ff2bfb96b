/*
 * isa_test.c: TANDEM_ISA lowers the level of Tandem's kernels, and that of oneDNN.
 *
 * A process reads the variable once, so each case is a process that main() starts with a separate environment.
 */
#include "check.h"
#include "tensor/kernels/backends.h"
#include "tensor/tensor.h"

#include <dnnl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char warning[512];

static void keep_warning(const tdm_log_record *record, void *user)
{
    (void)user;
    snprintf(warning, sizeof(warning), "%s", record->message);
}

/* The expected result in a process with TANDEM_ISA=`asked`: the level, and whether there is a warning. */
static void look(const char *asked, int level, bool warned)
{
    tdm_error err = {0};
    void *onednn = NULL;
    setenv("TANDEM_ISA", asked, 1);
    CHECK(tdm_log_add_sink(keep_warning, NULL, TDM_LOG_WARN) == TDM_OK);
    CHECK(tdm_kernel_level() == level);
    CHECK(tdm_tensor_level() == level);
    CHECK((warning[0] != '\0') == warned);
    if (warned) CHECK_HAS(warning, "TANDEM_ISA");
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++) {
        int needs = tdm_kernel_backend_at(i)->level;
        CHECK(needs == 0 || needs == level);
    }
    CHECK(tdm__kernels_onednn.open(&onednn, &err) == TDM_OK);
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    if (level < tdm_kernel_cpu_level())
        CHECK(isa == (level == 3 ? dnnl_cpu_isa_avx2 : dnnl_cpu_isa_sse41));
    tdm__kernels_onednn.close(onednn);
}

/* In a separate process, whose exit code is the number of failed checks. */
static void look_in_process(const char *asked, int level, bool warned)
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        look(asked, level, warned);
        _exit(check_failures > 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void the_variable_lowers_the_level(void)
{
    static const char *const names[] = {[2] = "v2", [3] = "v3", [4] = "v4"};
    int max = tdm_kernel_cpu_level();
    for (int level = 2; level <= 4; level++)
        look_in_process(names[level], level <= max ? level : max, level > max);
}

static void a_wrong_value_changes_nothing(void)
{
    look_in_process("", tdm_kernel_cpu_level(), false);
    look_in_process("avx2", tdm_kernel_cpu_level(), true);
}

int main(int argc, char **argv)
{
    static const check_test tests[] = {
        CHECK_TEST(the_variable_lowers_the_level),
        CHECK_TEST(a_wrong_value_changes_nothing),
    };
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
