/*
 * checkpoint_headers.c: see checkpoint_headers.h.
 */
#include "unit/checkpoint_headers.h"

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

const header_case header_cases[] = {
    /* good ones */
    {"{}", 0, TDM_OK, ""},
    {"{}      ", 0, TDM_OK, ""},
    {"{ } ", 0, TDM_OK, ""},
    {"{\"__metadata__\":{}}", 0, TDM_OK, ""},
    {"{\"__metadata__\":null}", 0, TDM_OK, ""},
    {"{" T("x", "F32", "[2]", "0", "8") "}", 8, TDM_OK, ""},
    {"{" T("x", "F32", "[]", "0", "4") "}", 4, TDM_OK, ""},
    {"{" T("x", "F32", "[0]", "0", "0") "}", 0, TDM_OK, ""},
    {"{" T("x", "F64", "[0,9]", "0", "0") "," T("y", "U8", "[1]", "0", "1") "}", 1, TDM_OK, ""},
    {"{" T("x", "F32", "[1,1,1,1,1,1,1,1]", "0", "4") "}", 4, TDM_OK, ""},
    {"{\"x\":{\"more\":[1],\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"BOOL\"}}", 1, TDM_OK,
     ""},
    {"{" T("y", "U8", "[1]", "0", "1") "," T("x", "F64", "[1]", "1", "9") "}", 9, TDM_OK, ""},

    /* the header as text */
    {"", 0, TDM_ERR_FORMAT, "begin with '{'"},
    {" {}", 0, TDM_ERR_FORMAT, "begin with '{'"},
    {"[]", 0, TDM_ERR_FORMAT, "begin with '{'"},
    {"{", 0, TDM_ERR_FORMAT, "end with '}'"},
    {"{}\n", 0, TDM_ERR_FORMAT, "end with '}'"},
    {"{}\t ", 0, TDM_ERR_FORMAT, "end with '}'"},
    {"{}{}", 0, TDM_ERR_FORMAT, "header"},
    {"{\"x\"}", 0, TDM_ERR_FORMAT, "header"},
    {"{\"\xff\":1}", 0, TDM_ERR_FORMAT, "header"},

    /* metadata */
    {"{\"__metadata__\":1}", 0, TDM_ERR_FORMAT, "not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, TDM_ERR_FORMAT, "'k' is not a string"},
    {"{\"__metadata__\":{\"k\":null}}", 0, TDM_ERR_FORMAT, "'k' is not a string"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, TDM_ERR_FORMAT, "'k' is not a string"},
    {"{\"__metadata__\":{\"k\":\"a\",\"k\":\"b\"}}", 0, TDM_ERR_FORMAT, "duplicate key"},
    {"{\"__metadata__\":{\"k\":\"a\\u0000b\"}}", 0, TDM_ERR_UNSUPPORTED, "zero byte"},
    {"{\"__metadata__\":{\"k\\u0000\":\"a\"}}", 0, TDM_ERR_UNSUPPORTED, "zero byte"},

    /* entries */
    {"{\"x\":1}", 0, TDM_ERR_FORMAT, "'x' is not an object"},
    {"{\"x\":[]}", 0, TDM_ERR_FORMAT, "'x' is not an object"},
    {"{\"x\":{}}", 0, TDM_ERR_FORMAT, "dtype"},
    {"{\"x\\u0000\":{}}", 0, TDM_ERR_UNSUPPORTED, "zero byte"},
    {"{\"x\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", 4, TDM_ERR_FORMAT, "dtype"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, TDM_ERR_FORMAT, "shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, TDM_ERR_FORMAT, "data_offsets"},
    {"{" T("x", "F8_E4M3", "[1]", "0", "1") "}", 1, TDM_ERR_UNSUPPORTED, "F8_E4M3"},
    {"{" T("x", "f32", "[1]", "0", "4") "}", 4, TDM_ERR_UNSUPPORTED, "f32"},
    {"{" T("x", "", "[1]", "0", "4") "}", 4, TDM_ERR_UNSUPPORTED, "'x'"},
    {"{" T("x", "F32", "1", "0", "4") "}", 4, TDM_ERR_FORMAT, "shape"},
    {"{" T("x", "F32", "[-1]", "0", "4") "}", 4, TDM_ERR_FORMAT, "dimension 0"},
    {"{" T("x", "F32", "[1,1.0]", "0", "4") "}", 4, TDM_ERR_FORMAT, "dimension 1"},
    {"{" T("x", "F32", "[\"1\"]", "0", "4") "}", 4, TDM_ERR_FORMAT, "dimension 0"},
    {"{" T("x", "F32", "[9223372036854775808]", "0", "4") "}", 4, TDM_ERR_FORMAT, "dimension 0"},
    {"{" T("x", "F32", "[99999999999999999999999]", "0", "4") "}", 4, TDM_ERR_FORMAT,
     "dimension 0"},
    {"{" T("x", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, TDM_ERR_UNSUPPORTED,
     "9 dimensions"},
    {"{" T("x", "U8", "[4294967296,4294967296]", "0", "0") "}", 0, TDM_ERR_FORMAT, "overflows"},
    {"{" T("x", "F64", "[4611686018427387904]", "0", "0") "}", 0, TDM_ERR_FORMAT, "overflows"},

    /* offsets */
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 4, TDM_ERR_FORMAT,
     "data_offsets"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}", 4, TDM_ERR_FORMAT,
     "data_offsets"},
    {"{" T("x", "F32", "[1]", "-4", "0") "}", 4, TDM_ERR_FORMAT, "data_offsets"},
    {"{" T("x", "F32", "[1]", "0", "4.0") "}", 4, TDM_ERR_FORMAT, "data_offsets"},
    {"{" T("x", "F32", "[1]", "4", "0") "}", 4, TDM_ERR_FORMAT, "bytes 4 to 0"},
    {"{" T("x", "F32", "[2]", "0", "8") "}", 7, TDM_ERR_FORMAT, "truncated"},
    {"{" T("x", "F32", "[1]", "18446744073709551612", "18446744073709551615") "}", 4,
     TDM_ERR_FORMAT, "18446744073709551615"},
    {"{" T("x", "F32", "[3]", "0", "8") "}", 8, TDM_ERR_FORMAT, "needs 12 bytes"},
    {"{" T("x", "F32", "[1]", "0", "8") "}", 8, TDM_ERR_FORMAT, "needs 4 bytes"},
    {"{" T("x", "F32", "[0]", "0", "8") "}", 8, TDM_ERR_FORMAT, "needs 0 bytes"},
    {"{" T("x", "U8", "[2]", "0", "2") "," T("y", "U8", "[2]", "1", "3") "}", 3, TDM_ERR_FORMAT,
     "they overlap"},
    {"{" T("x", "U8", "[2]", "0", "2") "," T("y", "U8", "[2]", "0", "2") "}", 2, TDM_ERR_FORMAT,
     "they overlap"},
    {"{" T("x", "U8", "[2]", "0", "2") "," T("y", "U8", "[2]", "3", "5") "}", 5, TDM_ERR_FORMAT,
     "there is a hole"},
    {"{" T("x", "U8", "[2]", "1", "3") "}", 3, TDM_ERR_FORMAT, "there is a hole"},
    {"{" T("x", "U8", "[2]", "0", "2") "," T("y", "U8", "[0]", "1", "1") "}", 2, TDM_ERR_FORMAT,
     "they overlap"},
    {"{" T("x", "U8", "[2]", "0", "2") "}", 3, TDM_ERR_FORMAT, "the data have 3"},
    {"{}", 1, TDM_ERR_FORMAT, "the data have 1"},
    {"{" T("x", "U8", "[1]", "0", "1") "," T("x", "U8", "[1]", "1", "2") "}", 2, TDM_ERR_FORMAT,
     "duplicate key"},
};

#undef T
const size_t header_case_count = sizeof(header_cases) / sizeof(header_cases[0]);
