/*
 * images.c -- image samples: shuffling, normalization and augmentation.
 *
 * A pixel v becomes (v / 255 - mean) / deviation.  Opening a set computes mean and deviation of
 * each channel over the training images and rounds them to four decimals, which gives the usual
 * values: 0.2860 and 0.3530 for Fashion-MNIST, 0.1307 and 0.3081 for MNIST.
 *
 * Augmentation works on the bytes, before normalization: pixels shifted in are black.  It is a
 * function of (seed, epoch, sample), so threads and resumed runs agree.
 */
#include "data/images.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/rng.h"

enum { CHUNK_BYTES = 1 << 16, MOST_SHIFT = 4 };

static void close_images(struct data *data)
{
    struct images *images = (struct images *)data;
    for (int split = 0; split < 2; split++) {
        for (int i = 0; i < images->splits[split].n_files; i++) {
            if (images->splits[split].files[i].fd >= 0)
                close(images->splits[split].files[i].fd);
            free(images->splits[split].files[i].path);
        }
        free(images->splits[split].classes);
    }
    free(images);
}

/* ---- one sample -------------------------------------------------------------------------- */

static void flip(const struct images *images, unsigned char *bytes)
{
    int64_t width = images->width;
    for (int64_t row = 0; row < images->channels * images->height; row++)
        for (int64_t x = 0; x < width / 2; x++) {
            unsigned char *left = &bytes[row * width + x];
            unsigned char *right = &bytes[(row + 1) * width - 1 - x], kept = *left;
            *left = *right;
            *right = kept;
        }
}

/* Shifts n bytes right by `by` (left if negative) and fills with zeros. */
static void slide(unsigned char *bytes, int64_t n, int64_t by)
{
    int64_t size = by < 0 ? -by : by;
    size = size < n ? size : n;
    size_t kept = (size_t)(n - size);
    if (by > 0) {
        memmove(bytes + size, bytes, kept);
        memset(bytes, 0, (size_t)size);
    } else {
        memmove(bytes, bytes + size, kept);
        memset(bytes + kept, 0, (size_t)size);
    }
}

static void shift(const struct images *images, unsigned char *bytes, int64_t right, int64_t down)
{
    int64_t plane = images->height * images->width;
    for (int64_t c = 0; c < images->channels; c++)
        slide(bytes + c * plane, plane, down * images->width);
    for (int64_t row = 0; row < images->channels * images->height; row++)
        slide(bytes + row * images->width, images->width, right);
}

static void augment(const struct images *images, uint64_t epoch, uint64_t sample,
                    unsigned char *bytes)
{
    enum { PLACES = 2 * MOST_SHIFT + 1 };
    int wanted = images->data.request.augment;
    uint64_t stream = rng_hash_string("augment") ^ epoch;
    uint64_t bits = rng_u64(images->data.request.seed, stream, sample);
    if ((wanted & DATA_AUGMENT_flip) && (bits & 1))
        flip(images, bytes);
    if (wanted & DATA_AUGMENT_shift)
        shift(images, bytes, (int64_t)((bits >> 1 & 0xffff) % PLACES) - MOST_SHIFT,
              (int64_t)((bits >> 17 & 0xffff) % PLACES) - MOST_SHIFT);
}

static enum snug_status read_image(const struct images *images, enum data_split split,
                                   int64_t sample, unsigned char *bytes, struct snug_error *err)
{
    const struct image_file *file = images->splits[split].files;
    for (; sample >= file->n; file++)
        sample -= file->n;
    int64_t n_bytes = image_bytes(images), record_bytes = file->skip_bytes + n_bytes;
    return fd_read_at(file->fd, file->path, bytes, n_bytes,
                      file->header_bytes + sample * record_bytes + file->skip_bytes, err);
}

static void write_target(const struct images *images, int class, void *target)
{
    if (images->data.request.target == DATA_TARGET_CLASS) {
        *(int32_t *)target = class;
        return;
    }
    float *one_hot = target;
    for (int64_t i = 0; i < images->data.request.target_elems; i++)
        one_hot[i] = i == class ? 1.0f : 0.0f;
}

