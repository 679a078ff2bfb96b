/*
 * sparse_logistic.c: logistic regression on sparse samples, trained by two workers through two parameter servers, one of
 * which is killed meanwhile.
 *
 *     sparse_logistic TANDEM
 *
 * The program starts the servers (`tandem server`) and the workers (its own processes), kills a server when half of the
 * training is done, and then evaluates the model that the other server has. Each server has all rows (replication 2), so
 * nothing that was acknowledged is lost. The samples are generated: 12 features out of 2,000, whose weights decide the
 * class.
 */
#include <tandem/server.h>

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    FEATURES = 2000,
    PER_SAMPLE = 12,
    BATCH = 64,
    STEPS = 300,
    WORKERS = 2,
    TEST_SAMPLES = 4000,
    MAX_KEYS = BATCH * PER_SAMPLE
};

static const char group[] = "example";

static void fail(const char *what, const tdm_error *err)
{
    fprintf(stderr, "%s: %s: %s\n", what, tdm_status_name(err->status), err->message);
    exit(1);
}

/* ---- samples ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t word)
{
    word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
    return word ^ word >> 31;
}

/* The weight that training should find: uniform in [-1, 1). */
static double true_weight(uint64_t feature)
{
    return (double)(mix(feature + 77) >> 11) * 0x1p-52 - 1;
}

/* Frequent features have small numbers. */
static int sample_make(uint64_t number, uint64_t features[PER_SAMPLE])
{
    double sum = 0;
    for (int i = 0; i < PER_SAMPLE; i++) {
        double uniform = (double)(mix(number * PER_SAMPLE + (uint64_t)i + 1) >> 11) * 0x1p-53;
        features[i] = (uint64_t)(uniform * uniform * FEATURES);
        sum += true_weight(features[i]);
    }
    return sum > 0;
}

static double predict(const float *weights)
{
    double sum = 0;
    for (int i = 0; i < PER_SAMPLE; i++) sum += weights[i];
    return 1 / (1 + exp(-sum));
}

/* ---- a worker --------------------------------------------------------------------------------- */

static int worker_run(int number)
{
    tdm_error err;
    tdm_server_client *client = NULL;
    uint64_t keys[MAX_KEYS];
    float weights[MAX_KEYS], grads[MAX_KEYS];
    const tdm_server_client_options options = {.place = {.name = group}, .worker = number};
    if (tdm_server_client_open(&options, &client, &err) != TDM_OK) fail("open", &err);
    for (int step = 0; step < STEPS; step++) {
        int classes[BATCH];
        for (int i = 0; i < BATCH; i++) {
            uint64_t first = ((uint64_t)step * WORKERS + (uint64_t)number) * BATCH;
            uint64_t sample = first + (uint64_t)i;
            classes[i] = sample_make(TEST_SAMPLES + sample, keys + i * PER_SAMPLE);
        }
        if (tdm_server_client_pull(client, keys, MAX_KEYS, weights, NULL, &err) != TDM_OK)
            fail("pull", &err);
        for (int i = 0; i < BATCH; i++) {
            double error = predict(weights + i * PER_SAMPLE) - classes[i];
            for (int k = 0; k < PER_SAMPLE; k++) grads[i * PER_SAMPLE + k] = (float)(error / BATCH);
        }
        if (tdm_server_client_push(client, keys, grads, MAX_KEYS, 0.3, &err) != TDM_OK)
            fail("push", &err);
        usleep(3000); /* the model of a real program takes longer than this */
    }
    if (tdm_server_client_close(client, &err) != TDM_OK) fail("close", &err);
    return 0;
}

/* ---- processes -------------------------------------------------------------------------------- */

static pid_t server_start(const char *program)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    int out = open("/dev/null", O_WRONLY);
    if (out >= 0) dup2(out, 1);
    execl(program, "tandem", "server", group, "--width", "1", "--optim", "adagrad", "--replication",
          "2", (char *)NULL);
    perror(program);
    _exit(127);
}

static double accuracy(void)
{
    tdm_error err;
    tdm_server_client *client = NULL;
    int right = 0;
    const tdm_server_client_options options = {.place = {.name = group}, .worker = -1};
    if (tdm_server_client_open(&options, &client, &err) != TDM_OK) fail("open", &err);
    for (int i = 0; i < TEST_SAMPLES; i++) {
        uint64_t keys[PER_SAMPLE];
        float weights[PER_SAMPLE];
        int class = sample_make((uint64_t)i, keys);
        if (tdm_server_client_pull(client, keys, PER_SAMPLE, weights, NULL, &err) != TDM_OK)
            fail("pull", &err);
        right += (predict(weights) > 0.5) == class;
    }
    if (tdm_server_client_close(client, &err) != TDM_OK) fail("close", &err);
    return 100.0 * right / TEST_SAMPLES;
}

int main(int argc, char **argv)
{
    pid_t servers[2], workers[WORKERS];
    if (argc != 2) {
        fprintf(stderr, "usage: sparse_logistic TANDEM\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) servers[i] = server_start(argv[1]);
    for (int i = 0; i < WORKERS; i++)
        if ((workers[i] = fork()) == 0) _exit(worker_run(i));

    usleep(700000);
    printf("killing a server\n");
    fflush(stdout);
    kill(servers[0], SIGKILL);

    int failed = 0;
    for (int i = 0; i < WORKERS; i++) {
        int status = 0;
        waitpid(workers[i], &status, 0);
        failed += status != 0;
    }
    if (!failed) printf("test accuracy %.1f %%\n", accuracy());
    for (int i = 0; i < 2; i++) {
        kill(servers[i], SIGKILL);
        waitpid(servers[i], NULL, 0);
    }
    return failed;
}
