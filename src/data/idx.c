/*
 * idx.c -- images and labels in IDX format: MNIST, Fashion-MNIST and similar sets.
 *
 *     *train*-images-idx3-ubyte   0x00000803, n, height, width (big-endian), then the pixel bytes
 *     *train*-labels-idx1-ubyte   0x00000801, n (big-endian), then n bytes
 *
 * The held-out files have t10k or test in place of train.  Each file may be gzipped (.gz).
 */
#include "data/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { MAX_IDX_DIMS = 3 };

static const char image_ending[] = "-images-idx3-ubyte", label_ending[] = "-labels-idx1-ubyte";

/* The base name of a path that ends in `ending`, with or without ".gz", else NULL.  *length is the
 * length of the part before `ending`. */
static const char *stem_of(const char *path, const char *ending, size_t *length)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    size_t n = strlen(name), m = strlen(ending);
    if (n > 3 && strcmp(name + n - 3, ".gz") == 0)
        n -= 3;
    *length = n - m;
    return n > m && memcmp(name + n - m, ending, m) == 0 ? name : NULL;
}

static bool has_word(const char *stem, size_t length, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++)
        if (memcmp(stem + i, word, n) == 0)
            return true;
    return false;
}

static bool is_of_split(const char *stem, size_t length, enum data_split split)
{
    return split == DATA_TRAIN ? has_word(stem, length, "train")
                               : has_word(stem, length, "t10k") || has_word(stem, length, "test");
}

enum snug_status source_is_idx(const char *path, bool *is_idx, struct snug_error *err)
{
    struct file_list list;
    struct snug_error why = {0};
    *is_idx = false;
    enum snug_status status = file_list_folder(path, false, &list, &why);
    if (status == SNUG_NO_MEMORY)
        return snug_fail(err, status, "%s", why.message);
    if (status != SNUG_OK)
        return SNUG_OK; /* a file, or an unreadable folder, which is reported later */
    for (int i = 0; i < list.n; i++) {
        size_t length;
        *is_idx = *is_idx || stem_of(list.paths[i], image_ending, &length) != NULL;
    }
    file_list_free(&list);
    return SNUG_OK;
}

/* The file of a split with this ending.  Prefers the plain file over a gzipped one. */
static enum snug_status find_part(const struct file_list *list, const char *folder,
                                  enum data_split split, const char *ending, const char **found,
                                  struct snug_error *err)
{
    const char *usual = split == DATA_TRAIN ? "train" : "t10k", *first = NULL;
    size_t first_length = 0, length;
    *found = NULL;
    for (int i = 0; i < list->n; i++) { /* sorted: NAME comes before NAME.gz */
        const char *stem = stem_of(list->paths[i], ending, &length);
        if (stem == NULL || !is_of_split(stem, length, split))
            continue;
        if (first != NULL && (length != first_length || memcmp(stem, first, length) != 0))
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: %s and %s belong to different data sets: use one folder per set",
                             folder, first, stem);
        if (first == NULL)
            *found = list->paths[i], first = stem, first_length = length;
    }
    if (*found == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %s%s (or %s%s.gz) is missing", folder, usual,
                         ending, usual, ending);
    return SNUG_OK;
}

static int64_t big_endian(const unsigned char *bytes)
{
    return (int64_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

/* Opens a file and checks its header against its length.  dim[0] is the number of samples. */
static enum snug_status open_part(const char *path, int n_dims, struct image_file *file,
                                  int64_t dim[MAX_IDX_DIMS], struct snug_error *err)
{
    unsigned char head[4 + 4 * MAX_IDX_DIMS];
    const char *what = n_dims == 3 ? "images" : "labels";
    size_t path_length = strlen(path);
    bool is_gzip = path_length > 3 && strcmp(path + path_length - 3, ".gz") == 0;
    int64_t n_bytes, expected = 1;
    file->path = strdup(path);
    if (file->path == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the file", path);
    TRY(is_gzip ? source_gunzip(path, &file->fd, &n_bytes, err)
                : fd_open_read(path, &file->fd, &n_bytes, err));
    file->header_bytes = 4 + 4 * n_dims;
    if (n_bytes < file->header_bytes)
        return snug_fail(err, SNUG_BAD_FILE, "%s: too short for IDX %s: %lld bytes", path, what,
                         (long long)n_bytes);
    TRY(fd_read_at(file->fd, path, head, file->header_bytes, 0, err));
    if (head[0] != 0 || head[1] != 0 || head[2] != 8)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: not an IDX file of bytes (it starts with %02x%02x%02x%02x)", path,
                         head[0], head[1], head[2], head[3]);
    if (head[3] != n_dims)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the header declares %d dimensions; IDX %s have %d", path, head[3],
                         what, n_dims);
    for (int i = 0; i < n_dims; i++) {
        dim[i] = big_endian(head + 4 + 4 * i);
        if (i > 0 && (dim[i] < 1 || dim[i] > INT16_MAX))
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: an image side of %lld pixels; it must be from 1 to %d", path,
                             (long long)dim[i], INT16_MAX);
        expected *= dim[i];
    }
    if (dim[0] < 1)
        return snug_fail(err, SNUG_NO_DATA, "%s: the file contains no %s", path, what);
    expected += file->header_bytes;
    if (n_bytes != expected)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %s: the header declares %lld %s, %lld bytes, but the file has %lld",
                         path, n_bytes < expected ? "truncated" : "too long", (long long)dim[0],
                         what, (long long)expected, (long long)n_bytes);
    file->n = dim[0];
    return SNUG_OK;
}