static enum snug_status fill(struct data *data, enum data_split split, int64_t position,
                             void *input, void *target, struct snug_error *err)
{
    const struct images *images = (const struct images *)data;
    uint64_t n = (uint64_t)data->n_samples[split], place = (uint64_t)position % n;
    uint64_t epoch = (uint64_t)position / n;
    int64_t n_bytes = image_bytes(images), plane = images->height * images->width;
    if (split == DATA_TRAIN)
        place = rng_permute(data->request.seed, epoch, place, n);
    /* Read the bytes into the end of the float buffer: float i never overwrites a byte after i. */
    float *pixels = input;
    unsigned char *bytes = (unsigned char *)input + 3 * n_bytes;
    TRY(read_image(images, split, (int64_t)place, bytes, err));
    if (split == DATA_TRAIN && data->request.augment != DATA_AUGMENT_none)
        augment(images, epoch, place, bytes);
    for (int64_t c = 0; c < images->channels; c++)
        for (int64_t i = c * plane; i < (c + 1) * plane; i++)
            pixels[i] = images->pixel[c][bytes[i]];
    write_target(images, images->splits[split].classes[place], target);
    return SNUG_OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

struct images *images_new(const char *kind, const struct data_request *request)
{
    struct images *images = calloc(1, sizeof *images);
    if (images == NULL)
        return NULL;
    images->data = (struct data){.fill = fill,
                                 .close = close_images,
                                 .request = *request,
                                 .fills_in_any_thread = true,
                                 .has_classes = true,
                                 .kind = kind,
                                 .fingerprint = rng_hash_string(kind)};
    images->data.request.spec = NULL;
    return images;
}

struct image_file *images_add_file(struct images *images, enum data_split split)
{
    struct image_split *s = &images->splits[split];
    if (s->n_files == IMAGE_FILES_MAX)
        return NULL;
    s->files[s->n_files] = (struct image_file){.fd = -1};
    return &s->files[s->n_files++];
}

enum snug_status images_check_labels(const struct images *images, const char *path,
                                     const unsigned char *labels, int64_t n, struct snug_error *err)
{
    int64_t n_classes = images->data.request.n_classes;
    for (int64_t i = 0; i < n; i++)
        if (labels[i] >= n_classes)
            return snug_fail(err, SNUG_MISMATCH,
                             "%s: sample %lld has label %d, but the model has %lld classes, 0 to "
                             "%lld",
                             path, (long long)i, labels[i], (long long)n_classes,
                             (long long)n_classes - 1);
    return SNUG_OK;
}

typedef int64_t byte_counts[IMAGE_CHANNELS_MAX][256];

/* Counts the byte values of a piece of a file.  The piece starts `at` bytes into the records. */
static void count_bytes(const struct images *images, const struct image_file *file,
                        const unsigned char *bytes, int64_t n, int64_t at, byte_counts counts)
{
    int64_t plane = images->height * images->width;
    int64_t record = file->skip_bytes + images->channels * plane;
    for (int64_t done = 0, run; done < n; done += run) {
        int64_t inside = (at + done) % record - file->skip_bytes;
        int64_t channel = inside < 0 ? 0 : inside / plane;
        run = inside < 0 ? -inside : (channel + 1) * plane - inside;
        run = run < n - done ? run : n - done;
        for (int64_t i = done; inside >= 0 && i < done + run; i++)
            counts[channel][bytes[i]]++;
    }
}

static enum snug_status count_file(const struct images *images, const struct image_file *file,
                                   byte_counts counts, struct snug_error *err)
{
    unsigned char chunk[CHUNK_BYTES];
    int64_t total = file->n * (file->skip_bytes + image_bytes(images));
    for (int64_t at = 0, n; at < total; at += n) {
        n = total - at < CHUNK_BYTES ? total - at : CHUNK_BYTES;
        TRY(fd_read_at(file->fd, file->path, chunk, n, file->header_bytes + at, err));
        count_bytes(images, file, chunk, n, at, counts);
    }
    return SNUG_OK;
}

static enum snug_status measure_pixels(struct images *images, struct snug_error *err)
{
    byte_counts counts = {{0}};
    const struct image_split *train = &images->splits[DATA_TRAIN];
    for (int i = 0; i < train->n_files; i++)
        TRY(count_file(images, &train->files[i], counts, err));
    for (int c = 0; c < images->channels; c++) {
        double n = 0, sum = 0, squares = 0;
        for (int v = 0; v < 256; v++) {
            n += (double)counts[c][v];
            sum += (double)counts[c][v] * v;
            squares += (double)counts[c][v] * v * v;
        }
        double mean = sum / n / 255, deviation = sqrt(squares / n / (255 * 255) - mean * mean);
        mean = round(mean * 1e4) / 1e4;
        deviation = round(deviation * 1e4) / 1e4;
        if (!(deviation > 0)) /* all pixels are equal */
            deviation = 1;
        for (int v = 0; v < 256; v++)
            images->pixel[c][v] = (float)((v / 255.0 - mean) / deviation);
    }
    return SNUG_OK;
}

static enum snug_status check_sizes(const struct images *images, const char *folder,
                                    struct snug_error *err)
{
    const struct data_request *wanted = &images->data.request;
    char planes[32] = "";
    if (images->channels > 1)
        snprintf(planes, sizeof planes, "%lld x ", (long long)images->channels);
    if (wanted->channels > 0 &&
        (wanted->channels != images->channels || wanted->height != images->height ||
         wanted->width != images->width))
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: images are %lld x %lld x %lld (channels, height, width), but the "
                         "model takes %lld x %lld x %lld",
                         folder, (long long)images->channels, (long long)images->height,
                         (long long)images->width, (long long)wanted->channels,
                         (long long)wanted->height, (long long)wanted->width);
    if (image_bytes(images) != wanted->sample_elems)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: images are %s%lld x %lld = %lld elements, but the model takes %lld",
                         folder, planes, (long long)images->height, (long long)images->width,
                         (long long)image_bytes(images), (long long)wanted->sample_elems);
    return SNUG_OK;
}

enum snug_status images_ready(struct images *images, const char *folder, struct snug_error *err)
{
    struct data *data = &images->data;
    bool fits = data->request.target == DATA_TARGET_CLASS ||
                (data->request.target == DATA_TARGET_REAL &&
                 data->request.target_elems == data->request.n_classes);
    if (!fits)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: these are labeled images, but the model is not an image classifier",
                         folder);
    TRY(check_sizes(images, folder, err));
    for (int split = 0; split < 2; split++) {
        const struct image_split *s = &images->splits[split];
        for (int i = 0; i < s->n_files; i++)
            data->n_samples[split] += s->files[i].n;
        data->fingerprint =
            source_mix(source_mix(data->fingerprint, (uint64_t)data->n_samples[split]),
                       (uint64_t)image_bytes(images));
    }
    return measure_pixels(images, err);
}
