/*
 * fuzz_safetensors.c: any bytes as a safetensors file.
 *
 * Nothing may crash, leak or read past the end. If the reader accepts the bytes, the result is
 * checked: names in strict order, sizes that match dtype and shape, aligned data that can be read to
 * the last byte, and lookups that find every name of the list. Then the content is written and read again:
 * it must be equal, and a second write must give the same bytes. Bytes that begin with zstd's magic number
 * are a packed file; their content is also written packed.
 */
#include "checkpoint/checkpoint.h"
#include <tandem/checkpoint.h>
#include <tandem/os.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

__attribute__((noreturn)) static void broken(const char *what)
{
    fprintf(stderr, "fuzz_safetensors: %s\n", what);
    abort();
}

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) broken(what);                                                            \
    } while (0)

/* Limit for inputs: a byte of a packed file may expand to many bytes, and longer files take too long. */
enum { MAX_PACKED = 43700, MAX_PACKED_BYTES = 2048 };

static bool is_packed(const uint8_t *bytes, size_t count)
{
    return count >= 4 && memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0;
}

static void check_tensor(const tdm_safetensors *file, size_t index, size_t file_bytes)
{
    const tdm_named_tensor *item = tdm_safetensors_at(file, index);
    size_t element_bytes = tdm_dtype_bytes(item->tensor.dtype);
    int64_t elements = tdm_tensor_elements(&item->tensor);
    NEED(element_bytes > 0 && elements >= 0, "a tensor has no dtype or no sane shape");
    size_t data_bytes = tdm_tensor_bytes(&item->tensor);
    NEED(data_bytes == (size_t)elements * element_bytes && data_bytes <= file_bytes,
         "a tensor is larger than its file");
    NEED((uintptr_t)item->tensor.data % element_bytes == 0, "data are not aligned");
    const volatile uint8_t *data = item->tensor.data;
    unsigned sum = 0;
    for (size_t i = 0; i < data_bytes; i++) sum += data[i];
    (void)sum;
    NEED(tdm_safetensors_find(file, item->name) == item, "a name is not found");
    if (index > 0) {
        NEED(strcmp(tdm_safetensors_at(file, index - 1)->name, item->name) < 0,
             "names are not in order");
    }
}

static void check_metadata(const tdm_safetensors *file)
{
    for (size_t i = 0; i < tdm_safetensors_metadata_count(file); i++) {
        const tdm_named_text *text = tdm_safetensors_metadata_at(file, i);
        NEED(tdm_safetensors_metadata(file, text->name) == text->text, "metadata are not found");
    }
}

static void check_same(const tdm_safetensors *a, const tdm_safetensors *b)
{
    NEED(tdm_safetensors_count(a) == tdm_safetensors_count(b), "other number of tensors");
    for (size_t i = 0; i < tdm_safetensors_count(a); i++) {
        const tdm_named_tensor *x = tdm_safetensors_at(a, i);
        const tdm_named_tensor *y = tdm_safetensors_at(b, i);
        size_t data_bytes = tdm_tensor_bytes(&x->tensor);
        NEED(strcmp(x->name, y->name) == 0, "another name came back");
        NEED(x->tensor.dtype == y->tensor.dtype, "another dtype came back");
        NEED(tdm_shape_equal(&x->tensor.shape, &y->tensor.shape), "another shape came back");
        NEED(data_bytes == 0 || memcmp(x->tensor.data, y->tensor.data, data_bytes) == 0,
             "other data came back");
    }
    NEED(tdm_safetensors_metadata_count(a) == tdm_safetensors_metadata_count(b),
         "other number of metadata");
    for (size_t i = 0; i < tdm_safetensors_metadata_count(a); i++) {
        const tdm_named_text *x = tdm_safetensors_metadata_at(a, i);
        const tdm_named_text *y = tdm_safetensors_metadata_at(b, i);
        NEED(strcmp(x->name, y->name) == 0 && strcmp(x->text, y->text) == 0,
             "other metadata came back");
    }
}

static void write_to(const tdm_safetensors *file, const char *path)
{
    tdm_error err;
    tdm_status status = tdm_safetensors_write(
        path, tdm_safetensors_at(file, 0), tdm_safetensors_count(file),
        tdm_safetensors_metadata_at(file, 0), tdm_safetensors_metadata_count(file), &err);
    NEED(status == TDM_OK, err.message);
}

/* Writes and reads the file twice: the content must be equal, and the second file must have the same bytes. */
static void check_round_trip(const tdm_safetensors *file, bool packed)
{
    struct stat info; /* a file system in memory spares the disk thousands of small files */
    const char *directory = stat("/dev/shm", &info) == 0 ? "/dev/shm" : "/tmp";
    char path[2][64];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "%s/tandem-fuzz-%ld-%d%s", directory, (long)getpid(), i,
                 packed ? ".zst" : "");
    }
    tdm_safetensors *back = NULL;
    tdm_file_bytes bytes[2] = {{0}};
    write_to(file, path[0]);
    NEED(tdm_safetensors_open(path[0], &back, NULL) == TDM_OK, "our own file does not open");
    check_same(file, back);
    write_to(back, path[1]);
    for (int i = 0; i < 2; i++) {
        NEED(tdm_file_read(path[i], 0, &bytes[i], NULL) == TDM_OK, "our own file cannot be read");
        unlink(path[i]);
    }
    NEED(bytes[0].count == bytes[1].count &&
             memcmp(bytes[0].data, bytes[1].data, bytes[0].count) == 0,
         "the same content gave other bytes");
    for (int i = 0; i < 2; i++) tdm_file_bytes_release(&bytes[i]);
    tdm_safetensors_destroy(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tdm_error err = {0};
    tdm_safetensors *file = NULL;
    bool packed = is_packed(bytes, count);
    if (packed && count > MAX_PACKED_BYTES) return 0;
    tdm_status status = tdm_safetensors_parse(bytes, count, "fuzz", &file, &err);
    if (status != TDM_OK) {
        NEED(file == NULL && err.status == status && strncmp(err.message, "fuzz: ", 6) == 0,
             "a failure without a message, or with an output");
        return 0;
    }
    for (size_t i = 0; i < tdm_safetensors_count(file); i++) {
        check_tensor(file, i, packed ? count * MAX_PACKED : count);
    }
    check_metadata(file);
    check_round_trip(file, packed);
    tdm_safetensors_destroy(file);
    return 0;
}
