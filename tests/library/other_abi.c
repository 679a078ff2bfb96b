/* other_abi.c: a library compiled for a future version of the interface. */
#include <tandem/library.h>

static const tdm_model_library library = {.abi = TDM_LIBRARY_ABI + 1, .name = "later"};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
