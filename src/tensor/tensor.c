/* tensor.c: types and shapes. Overflow of element counts is checked here, once for all modules. */
#include <tandem/tensor.h>

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[TDM_DTYPE_COUNT] = {
    [TDM_DTYPE_NONE] = {"none", 0}, [TDM_DTYPE_F32] = {"f32", 4},   [TDM_DTYPE_F64] = {"f64", 8},
    [TDM_DTYPE_F16] = {"f16", 2},   [TDM_DTYPE_BF16] = {"bf16", 2}, [TDM_DTYPE_I8] = {"i8", 1},
    [TDM_DTYPE_I16] = {"i16", 2},   [TDM_DTYPE_I32] = {"i32", 4},   [TDM_DTYPE_I64] = {"i64", 8},
    [TDM_DTYPE_U8] = {"u8", 1},     [TDM_DTYPE_U16] = {"u16", 2},   [TDM_DTYPE_U32] = {"u32", 4},
    [TDM_DTYPE_U64] = {"u64", 8},   [TDM_DTYPE_BOOL] = {"bool", 1},
};

static bool dtype_is_known(tdm_dtype dtype)
{
    return (int)dtype >= 0 && dtype < TDM_DTYPE_COUNT;
}

size_t tdm_dtype_bytes(tdm_dtype dtype)
{
    return dtype_is_known(dtype) ? dtypes[dtype].bytes : 0;
}

const char *tdm_dtype_name(tdm_dtype dtype)
{
    return dtype_is_known(dtype) ? dtypes[dtype].name : "none";
}

bool tdm_shape_equal(const tdm_shape *a, const tdm_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t tdm_shape_elements(const tdm_shape *shape)
{
    if (shape->rank < 0 || shape->rank > TDM_MAX_DIMS) return -1;
    int64_t count = 1;
    bool empty = false;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 0) return -1;
        if (shape->dim[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(count, shape->dim[i], &count))
            return -1;
    }
    return empty ? 0 : count;
}

const char *tdm_shape_text(const tdm_shape *shape, char buffer[128])
{
    /* Eight dimensions of twenty digits do not fit: the rest is replaced by "...". */
    enum { ROOM = 128 - (int)sizeof(", ...]") };
    int rank = shape->rank < TDM_MAX_DIMS ? shape->rank : TDM_MAX_DIMS;
    int at = snprintf(buffer, 128, "[");
    for (int i = 0; i < rank; i++) {
        char number[24];
        int length = snprintf(number, sizeof(number), "%s%lld", i ? ", " : "",
                              (long long)shape->dim[i]);
        if (at + length > ROOM) {
            at += snprintf(buffer + at, (size_t)(128 - at), ", ...");
            break;
        }
        at += snprintf(buffer + at, (size_t)(128 - at), "%s", number);
    }
    snprintf(buffer + at, (size_t)(128 - at), "]");
    return buffer;
}

size_t tdm_tensor_bytes(const tdm_tensor *tensor)
{
    int64_t count = tdm_tensor_elements(tensor);
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((size_t)count, tdm_dtype_bytes(tensor->dtype), &bytes))
        return 0;
    return bytes;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = (float)mantissa * 0x1p-24f; /* zero and subnormal numbers, exactly */
    return sign ? -tiny : tiny;
}

bool tdm_tensor_to_f32(tdm_dtype from, const void *source, int64_t count, float *out)
{
    const unsigned char *bytes = source;
    switch (from) {
    case TDM_DTYPE_F32: memcpy(out, source, (size_t)count * sizeof(float)); return true;
    case TDM_DTYPE_F64:
        for (int64_t i = 0; i < count; i++) {
            double value;
            memcpy(&value, bytes + 8 * i, sizeof(value));
            out[i] = (float)value;
        }
        return true;
    case TDM_DTYPE_F16:
    case TDM_DTYPE_BF16:
        for (int64_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, bytes + 2 * i, sizeof(bits));
            out[i] = from == TDM_DTYPE_F16 ? half_to_float(bits) : from_bits((uint32_t)bits << 16);
        }
        return true;
    default: return false;
    }
}
