/*
 * lexer.h -- splits the text form of a program into statements and tokens, for parse.c.
 *
 * Any bytes are safe as input: text that is not a token is an error with its line number.
 */
#ifndef SNUG_IR_LEXER_H
#define SNUG_IR_LEXER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { END = 0, WORD = 256, QUOTED }; /* token kinds; a punctuation character is its own kind */

struct token {
    int kind;
    const char *text;   /* NUL-terminated, escapes resolved */
    const char *source; /* as written, for error messages */
    int source_length;
};

struct tokens {
    const char *at;      /* next character */
    int line;            /* line number of `at` */
    struct token *token; /* tokens of the current statement; the last is END */
    int n_tokens, capacity, next;
    int statement_line;
    char *letters; /* storage for the texts of the tokens */
    size_t n_letters;
    struct snug_error *err;
};

/* `text` must outlive `t`.  Call tokens_close even if tokens_open fails. */
enum snug_status tokens_open(const char *text, struct tokens *t, struct snug_error *err);
void tokens_close(struct tokens *t);

/* Reads the next non-empty statement; *more is false at the end of the text. */
enum snug_status tokens_read_statement(struct tokens *t, bool *more);

/* Fails with "line N: " and the message, where N is the line of the current statement. */
__attribute__((format(printf, 2, 3))) enum snug_status tokens_fail(struct tokens *t,
                                                                   const char *format, ...);

#endif
