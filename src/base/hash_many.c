/*
 * hash_many.c: SHA-256 of several inputs at once.
 *
 * The rounds of one SHA-256 are a dependency chain, which leaves a CPU mostly idle. Independent inputs
 * fill the gaps: with AVX-512, sixteen of them are processed in the lanes of a register, about twice as
 * fast as one after another with the SHA instructions. On other CPUs, OpenSSL hashes them one by one.
 *
 * A lane takes the next input when its own is finished, so inputs of all lengths keep all lanes busy; the
 * last blocks, with the padding, are built in a buffer of the lane. Lanes without input compute with
 * arbitrary bytes, and the result is ignored. The digests are those of tdm_sha256_of.
 */
#include "base/base.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw")))

enum { LANES = 16, BLOCK = 64, WORDS = 8, ROUNDS = 64, LENGTH_AT = 56 };

static const uint32_t round_words[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t first_words[WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* ---- sixteen blocks at once ------------------------------------------------------------------ */

enum { XOR3 = 0x96, CHOOSE = 0xca, MAJORITY = 0xe8 }; /* truth tables of three bits */

/* Transposes: from one block per lane to one vector per word, which has that word of all lanes. Reverses the
 * bytes of each word. */
WIDE static inline void words_turn(__m512i w[LANES])
{
    __m512i a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
        __m512i high2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
        w[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
        w[i + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
        w[i + 8] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        w[i + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
}

WIDE static inline void block_load(const uint8_t *const from[LANES], size_t at, __m512i w[LANES])
{
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    for (int i = 0; i < LANES; i++)
        w[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(from[i] + at), order);
    words_turn(w);
}

WIDE static inline __m512i words_xor3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi32(a, b, c, XOR3);
}

/* The word of the message schedule for the round 16 rounds after word `i`. */
WIDE static inline __m512i next_word(const __m512i w[LANES], int i)
{
    __m512i old = w[(i + 1) % LANES], late = w[(i + 14) % LANES];
    __m512i s0 = words_xor3(_mm512_ror_epi32(old, 7), _mm512_ror_epi32(old, 18),
                            _mm512_srli_epi32(old, 3));
    __m512i s1 = words_xor3(_mm512_ror_epi32(late, 17), _mm512_ror_epi32(late, 19),
                            _mm512_srli_epi32(late, 10));
    __m512i sum = _mm512_add_epi32(w[i], w[(i + 9) % LANES]);
    return _mm512_add_epi32(_mm512_add_epi32(sum, s0), s1);
}

/* Round `i`. The eight words are not moved from one place to the next; instead, the place of each word is
 * one lower in each round. */
WIDE static inline void turn_round(__m512i s[WORDS], __m512i word, int i)
{
    int k = WORDS - i % WORDS; /* s[k % 8] is the word 'a' of this round */
    __m512i *a = &s[k % 8], *b = &s[(k + 1) % 8], *c = &s[(k + 2) % 8], *d = &s[(k + 3) % 8];
    __m512i *e = &s[(k + 4) % 8], *f = &s[(k + 5) % 8], *g = &s[(k + 6) % 8], *h = &s[(k + 7) % 8];
    __m512i s1 = words_xor3(_mm512_ror_epi32(*e, 6), _mm512_ror_epi32(*e, 11),
                            _mm512_ror_epi32(*e, 25));
    __m512i s0 = words_xor3(_mm512_ror_epi32(*a, 2), _mm512_ror_epi32(*a, 13),
                            _mm512_ror_epi32(*a, 22));
    __m512i constant = _mm512_set1_epi32((int)round_words[i]);
    __m512i t = _mm512_add_epi32(_mm512_add_epi32(*h, constant), word);
    t = _mm512_add_epi32(t, _mm512_ternarylogic_epi32(*e, *f, *g, CHOOSE));
    t = _mm512_add_epi32(t, s1);
    *d = _mm512_add_epi32(*d, t);
    *h = _mm512_add_epi32(t, _mm512_ternarylogic_epi32(*a, *b, *c, MAJORITY));
    *h = _mm512_add_epi32(*h, s0);
}

/* Adds `blocks` blocks of each lane, which begin at from[lane]. */
WIDE static void add_blocks(uint32_t state[WORDS][LANES], const uint8_t *const from[LANES],
                            size_t blocks)
{
    __m512i s[WORDS], w[LANES], before[WORDS];
    for (int i = 0; i < WORDS; i++) s[i] = _mm512_loadu_si512(state[i]);
    for (size_t block = 0; block < blocks; block++) {
        block_load(from, block * BLOCK, w);
        for (int i = 0; i < WORDS; i++) before[i] = s[i];
#pragma GCC unroll 64
        for (int i = 0; i < ROUNDS; i++) {
            turn_round(s, w[i % LANES], i);
            if (i < ROUNDS - LANES) w[i % LANES] = next_word(w, i % LANES);
        }
        for (int i = 0; i < WORDS; i++) s[i] = _mm512_add_epi32(s[i], before[i]);
    }
    for (int i = 0; i < WORDS; i++) _mm512_storeu_si512(state[i], s[i]);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

typedef struct lane {
    tdm_sha256_part *part; /* NULL: the lane has no input */
    const uint8_t *next;
    size_t blocks;  /* number of blocks from `next` on */
    bool is_at_end; /* these blocks are the last ones, in `end` */
    uint8_t end[2 * BLOCK];
} lane;

/* Builds the last blocks in `end`: the bytes after the last whole block, a one, zeros, and the length in bits. */
static void block_pad(lane *l)
{
    size_t count = l->part->count, rest = count % BLOCK;
    uint64_t bits = (uint64_t)count * 8;
    memset(l->end, 0, sizeof(l->end));
    if (rest > 0) memcpy(l->end, (const uint8_t *)l->part->bytes + (count - rest), rest);
    l->end[rest] = 0x80;
    l->blocks = rest < LENGTH_AT ? 1 : 2;
    for (size_t i = 0; i < 8; i++) l->end[l->blocks * BLOCK - 1 - i] = (uint8_t)(bits >> (8 * i));
    l->next = l->end;
    l->is_at_end = true;
}

static void put_digest(uint32_t state[WORDS][LANES], int at, char hex[TDM_SHA256_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < WORDS * 8; i++)
        hex[i] = digits[state[i / 8][at] >> (28 - 4 * (i % 8)) & 15];
    hex[WORDS * 8] = '\0';
}

/* Gives a lane that has finished its blocks new ones: the last blocks of its input, or the next input. */
static void move_on(lane *l, uint32_t state[WORDS][LANES], int at, tdm_sha256_part **next,
                    const tdm_sha256_part *end)
{
    if (l->part && l->is_at_end) {
        put_digest(state, at, l->part->hex);
        l->part = NULL;
    } else if (l->part) {
        block_pad(l);
        return;
    }
    if (*next == end) return;
    l->part = (*next)++;
    l->next = l->part->bytes;
    l->blocks = l->part->count / BLOCK;
    l->is_at_end = false;
    for (int i = 0; i < WORDS; i++) state[i][at] = first_words[i];
    if (l->blocks == 0) block_pad(l);
}

static void hash_together(tdm_sha256_part *parts, size_t count)
{
    _Alignas(64) uint32_t state[WORDS][LANES] = {{0}};
    lane lanes[LANES] = {{.part = NULL}};
    tdm_sha256_part *next = parts;
    for (;;) {
        const uint8_t *from[LANES];
        const lane *some = NULL;
        size_t blocks = SIZE_MAX;
        for (int i = 0; i < LANES; i++) {
            if (lanes[i].blocks == 0) move_on(&lanes[i], state, i, &next, parts + count);
            if (!lanes[i].part) continue;
            some = &lanes[i];
            if (some->blocks < blocks) blocks = some->blocks;
        }
        if (!some) return;
        for (int i = 0; i < LANES; i++) from[i] = lanes[i].part ? lanes[i].next : some->next;
        add_blocks(state, from, blocks);
        for (int i = 0; i < LANES; i++) {
            if (!lanes[i].part) continue;
            lanes[i].next += blocks * BLOCK;
            lanes[i].blocks -= blocks;
        }
    }
}

static bool is_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

#else

static bool is_wide(void)
{
    return false;
}

static void hash_together(tdm_sha256_part *parts, size_t count)
{
    (void)parts;
    (void)count;
}

#endif

enum { WORTH_IT = 4 }; /* inputs: with fewer of them, most lanes would be idle */

tdm_status tdm_sha256_of_many(tdm_sha256_part *parts, size_t count)
{
    if (count >= WORTH_IT && is_wide()) {
        hash_together(parts, count);
        return TDM_OK;
    }
    for (size_t i = 0; i < count; i++)
        if (tdm_sha256_of(parts[i].bytes, parts[i].count, parts[i].hex) != TDM_OK)
            return TDM_ERR_NO_MEMORY;
    return TDM_OK;
}
