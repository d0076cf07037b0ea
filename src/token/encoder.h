/*
 * encoder.h -- encodes texts with several threads.
 */
#ifndef SNUG_TOKEN_ENCODER_H
#define SNUG_TOKEN_ENCODER_H

#include "token/tokenizer.h"

struct token_text {
    const char *data;
    size_t n;
    bool continues, goes_on; /* parts of a longer text, cut at encoder_cut */
};

struct encoder; /* a tokenizer and, per thread, a cache of words */

/* The tokenizer must outlive the encoder. */
enum snug_status encoder_new(const struct tokenizer *t, int threads, struct encoder **encoder,
                             struct snug_error *err);
void encoder_free(struct encoder *encoder);

/* The last place in text[0, n), after its start, where a text that goes on may be cut so that the
 * parts have the ids of the whole; 0: there is none. */
size_t encoder_cut(const struct encoder *encoder, const char *text, size_t n);

/* Appends the ids of n texts; ends[i] is where those of text i end in `ids`.  Without `specials`,
 * special tokens in a text are ordinary characters. */
enum snug_status encoder_encode(struct encoder *encoder, const struct token_text *texts, int n,
                                bool specials, struct token_ids *ids, size_t *ends,
                                struct snug_error *err);

#endif
