/*
 * tensors.c: the names of types in safetensors, and the canonical order of tensors.
 *
 * Tensors are sorted by the bytes of their names, so the order does not depend on the locale or the
 * caller. Tensors that cannot be written or hashed are rejected here, before anything is written.
 */
#include "base/base.h"
#include "checkpoint/internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    tdm_dtype dtype;
    const char *name;
} dtype_table[] = {
    {TDM_DTYPE_BOOL, "BOOL"}, {TDM_DTYPE_U8, "U8"},     {TDM_DTYPE_I8, "I8"},
    {TDM_DTYPE_U16, "U16"},   {TDM_DTYPE_I16, "I16"},   {TDM_DTYPE_U32, "U32"},
    {TDM_DTYPE_I32, "I32"},   {TDM_DTYPE_U64, "U64"},   {TDM_DTYPE_I64, "I64"},
    {TDM_DTYPE_F16, "F16"},   {TDM_DTYPE_BF16, "BF16"}, {TDM_DTYPE_F32, "F32"},
    {TDM_DTYPE_F64, "F64"},
};

#define DTYPE_TABLE_COUNT (sizeof(dtype_table) / sizeof(dtype_table[0]))

const char *tdm__safetensors_dtype_name(tdm_dtype dtype)
{
    for (size_t i = 0; i < DTYPE_TABLE_COUNT; i++) {
        if (dtype_table[i].dtype == dtype) return dtype_table[i].name;
    }
    return NULL;
}

tdm_dtype tdm__safetensors_dtype(const char *name)
{
    for (size_t i = 0; i < DTYPE_TABLE_COUNT; i++) {
        if (strcmp(dtype_table[i].name, name) == 0) return dtype_table[i].dtype;
    }
    return TDM_DTYPE_NONE;
}

static tdm_status check_tensor(const tdm_named_tensor *item, size_t index, bool need_data,
                               tdm_error *err)
{
    const tdm_tensor *tensor = &item->tensor;
    if (!item->name) return tdm_fail(err, TDM_ERR_INVALID, "tensor %zu has no name", index);
    size_t element_bytes = tdm_dtype_bytes(tensor->dtype);
    if (element_bytes == 0 || !tdm__safetensors_dtype_name(tensor->dtype)) {
        return tdm_fail(err, TDM_ERR_INVALID, "tensor '%.200s' has no valid dtype (%d)", item->name,
                        (int)tensor->dtype);
    }
    int64_t elements = tdm_tensor_elements(tensor);
    if (elements < 0 || (uint64_t)elements > INT64_MAX / element_bytes) {
        return tdm_fail(err, TDM_ERR_INVALID,
                        "tensor '%.200s' has an invalid shape (rank %d): a dimension is "
                        "negative or the product overflows",
                        item->name, tensor->shape.rank);
    }
    if (need_data && elements > 0 && !tensor->data) {
        return tdm_fail(err, TDM_ERR_INVALID, "tensor '%.200s' has no data", item->name);
    }
    return TDM_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const tdm_named_tensor *const *)a)->name,
                  (*(const tdm_named_tensor *const *)b)->name);
}

tdm_status tdm__tensors_in_order(const tdm_named_tensor *tensors, size_t count, bool need_data,
                                 const tdm_named_tensor ***out, tdm_error *err)
{
    for (size_t i = 0; i < count; i++) TDM_TRY(check_tensor(&tensors[i], i, need_data, err));
    const tdm_named_tensor **sorted = calloc(count + 1, sizeof(*sorted));
    if (!sorted) {
        return tdm_fail_oom(err, "to sort %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) sorted[i] = &tensors[i];
    qsort(sorted, count, sizeof(*sorted), compare_tensors);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) != 0) continue;
        tdm_status status = tdm_fail(err, TDM_ERR_INVALID, "two tensors have the name '%.200s'",
                                     sorted[i]->name);
        free(sorted);
        return status;
    }
    *out = sorted;
    return TDM_OK;
}

/* The format does not allow gaps. In order of element size, largest first, every tensor is
 * aligned. */
static int compare_places(const void *a, const void *b)
{
    const tdm_named_tensor *x = **(const tdm_named_tensor *const *const *)a;
    const tdm_named_tensor *y = **(const tdm_named_tensor *const *const *)b;
    size_t x_bytes = tdm_dtype_bytes(x->tensor.dtype);
    size_t y_bytes = tdm_dtype_bytes(y->tensor.dtype);
    if (x_bytes != y_bytes) return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

tdm_status tdm__tensors_place(const tdm_named_tensor *const *sorted, size_t count, uint64_t *begin,
                              tdm_error *err)
{
    const tdm_named_tensor *const **by_place = calloc(count + 1, sizeof(*by_place));
    if (!by_place) {
        return tdm_fail_oom(err, "to place %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) by_place[i] = &sorted[i];
    qsort(by_place, count, sizeof(*by_place), compare_places);
    uint64_t offset = 0;
    tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        begin[by_place[i] - sorted] = offset;
        if (__builtin_add_overflow(offset, tdm_tensor_bytes(&(*by_place[i])->tensor), &offset)) {
            status = tdm_fail(err, TDM_ERR_INVALID, "the tensors have too many bytes for a file");
        }
    }
    free(by_place);
    return status;
}
