/*
 * registry.c: the formats there are, in the order in which they are tried.
 *
 * To add one: a file in formats/ with a tdm_data_format_ops table, its name in data.h's
 * tdm_data_format and in internal.h, and a line here. IDX comes first because its first bytes are
 * sure; CSV takes anything that looks like text.
 */
#include "data/internal.h"

static const tdm_data_format_ops *const formats[] = {
    &tdm__data_format_idx,
    &tdm__data_format_csv,
};

tdm_status tdm__data_format_find(const tdm__data_source *source, int format,
                                 const tdm_data_format_ops **out, tdm_error *err)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        bool found = format == TDM_DATA_FORMAT_AUTO
                         ? formats[i]->sniff(source->bytes, source->count)
                         : (int)formats[i]->format == format;
        if (!found) continue;
        *out = formats[i];
        return TDM_OK;
    }
    if (format != TDM_DATA_FORMAT_AUTO)
        return tdm_fail(err, TDM_ERR_INVALID, "%s: there is no data format number %d", source->name,
                        format);
    if (tdm__gzip_sniff(source->bytes, source->count))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: packed by gzip twice; unpack it once (gzip -d) before use",
                        source->name);
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: neither CSV (it has NUL bytes, so it is not text) nor IDX (its first four "
                    "bytes are not 0, 0, a type, a number of dimensions)",
                    source->name);
}
