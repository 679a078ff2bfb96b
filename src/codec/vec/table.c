/* table.c: the list of the loops, once for each level. */
#include "codec/vec/vec.h"

const tdm__codec_loops TDM__AT_LEVEL(tdm__codec_loops) = {
    .accumulate = TDM__CODEC_LOOP(accumulate),
    .is_finite = TDM__CODEC_LOOP(is_finite),
    .largest = TDM__CODEC_LOOP(largest),
    .sum_magnitudes = TDM__CODEC_LOOP(sum_magnitudes),
    .sum_squares = TDM__CODEC_LOOP(sum_squares),
    .scale = TDM__CODEC_LOOP(scale),
    .collect = TDM__CODEC_LOOP(collect),
    .to_bf16 = TDM__CODEC_LOOP(to_bf16),
    .of_bf16 = TDM__CODEC_LOOP(of_bf16),
    .to_f16 = TDM__CODEC_LOOP(to_f16),
    .of_f16 = TDM__CODEC_LOOP(of_f16),
    .to_grid = TDM__CODEC_LOOP(to_grid),
    .of_grid = TDM__CODEC_LOOP(of_grid),
    .pack = TDM__CODEC_LOOP(pack),
    .unpack = TDM__CODEC_LOOP(unpack),
    .to_signs = TDM__CODEC_LOOP(to_signs),
    .of_signs = TDM__CODEC_LOOP(of_signs),
    .dot = TDM__CODEC_LOOP(dot),
    .dot_wide = TDM__CODEC_LOOP(dot_wide),
    .subtract = TDM__CODEC_LOOP(subtract),
    .add_rows = TDM__CODEC_LOOP(add_rows),
    .mix = TDM__CODEC_LOOP(mix),
    .rest_of = TDM__CODEC_LOOP(rest_of),
};
