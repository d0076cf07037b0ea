/*
 * added_tokens.h -- tokens that are cut out of a text before it is split into words, as
 * "<|endoftext|>".
 */
#ifndef SNUG_TOKEN_ADDED_TOKENS_H
#define SNUG_TOKEN_ADDED_TOKENS_H

#include "token/unicode.h"

struct added_token { /* flags as in tokenizer.json */
    char *content;
    size_t n;
    int32_t id;
    bool single_word;    /* only where no word character is beside it */
    bool lstrip, rstrip; /* takes the spaces before, after it, too */
    bool normalized;     /* found in the normalized text */
    bool special;
};

struct added_tokens { /* all zeros is empty */
    struct added_token *data;
    int n, capacity;
    int32_t *sorted;    /* by first byte, then longest first */
    int32_t begin[257]; /* in `sorted`, by first byte */
};

struct added_match {
    size_t begin, end; /* in the text, with the spaces that it takes */
    size_t next;       /* where the search goes on: as in tokenizers, right after the content */
    int32_t id;
};

/* Copies the content.  false: out of memory. */
bool added_tokens_add(struct added_tokens *tokens, const struct added_token *token);
bool added_tokens_finish(struct added_tokens *tokens); /* after the last one; false likewise */
/* Finds the first match in text[from, n): the longest at its place.  It takes no spaces before
 * `floor`.  Skips special tokens if `specials` is false. */
bool added_tokens_find(const struct added_tokens *tokens, const struct unicode *u, const char *text,
                       size_t from, size_t floor, size_t n, bool specials,
                       struct added_match *match);
void added_tokens_free(struct added_tokens *tokens);

#endif
