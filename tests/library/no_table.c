/* no_table.c: a library whose entry function returns NULL. */
#include <tandem/library.h>

const tdm_model_library *tdm_library_entry(void)
{
    return NULL;
}
