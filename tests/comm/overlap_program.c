/*
 * overlap_program.c: measures which part of the communication of a training step overlaps with its backward
 * pass.
 *
 *     overlap_program BUCKETS BYTES COMPUTE_MS STEPS [scatter]
 *
 * One rank of a world (its rank comes from the environment). A step computes BUCKETS times for about
 * COMPUTE_MS, at full load on one thread, and starts after each the sum of a bucket of BYTES over two lanes for
 * each rank: an all-reduce, or with `scatter` a reduce-scatter and, when the computation has ended, gathers in
 * the opposite order, the most urgent last. Steps of three kinds alternate: only computation, only
 * communication, and both; the median of each counts. Communication that is left when the computation of a step
 * has ended is not hidden. The part that could be hidden is everything except what is left if each bucket takes
 * its share of the time of communication alone, one after the other, each from the moment it is ready. Rank 0
 * prints the result as JSON, with the CPU time of the three kinds of steps.
 */
#include <tandem/os.h>
#include <tandem/trace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MAX_BUCKETS = 64, MAX_STEPS = 200, WORK = 1 << 16 };

typedef enum step_kind { COMPUTE, TALK, BOTH, STEP_KINDS } step_kind;

typedef struct overlap {
    tdm_comm *comm;
    int bucket_count, step_count;
    size_t count; /* elements of a bucket */
    bool scatter;
    long turns; /* of the computation for one bucket */
    float *work;
    float *buckets[MAX_BUCKETS];
    int64_t first[65];
    tdm_lanes lanes;
    size_t cuts[65];
    double seconds[STEP_KINDS][MAX_STEPS], cpu_s[STEP_KINDS];
    double computed_s[MAX_STEPS], left_s[MAX_STEPS]; /* of the steps that do both */
} overlap;

static void fail(const tdm_error *err)
{
    fprintf(stderr, "overlap: %s\n", err->message);
    exit(1);
}

static void compute(const overlap *o)
{
    for (long t = 0; t < o->turns; t++)
        for (int i = 0; i < WORK; i++) o->work[i] = o->work[i] * 0.999f + 0.001f;
}

static tdm_request *start(const overlap *o, int bucket, tdm_call_kind kind, const void **parts)
{
    tdm_error err = {0};
    tdm_request *request = NULL;
    int rank = tdm_comm_rank(o->comm);
    bool adds = kind != TDM_CALL_ALL_GATHER;
    parts[0] = o->buckets[bucket];
    float *out = o->buckets[bucket];
    tdm_call call = {.kind = kind,
                     .dtype = TDM_DTYPE_F32,
                     .count = o->count,
                     .out = kind == TDM_CALL_REDUCE_SCATTER ? out + o->cuts[rank] : out,
                     .lanes = adds ? &o->lanes : NULL,
                     .parts = adds ? parts : NULL,
                     .cuts = o->cuts,
                     .priority = adds ? 1 + o->bucket_count - bucket : 0};
    if (tdm_call_start(tdm_comm_world(o->comm), &call, &request, &err) != TDM_OK) fail(&err);
    return request;
}

static void finish(tdm_request **requests, int count)
{
    tdm_error err = {0};
    for (int i = 0; i < count; i++)
        if (tdm_request_wait(requests[i], &err) != TDM_OK) fail(&err);
}

/* Returns the time at which the computation ended. */
static double run_step(const overlap *o, bool computes, bool talks)
{
    tdm_request *requests[MAX_BUCKETS];
    const void *parts[MAX_BUCKETS];
    uint64_t begin_ns = tdm_clock_ns();
    for (int i = 0; i < o->bucket_count; i++) {
        if (computes) compute(o);
        if (talks)
            requests[i] = start(o, i, o->scatter ? TDM_CALL_REDUCE_SCATTER : TDM_CALL_ALL_REDUCE,
                                &parts[i]);
    }
    double computed_s = tdm_clock_s();
    if (computes) tdm_comm_mark(o->comm, "backward", tdm_clock_ns() - begin_ns);
    if (!talks) return computed_s;
    finish(requests, o->bucket_count);
    for (int i = o->bucket_count - 1; o->scatter && i >= 0; i--)
        requests[i] = start(o, i, TDM_CALL_ALL_GATHER, &parts[i]);
    if (o->scatter) finish(requests, o->bucket_count);
    return computed_s;
}

static double cpu_now_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void barrier(const overlap *o)
{
    tdm_error err = {0};
    if (tdm_group_barrier(tdm_comm_world(o->comm), &err) != TDM_OK) fail(&err);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), by_size);
    return values[count / 2];
}

/* The communication that is left after `computed_s` of computation, at best. Gathers, which are half of it if
 * sums are scattered, all follow afterwards. */
