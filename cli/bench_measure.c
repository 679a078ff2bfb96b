/*
 * bench_measure.c: how long collectives take, as one rank of a world.
 *
 * A sample is a number of calls one after another, so many that the clock's own cost does not count;
 * before each the ranks meet at a barrier, which is not timed. A sample's time is that of the slowest
 * rank. Before the first sample the result of a call is checked: a fast sum that is wrong is no sum.
 *
 * While rank 0 measures the memory's bound the others wait at a barrier, asleep.
 */
#include "bench.h"

#include <tandem/os.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_SAMPLES = 1000, MIN_SAMPLES = 5, MAX_BATCH = 10000 };

static const double SAMPLE_S = 200e-6;      /* a sample lasts this long at least */
static const size_t MIN_BOUND = 100 * 1000; /* bytes: below, the bound is the threads' meeting */
static const double DEADLINE_S = 120;
static const double MAX_WAITING_S = 0.5;

typedef struct bencher {
    const bench_plan *plan;
    tdm_comm *comm;
    tdm_group *world;
    bench_result *out;
    tdm_pages pages;
    void *shared;
    char *data; /* as many bytes as the largest size needs */
    double samples[MAX_SAMPLES];
} bencher;

/* ---- buffers ----------------------------------------------------------------------------------- */

static size_t elements_of(const bencher *b, size_t bytes)
{
    size_t count = bytes / tdm_dtype_bytes(b->plan->dtype);
    return count > 0 ? count : 1;
}

/* Whole numbers up to 1,280 or so, in any of the types that can be added. */
static uint64_t encode(tdm_dtype dtype, int value)
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

/* Element i of what each rank brings, times `ranks`. */
static uint64_t element(const bencher *b, size_t index, int ranks)
{
    return encode(b->plan->dtype, ((int)(index % 5) + 1) * ranks);
}

static void fill(bencher *b, size_t count)
{
    size_t width = tdm_dtype_bytes(b->plan->dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = element(b, i, 1);
        memcpy(b->data + i * width, &bits, width);
    }
}

static tdm_status check_sum(const bencher *b, const bench_row *row, size_t count, tdm_error *err)
{
    size_t width = tdm_dtype_bytes(b->plan->dtype);
    int size = b->out->size;
    /* bf16 holds whole numbers up to 256, f16 up to 2,048. */
    int max = b->plan->dtype == TDM_DTYPE_BF16  ? 256
              : b->plan->dtype == TDM_DTYPE_F16 ? 2048
                                                : 1 << 20;
    if (5 * size > max) return TDM_OK;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = element(b, i, size);
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
    memset(b->data, 0, max); /* now all of it is there */
    return TDM_OK;
}

/* ---- one line ---------------------------------------------------------------------------------- */

/* In place, where that goes: slices lie in the whole. */
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

/* How many calls make a sample, and how many samples fit into the time: rank 0 says. */
static tdm_status agree(bencher *b, double call_s, double seconds, int64_t *batch, int64_t *count,
                        tdm_error *err)
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

/* Processor time of this process so far. */
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

static tdm_status sample(bencher *b, const tdm_call *call, int64_t batch, double *out_s,
                         tdm_error *err)
{
    TDM_TRY(tdm_group_barrier(b->world, err));
    double begin = tdm_clock_s();
    for (int64_t i = 0; i < batch; i++) TDM_TRY(tdm_call_run(b->world, call, err));
    *out_s = (tdm_clock_s() - begin) / (double)batch;
    return TDM_OK;
}

/* The first call: checked where it can be, and the next ones warm everything up. */
static tdm_status begin_row(bencher *b, const bench_row *row, const tdm_call *call, double *out_s,
                            tdm_error *err)
{
    size_t count = elements_of(b, row->bytes);
    fill(b, count);
    TDM_TRY(tdm_call_run(b->world, call, err));
    if (row->kind == TDM_CALL_ALL_REDUCE) TDM_TRY(check_sum(b, row, count, err));
    memset(b->data, 0, count * tdm_dtype_bytes(b->plan->dtype));
    for (int i = 0; i < 2; i++) TDM_TRY(sample(b, call, 1, out_s, err));
    return TDM_OK;
}

static tdm_status measure_row(bencher *b, bench_row *row, double seconds, tdm_error *err)
{
    tdm_call call = call_of(b, row);
    TDM_TRY(tdm_call_algorithm(b->world, &call, &row->algorithm, err));
    double once = 0;
    TDM_TRY(begin_row(b, row, &call, &once, err));
    int64_t batch, count;
    TDM_TRY(agree(b, once, seconds, &batch, &count, err));
    double cpu = cpu_seconds();
    for (int64_t i = 0; i < count; i++) TDM_TRY(sample(b, &call, batch, &b->samples[i], err));
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

/* Rank 0 alone; a failure there is told to the others by the closing of its comm. */
static tdm_status measure_bound(bencher *b, bench_row *row, tdm_error *err)
{
    if (row->bytes >= MIN_BOUND && b->out->one_host && b->out->size > 1 && b->out->rank == 0) {
        double seconds = b->plan->seconds < 1 ? b->plan->seconds : 1;
        TDM_TRY(tdm_comm_memory_bound(row->bytes, b->out->size, seconds, &row->bound_s, err));
    }
    return tdm_group_barrier(b->world, err);
}

/* What waiting costs: rank 0 comes late to a barrier. */
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
                "all_reduce of %s by %d ranks over %s cannot run by '%s'; it would by '%s'",
                tdm_dtype_name(b->plan->dtype), b->out->size, b->out->transport,
                tdm_algorithm_name(b->plan->algorithm), tdm_algorithm_name(row->algorithm));
        TDM_TRY(measure_bound(b, row, err));
    }
    return TDM_OK;
}

/* Floats added by a ring are not canonical: that is nobody's choice but the caller's. */
static bool may_choose(const bencher *b, tdm_call_kind kind, tdm_algorithm algorithm)
{
    bool adds = kind == TDM_CALL_ALL_REDUCE || kind == TDM_CALL_REDUCE ||
                kind == TDM_CALL_REDUCE_SCATTER;
    bool exact = b->plan->dtype == TDM_DTYPE_I32 || b->plan->dtype == TDM_DTYPE_I64;
    return algorithm != TDM_ALGORITHM_RING || !adds || exact;
}

/* Every algorithm that fits, at one size. */
static tdm_status tune_size(bencher *b, tdm_call_kind kind, size_t bytes, tdm_error *err)
{
    int best = -1;
    for (int a = TDM_ALGORITHM_AUTO + 1; a <= TDM_ALGORITHM_WINDOW; a++) {
        if (!may_choose(b, kind, (tdm_algorithm)a) || b->out->row_count == MAX_BENCH_ROWS) continue;
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

static tdm_status measure(bencher *b, bool tune, tdm_error *err)
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
    if (!b) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory");
    b->plan = plan;
    b->out = out;
    const tdm_comm_options options = {.transport = plan->transport, .deadline_s = DEADLINE_S};
    tdm_status status = tdm_comm_open(&options, &b->comm, err);
    if (status == TDM_OK) {
        status = measure(b, tune, err);
        tdm_comm_shared_free(b->comm, b->shared);
        tdm_comm_close(b->comm);
    }
    tdm_pages_unmap(&b->pages);
    free(b);
    return status;
}
