/*
 * replay_main.c: runs a fuzzing target over files, without a fuzzer.
 *
 * An ordinary build links each fuzz_NAME.c with this main, and ctest runs it over fuzz/corpus/NAME:
 * inputs that once broke a parser stay in the corpus, which prevents regressions. Arguments are
 * files, or directories whose files are all run, sorted by name. Each input is copied into a block of
 * exactly its size, so that the address sanitizer sees a read past its end. Every file is also run
 * truncated at a few places, because truncation is the most frequent damage of real files.
 * The exit status is 1 if there was no input: a test over an empty corpus would prove nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CUTS 8

static int run_bytes(const uint8_t *bytes, size_t count)
{
    uint8_t *exact = malloc(count > 0 ? count : 1);
    if (!exact) {
        fprintf(stderr, "replay: out of memory for %zu bytes\n", count);
        return -1;
    }
    if (count > 0) memcpy(exact, bytes, count);
    LLVMFuzzerTestOneInput(exact, count);
    free(exact);
    return 0;
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    long count = -1;
    int status = -1;

    if (file && fseek(file, 0, SEEK_END) == 0) count = ftell(file);
    if (count < 0 || fseek(file, 0, SEEK_SET) != 0) goto done;
    bytes = malloc((size_t)count + 1);
    if (!bytes || fread(bytes, 1, (size_t)count, file) != (size_t)count) goto done;

    status = run_bytes(bytes, (size_t)count);
    for (long i = 1; i < CUTS && status == 0; i++)
        status = run_bytes(bytes, (size_t)(count * i / CUTS));
    if (status == 0 && count > 0) status = run_bytes(bytes, (size_t)count - 1);
done:
    if (status != 0) fprintf(stderr, "replay: cannot run %s: %s\n", path, strerror(errno));
    free(bytes);
    if (file) fclose(file);
    return status;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Adds to *ran the number of files run. */
static int run_path(const char *path, long *ran)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return -1;
    }
    if (!S_ISDIR(info.st_mode)) {
        *ran += 1;
        return run_file(path);
    }

    struct dirent **entries;
    int count = scandir(path, &entries, is_visible, alphasort);
    int status = count < 0 ? -1 : 0;
    for (int i = 0; i < count; i++) {
        char below[4096];
        int length = snprintf(below, sizeof(below), "%s/%s", path, entries[i]->d_name);
        if (length < 0 || (size_t)length >= sizeof(below) || run_path(below, ran) != 0) status = -1;
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return status;
}

int main(int argc, char **argv)
{
    long ran = 0;
    int status = 0;
    for (int i = 1; i < argc; i++)
        if (run_path(argv[i], &ran) != 0) status = 1;
    printf("replay: ran %ld files\n", ran);
    return ran > 0 ? status : 1;
}
