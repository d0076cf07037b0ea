/*
 * text.h -- a growable string, and parsing and printing of sizes and counts.
 */
#ifndef SNUG_BASE_TEXT_H
#define SNUG_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "snug.h"

struct text {   /* all zeros is an empty text */
    char *data; /* NULL or NUL-terminated */
    size_t length, capacity;
    bool failed; /* out of memory; later adds do nothing */
};

void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* Adds a shell word, quoted if necessary. */
void text_add_word(struct text *text, const char *word);
/* Adds an untrusted name in the form of snug_printable. */
void text_add_shown(struct text *text, const char *name);
/* Returns the string of `part`, "" if it is empty, to be added to `whole`.  If `part` has failed,
 * `whole` fails too. */
const char *text_part(struct text *whole, const struct text *part);
/* Returns the string, which the caller frees, and empties `text`.  NULL if an add has failed. */
char *text_take(struct text *text);
void text_free(struct text *text);

/* Returns the length of the UTF-8 sequence at s, or 0 if it is invalid.  Overlong forms and
 * surrogates are invalid.  s is NUL-terminated. */
size_t text_utf8_length(const char *s);
bool text_is_utf8(const char *s);
bool text_ends_in(const char *text, const char *ending);
/* Is this character, of `length` bytes, a control character in the sense of snug_printable?  If
 * so, sets *code to its code point. */
bool text_is_control(const char *s, size_t length, unsigned *code);

/* A size: "24G", "512M", "1.5G" in binary units, or plain bytes "1024", "1.5e9".  Returns false if
 * it is not a number, negative or too large for an int64. */
bool text_parse_size(const char *text, int64_t *bytes);
bool text_parse_count(const char *text, int64_t *count); /* an integer, also as "1e9" */
bool text_parse_real(const char *text, double *value);   /* a finite number */

enum { TEXT_SIZE_MAX = 24 };
const char *text_size(int64_t bytes, char out[TEXT_SIZE_MAX]);  /* "1.46 GiB" */
const char *text_count(int64_t n, char out[TEXT_SIZE_MAX + 8]); /* "1,557,611,200" */

#endif
