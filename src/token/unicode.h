/*
 * unicode.h -- what tokenizers need to know of Unicode: classes of characters, and NFC.
 *
 * Ids must equal those of Hugging Face's tokenizers, whose parts have different versions of
 * Unicode: \p{L}, \p{N} and \s are those of Unicode 16, "numeric" that of Unicode 17, and NFC
 * leaves characters alone that are younger than Unicode 9.
 */
#ifndef SNUG_TOKEN_UNICODE_H
#define SNUG_TOKEN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "token/buffer.h"

#define METASPACE "\xE2\x96\x81" /* U+2581, which stands for a space in SentencePiece's files */

static inline bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER,  /* \p{L} */
    UNICODE_NUMBER,  /* \p{N} */
    UNICODE_SPACE,   /* \s */
    UNICODE_NUMERIC, /* numeric, but not \p{N} */
    UNICODE_CLASS = 7,
    UNICODE_WORD = 8,     /* flag: \w */
    UNICODE_UNSTABLE = 16 /* flag: NFC may change a text that has it */
};

enum { UNICODE_INVALID = 0x110000, UNICODE_COUNT }; /* stands for a byte that is not UTF-8 */

struct unicode {
    uint8_t of[UNICODE_COUNT]; /* class and flags */
};

/* NULL: out of memory.  free() releases it. */
struct unicode *unicode_new(void);

/* Decodes the character at `text`, of n > 0 bytes.  Returns its length: 1 if UNICODE_INVALID. */
int unicode_decode(const char *text, size_t n, uint32_t *code);
/* Returns the length in bytes of the character at `text`, and its class and flags. */
static inline int unicode_at(const struct unicode *u, const char *text, size_t n, unsigned *is)
{
    uint32_t code = (unsigned char)*text;
    int length = code < 0x80 ? 1 : unicode_decode(text, n, &code);
    *is = u->of[code];
    return length;
}
/* Writes a character to `to`, which has 4 bytes; returns its length. */
int unicode_encode(uint32_t code, char *to);

bool unicode_is_nfc(const struct unicode *u, const char *text, size_t n);
/* Appends NFC of the text.  Bytes that are not UTF-8 stay as they are.  false: out of memory. */
bool unicode_nfc(const struct unicode *u, const char *text, size_t n, struct buffer *out);

/* unicode_tables.c */
extern const uint32_t unicode_class_table[], unicode_combining_table[];
extern const uint32_t unicode_decomposition_table[], unicode_composition_table[];
extern const int unicode_class_table_length, unicode_combining_table_length;
extern const int unicode_decomposition_table_length, unicode_composition_table_length;

#endif
