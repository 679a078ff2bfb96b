/*
 * mpi_allreduce.c: what MPI needs for an all-reduce of f32, under its own mpirun.
 *
 *     mpirun -n N mpi_allreduce SECONDS BYTES...
 *
 * Measured as `tandem bench allreduce` does: in place, samples of some calls with a barrier before
 * each, a sample's time is the slowest rank's, and the median of them counts. Prints one JSON object.
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 1000, MIN_SAMPLES = 5, MAX_BATCH = 10000 };
static const double SAMPLE_S = 200e-6;

static double sample(float *data, int count, int batch)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < batch; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) / batch;
}

static int between(double value, int min, int max)
{
    return value < min ? min : value > max ? max : (int)value;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double measure(size_t bytes, double seconds)
{
    static double times[MAX_SAMPLES];
    int count = bytes < sizeof(float) ? 1 : (int)(bytes / sizeof(float));
    float *data = malloc((size_t)count * sizeof(float));
    if (!data) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(data, 0, (size_t)count * sizeof(float));
    double once = 0;
    for (int i = 0; i < 3; i++) once = sample(data, count, 1);
    int sizes[2];
    sizes[0] = between(SAMPLE_S / once, 1, MAX_BATCH);
    sizes[1] = between(seconds / (sizes[0] * once), MIN_SAMPLES, MAX_SAMPLES);
    MPI_Bcast(sizes, 2, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < sizes[1]; i++) times[i] = sample(data, count, sizes[0]);
    MPI_Allreduce(MPI_IN_PLACE, times, sizes[1], MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)sizes[1], sizeof(times[0]), ascending);
    free(data);
    return times[sizes[1] / 2];
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    if (rank == 0) printf("{\"ranks\":%d,\"rows\":[", ranks);
    for (int i = 2; i < argc; i++) {
        size_t bytes = (size_t)strtoull(argv[i], NULL, 10);
        double median = measure(bytes, seconds);
        if (rank == 0)
            printf("%s{\"bytes\":%zu,\"seconds\":%.9g}", i > 2 ? "," : "", bytes, median);
    }
    if (rank == 0) printf("]}\n");
    MPI_Finalize();
    return 0;
}
