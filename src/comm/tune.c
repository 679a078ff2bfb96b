/*
 * tune.c: the file of measured choices: where it is, and how it is written (choose.c reads it).
 */
#include <tandem/comm.h>

#include <stdio.h>
#include <stdlib.h>

bool tdm_tune_path(char *out, size_t out_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && cache[0] == '/') /* others are to be ignored, says their standard */
        length = snprintf(out, out_bytes, "%s/tandem/tune.json", cache);
    else if (home && home[0] == '/')
        length = snprintf(out, out_bytes, "%s/.cache/tandem/tune.json", home);
    return length > 0 && (size_t)length < out_bytes;
}
