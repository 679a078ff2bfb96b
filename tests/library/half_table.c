/* half_table.c: a library whose table lacks the build function. */
#include <tandem/library.h>

static const tdm_model_library library = {.abi = TDM_LIBRARY_ABI, .name = "half"};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