static double min_left_s(const overlap *o, double computed_s, double talk_s)
{
    double end_s = 0, gathers_s = o->scatter ? talk_s / 2 : 0;
    double each_s = (talk_s - gathers_s) / o->bucket_count;
    for (int i = 1; i <= o->bucket_count; i++) {
        double ready_s = computed_s * i / o->bucket_count;
        end_s = (end_s > ready_s ? end_s : ready_s) + each_s;
    }
    return end_s + gathers_s - computed_s;
}

static void report(overlap *o)
{
    double compute_s = median(o->seconds[COMPUTE], o->step_count);
    double talk_s = median(o->seconds[TALK], o->step_count);
    double both_s = median(o->seconds[BOTH], o->step_count);
    double computed_s = median(o->computed_s, o->step_count);
    double left_s = median(o->left_s, o->step_count);
    double min_s = min_left_s(o, computed_s, talk_s);
    int size = tdm_comm_size(o->comm);
    double sent = 2.0 * (double)o->count * sizeof(float) * o->bucket_count * (size - 1) / size;
    printf(
        "{\"compute_s\": %.4f, \"communication_s\": %.4f, \"both_s\": %.4f, \"computed_s\": %.4f, "
        "\"left_s\": %.4f, \"least_left_s\": %.4f, \"hidden\": %.3f, \"rate\": %.0f, "
        "\"cpu_s\": [%.4f, %.4f, %.4f]}\n",
        compute_s, talk_s, both_s, computed_s, left_s, min_s, (talk_s - left_s) / (talk_s - min_s),
        sent / talk_s, o->cpu_s[COMPUTE], o->cpu_s[TALK], o->cpu_s[BOTH]);
}

static void measure(overlap *o)
{
    run_step(o, true, true); /* all pages are touched, all connections are open */
    for (int s = 0; s < o->step_count; s++)
        for (int kind = 0; kind < STEP_KINDS; kind++) {
            barrier(o);
            double begin_s = tdm_clock_s(), cpu_s = cpu_now_s();
            double computed_s = run_step(o, kind != TALK, kind != COMPUTE);
            o->cpu_s[kind] += (cpu_now_s() - cpu_s) / o->step_count;
            double end_s = tdm_clock_s();
            barrier(o); /* a step is over when it is over on all ranks */
            o->seconds[kind][s] = tdm_clock_s() - begin_s;
            o->computed_s[s] = computed_s - begin_s; /* BOTH is the last kind */
            o->left_s[s] = end_s - computed_s;
        }
    if (tdm_comm_rank(o->comm) == 0) report(o);
}

/* This number of rounds takes about the right time. */
static void calibrate(overlap *o, double seconds)
{
    o->turns = 20;
    compute(o);
    double begin_s = tdm_clock_s();
    compute(o);
    double turn_s = (tdm_clock_s() - begin_s) / (double)o->turns;
    o->turns = (long)(seconds / turn_s) + 1;
    tdm_error err = {0};
    int64_t turns = o->turns; /* the same number on all ranks */
    if (tdm_group_broadcast(tdm_comm_world(o->comm), &turns, 1, TDM_DTYPE_I64, 0, &err) != TDM_OK)
        fail(&err);
    o->turns = (long)turns;
}

int main(int argc, char **argv)
{
    if (argc < 5) return 2;
    static overlap o;
    tdm_error err = {0};
    o.bucket_count = atoi(argv[1]);
    o.count = strtoul(argv[2], NULL, 10) / sizeof(float);
    o.step_count = atoi(argv[4]);
    o.scatter = argc > 5 && strcmp(argv[5], "scatter") == 0;
    if (o.bucket_count < 1 || o.bucket_count > MAX_BUCKETS || o.step_count < 1 ||
        o.step_count > MAX_STEPS || o.count < 1)
        return 2;
    if (tdm_comm_open(NULL, &o.comm, &err) != TDM_OK) fail(&err);
    int size = tdm_comm_size(o.comm), lanes = 1;
    if (size > 64) return 2;
    while (lanes < size) lanes *= 2;
    for (int i = 0; i <= size; i++) {
        o.first[i] = (int64_t)lanes * i / size;
        o.cuts[i] = i < size ? tdm_group_slice(o.count, size, i).first : o.count;
    }
    o.lanes = (tdm_lanes){.lane_count = lanes, .first = o.first};
    o.work = calloc(WORK, sizeof(float));
    for (int i = 0; i < o.bucket_count; i++) o.buckets[i] = calloc(o.count, sizeof(float));
    calibrate(&o, strtod(argv[3], NULL) / 1000);
    measure(&o);
    tdm_comm_close(o.comm);
    for (int i = 0; i < o.bucket_count; i++) free(o.buckets[i]);
    free(o.work);
    return 0;
}
