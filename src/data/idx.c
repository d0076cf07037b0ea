/*
 * idx.c -- images and labels in MNIST's IDX format: MNIST, Fashion-MNIST and their kin.
 *
 *     images: 0x00000803, n, rows, columns (big-endian), then n x rows x columns bytes
 *     labels: 0x00000801, n,                             then n bytes
 *
 * A pixel v becomes (v / 255 - mean) / deviation.  Both are measured on the training images when
 * the set is opened and rounded to four places, which gives the numbers that the field quotes:
 * 0.2860 and 0.3530 for Fashion-MNIST, 0.1307 and 0.3081 for MNIST.
 */
#include "data/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/rng.h"

enum { MAX_IDX_DIMS = 3, CHUNK_BYTES = 1 << 16 };

static const char *const image_names[2] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"};
static const char *const label_names[2] = {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"};

struct idx_file {
    char *path;
    int fd; /* of the file, or of what it was unpacked into */
    int64_t n, item_bytes, header_bytes;
    int64_t dim[MAX_IDX_DIMS];
};

struct idx {
    struct data data;
    struct idx_file images[2], labels[2]; /* by split */
    float pixel[256];                     /* what each byte becomes */
    unsigned char *classes[2];            /* all labels: a byte each, not worth a read each */
};

static void close_idx(struct data *data)
{
    struct idx *idx = (struct idx *)data;
    for (int split = 0; split < 2; split++) {
        struct idx_file *files[] = {&idx->images[split], &idx->labels[split]};
        for (int k = 0; k < 2; k++) {
            if (files[k]->fd >= 0)
                close(files[k]->fd);
            free(files[k]->path);
        }
        free(idx->classes[split]);
    }
    free(idx);
}

static enum snug_status fill(struct data *data, enum data_split split, int64_t position,
                             void *input, void *target, struct snug_error *err)
{
    struct idx *idx = (struct idx *)data;
    struct idx_file *images = &idx->images[split];
    uint64_t n = (uint64_t)images->n, place = (uint64_t)position % n;
    if (split == DATA_TRAIN)
        place = rng_permute(data->request.seed, (uint64_t)position / n, place, n);
    /* The bytes are read to the end of where their floats will be: float i never lies on a byte
     * after i. */
    float *pixels = input;
    const unsigned char *bytes = (unsigned char *)input + 3 * images->item_bytes;
    TRY(fd_read_at(images->fd, images->path, (unsigned char *)input + 3 * images->item_bytes,
                   images->item_bytes, images->header_bytes + (int64_t)place * images->item_bytes,
                   err));
    for (int64_t i = 0; i < images->item_bytes; i++)
        pixels[i] = idx->pixel[bytes[i]];
    *(int32_t *)target = idx->classes[split][place];
    return SNUG_OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

/* The plain file if it is there, else the gzip one; NULL: neither, or no memory. */
static char *find_part(const char *folder, const char *name, bool *is_gzip)
{
    for (int gzip = 0; gzip < 2; gzip++) {
        char *path = path_join(folder, name, gzip ? ".gz" : "");
        if (path == NULL || access(path, F_OK) == 0) {
            *is_gzip = gzip;
            return path;
        }
        free(path);
    }
    return NULL;
}

bool source_is_idx(const char *folder)
{
    bool is_gzip;
    char *images = find_part(folder, image_names[DATA_TRAIN], &is_gzip);
    free(images);
    return images != NULL;
}

static int64_t big_endian(const unsigned char *bytes)
{
    return (int64_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

static enum snug_status read_header(struct idx_file *file, int n_dims, int64_t n_bytes,
                                    struct snug_error *err)
{
    unsigned char head[4 + 4 * MAX_IDX_DIMS];
    const char *what = n_dims == 3 ? "images" : "labels";
    file->header_bytes = 4 + 4 * n_dims;
    if (n_bytes < file->header_bytes)
        return snug_fail(err, SNUG_BAD_FILE, "%s: too short (%lld bytes) to be IDX %s", file->path,
                         (long long)n_bytes, what);
    TRY(fd_read_at(file->fd, file->path, head, file->header_bytes, 0, err));
    if (head[0] != 0 || head[1] != 0 || head[2] != 8)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: not an IDX file of bytes (it begins with %02x%02x%02x%02x)",
                         file->path, head[0], head[1], head[2], head[3]);
    if (head[3] != n_dims)
        return snug_fail(err, SNUG_BAD_FILE, "%s: has %d dimensions; IDX %s have %d", file->path,
                         head[3], what, n_dims);
    file->n = big_endian(head + 4);
    file->item_bytes = 1;
    for (int i = 1; i < n_dims; i++) {
        file->dim[i] = big_endian(head + 4 + 4 * i);
        if (file->dim[i] < 1 || file->dim[i] > INT16_MAX)
            return snug_fail(err, SNUG_BAD_FILE, "%s: images with a side of %lld pixels",
                             file->path, (long long)file->dim[i]);
        file->item_bytes *= file->dim[i];
    }
    if (file->n < 1)
        return snug_fail(err, SNUG_BAD_FILE, "%s: has no %s in it", file->path, what);
    int64_t promised = file->header_bytes + file->n * file->item_bytes;
    if (n_bytes != promised)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %s: the header promises %lld %s, %lld bytes, and there are %lld",
                         file->path, n_bytes < promised ? "cut short" : "too long",
                         (long long)file->n, what, (long long)promised, (long long)n_bytes);
    return SNUG_OK;
}

static enum snug_status open_part(const char *folder, const char *name, int n_dims,
                                  struct idx_file *file, struct snug_error *err)
{
    bool is_gzip;
    int64_t n_bytes;
    file->path = find_part(folder, name, &is_gzip);
    if (file->path == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %s (or %s.gz) is missing", folder, name, name);
    TRY(is_gzip ? source_gunzip(file->path, &file->fd, &n_bytes, err)
                : fd_open_read(file->path, &file->fd, &n_bytes, err));
    return read_header(file, n_dims, n_bytes, err);
}

/* Adds up how often each byte value occurs in the items of a file. */
static enum snug_status count_bytes(const struct idx_file *file, int64_t counts[256],
                                    struct snug_error *err)
{
    unsigned char chunk[CHUNK_BYTES];
    int64_t total = file->n * file->item_bytes;
    memset(counts, 0, 256 * sizeof *counts);
    for (int64_t done = 0, n; done < total; done += n) {
        n = total - done < CHUNK_BYTES ? total - done : CHUNK_BYTES;
        TRY(fd_read_at(file->fd, file->path, chunk, n, file->header_bytes + done, err));
        for (int64_t i = 0; i < n; i++)
            counts[chunk[i]]++;
    }
    return SNUG_OK;
}

static enum snug_status measure_pixels(struct idx *idx, struct snug_error *err)
{
    int64_t counts[256];
    double n = 0, sum = 0, squares = 0;
    TRY(count_bytes(&idx->images[DATA_TRAIN], counts, err));
    for (int v = 0; v < 256; v++) {
        n += (double)counts[v];
        sum += (double)counts[v] * v;
        squares += (double)counts[v] * v * v;
    }
    double mean = sum / n / 255, deviation = sqrt(squares / n / (255 * 255) - mean * mean);
    mean = round(mean * 1e4) / 1e4;
    deviation = round(deviation * 1e4) / 1e4;
    if (!(deviation > 0)) /* all pixels alike */
        deviation = 1;
    for (int v = 0; v < 256; v++)
        idx->pixel[v] = (float)((v / 255.0 - mean) / deviation);
    return SNUG_OK;
}

static enum snug_status check_labels(const struct idx_file *labels, int64_t n_classes,
                                     struct snug_error *err)
{
    int64_t counts[256];
    TRY(count_bytes(labels, counts, err));
    for (int v = 255; v >= n_classes; v--)
        if (counts[v] > 0)
            return snug_fail(err, SNUG_MISMATCH,
                             "%s: %lld labels are class %d, but the model has %lld classes",
                             labels->path, (long long)counts[v], v, (long long)n_classes);
    return SNUG_OK;
}

static enum snug_status load_labels(struct idx *idx, enum data_split split, struct snug_error *err)
{
    const struct idx_file *labels = &idx->labels[split];
    idx->classes[split] = malloc((size_t)labels->n + 1); /* none is no error here */
    if (idx->classes[split] == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory for %lld labels", labels->path,
                         (long long)labels->n);
    return fd_read_at(labels->fd, labels->path, idx->classes[split], labels->n,
                      labels->header_bytes, err);
}

static enum snug_status open_split(struct idx *idx, const char *folder, enum data_split split,
                                   struct snug_error *err)
{
    struct idx_file *images = &idx->images[split], *labels = &idx->labels[split];
    TRY(open_part(folder, image_names[split], 3, images, err));
    TRY(open_part(folder, label_names[split], 1, labels, err));
    if (images->n != labels->n)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %lld labels for the %lld images of %s",
                         labels->path, (long long)labels->n, (long long)images->n,
                         image_names[split]);
    if (images->item_bytes != idx->data.request.sample_elems)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: images are %lld x %lld = %lld numbers, but the model takes %lld",
                         images->path, (long long)images->dim[1], (long long)images->dim[2],
                         (long long)images->item_bytes, (long long)idx->data.request.sample_elems);
    idx->data.n_samples[split] = images->n;
    idx->data.fingerprint = source_mix(source_mix(idx->data.fingerprint, (uint64_t)images->n),
                                       (uint64_t)images->item_bytes);
    TRY(check_labels(labels, idx->data.request.n_classes, err));
    return load_labels(idx, split, err);
}

static enum snug_status open_set(struct idx *idx, const char *folder, struct snug_error *err)
{
    if (idx->data.request.target != DATA_TARGET_CLASS)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: is images with classes, and this model is not a classifier of images",
                         folder);
    for (int split = 0; split < 2; split++)
        TRY(open_split(idx, folder, (enum data_split)split, err));
    return measure_pixels(idx, err);
}

enum snug_status source_open_idx(const char *folder, const struct data_request *request,
                                 struct data **data, struct snug_error *err)
{
    struct idx *idx = malloc(sizeof *idx);
    if (idx == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory to open it", folder);
    *idx = (struct idx){.data = {.fill = fill,
                                 .close = close_idx,
                                 .request = *request,
                                 .fills_in_any_thread = true,
                                 .kind = "idx images",
                                 .fingerprint = rng_hash_string("idx images")},
                        .images = {{.fd = -1}, {.fd = -1}},
                        .labels = {{.fd = -1}, {.fd = -1}}};
    idx->data.request.spec = NULL;
    enum snug_status status = open_set(idx, folder, err);
    if (status == SNUG_OK)
        *data = &idx->data;
    else
        close_idx(&idx->data);
    return status;
}
