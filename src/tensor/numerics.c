/* numerics.c: the numerics version as text. */
#include "tensor/kernel.h"
#include "tensor/tensor.h"

#include <stdio.h>

const char *tdm_numerics_text(bool is_vendor, char buffer[TDM_NUMERICS_BYTES])
{
    char library[TDM_LIBRARY_BYTES];
    if (!is_vendor) {
        snprintf(buffer, TDM_NUMERICS_BYTES, "portable %d", TDM_NUMERICS_VERSION);
        return buffer;
    }
    const char *name = tdm_tensor_library(library);
    snprintf(buffer, TDM_NUMERICS_BYTES, "vendor %d, %s, %s", TDM_NUMERICS_VERSION,
             tdm_tensor_level_name(tdm_kernel_level()), name ? name : "no library");
    return buffer;
}
