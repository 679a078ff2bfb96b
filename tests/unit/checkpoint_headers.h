/*
 * checkpoint_headers.h: headers of safetensors files, valid and malformed, one case for each rule of the
 * format, with the expected error message.
 */
#ifndef TANDEM_TESTS_CHECKPOINT_HEADERS_H
#define TANDEM_TESTS_CHECKPOINT_HEADERS_H

#include <tandem/base.h>

typedef struct header_case {
    const char *header;
    size_t data_bytes;
    tdm_status status;
    const char *message; /* a part of it */
} header_case;

extern const header_case header_cases[];
extern const size_t header_case_count;

#endif
