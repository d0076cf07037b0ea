/*
 * documents.h -- the token ids of text files, each a document.
 */
#ifndef SNUG_DATA_DOCUMENTS_H
#define SNUG_DATA_DOCUMENTS_H

#include "token/encoder.h"

/* Called with the ids of documents, in order and piece by piece. */
typedef enum snug_status documents_fn(const int32_t *ids, size_t n, void *user,
                                      struct snug_error *err);

struct documents {
    const struct tokenizer *tokenizer;
    struct encoder *encoder;
    documents_fn *take;
    void *user;
    char *window; /* of text */
    size_t capacity;
    struct token_ids ids;
};

/* `take` and `user` are called with all ids. */
enum snug_status documents_begin(struct documents *d, const struct tokenizer *t, int threads,
                                 documents_fn *take, void *user, struct snug_error *err);
/* Encodes a file; the token that begins a text stands before its ids, the one that ends a text
 * after them, if the tokenizer has these.  *n_ids: how many, 0 for an empty file. */
enum snug_status documents_add(struct documents *d, const char *path, int64_t *n_ids,
                               struct snug_error *err);
void documents_free(struct documents *d);

#endif
