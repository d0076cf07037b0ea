/*
 * lexer.h -- the text form of a program as statements, and a statement as tokens, for parse.c.
 *
 * Any bytes are accepted as input; what is no token gives one line with the line number.
 */
#ifndef SNUG_IR_LEXER_H
#define SNUG_IR_LEXER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { END = 0, WORD = 256, QUOTED }; /* kinds of tokens; punctuation is its own kind */

struct token {
    int kind;
    const char *text;   /* ends in NUL; escapes resolved */
    const char *source; /* as it was written, for messages */
    int source_length;
};

struct tokens {
    const char *at;      /* next character */
    int line;            /* of `at` */
    struct token *token; /* of the statement at hand, END last */
    int n_tokens, capacity, next;
    int statement_line;
    char *letters; /* the texts of the tokens */
    size_t n_letters;
    struct snug_error *err;
};

/* The text must outlive it.  Closed also after a failure. */
enum snug_status tokens_open(const char *text, struct tokens *t, struct snug_error *err);
void tokens_close(struct tokens *t);

/* Reads the next statement that has tokens; *more is false at the end of the text. */
enum snug_status tokens_read_statement(struct tokens *t, bool *more);

/* "line N: " and what is wrong in the statement at hand. */
__attribute__((format(printf, 2, 3))) enum snug_status tokens_fail(struct tokens *t,
                                                                   const char *format, ...);

#endif
