/*
 * indices.c: an increasing list of indices, as gaps or as a bitmap.
 *
 * A gap is the number of elements between an index and the one before it, as LEB128: 7 bits in each byte, the lowest
 * first, and the highest bit set in all bytes but the last.
 */
#include "codec/internal.h"

#include <string.h>

size_t tdm__codec_gap_bytes(const uint32_t *index, size_t count)
{
    size_t bytes = count;
    uint32_t next = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t gap = index[i] - next;
        bytes += (size_t)(gap >= 1u << 7) + (gap >= 1u << 14) + (gap >= 1u << 21) +
                 (gap >= 1u << 28);
        next = index[i] + 1;
    }
    return bytes;
}

void tdm__codec_put_gaps(const uint32_t *index, size_t count, uint8_t *out)
{
    uint32_t next = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t gap = index[i] - next;
        for (; gap >= 0x80; gap >>= 7) *out++ = (uint8_t)(gap | 0x80);
        *out++ = (uint8_t)gap;
        next = index[i] + 1;
    }
}

void tdm__codec_put_bitmap(const uint32_t *index, size_t count, size_t elements, uint8_t *out)
{
    memset(out, 0, tdm__codec_bitmap_bytes(elements));
    for (size_t i = 0; i < count; i++) out[index[i] / 8] |= (uint8_t)(1u << (index[i] % 8));
}
