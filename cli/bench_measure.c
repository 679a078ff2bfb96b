/*
 * bench_measure.c: measures collectives, as one rank of a world.
 *
 * A sample is a sequence of calls, long enough that the cost of reading the clock is negligible. Before
 * each sample the ranks synchronise at a barrier, which is not timed. The time of a sample is that of the
 * slowest rank. The result of the first call is checked.
 *
 * While rank 0 measures the bound of the memory, the others sleep at a barrier.
 */
#include "bench.h"
#include "bench_bound.h"

#include <tandem/os.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_SAMPLES = 1000, MIN_SAMPLES = 5, MAX_BATCH = 10000 };

static const double SAMPLE_S = 200e-6;      /* minimum duration of a sample */
static const size_t MIN_BOUND = 100 * 1000; /* bytes; below, thread synchronisation dominates */
static const double DEADLINE_S = 120;
static const double MAX_WAITING_S = 0.5;

typedef struct bencher {
    const bench_plan *plan;
    tdm_comm *comm;
    tdm_group *world;
    bench_result *out;
    tdm_pages pages;
    void *shared;
    char *data; /* a buffer of the largest size */
    double samples[MAX_SAMPLES];
} bencher;

/* ---- buffers ----------------------------------------------------------------------------------- */

static size_t elements_of(const bencher *b, size_t bytes)
{
    size_t count = bytes / tdm_dtype_bytes(b->plan->dtype);
    return count > 0 ? count : 1;
}

/* The bits of a whole number up to about 1,280 in a type that can be added. */
static uint64_t encode_number(tdm_dtype dtype, int value)
{
    uint64_t bits = 0;
    float f32 = (float)value;
    double f64 = value;
    uint32_t f32_bits;
    memcpy(&f32_bits, &f32, 4);
    switch (dtype) {
    case TDM_DTYPE_F32: return f32_bits;
    case TDM_DTYPE_F64: memcpy(&bits, &f64, 8); return bits;
    case TDM_DTYPE_BF16: return f32_bits >> 16;
    case TDM_DTYPE_F16: return (f32_bits >> 13) - (112 << 10);
    default: return (uint64_t)value;
    }
}

/* Element i of the input of each rank, times `ranks`. */
static uint64_t element_bits(const bencher *b, size_t index, int ranks)
{
    return encode_number(b->plan->dtype, ((int)(index % 5) + 1) * ranks);
}

static void buffer_fill(bencher *b, size_t count)
{
    size_t width = tdm_dtype_bytes(b->plan->dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = element_bits(b, i, 1);
        memcpy(b->data + i * width, &bits, width);
    }
}

static tdm_status check_sum(const bencher *b, const bench_row *row, size_t count, tdm_error *err)
{
    size_t width = tdm_dtype_bytes(b->plan->dtype);
    int size = b->out->size;
    /* bf16 represents whole numbers exactly up to 256, f16 up to 2,048. */
    int max = b->plan->dtype == TDM_DTYPE_BF16  ? 256
              : b->plan->dtype == TDM_DTYPE_F16 ? 2048
                                                : 1 << 20;
    if (5 * size > max) return TDM_OK;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = element_bits(b, i, size);
        if (memcmp(b->data + i * width, &bits, width) != 0)
            return tdm_fail(
                err, TDM_ERR_INTERNAL,
                "all_reduce by %s gave a wrong sum at element %zu of %zu: please report "
                "this",
                tdm_algorithm_name(row->algorithm), i, count);
    }
    return TDM_OK;
}

static tdm_status make_buffer(bencher *b, tdm_error *err)
{
    size_t max = 8;
    for (int i = 0; i < b->plan->size_count; i++)
        if (b->plan->bytes[i] > max) max = b->plan->bytes[i];
    if (b->plan->shared) {
        TDM_TRY(tdm_comm_shared(b->comm, max, &b->shared, err));
        b->data = b->shared;
    } else {
        TDM_TRY(tdm_pages_map(max, false, &b->pages, err));
        b->data = b->pages.data;
    }
    memset(b->data, 0, max); /* touch all pages */
    return TDM_OK;
}

/* ---- one line ---------------------------------------------------------------------------------- */

/* The call of a row, in place if possible: the slice of a reduce-scatter is part of its input. */
static tdm_call call_of(const bencher *b, const bench_row *row)
{
    size_t count = elements_of(b, row->bytes), width = tdm_dtype_bytes(b->plan->dtype);
    tdm_call call = {.kind = row->kind,
                     .dtype = b->plan->dtype,
                     .count = count,
                     .out = b->data,
                     .algorithm = row->algorithm};
    if (row->kind == TDM_CALL_REDUCE_SCATTER) {
        tdm_extent slice = tdm_group_slice(count, b->out->size, b->out->rank);
        call.in = b->data;
        call.out = b->data + slice.first * width;
    }
    return call;
}

