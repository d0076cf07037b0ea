/*
 * added_tokens.c -- finds added tokens in a text.
 *
 * They are few, and most begin with the same rare byte, so we look for their first bytes and
 * compare the longest one first.
 */
#include "token/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

bool added_tokens_add(struct added_tokens *tokens, const struct added_token *token)
{
    if (!array_grow((void **)&tokens->data, &tokens->capacity, tokens->n + 1, sizeof *token))
        return false;
    struct added_token copy = *token;
    copy.content = malloc(token->n + 1);
    if (copy.content == NULL)
        return false;
    memcpy(copy.content, token->content, token->n);
    copy.content[token->n] = '\0';
    tokens->data[tokens->n++] = copy;
    return true;
}

static int compare_tokens(const void *a, const void *b)
{
    const struct added_token *left = *(const struct added_token *const *)a;
    const struct added_token *right = *(const struct added_token *const *)b;
    int first = (unsigned char)left->content[0] - (unsigned char)right->content[0];
    if (first != 0)
        return first;
    if (left->n != right->n)
        return left->n > right->n ? -1 : 1;
    return left < right ? -1 : left > right; /* of two alike, the first */
}

bool added_tokens_finish(struct added_tokens *tokens)
{
    const struct added_token **sorted = malloc(((size_t)tokens->n + 1) * sizeof *sorted);
    free(tokens->sorted);
    tokens->sorted = malloc(((size_t)tokens->n + 1) * sizeof *tokens->sorted);
    if (sorted == NULL || tokens->sorted == NULL) {
        free((void *)sorted);
        return false;
    }
    memset(tokens->begin, 0, sizeof tokens->begin);
    for (int i = 0; i < tokens->n; i++) {
        sorted[i] = &tokens->data[i];
        tokens->begin[(unsigned char)tokens->data[i].content[0] + 1]++;
    }
    for (int i = 0; i < 256; i++)
        tokens->begin[i + 1] += tokens->begin[i];
    qsort((void *)sorted, (size_t)tokens->n, sizeof *sorted, compare_tokens);
    for (int i = 0; i < tokens->n; i++)
        tokens->sorted[i] = (int32_t)(sorted[i] - tokens->data);
    free((void *)sorted);
    return true;
}

static const struct added_token *longest_at(const struct added_tokens *tokens, const char *text,
                                            size_t n)
{
    unsigned char first = (unsigned char)text[0];
    for (int i = tokens->begin[first]; i < tokens->begin[first + 1]; i++) {
        const struct added_token *token = &tokens->data[tokens->sorted[i]];
        if (token->n <= n && memcmp(token->content, text, token->n) == 0)
            return token;
    }
    return NULL;
}

/* Where the character before `at` begins. */
static size_t before(const char *text, size_t at)
{
    size_t begin = at - 1;
    while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xC0) == 0x80)
        begin--;
    uint32_t code;
    return (size_t)unicode_decode(text + begin, at - begin, &code) == at - begin ? begin : at - 1;
}

static bool stands_alone(const struct unicode *u, const char *text, size_t begin, size_t end,
                         size_t n)
{
    unsigned is = 0;
    if (begin > 0) {
        size_t at = before(text, begin);
        unicode_at(u, text + at, begin - at, &is);
    }
    if ((is & UNICODE_WORD) == 0 && end < n)
        unicode_at(u, text + end, n - end, &is);
    return (is & UNICODE_WORD) == 0;
}

static bool is_space(const struct unicode *u, const char *text, size_t n, size_t *length)
{
    unsigned is;
    *length = (size_t)unicode_at(u, text, n, &is);
    return (is & UNICODE_CLASS) == UNICODE_SPACE;
}

bool added_tokens_find(const struct added_tokens *tokens, const struct unicode *u, const char *text,
                       size_t from, size_t floor, size_t n, bool specials,
                       struct added_match *match)
{
    for (size_t at = from; tokens->n > 0 && at < n; at++) {
        const struct added_token *token = longest_at(tokens, text + at, n - at);
        if (token == NULL)
            continue;
        size_t begin = at, end = at + token->n, length;
        if ((token->special && !specials) ||
            (token->single_word && !stands_alone(u, text, begin, end, n))) {
            at = end - 1;
            continue;
        }
        while (token->lstrip && begin > floor) {
            size_t previous = before(text, begin);
            if (previous < floor || !is_space(u, text + previous, begin - previous, &length))
                break;
            begin = previous;
        }
        begin = token->lstrip && begin < floor ? floor : begin;
        while (token->rstrip && end < n && is_space(u, text + end, n - end, &length))
            end += length;
        if (begin >= end) { /* the match before took its spaces */
            at += token->n - 1;
            continue;
        }
        *match = (struct added_match){begin, end, at + token->n, token->id};
        return true;
    }
    return false;
}

void added_tokens_free(struct added_tokens *tokens)
{
    for (int i = 0; i < tokens->n; i++)
        free(tokens->data[i].content);
    free(tokens->data);
    free(tokens->sorted);
    *tokens = (struct added_tokens){0};
}
