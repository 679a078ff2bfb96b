/*
 * codec.c: the rate of the codecs on one thread, beside that of a plain copy.
 *
 * Each case encodes a gradient of normal numbers and decodes the payload; the rate is the bytes of the gradient, as
 * f32, per second. The copy, of the same number of bytes, takes turns with the cases: it shows the bandwidth of the
 * memory. `moved` is the bytes that an encoder without feedback reads and writes at least, so moved / time can be
 * compared with the copy's. The fastest time of each counts.
 *
 *     codec [--json] [--quick] [--seconds S] [--only TEXT]    (cases with TEXT in their names)
 *
 * bench/sync runs it and compares its figures with bars.
 */
#include "codec/codec.h"
#include "tensor/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ALIGNMENT = 64,
    ELEMENTS = 16 * 1024 * 1024,
    QUICK_ELEMENTS = 1024 * 1024,
    MIN_ROUNDS = 3,
    NAME_BYTES = 32
};

typedef struct codec_case {
    const char *name;
    tdm_codec_options options;
} codec_case;

static const codec_case cases[] = {
    {"bf16", {.quantise = TDM_CODEC_QUANTISE_BF16}},
    {"f16", {.quantise = TDM_CODEC_QUANTISE_F16}},
    {"int8", {.quantise = TDM_CODEC_QUANTISE_INT8}},
    {"int4", {.quantise = TDM_CODEC_QUANTISE_INT4}},
    {"qsgd 15", {.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 15}},
    {"sign", {.quantise = TDM_CODEC_QUANTISE_SIGN}},
    {"top-k 1 %", {.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = 0.01}},
    {"sampled top-k 1 %", {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED, .ratio = 0.01}},
    {"sampled top-k 0.1 %", {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED, .ratio = 0.001}},
    {"random-k 1 %", {.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 0.01}},
    {"bf16, feedback", {.quantise = TDM_CODEC_QUANTISE_BF16, .feedback = true}},
    {"int8, feedback", {.quantise = TDM_CODEC_QUANTISE_INT8, .feedback = true}},
    {"sign, feedback", {.quantise = TDM_CODEC_QUANTISE_SIGN, .feedback = true}},
    {"sampled top-k 1 %, feedback",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED, .ratio = 0.01, .feedback = true}},
    {"DGC 0.1 %",
     {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED,
      .ratio = 0.001,
      .feedback = true,
      .momentum = 0.9,
      .mask = true}},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

typedef struct settings {
    bool json;
    double seconds; /* for a case */
    const char *only;
    size_t elements;
} settings;

typedef struct blocks {
    float *source, *grad, *out, *states[TDM_CODEC_MAX_STATES];
} blocks;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "codec: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *block = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (!block) die("memory", "there is not enough");
    memset(block, 0, bytes);
    return block;
}

/* Of this thread alone: time that other processes take does not count. */
static double thread_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A loop, which the compiler must not turn into a call of memcpy. */
__attribute__((noinline)) static void copy_loop(float *restrict to, const float *restrict from,
                                                size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = from[i];
        if (i % 64 == 0) __asm__ volatile("" ::: "memory");
    }
}

/* Bytes read and written per second: the faster of the C library and a loop. Makes grad the gradient again, first, so
 * that the loop removes it from the caches. */
static double copy_measure(const blocks *b, size_t elements)
{
    double begin_s = thread_s();
    memcpy(b->grad, b->source, elements * sizeof(float));
    double middle_s = thread_s();
    copy_loop(b->out, b->source, elements);
    double last_s = thread_s() - middle_s, first_s = middle_s - begin_s;
    return 2.0 * (double)elements * sizeof(float) / (first_s < last_s ? first_s : last_s);
}

typedef struct result {
    double encode_s, decode_s, copy;
    size_t bytes;
} result;

static result measure(const codec_case *c, const blocks *b, const settings *s)
{
    const tdm_codec_tensor tensor = {.name = "all", .elements = s->elements};
    const float *before[TDM_CODEC_MAX_STATES] = {b->states[0], b->states[1]};
    result best = {.encode_s = 1e30, .decode_s = 1e30};
    tdm_error err;
    tdm_codec *codec;
    if (tdm_codec_create(&c->options, &tensor, 1, &codec, &err) != TDM_OK)
        die(c->name, err.message);
    void *payload = take(tdm_codec_max_bytes(codec));
    for (int i = 0; i < TDM_CODEC_MAX_STATES; i++)
        memset(b->states[i], 0, s->elements * sizeof(float));
    double until_s = tdm_clock_s() + s->seconds;
    for (uint64_t step = 0; step < MIN_ROUNDS || tdm_clock_s() < until_s; step++) {
        double copy = copy_measure(b, s->elements);
        if (copy > best.copy) best.copy = copy;
        const tdm_codec_key key = {.seed = 1, .step = step};
        double begin_s = thread_s();
        if (tdm_codec_encode(codec, &key, b->grad, before, b->states, payload, &best.bytes, &err) !=
            TDM_OK)
            die(c->name, err.message);
        double middle_s = thread_s();
        if (tdm_codec_decode(codec, payload, best.bytes, b->out, &err) != TDM_OK)
            die(c->name, err.message);
        double end_s = thread_s();
        if (middle_s - begin_s < best.encode_s) best.encode_s = middle_s - begin_s;
        if (end_s - middle_s < best.decode_s) best.decode_s = end_s - middle_s;
    }
    free(payload);
    tdm_codec_destroy(codec);
    return best;
}

