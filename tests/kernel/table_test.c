/*
 * table_test.c: checks the table of kernels. Every op has a row in `ref`, which defines it, and a fast one; the
 * exceptions are listed here, each with its reason. Prints which backend computes which op.
 */
#include "check.h"
#include "graph/internal.h"

/* Ops that need no fast kernel, with the reason. */
static const char *const exceptions[TDM_OP_COUNT] = {
    [TDM_OP_RESHAPE] = "a view: nothing runs",
    [TDM_OP_BATCH_NORM_JOIN] = "a few numbers for each channel",
    [TDM_OP_CUSTOM] = "the kernel is the user's own",
};

static const tdm_kernel *row_of(size_t backend, int op)
{
    tdm_dtype made = op == TDM_OP_CAST ? TDM_DTYPE_BF16 : TDM_DTYPE_F32;
    return tdm_kernel_find(tdm_kernel_backend_at(backend), (tdm_op_kind)op, made);
}

static void every_op_has_a_fast_kernel(void)
{
    size_t ref = tdm_kernel_backend_count() - 1;
    for (int op = TDM_OP_NONE + 1; op < TDM_OP_COUNT; op++) {
        const char *fast = NULL;
        for (size_t b = ref; b-- > 0;)
            if (row_of(b, op)) fast = tdm_kernel_backend_at(b)->name;
        const char *name = tdm__op_row_of((tdm_op_kind)op)->name;
        printf("     %-28s %s\n", name,
               fast             ? fast
               : exceptions[op] ? exceptions[op]
                                : "ref alone");
        if (!fast && !exceptions[op]) fprintf(stderr, "  %s has no fast kernel\n", name);
        CHECK(fast || exceptions[op]);
        CHECK(!fast || !exceptions[op]); /* an exception that is not needed any more */
    }
}

/* A reshape is never run, so no backend has a kernel for it. */
static void ref_has_every_op_that_runs(void)
{
    size_t ref = tdm_kernel_backend_count() - 1;
    CHECK_TEXT(tdm_kernel_backend_at(ref)->name, "ref");
    for (int op = TDM_OP_NONE + 1; op < TDM_OP_COUNT; op++)
        CHECK_INT(row_of(ref, op) != NULL, op != TDM_OP_RESHAPE);
}

/* tdm_kernel_find takes the first of two rows for one op: the other would never run. */
static void no_op_twice_in_one_backend(void)
{
    for (size_t b = 0; b < tdm_kernel_backend_count(); b++) {
        int rows[TDM_OP_COUNT] = {0};
        for (const tdm_kernel_family *const *f = tdm_kernel_backend_at(b)->families; *f; f++)
            for (size_t k = 0; k < (*f)->count; k++) CHECK_INT(rows[(*f)->kernels[k].op]++, 0);
    }
}

static const check_test tests[] = {
    CHECK_TEST(every_op_has_a_fast_kernel),
    CHECK_TEST(ref_has_every_op_that_runs),
    CHECK_TEST(no_op_twice_in_one_backend),
};
CHECK_MAIN(tests)