static enum snug_status load_labels(struct images *images, enum data_split split,
                                    const struct image_file *labels, struct snug_error *err)
{
    unsigned char **classes = &images->splits[split].classes;
    const struct image_file *file = &images->splits[split].files[0];
    if (labels->n != file->n)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %lld labels for the %lld images of %s",
                         labels->path, (long long)labels->n, (long long)file->n, file->path);
    *classes = malloc((size_t)labels->n + 1);
    if (*classes == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory for %lld labels", labels->path,
                         (long long)labels->n);
    TRY(fd_read_at(labels->fd, labels->path, *classes, labels->n, labels->header_bytes, err));
    return images_check_labels(images, labels->path, *classes, labels->n, err);
}

static enum snug_status open_split(struct images *images, const struct file_list *list,
                                   const char *folder, enum data_split split,
                                   struct snug_error *err)
{
    struct image_file *file = images_add_file(images, split), labels = {.fd = -1};
    int64_t dim[MAX_IDX_DIMS], n_labels[MAX_IDX_DIMS];
    const char *image_path, *label_path;
    TRY(find_part(list, folder, split, image_ending, &image_path, err));
    TRY(find_part(list, folder, split, label_ending, &label_path, err));
    TRY(open_part(image_path, 3, file, dim, err));
    if (split == DATA_HELD_OUT && (dim[1] != images->height || dim[2] != images->width))
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: images are %lld x %lld, but the training images are %lld x %lld",
                         image_path, (long long)dim[1], (long long)dim[2],
                         (long long)images->height, (long long)images->width);
    images->channels = 1, images->height = dim[1], images->width = dim[2];
    enum snug_status status = open_part(label_path, 1, &labels, n_labels, err);
    if (status == SNUG_OK)
        status = load_labels(images, split, &labels, err);
    if (labels.fd >= 0)
        close(labels.fd);
    free(labels.path);
    return status;
}

enum snug_status source_open_idx(const char *folder, const struct data_request *request,
                                 struct data **data, struct snug_error *err)
{
    struct images *images = images_new("idx images", request);
    struct file_list list = {0};
    if (images == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the data set", folder);
    enum snug_status status = file_list_folder(folder, false, &list, err);
    for (int split = 0; split < 2 && status == SNUG_OK; split++)
        status = open_split(images, &list, folder, (enum data_split)split, err);
    if (status == SNUG_OK)
        status = images_ready(images, images->splits[DATA_TRAIN].files[0].path, err);
    file_list_free(&list);
    if (status == SNUG_OK)
        *data = &images->data;
    else
        data_close(&images->data);
    return status;
}

/* The number of classes: the largest label plus one. */
static enum snug_status count_classes(const struct image_file *labels, int64_t *n_classes,
                                      struct snug_error *err)
{
    unsigned char block[4096];
    *n_classes = 1;
    for (int64_t at = 0, n; at < labels->n; at += n) {
        n = labels->n - at < (int64_t)sizeof block ? labels->n - at : (int64_t)sizeof block;
        TRY(fd_read_at(labels->fd, labels->path, block, n, labels->header_bytes + at, err));
        for (int64_t i = 0; i < n; i++)
            *n_classes = block[i] >= *n_classes ? block[i] + 1 : *n_classes;
    }
    return SNUG_OK;
}

enum snug_status source_idx_image(const char *folder, struct data_image *image,
                                  struct snug_error *err)
{
    struct image_file files[2] = {{.fd = -1}, {.fd = -1}};
    int64_t dim[MAX_IDX_DIMS] = {0}, n_labels[MAX_IDX_DIMS], n_classes = 1;
    const char *paths[2];
    struct file_list list = {0};
    enum snug_status status = file_list_folder(folder, false, &list, err);
    for (int k = 0; k < 2 && status == SNUG_OK; k++) {
        status = find_part(&list, folder, DATA_TRAIN, k == 0 ? image_ending : label_ending,
                           &paths[k], err);
        if (status == SNUG_OK)
            status = open_part(paths[k], k == 0 ? 3 : 1, &files[k], k == 0 ? dim : n_labels, err);
    }
    if (status == SNUG_OK)
        status = count_classes(&files[1], &n_classes, err);
    *image = (struct data_image){1, dim[1], dim[2], n_classes};
    for (int k = 0; k < 2; k++) {
        if (files[k].fd >= 0)
            close(files[k].fd);
        free(files[k].path);
    }
    file_list_free(&list);
    return status;
}
