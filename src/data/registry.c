/*
 * registry.c: the data formats, in the order in which they are tried.
 *
 * To add one: a file in formats/ with a tdm_data_format_ops table, its name in tdm_data_format of
 * data.h and in internal.h, and a line here. IDX is first because its first bytes are unambiguous.
 * A text of tokens is recognised by its name only, unless the caller wants tokens. Sparse samples are
 * recognised only if the caller wants them. CSV and libsvm accept anything that looks like text.
 */
#include "data/internal.h"

static const tdm_data_format_ops *const formats[] = {
    &tdm__data_format_idx,    &tdm__data_format_text,   &tdm__data_format_csv,
    &tdm__data_format_criteo, &tdm__data_format_libsvm,
};

enum { FORMAT_COUNT = sizeof(formats) / sizeof(formats[0]) };

static tdm_status by_number(const tdm__data_source *source, const tdm_data_options *options,
                            const tdm_data_format_ops **out, tdm_error *err)
{
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const tdm_data_format_ops *format = formats[i];
        if ((int)format->format != options->format) continue;
        /* A caller that wants a table would not find its rows. */
        if (format->kind == TDM_DATA_KIND_SPARSE && options->kind != TDM_DATA_KIND_ANY &&
            options->kind != TDM_DATA_KIND_SPARSE)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "%s: the format %s has sparse samples, but %s is needed here; choose "
                            "another format",
                            source->name, format->name,
                            options->kind == TDM_DATA_KIND_TABLE ? "a table of numbers" : "a text");
        *out = format;
        return TDM_OK;
    }
    return tdm_fail(err, TDM_ERR_INVALID, "%s: unknown data format %d", source->name,
                    options->format);
}

tdm_status tdm__data_format_find(const tdm__data_source *source, const tdm_data_options *options,
                                 const tdm_data_format_ops **out, tdm_error *err)
{
    if (options->format != TDM_DATA_FORMAT_AUTO) return by_number(source, options, out, err);
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        const tdm_data_format_ops *format = formats[i];
        bool wanted = options->kind == TDM_DATA_KIND_ANY ? format->kind != TDM_DATA_KIND_SPARSE
                                                         : options->kind == (int)format->kind;
        bool only = options->kind == TDM_DATA_KIND_TOKENS;
        if (!wanted || (!only && !format->sniff(source))) continue;
        *out = format;
        return TDM_OK;
    }
    if (tdm__gzip_sniff(source->bytes, source->count))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: compressed by gzip twice; decompress it once (gzip -d) before use",
                        source->name);
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: neither CSV (it has NUL bytes, so it is not text) nor IDX (its first four "
                    "bytes are not 0, 0, a type, a number of dimensions)",
                    source->name);
}