/* Rank 0 determines the number of calls per sample and of samples, and broadcasts them. */
static tdm_status agree_on_counts(bencher *b, double call_s, double seconds, int64_t *batch,
                                  int64_t *count, tdm_error *err)
{
    int64_t both[2];
    double batch_of = call_s > 0 ? SAMPLE_S / call_s : MAX_BATCH;
    both[0] = batch_of < 1 ? 1 : batch_of > MAX_BATCH ? MAX_BATCH : (int64_t)batch_of;
    double sample_s = (double)both[0] * call_s;
    double count_of = sample_s > 0 ? seconds / sample_s : MAX_SAMPLES;
    both[1] = count_of < MIN_SAMPLES   ? MIN_SAMPLES
              : count_of > MAX_SAMPLES ? MAX_SAMPLES
                                       : (int64_t)count_of;
    TDM_TRY(tdm_group_broadcast(b->world, both, 2, TDM_DTYPE_I64, 0, err));
    *batch = both[0];
    *count = both[1];
    return TDM_OK;
}

/* CPU time of this process so far. */
static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static tdm_status measure_sample(bencher *b, const tdm_call *call, int64_t batch, double *out_s,
                                 tdm_error *err)
{
    TDM_TRY(tdm_group_barrier(b->world, err));
    double begin = tdm_clock_s();
    for (int64_t i = 0; i < batch; i++) TDM_TRY(tdm_call_run(b->world, call, err));
    *out_s = (tdm_clock_s() - begin) / (double)batch;
    return TDM_OK;
}

/* Makes the first call, checks it if possible, and makes two more calls to warm up. */
static tdm_status begin_row(bencher *b, const bench_row *row, const tdm_call *call, double *out_s,
                            tdm_error *err)
{
    size_t count = elements_of(b, row->bytes);
    buffer_fill(b, count);
    TDM_TRY(tdm_call_run(b->world, call, err));
    if (row->kind == TDM_CALL_ALL_REDUCE) TDM_TRY(check_sum(b, row, count, err));
    memset(b->data, 0, count * tdm_dtype_bytes(b->plan->dtype));
    for (int i = 0; i < 2; i++) TDM_TRY(measure_sample(b, call, 1, out_s, err));
    return TDM_OK;
}

static tdm_status measure_row(bencher *b, bench_row *row, double seconds, tdm_error *err)
{
    tdm_call call = call_of(b, row);
    TDM_TRY(tdm_call_algorithm(b->world, &call, &row->algorithm, err));
    double once = 0;
    TDM_TRY(begin_row(b, row, &call, &once, err));
    int64_t batch, count;
    TDM_TRY(agree_on_counts(b, once, seconds, &batch, &count, err));
    double cpu = cpu_seconds();
    for (int64_t i = 0; i < count; i++)
        TDM_TRY(measure_sample(b, &call, batch, &b->samples[i], err));
    cpu = (cpu_seconds() - cpu) / (double)(batch * count);
    TDM_TRY(tdm_group_all_reduce(b->world, NULL, b->samples, (size_t)count, TDM_DTYPE_F64,
                                 TDM_REDUCE_MAX, err));
    TDM_TRY(tdm_group_all_reduce(b->world, NULL, &cpu, 1, TDM_DTYPE_F64, TDM_REDUCE_SUM, err));
    qsort(b->samples, (size_t)count, sizeof(*b->samples), ascending);
    row->seconds = b->samples[count / 2];
    row->min_seconds = b->samples[0];
    row->cpu_s = cpu;
    return TDM_OK;
}

/* ---- all lines --------------------------------------------------------------------------------- */

/* Only rank 0 measures. If it fails it closes its comm, which the other ranks detect. */
static tdm_status measure_bound(bencher *b, bench_row *row, tdm_error *err)
{
    if (row->bytes >= MIN_BOUND && b->out->one_host && b->out->size > 1 && b->out->rank == 0) {
        double seconds = b->plan->seconds < 1 ? b->plan->seconds : 1;
        TDM_TRY(bench_memory_bound(row->bytes, b->out->size, seconds, &row->bound_s, err));
    }
    return tdm_group_barrier(b->world, err);
}

/* Measures the cost of waiting: rank 0 is late at a barrier. */
static tdm_status measure_waiting(bencher *b, tdm_error *err)
{
    double late_s = b->plan->seconds < MAX_WAITING_S ? b->plan->seconds : MAX_WAITING_S;
    const struct timespec nap = {.tv_nsec = (long)(1e9 * late_s)};
    TDM_TRY(tdm_group_barrier(b->world, err));
    double cpu = cpu_seconds();
    if (b->out->rank == 0) nanosleep(&nap, NULL);
    TDM_TRY(tdm_group_barrier(b->world, err));
    cpu = b->out->rank == 0 ? 0 : (cpu_seconds() - cpu) / late_s;
    TDM_TRY(tdm_group_all_reduce(b->world, NULL, &cpu, 1, TDM_DTYPE_F64, TDM_REDUCE_SUM, err));
    b->out->waiting_cpu = cpu;
    return TDM_OK;
}

