/*
 * cifar.c -- CIFAR-10 in its publisher's binary format.
 *
 *     data_batch_1.bin ... data_batch_5.bin for training, test_batch.bin held out
 *     each file is a sequence of records:
 *     1 byte label, 1024 bytes red, 1024 green, 1024 blue (32 x 32 each, row by row)
 *
 * The files are in the folder itself or, as the archive unpacks, in its subfolder
 * cifar-10-batches-bin.  Fewer batches are fine, and batches of any length.
 */
#include "data/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum {
    CHANNELS = 3,
    SIDE = 32,
    N_CLASSES = 10,
    RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE,
    BATCHES_MOST = 5
};

static enum snug_status no_memory(const char *folder, struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the data set", folder);
}

/* Finds the folder with the files: the given one or its subfolder; NULL if neither.  The caller
 * frees *home. */
static enum snug_status find_home(const char *folder, char **home, struct snug_error *err)
{
    static const char *const below[] = {".", "cifar-10-batches-bin"};
    bool found = false;
    *home = NULL;
    for (int i = 0; i < 2 && !found; i++) {
        *home = i == 0 ? strdup(folder) : path_join(folder, below[i], "");
        enum snug_status status = *home == NULL ? no_memory(folder, err)
                                                : path_find(*home, "data_batch_1.bin", &found, err);
        if (status != SNUG_OK || !found) {
            free(*home);
            *home = NULL;
        }
        TRY(status);
    }
    return SNUG_OK;
}

enum snug_status source_is_cifar(const char *path, bool *is_cifar, struct snug_error *err)
{
    char *home;
    TRY(find_home(path, &home, err));
    *is_cifar = home != NULL;
    free(home);
    return SNUG_OK;
}

struct data_image source_cifar_image(void)
{
    return (struct data_image){CHANNELS, SIDE, SIDE, N_CLASSES};
}

static enum snug_status open_batch(struct images *images, const char *home, const char *name,
                                   enum data_split split, struct snug_error *err)
{
    struct image_file *file = images_add_file(images, split);
    int64_t n_bytes;
    file->path = path_join(home, name, "");
    if (file->path == NULL)
        return no_memory(home, err);
    TRY(fd_open_read(file->path, &file->fd, &n_bytes, err));
    if (n_bytes < 1 || n_bytes % RECORD_BYTES != 0)
        return snug_fail(err, n_bytes < 1 ? SNUG_NO_DATA : SNUG_BAD_FILE,
                         "%s: %s: %lld bytes are not a multiple of %d, the bytes of an image",
                         file->path, n_bytes < 1 ? "empty" : "truncated", (long long)n_bytes,
                         RECORD_BYTES);
    file->n = n_bytes / RECORD_BYTES;
    file->skip_bytes = 1;
    return SNUG_OK;
}

static enum snug_status load_labels(struct images *images, enum data_split split,
                                    struct snug_error *err)
{
    struct image_split *s = &images->splits[split];
    int64_t n = 0, done = 0;
    for (int i = 0; i < s->n_files; i++)
        n += s->files[i].n;
    s->classes = malloc((size_t)n + 1); /* not NULL for n = 0 */
    if (s->classes == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory for %lld labels", s->files[0].path,
                         (long long)n);
    for (int i = 0; i < s->n_files; i++) {
        const struct image_file *file = &s->files[i];
        for (int64_t k = 0; k < file->n; k++)
            TRY(fd_read_at(file->fd, file->path, s->classes + done + k, 1, k * RECORD_BYTES, err));
        TRY(images_check_labels(images, file->path, s->classes + done, file->n, err));
        done += file->n;
    }
    return SNUG_OK;
}

static enum snug_status open_set(struct images *images, const char *home, struct snug_error *err)
{
    for (int i = 1; i <= BATCHES_MOST; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        bool there;
        TRY(path_find(home, name, &there, err));
        if (there)
            TRY(open_batch(images, home, name, DATA_TRAIN, err));
    }
    TRY(open_batch(images, home, "test_batch.bin", DATA_HELD_OUT, err));
    images->channels = CHANNELS, images->height = SIDE, images->width = SIDE;
    for (int split = 0; split < 2; split++)
        TRY(load_labels(images, (enum data_split)split, err));
    return images_ready(images, home, err);
}

enum snug_status source_open_cifar(const char *folder, const struct data_request *request,
                                   struct data **data, struct snug_error *err)
{
    char *home;
    TRY(find_home(folder, &home, err));
    struct images *images = home == NULL ? NULL : images_new("cifar-10 images", request);
    enum snug_status status = SNUG_OK;
    if (images == NULL)
        status = no_memory(folder, err);
    else
        status = open_set(images, home, err);
    if (status == SNUG_OK)
        *data = &images->data;
    else if (images != NULL)
        data_close(&images->data);
    free(home);
    return status;
}
