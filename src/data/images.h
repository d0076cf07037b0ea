/*
 * images.h -- code shared by all image formats.  Private to this folder.
 *
 * An opener (idx.c, cifar.c) calls images_new, adds the files of both splits, loads the labels,
 * sets the sizes and finally calls images_ready.
 */
#ifndef SNUG_DATA_IMAGES_H
#define SNUG_DATA_IMAGES_H

#include "data/source.h"

enum { IMAGE_CHANNELS_MAX = 4, IMAGE_FILES_MAX = 16 };

/* header_bytes, then n records of skip_bytes (a label) and an image */
struct image_file {
    char *path;
    int fd; /* of the file, or of the temporary file it was unpacked into */
    int64_t n, header_bytes, skip_bytes;
};

struct image_split {
    struct image_file files[IMAGE_FILES_MAX];
    int n_files;
    unsigned char *classes; /* all labels, one byte each, loaded at once */
};

struct images {
    struct data data;
    struct image_split splits[2];
    int64_t channels, height, width;
    float pixel[IMAGE_CHANNELS_MAX][256]; /* normalized value of each byte */
};

/* Returns NULL if out of memory.  data_close frees it. */
struct images *images_new(const char *kind, const struct data_request *request);

/* Appends a file to a split, with fd -1.  Returns NULL if there are too many. */
struct image_file *images_add_file(struct images *images, enum data_split split);

/* Fails if a label is outside the model's classes.  The error names `path` and the sample. */
enum snug_status images_check_labels(const struct images *images, const char *path,
                                     const unsigned char *labels, int64_t n,
                                     struct snug_error *err);

/* Checks the sizes against the request and computes the pixel statistics.  `folder` is for error
 * messages. */
enum snug_status images_ready(struct images *images, const char *folder, struct snug_error *err);

static inline int64_t image_bytes(const struct images *images)
{
    return images->channels * images->height * images->width;
}

#endif
