/*
 * token_api.c -- snug_tokenizer_*: text to token ids, and back.
 */
#include <omp.h>
#include <stdlib.h>

#include "io/hf_tokenizer.h"
#include "token/encoder.h"

struct snug_tokenizer {
    struct tokenizer *tokenizer;
    struct encoder *encoder;
};

enum snug_status snug_tokenizer_open(const char *path, int threads, snug_tokenizer **tokenizer,
                                     struct snug_error *err)
{
    *tokenizer = NULL;
    struct snug_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory for a tokenizer");
    enum snug_status status = hf_tokenizer_open(path, &t->tokenizer, err);
    if (status == SNUG_OK)
        status = encoder_new(t->tokenizer, threads > 0 ? threads : omp_get_num_procs(), &t->encoder,
                             err);
    if (status == SNUG_OK)
        *tokenizer = t;
    else
        snug_tokenizer_free(t);
    return status;
}

void snug_tokenizer_free(snug_tokenizer *t)
{
    if (t != NULL) {
        encoder_free(t->encoder);
        tokenizer_free(t->tokenizer);
    }
    free(t);
}

int64_t snug_tokenizer_size(const snug_tokenizer *t)
{
    return tokenizer_size(t->tokenizer);
}

enum snug_status snug_tokenizer_encode(snug_tokenizer *t, const char *const *texts,
                                       const size_t *lengths, int n, int parse_special,
                                       int32_t **ids, size_t *ends, struct snug_error *err)
{
    *ids = NULL;
    struct token_ids all = {0};
    struct token_text *list = malloc(((size_t)n + 1) * sizeof *list);
    if (list == NULL || !token_ids_reserve(&all, 1)) {
        free(list);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while encoding text");
    }
    for (int i = 0; i < n; i++)
        list[i] = (struct token_text){.data = texts[i], .n = lengths[i]};
    enum snug_status status =
        encoder_encode(t->encoder, list, n, parse_special != 0, &all, ends, err);
    free(list);
    if (status == SNUG_OK)
        *ids = all.data;
    else
        free(all.data);
    return status;
}

enum snug_status snug_tokenizer_decode(const snug_tokenizer *t, const int32_t *ids, size_t n,
                                       char **text, size_t *length, struct snug_error *err)
{
    struct buffer buffer = {0};
    *text = NULL;
    *length = 0;
    enum snug_status status = tokenizer_decode(t->tokenizer, ids, n, &buffer, err);
    if (status == SNUG_OK && !buffer_add(&buffer, "", 1))
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory while decoding tokens");
    if (status == SNUG_OK) {
        *text = buffer.data;
        *length = buffer.n - 1;
    } else {
        free(buffer.data);
    }
    return status;
}
