/*
 * cpu_features.c: the instruction-set level and features of the CPU.
 *
 * On x86-64 they come from CPUID and XGETBV: an instruction counts only if the system also saves its
 * registers. Levels are those of the x86-64 psABI (v1 to v4). On aarch64 they come from the auxiliary
 * vector of the kernel. Any other machine has the level "generic".
 */
#include "os/internal.h"

#include <stdio.h>
#include <string.h>

static void add_feature(tdm_cpu_info *out, const char *name)
{
    size_t used = strlen(out->features);
    snprintf(out->features + used, sizeof(out->features) - used, "%s%s", used ? " " : "", name);
}

#if defined(__x86_64__)

#include <cpuid.h>

/* The words of CPUID leaves that contain the bits of features. */
enum word { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, EXT1_ECX, WORD_COUNT };

/* Registers the system must save: none beyond SSE, AVX's, AVX-512's, AMX's. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

static const struct feature {
    const char *name;
    enum word word;
    unsigned bit;
    uint64_t xcr0;
    int level; /* the psABI level that requires it; 0 for none */
    bool shown;
} feature_table[] = {
    {"sse3", LEAF1_ECX, 0, 0, 2, false},
    {"ssse3", LEAF1_ECX, 9, 0, 2, false},
    {"cx16", LEAF1_ECX, 13, 0, 2, false},
    {"sse4.1", LEAF1_ECX, 19, 0, 2, false},
    {"sse4.2", LEAF1_ECX, 20, 0, 2, true},
    {"popcnt", LEAF1_ECX, 23, 0, 2, false},
    {"lahf", EXT1_ECX, 0, 0, 2, false},
    {"avx", LEAF1_ECX, 28, XCR0_AVX, 3, true},
    {"avx2", LEAF7_EBX, 5, XCR0_AVX, 3, true},
    {"fma", LEAF1_ECX, 12, XCR0_AVX, 3, true},
    {"f16c", LEAF1_ECX, 29, XCR0_AVX, 3, true},
    {"bmi1", LEAF7_EBX, 3, 0, 3, false},
    {"bmi2", LEAF7_EBX, 8, 0, 3, false},
    {"lzcnt", EXT1_ECX, 5, 0, 3, false},
    {"movbe", LEAF1_ECX, 22, 0, 3, false},
    {"avx512f", LEAF7_EBX, 16, XCR0_AVX512, 4, true},
    {"avx512bw", LEAF7_EBX, 30, XCR0_AVX512, 4, true},
    {"avx512cd", LEAF7_EBX, 28, XCR0_AVX512, 4, true},
    {"avx512dq", LEAF7_EBX, 17, XCR0_AVX512, 4, true},
    {"avx512vl", LEAF7_EBX, 31, XCR0_AVX512, 4, true},
    {"avx512_vbmi", LEAF7_ECX, 1, XCR0_AVX512, 0, true},
    {"avx512_vnni", LEAF7_ECX, 11, XCR0_AVX512, 0, true},
    {"avx512_bf16", LEAF7_1_EAX, 5, XCR0_AVX512, 0, true},
    {"avx512_fp16", LEAF7_EDX, 23, XCR0_AVX512, 0, true},
    {"avx_vnni", LEAF7_1_EAX, 4, XCR0_AVX, 0, true},
    {"amx_tile", LEAF7_EDX, 24, XCR0_AMX, 0, true},
    {"amx_int8", LEAF7_EDX, 25, XCR0_AMX, 0, true},
    {"amx_bf16", LEAF7_EDX, 22, XCR0_AMX, 0, true},
    {"amx_fp16", LEAF7_1_EAX, 21, XCR0_AMX, 0, true},
};

static uint64_t read_xcr0(uint32_t leaf1_ecx)
{
    if (!(leaf1_ecx & (1u << 27))) return 0; /* the system does not use XSAVE */
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

void tdm__cpu_features(tdm_cpu_info *out)
{
    uint32_t word[WORD_COUNT] = {0};
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) word[LEAF1_ECX] = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        word[LEAF7_EBX] = b;
        word[LEAF7_ECX] = c;
        word[LEAF7_EDX] = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) word[LEAF7_1_EAX] = a;
    }
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) word[EXT1_ECX] = c;

    uint64_t xcr0 = read_xcr0(word[LEAF1_ECX]);
    int level = 4;
    for (size_t i = 0; i < sizeof(feature_table) / sizeof(feature_table[0]); i++) {
        const struct feature *feature = &feature_table[i];
        bool has = (word[feature->word] >> feature->bit & 1) &&
                   (xcr0 & feature->xcr0) == feature->xcr0;
        if (has && feature->shown) add_feature(out, feature->name);
        if (!has && feature->level > 0 && feature->level <= level) level = feature->level - 1;
    }
    snprintf(out->level, sizeof(out->level), "x86-64-v%d", level);
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

/* Bits of AT_HWCAP and AT_HWCAP2, as the kernel's documentation lists them. */
static const struct feature {
    const char *name;
    unsigned long type;
    unsigned bit;
} feature_table[] = {
    {"asimd", AT_HWCAP, 1},    {"atomics", AT_HWCAP, 8},   {"fphp", AT_HWCAP, 9},
    {"asimdhp", AT_HWCAP, 10}, {"asimdrdm", AT_HWCAP, 12}, {"dcpop", AT_HWCAP, 16},
    {"asimddp", AT_HWCAP, 20}, {"sve", AT_HWCAP, 22},      {"asimdfhm", AT_HWCAP, 23},
    {"sve2", AT_HWCAP2, 1},    {"svei8mm", AT_HWCAP2, 9},  {"svebf16", AT_HWCAP2, 12},
    {"i8mm", AT_HWCAP2, 13},   {"bf16", AT_HWCAP2, 14},    {"sme", AT_HWCAP2, 23},
};

static bool has_bit(unsigned long type, unsigned bit)
{
    return getauxval(type) >> bit & 1;
}

void tdm__cpu_features(tdm_cpu_info *out)
{
    for (size_t i = 0; i < sizeof(feature_table) / sizeof(feature_table[0]); i++) {
        const struct feature *feature = &feature_table[i];
        if (has_bit(feature->type, feature->bit)) add_feature(out, feature->name);
    }
    const char *level = "armv8-a";
    if (has_bit(AT_HWCAP, 8) && has_bit(AT_HWCAP, 12)) {
        level = "armv8.1-a";
        if (has_bit(AT_HWCAP, 16)) level = "armv8.2-a";
        if (has_bit(AT_HWCAP2, 1)) level = "armv9-a";
    }
    snprintf(out->level, sizeof(out->level), "%s", level);
}

#else

void tdm__cpu_features(tdm_cpu_info *out)
{
    add_feature(out, "unknown");
    snprintf(out->level, sizeof(out->level), "generic");
}

#endif
