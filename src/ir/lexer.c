/*
 * lexer.c -- splits the text form of a program into statements and tokens; see lexer.h.
 */
#include "ir/lexer.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "ir/text_form.h"

static const char punctuation[] = "=,{}[]+:";

enum snug_status tokens_fail(struct tokens *t, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return snug_fail(t->err, SNUG_BAD_PROGRAM, "line %d: %s", t->statement_line, what);
}

static struct token *add_token(struct tokens *t, int kind, const char *source)
{
    void *grown = t->token;
    bool ok = array_grow(&grown, &t->capacity, t->n_tokens + 1, sizeof *t->token);
    t->token = grown;
    if (!ok)
        return NULL;
    struct token *token = &t->token[t->n_tokens++];
    *token = (struct token){.kind = kind, .text = t->letters + t->n_letters, .source = source};
    return token;
}

static void add_letter(struct tokens *t, char letter)
{
    t->letters[t->n_letters++] = letter;
}

static int hex_digit(char letter)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = letter == '\0' ? NULL : strchr(digits, letter);
    return found == NULL ? -1 : (int)(found - digits);
}

/* Reads the rest of a quoted name, after the opening quote; \xHH is a byte. */
static enum snug_status read_quoted(struct tokens *t)
{
    for (; *t->at != '"'; t->at++) {
        unsigned char letter = (unsigned char)*t->at;
        if (letter < ' ' || letter == 127)
            return tokens_fail(t, "a quoted name must end in \" on the same line");
        if (letter == '\\') {
            int high = t->at[1] == 'x' ? hex_digit(t->at[2]) : -1;
            int low = high < 0 ? -1 : hex_digit(t->at[3]);
            if (low < 0 || high + low == 0)
                return tokens_fail(t, "in a quoted name, \\ must be followed by x and two digits "
                                      "0-9 a-f, not 00");
            letter = (unsigned char)(16 * high + low);
            t->at += 3;
        }
        add_letter(t, (char)letter);
    }
    t->at++;
    return SNUG_OK;
}

static enum snug_status read_token(struct tokens *t)
{
    const char *source = t->at;
    char first = *source;
    int kind = is_bare_letter(first) ? WORD : first == '"' ? QUOTED : first;
    if (kind == first && strchr(punctuation, first) == NULL) {
        unsigned char code = (unsigned char)first;
        if (code > ' ' && code < 127)
            return tokens_fail(
                t,
                "unexpected character '%c'; quote names with characters other than letters, "
                "digits and . _ - /",
                first);
        return tokens_fail(t, "unexpected byte 0x%02x; a program is plain text", code);
    }
    struct token *token = add_token(t, kind, source);
    if (token == NULL)
        return snug_fail(t->err, SNUG_NO_MEMORY, "parse: out of memory");
    if (kind == QUOTED) {
        t->at++;
        TRY(read_quoted(t));
    } else if (kind == WORD) {
        while (is_bare_letter(*t->at))
            add_letter(t, *t->at++);
    } else {
        t->at++;
    }
    add_letter(t, '\0');
    ptrdiff_t length = t->at - source;
    token->source_length = length > INT_MAX ? INT_MAX : (int)length;
    return SNUG_OK;
}

enum snug_status tokens_read_statement(struct tokens *t, bool *more)
{
    t->n_tokens = t->next = 0;
    t->n_letters = 0;
    for (;;) {
        char letter = *t->at;
        if (letter == '#') {
            t->at += strcspn(t->at, "\n");
        } else if (letter == ' ' || letter == '\t' || letter == '\r') {
            t->at++;
        } else if (letter == '\n' || letter == ';' || letter == '\0') {
            if (t->n_tokens > 0 || letter == '\0')
                break; /* left for the next call, which skips it */
            t->line += letter == '\n';
            t->at++;
        } else {
            t->statement_line = t->line;
            TRY(read_token(t));
        }
    }
    *more = t->n_tokens > 0;
    if (add_token(t, END, t->at) == NULL)
        return snug_fail(t->err, SNUG_NO_MEMORY, "parse: out of memory");
    return SNUG_OK;
}

enum snug_status tokens_open(const char *text, struct tokens *t, struct snug_error *err)
{
    *t = (struct tokens){.at = text, .line = 1, .statement_line = 1, .err = err};
    t->letters = malloc(2 * strlen(text) + 2); /* worst case: a NUL after every character */
    if (t->letters == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "parse: no memory for %zu bytes of text",
                         strlen(text));
    return SNUG_OK;
}

void tokens_close(struct tokens *t)
{
    free(t->letters);
    free(t->token);
}
