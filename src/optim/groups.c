/*
 * groups.c: assigns parameters to the entries of optim.groups.
 *
 * Entries are tried in their order, and the first whose pattern matches the name is used. Patterns
 * are those of the shell: * ? [a-z]. An entry that matches nothing is most likely a typing error in
 * its pattern; it is refused with the list of names.
 */
#include "optim/internal.h"

#include <fnmatch.h>
#include <stdint.h>

enum { NAMES_SHOWN = 6 };

static tdm_status groups_refuse(const tdm_job *job, size_t entry, const tdm_optim_param *params,
                                size_t param_count, tdm_error *err)
{
    const char *pattern = job->optim.groups.items[entry].match;
    const char *earlier = NULL;
    for (size_t i = 0; i < param_count && !earlier; i++)
        if (fnmatch(pattern, params[i].name, 0) == 0) earlier = params[i].name;
    if (earlier)
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "optim.groups: all parameters that entry %zu ('%s') matches, such as '%s', are "
            "matched by entries before it; move it before them",
            entry + 1, pattern, earlier);
    tdm_str names = TDM_STR_INIT;
    for (size_t i = 0; i < param_count && i < NAMES_SHOWN; i++)
        tdm_str_addf(&names, "%s%s", i > 0 ? ", " : "", params[i].name);
    if (param_count > NAMES_SHOWN) tdm_str_addf(&names, " and %zu more", param_count - NAMES_SHOWN);
    tdm_status status = tdm_fail(
        err, TDM_ERR_JOB_INVALID,
        "optim.groups: entry %zu ('%s') matches no parameter of this model; its parameters are %s",
        entry + 1, pattern, tdm_str_text(&names));
    tdm_str_release(&names);
    return status;
}

tdm_status tdm__groups_match(const tdm_job *job, const tdm_optim_param *params, size_t param_count,
                             size_t *out_entries, tdm_error *err)
{
    const tdm_job_group_list *groups = &job->optim.groups;
    for (size_t i = 0; i < param_count; i++) {
        out_entries[i] = SIZE_MAX;
        for (size_t g = 0; g < groups->count && out_entries[i] == SIZE_MAX; g++)
            if (fnmatch(groups->items[g].match, params[i].name, 0) == 0) out_entries[i] = g;
    }
    for (size_t g = 0; g < groups->count; g++) {
        bool taken = false;
        for (size_t i = 0; i < param_count; i++) taken = taken || out_entries[i] == g;
        if (!taken) return groups_refuse(job, g, params, param_count, err);
    }
    return TDM_OK;
}