static void print_row(const char *name, const result *r, const settings *s, bool is_first)
{
    double input = (double)s->elements * sizeof(float), moved = input + (double)r->bytes;
    if (s->json)
        printf("%s{\"name\":\"%s\",\"encode\":%.3f,\"decode\":%.3f,\"ratio\":%.2f,"
               "\"moved\":%.3f,\"copy\":%.3f}",
               is_first ? "" : ",", name, input / r->encode_s / 1e9, input / r->decode_s / 1e9,
               input / (double)r->bytes, moved / r->encode_s / 1e9, r->copy / 1e9);
    else
        printf("%-30s %8.2f %8.2f %9.2f %8.2f %8.2f\n", name, input / r->encode_s / 1e9,
               input / r->decode_s / 1e9, input / (double)r->bytes, moved / r->encode_s / 1e9,
               r->copy / 1e9);
    fflush(stdout);
}

/* PowerSGD: `encode` is all work of a replica in a step, `decode` that of the sum. */
static result measure_lowrank(int rank, const blocks *b, const settings *s)
{
    enum { COLUMNS = 1024 };
    const tdm_codec_tensor tensor = {
        .name = "all", .elements = s->elements, .rows = s->elements / COLUMNS};
    const tdm_codec_options options = {.rank = rank, .feedback = true};
    const float *before[] = {b->states[0]};
    result best = {.encode_s = 1e30, .decode_s = 1e30};
    tdm_error err;
    tdm_codec *codec;
    if (tdm_codec_create(&options, &tensor, 1, &codec, &err) != TDM_OK)
        die("PowerSGD", err.message);
    size_t p_bytes = tdm_codec_lowrank_p_elements(codec) * sizeof(float);
    size_t q_bytes = tdm_codec_lowrank_q_elements(codec) * sizeof(float);
    float *p = take(p_bytes), *q = take(q_bytes);
    memset(b->states[0], 0, s->elements * sizeof(float));
    best.bytes = p_bytes + q_bytes;
    double until_s = tdm_clock_s() + s->seconds;
    for (uint64_t step = 0; step < MIN_ROUNDS || tdm_clock_s() < until_s; step++) {
        const tdm_codec_key key = {.seed = 1, .step = step};
        double copy = copy_measure(b, s->elements);
        if (copy > best.copy) best.copy = copy;
        tdm_codec_lowrank_start(codec, &key, q);
        double begin_s = thread_s();
        if (tdm_codec_lowrank_project(codec, b->grad, before, q, b->states[0], p, &err) != TDM_OK)
            die("PowerSGD", err.message);
        tdm_codec_lowrank_orthogonalise(codec, p);
        tdm_codec_lowrank_back(codec, b->states[0], p, q);
        tdm_codec_lowrank_residual(codec, b->states[0], p, q, 1, b->states[0]);
        double middle_s = thread_s();
        tdm_codec_lowrank_reconstruct(codec, p, q, 0, SIZE_MAX, b->out);
        double end_s = thread_s();
        if (middle_s - begin_s < best.encode_s) best.encode_s = middle_s - begin_s;
        if (end_s - middle_s < best.decode_s) best.decode_s = end_s - middle_s;
    }
    free(p);
    free(q);
    tdm_codec_destroy(codec);
    return best;
}

static void read_settings(int argc, char **argv, settings *out)
{
    *out = (settings){.seconds = 1, .elements = ELEMENTS};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            out->json = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            out->seconds = 0;
            out->elements = QUICK_ELEMENTS;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            out->seconds = strtod(argv[++i], NULL);
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            out->only = argv[++i];
        } else {
            die(argv[i], "usage: codec [--json] [--quick] [--seconds S] [--only TEXT]");
        }
    }
}

int main(int argc, char **argv)
{
    settings s;
    blocks b;
    read_settings(argc, argv, &s);
    b.source = take(s.elements * sizeof(float));
    b.grad = take(s.elements * sizeof(float));
    b.out = take(s.elements * sizeof(float));
    for (int i = 0; i < TDM_CODEC_MAX_STATES; i++) b.states[i] = take(s.elements * sizeof(float));
    tdm_kernel_normal((tdm_rng_address){.stream = TDM_RNG_STREAM_USER}, 0.01, 0, b.source,
                      s.elements);
    if (s.json)
        printf("{\"level\":%d,\"bytes\":%zu,\"rows\":[", tdm_kernel_level(),
               s.elements * sizeof(float));
    else
        printf("level %d, %zu MB; GB/s, 1 thread\n%-30s %8s %8s %9s %8s %8s\n", tdm_kernel_level(),
               s.elements * sizeof(float) / 1000000, "", "encode", "decode", "smaller", "moved",
               "copy");
    int shown = 0;
    for (int i = 0; i < CASES; i++) {
        if (s.only && !strstr(cases[i].name, s.only)) continue;
        result r = measure(&cases[i], &b, &s);
        print_row(cases[i].name, &r, &s, shown++ == 0);
    }
    for (int rank = 1; rank <= 4; rank *= 4) {
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "PowerSGD, rank %d", rank);
        if (s.only && !strstr(name, s.only)) continue;
        result r = measure_lowrank(rank, &b, &s);
        print_row(name, &r, &s, shown++ == 0);
    }
    if (s.json) printf("]}\n");
    free(b.source);
    free(b.grad);
    free(b.out);
    for (int i = 0; i < TDM_CODEC_MAX_STATES; i++) free(b.states[i]);
    return 0;
}
