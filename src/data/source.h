/*
 * source.h -- the interface of a data format to data.c.  Private to this folder.
 *
 * Each format is a struct that begins with struct data.  One of the functions below opens it and
 * checks that the data matches the request.
 */
#ifndef SNUG_DATA_SOURCE_H
#define SNUG_DATA_SOURCE_H

#include <stdbool.h>

#include "data/data.h"
#include "data/folder.h"

struct data {
    /* Writes sample number `position` of the endless order. */
    enum snug_status (*fill)(struct data *data, enum data_split split, int64_t position,
                             void *input, void *target, struct snug_error *err);
    /* See data_scan, and data_check for one sample; NULL if there is nothing to check. */
    enum snug_status (*scan)(struct data *data, int64_t most, struct snug_error *err);
    enum snug_status (*check)(struct data *data, enum data_split split, int64_t position,
                              struct snug_error *err);
    bool fills_in_any_thread;         /* fill may be called from several threads at once */
    bool has_classes;                 /* see data_has_classes */
    void (*close)(struct data *data); /* frees the whole struct */
    struct data_request request;      /* with spec NULL: the caller's string may be freed */
    const char *kind;
    int64_t n_samples[2]; /* by split */
    uint64_t fingerprint;
    uint64_t tokenizer; /* identity of the tokenizer that made the ids; 0: unknown */
};

/* random.c, token_shards.c, idx.c, cifar.c */
enum snug_status source_open_random(const struct data_request *request, struct data **data,
                                    struct snug_error *err);
enum snug_status source_open_tokens(const char *path, const struct data_request *request,
                                    struct data **data, struct snug_error *err);
enum snug_status source_open_idx(const char *folder, const struct data_request *request,
                                 struct data **data, struct snug_error *err);
enum snug_status source_is_idx(const char *path, bool *is_idx, struct snug_error *err);
enum snug_status source_idx_image(const char *folder, struct data_image *image,
                                  struct snug_error *err);
enum snug_status source_open_cifar(const char *folder, const struct data_request *request,
                                   struct data **data, struct snug_error *err);
enum snug_status source_is_cifar(const char *path, bool *is_cifar, struct snug_error *err);
struct data_image source_cifar_image(void);

/* temporary.c */
int source_temporary(void); /* a file descriptor; -1: none can be created, see errno */
bool source_write(int fd, const void *bytes, size_t n_bytes); /* all of them; false: see errno */

/* text_tokens.c */
/* Tokenizes text files, each a document, into an unlinked temporary file of 32-bit ids; n_tokens[i]
 * is the number of ids of file i. */
enum snug_status source_tokenize(const struct tokenizer *t, int threads, const char *const *paths,
                                 int n, int64_t *n_tokens, int *fd, struct snug_error *err);

/* gunzip.c */
/* Inflates a gzip file into an unlinked temporary file, which can be read at any offset. */
enum snug_status source_gunzip(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err);

static inline uint64_t source_mix(uint64_t hash, uint64_t value) /* for fingerprints */
{
    return (hash ^ value) * 0x100000001b3u ^ hash >> 29;
}

#endif
