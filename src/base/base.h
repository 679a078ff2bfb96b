/*
 * base.h: the part of module base that only other modules use.
 *
 * <tandem/base.h> and <tandem/text.h> declare what programs may call. This header adds hashing, random numbers,
 * reproducible mathematics and time for the modules above; libtandem.so does not export it.
 */
#ifndef TANDEM_BASE_BASE_H
#define TANDEM_BASE_BASE_H

#include <tandem/base.h>
#include <tandem/text.h>

/* The library for hashes and its linked version: "OpenSSL 3.0.17". Returns `buffer`. Modules job, tensor, data
 * and checkpoint have similar functions. */
const char *tdm_base_library(char buffer[TDM_LIBRARY_BYTES]);

/* ---- status ---------------------------------------------------------------------------------- */

/* Fails with TDM_ERR_NO_MEMORY and the message "out of memory WHAT", where WHAT is the formatted rest, such as
 * "for the graph" or "to hash 12 tensors". */
tdm_status tdm_fail_oom(tdm_error *err, const char *fmt, ...) TDM_PRINTF(2, 3);
/* tdm_fail with an argument list. */
tdm_status tdm_vfail(tdm_error *err, tdm_status status, const char *fmt, va_list args);
/* The status at `index` of the table, or -1 past the end. For documentation and tests. */
int tdm_status_at(size_t index);
size_t tdm_arena_bytes(const tdm_arena *arena); /* allocated so far */

/* ---- random numbers -------------------------------------------------------------------------- */

/* The purpose of random numbers. The values affect results: never renumber them. */
typedef enum tdm_rng_stream {
    TDM_RNG_STREAM_INIT = 1,
    TDM_RNG_STREAM_SHUFFLE = 2,
    TDM_RNG_STREAM_SPLIT = 3,
    TDM_RNG_STREAM_DROPOUT = 4,
    TDM_RNG_STREAM_GENERATE = 5,
    TDM_RNG_STREAM_CODEC = 6,
    TDM_RNG_STREAM_ORDER = 7,
    TDM_RNG_STREAM_TABLE = 8,
    TDM_RNG_STREAM_GOSSIP = 9,
    TDM_RNG_STREAM_USER = 1000
} tdm_rng_stream;

/*
 * The sequence at one address (seed, stream, sub-stream, step, sample). Cheap to make, held by
 * value. `step` and `sample` use their low 48 bits; a sequence has 2^34 words.
 */
typedef struct tdm_rng {
    uint32_t key[2];
    uint32_t counter[4];
    uint32_t block[4];
    uint32_t used; /* words of `block` that were returned; 4: empty */
} tdm_rng;

typedef struct tdm_rng_address {
    uint64_t seed;
    uint32_t stream;     /* a tdm_rng_stream */
    uint32_t sub_stream; /* which parameter, which layer, ... */
    uint64_t step;
    uint64_t sample;
} tdm_rng_address;

tdm_rng tdm_rng_at(tdm_rng_address address);
uint64_t tdm_rng_u64(tdm_rng *rng);

/*
 * Philox 4x32-10 (Salmon et al., 2011): a pure function of a 128-bit counter and a 64-bit key.
 * The generator has no hidden state: a value depends only on its address, never on the order of calls.
 */
void tdm_philox_4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Moves to word `index` (below 2^34) of the sequence; costs one block. */
void tdm_rng_seek(tdm_rng *rng, uint64_t index);
uint32_t tdm_rng_u32(tdm_rng *rng);
/* Uniform in [0, 1) with 24 bits. */
float tdm_rng_uniform(tdm_rng *rng);
/* Uniform in [0, bound) without bias (bound > 0). */
uint64_t tdm_rng_below(tdm_rng *rng, uint64_t bound);
/* Standard normal (Box-Muller, in double precision). */
double tdm_rng_normal(tdm_rng *rng);

/* ---- mathematics ----------------------------------------------------------------------------- */

/*
 * Functions whose bits depend only on their argument, not on the C library or the CPU: for everything
 * that affects a result. Within 1 unit in the last place. Subnormal numbers count as 0.
 */
