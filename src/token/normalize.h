/*
 * normalize.h -- what a tokenizer changes in a text before it looks for words.
 */
#ifndef SNUG_TOKEN_NORMALIZE_H
#define SNUG_TOKEN_NORMALIZE_H

#include "token/tokenizer.h"

/* Appends the text with metaspaces for spaces, and one before it as the spec says.  Each of these
 * returns false if out of memory. */
bool add_metaspaces(const struct tokenizer_spec *spec, const char *text, size_t n, bool begins_text,
                    bool begins_segment, struct buffer *out);

/* Can the normalizer of the file change this text? */
bool tokenizer_normalizes(const struct tokenizer *t, const char *text, size_t n);
/* Appends the normalized text.  `begins`: it is the beginning of a text, or stands after an added
 * token. */
bool tokenizer_normalize(const struct tokenizer *t, const char *text, size_t n, bool begins,
                         struct buffer *out);

#endif
