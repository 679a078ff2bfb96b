/*
 * internal.h: what the files of the checkpoint room share: the names safetensors gives to dtypes,
 * and tensors in canonical order.
 */
#ifndef TANDEM_CHECKPOINT_INTERNAL_H
#define TANDEM_CHECKPOINT_INTERNAL_H

#include <tandem/checkpoint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files hold little-endian numbers, and are read and written without conversion"
#endif

/* What the reference implementation allows, too. */
#define TDM__HEADER_MOST_BYTES 100000000u
#define TDM__METADATA_KEY "__metadata__"

/* "F32" for TDM_DTYPE_F32; NULL for what the format does not have. And back: NONE when unknown. */
const char *tdm__safetensors_dtype_name(tdm_dtype dtype);
tdm_dtype tdm__safetensors_dtype(const char *name);

/*
 * Pointers to the tensors in order of name (bytewise), from malloc: the caller frees them. Checks
 * on the way that each has a name of its own, a dtype, a sane shape, and data if it has bytes.
 */
tdm_status tdm__tensors_in_order(const tdm_named_tensor *tensors, size_t count,
                                 const tdm_named_tensor ***out, tdm_error *err);

#endif
