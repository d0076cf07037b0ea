/*
 * images.h -- what sets of images share, whatever their files look like.  Private to this folder.
 *
 * An opener (idx.c, cifar.c) makes an images_new, lists the files of both splits, loads the labels,
 * sets the sizes, and ends with images_ready.
 */
#ifndef SNUG_DATA_IMAGES_H
#define SNUG_DATA_IMAGES_H

#include "data/source.h"

enum { IMAGE_CHANNELS_MAX = 4, IMAGE_FILES_MAX = 16 };

/* header_bytes, then n records of skip_bytes (a label) and an image */
struct image_file {
    char *path;
    int fd; /* of the file, or of what it was unpacked into */
    int64_t n, header_bytes, skip_bytes;
};

struct image_split {
    struct image_file files[IMAGE_FILES_MAX];
    int n_files;
    unsigned char *classes; /* all labels: a byte each, not worth a read each */
};

struct images {
    struct data data;
    struct image_split splits[2];
    int64_t channels, height, width;
    float pixel[IMAGE_CHANNELS_MAX][256]; /* what each byte becomes */
};

/* NULL: out of memory.  Freed by data_close. */
struct images *images_new(const char *kind, const struct data_request *request);

/* The next file of a split, or NULL if there are too many; its fd is -1. */
struct image_file *images_add_file(struct images *images, enum data_split split);

/* Refuses a label that the model has no class for; `path` and the sample's number are named. */
enum snug_status images_check_labels(const struct images *images, const char *path,
                                     const unsigned char *labels, int64_t n,
                                     struct snug_error *err);

/* Checks the sizes against the request and measures the pixels; `folder` is for messages. */
enum snug_status images_ready(struct images *images, const char *folder, struct snug_error *err);

static inline int64_t image_bytes(const struct images *images)
{
    return images->channels * images->height * images->width;
}

#endif