static tdm_status measure_sizes(bencher *b, tdm_error *err)
{
    for (int i = 0; i < b->plan->size_count; i++) {
        bench_row *row = &b->out->rows[b->out->row_count++];
        *row = (bench_row){.kind = TDM_CALL_ALL_REDUCE,
                           .algorithm = b->plan->algorithm,
                           .bytes = b->plan->bytes[i]};
        TDM_TRY(measure_row(b, row, b->plan->seconds, err));
        if (b->plan->algorithm != TDM_ALGORITHM_AUTO && row->algorithm != b->plan->algorithm)
            return tdm_fail(
                err, TDM_ERR_UNSUPPORTED,
                "all_reduce of %s with %d ranks over %s does not support '%s'; use '%s'",
                tdm_dtype_name(b->plan->dtype), b->out->size, b->out->transport,
                tdm_algorithm_name(b->plan->algorithm), tdm_algorithm_name(row->algorithm));
        TDM_TRY(measure_bound(b, row, err));
    }
    return TDM_OK;
}

/* Whether tuning may select the algorithm. Floats added by a ring are not canonical, so only the caller
 * may select it. */
static bool algorithm_is_allowed(const bencher *b, tdm_call_kind kind, tdm_algorithm algorithm)
{
    bool adds = kind == TDM_CALL_ALL_REDUCE || kind == TDM_CALL_REDUCE ||
                kind == TDM_CALL_REDUCE_SCATTER;
    bool exact = b->plan->dtype == TDM_DTYPE_I32 || b->plan->dtype == TDM_DTYPE_I64;
    return algorithm != TDM_ALGORITHM_RING || !adds || exact;
}

/* Measures every applicable algorithm at one size. */
static tdm_status tune_size(bencher *b, tdm_call_kind kind, size_t bytes, tdm_error *err)
{
    int best = -1;
    for (int a = TDM_ALGORITHM_AUTO + 1; a <= TDM_ALGORITHM_WINDOW; a++) {
        if (!algorithm_is_allowed(b, kind, (tdm_algorithm)a) || b->out->row_count == MAX_BENCH_ROWS)
            continue;
        bench_row *row = &b->out->rows[b->out->row_count];
        *row = (bench_row){.kind = kind, .algorithm = (tdm_algorithm)a, .bytes = bytes};
        tdm_call call = call_of(b, row);
        tdm_algorithm fits;
        TDM_TRY(tdm_call_algorithm(b->world, &call, &fits, err));
        if (fits != row->algorithm) continue;
        TDM_TRY(measure_row(b, row, b->plan->seconds, err));
        if (best < 0 || row->seconds < b->out->rows[best].seconds) best = b->out->row_count;
        b->out->row_count++;
    }
    if (best >= 0) b->out->rows[best].chosen = true;
    return TDM_OK;
}

static tdm_status tune_all(bencher *b, tdm_error *err)
{
    static const tdm_call_kind kinds[] = {TDM_CALL_BROADCAST, TDM_CALL_REDUCE, TDM_CALL_ALL_REDUCE,
                                          TDM_CALL_REDUCE_SCATTER, TDM_CALL_ALL_GATHER};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
        for (int i = 0; i < b->plan->size_count; i++)
            TDM_TRY(tune_size(b, kinds[k], b->plan->bytes[i], err));
    return TDM_OK;
}

static tdm_status measure_all(bencher *b, bool tune, tdm_error *err)
{
    tdm_comm_info info;
    tdm_comm_info_get(b->comm, &info);
    b->world = tdm_comm_world(b->comm);
    b->out->rank = tdm_comm_rank(b->comm);
    b->out->size = tdm_comm_size(b->comm);
    b->out->one_host = info.host_count == 1;
    snprintf(b->out->transport, sizeof(b->out->transport), "%s", info.transport);
    TDM_TRY(make_buffer(b, err));
    if (tune) return tune_all(b, err);
    TDM_TRY(measure_sizes(b, err));
    return measure_waiting(b, err);
}

tdm_status bench_measure(const bench_plan *plan, bool tune, bench_result *out, tdm_error *err)
{
    *out = (bench_result){0};
    bencher *b = calloc(1, sizeof(*b));
    if (!b) return tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory");
    b->plan = plan;
    b->out = out;
    const tdm_comm_options options = {.transport = plan->transport, .deadline_s = DEADLINE_S};
    tdm_status status = tdm_comm_open(&options, &b->comm, err);
    if (status == TDM_OK) {
        status = measure_all(b, tune, err);
        tdm_comm_shared_free(b->comm, b->shared);
        tdm_comm_close(b->comm);
    }
    tdm_pages_unmap(&b->pages);
    free(b);
    return status;
}
