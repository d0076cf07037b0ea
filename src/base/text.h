/*
 * text.h -- a string that grows, and numbers as people write them.
 */
#ifndef SNUG_BASE_TEXT_H
#define SNUG_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "snug.h"

struct text {   /* all zeros is the empty text */
    char *data; /* ends in NUL unless NULL */
    size_t length, capacity;
    bool failed; /* out of memory; later adds do nothing */
};

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(struct text *text, const char *bytes, size_t length);
void text_add_word(struct text *text,
                   const char *word); /* quoted where a shell would take it apart */
/* A name of unknown origin, as snug_printable leaves it. */
void text_add_shown(struct text *text, const char *name);
/* The letters of a part that goes into `whole`, "" if it has none.  A part that ran out of memory
 * makes the whole one that did. */
const char *text_part(struct text *whole, const struct text *part);
char *text_take(struct text *text); /* the caller's now; NULL if anything failed */
void text_free(struct text *text);

/* Length of the valid UTF-8 sequence at s, which ends in NUL, or 0.  Overlong forms and surrogates
 * are not valid. */
size_t text_utf8_length(const char *s);
bool text_is_utf8(const char *s);
/* Is the character of this length one that a terminal obeys instead of showing it?  See snug_printable.
 * *code: its number, where it is one. */
bool text_is_control(const char *s, size_t length, unsigned *code);

/* "24G", "512M", "1.5G", "1024": binary units.  "1.5e9" and "117": plain.  False: not a number, or
 * negative, or more than an int64 holds. */
bool text_parse_size(const char *text, int64_t *bytes);
bool text_parse_count(const char *text, int64_t *count); /* a whole number; 1e9 is one */
bool text_parse_real(const char *text, double *value);   /* finite, nothing after it */

enum { TEXT_SIZE_MAX = 24 };
const char *text_size(int64_t bytes, char out[TEXT_SIZE_MAX]);  /* "1.46 GiB" */
const char *text_count(int64_t n, char out[TEXT_SIZE_MAX + 8]); /* "1,557,611,200" */

#endif
