/* no_table.c: a library that has the entry, but gives nothing there. */
#include <tandem/library.h>

const tdm_model_library *tdm_library_entry(void)
{
    return NULL;
}