#define TDM_MATH_MAX_ANGLE 1e5 /* beyond it, sin and cos are NaN */

double tdm_math_exp(double x);
double tdm_math_log(double x);
double tdm_math_sin(double x);
double tdm_math_cos(double x);
double tdm_math_power(double base, uint64_t exponent);

/* `count`, rounded up to a multiple of `unit` (not negative; unit > 0). Does not check for overflow. */
static inline int64_t tdm_round_up(int64_t count, int64_t unit)
{
    return (count + unit - 1) / unit * unit;
}

/* The same for sizes in bytes. */
static inline size_t tdm_align_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- hashing --------------------------------------------------------------------------------- */

/*
 * Small hashes, for hash tables, for checksums against accidental damage and for comparing values between
 * ranks. They do not protect from manipulation: use SHA-256 for that. Their bits are part of file formats
 * and messages, so they must not change.
 */
#define TDM_HASH64_INIT UINT64_C(0xcbf29ce484222325)

/* FNV-1a of `count` bytes. */
uint64_t tdm_hash64(const void *bytes, size_t count);
/* Adds a word to a hash that began with TDM_HASH64_INIT. */
static inline uint64_t tdm_hash64_add(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}
/* Distributes every bit of a number over the whole result (the finaliser of SplitMix64). */
static inline uint64_t tdm_mix64(uint64_t number)
{
    number = (number ^ number >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ number >> 27) * UINT64_C(0x94d049bb133111eb);
    return number ^ number >> 31;
}

#define TDM_SHA256_BYTES 32

typedef struct tdm_sha256 tdm_sha256;

tdm_sha256 *tdm_sha256_create(void); /* NULL if out of memory */
void tdm_sha256_destroy(tdm_sha256 *hash);
void tdm_sha256_update(tdm_sha256 *hash, const void *bytes, size_t count);
/* Adds a little-endian number. */
void tdm_sha256_u64(tdm_sha256 *hash, uint64_t value);
/* Adds the length and the bytes of a text, so that consecutive texts are unambiguous. */
void tdm_sha256_text(tdm_sha256 *hash, const char *text);
/* Hexadecimal digits: `out` has 2 * count + 1 bytes. */
void tdm_hex(const void *bytes, size_t count, char *out);
/* Ends the hash; afterwards only destroy is allowed. */
void tdm_sha256_finish(tdm_sha256 *hash, char hex[TDM_SHA256_HEX]);
/* Input of tdm_sha256_of_many. */
typedef struct tdm_sha256_part {
    const void *bytes; /* may be NULL if count is 0 */
    size_t count;
    char hex[TDM_SHA256_HEX]; /* the result */
} tdm_sha256_part;
/* Hashes several inputs, which is faster than one by one if they have similar lengths. */
tdm_status tdm_sha256_of_many(tdm_sha256_part *parts, size_t count);
/* HMAC-SHA256 (RFC 2104); the key may be empty. */
tdm_status tdm_hmac_sha256(const void *key, size_t key_bytes, const void *bytes, size_t count,
                           uint8_t out[TDM_SHA256_BYTES]);

/* ---- base64 ---------------------------------------------------------------------------------- */

/* Appends the bytes as base64 (RFC 4648, with padding). */
void tdm_str_add_base64(tdm_str *str, const void *bytes, size_t count);
/* Decodes to `out`, which has space for 3 bytes of every 4 characters. False: the text is not base64. */
bool tdm_base64_decode(const char *text, size_t length, void *out, size_t *out_count);

/* ---- clock ----------------------------------------------------------------------------------- */

double tdm_clock_unix_s(void); /* wall clock, for people only */
/* Sleeps, until a signal arrives at the latest. Zero and less: not at all. */
void tdm_clock_sleep(double seconds);
struct timespec tdm_clock_timespec(double seconds);

/* ---- growing strings ------------------------------------------------------------------------- */

/* Pads with spaces until `column` bytes follow the last newline. */
void tdm_str_pad_to(tdm_str *str, size_t column);

/* The shortest decimal that parses to exactly this number. Returns `buffer`. */
const char *tdm_text_double(double value, char buffer[32]);

#endif
