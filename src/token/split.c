/*
 * split.c -- pre-tokenizers: the first word of a text, by the rules of GPT-2, Llama 3 and Qwen.
 *
 * The alternatives of each regular expression are tried in its order, and each takes as much as it
 * can.  `\s+(?!\S)` is a run of spaces without the last one if a word follows: GPT-2 puts that
 * space before the word.
 */
#include "token/split.h"

#include <string.h>

static const struct {
    const char *pattern;
    enum split_rule rule;
} patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     SPLIT_gpt2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     SPLIT_llama3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     SPLIT_qwen2},
};

enum split_rule split_rule_of(const char *pattern)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (strcmp(patterns[i].pattern, pattern) == 0)
            return patterns[i].rule;
    return SPLIT_none;
}

struct view {
    const struct unicode *u;
    const char *text;
    size_t n;
    bool is_followed;
    bool digits_alone; /* numeric characters are words of their own, and end the text before them */
};

/* The class at `at`, and in *next where the next character begins.  At the end, -1. */
static int class_at(const struct view *v, size_t at, size_t *next)
{
    unsigned is;
    *next = at;
    if (at >= v->n)
        return -1;
    *next = at + (size_t)unicode_at(v->u, v->text + at, v->n - at, &is);
    int class = is & UNICODE_CLASS;
    if (v->digits_alone)
        return class == UNICODE_NUMBER ? UNICODE_NUMERIC : class;
    return class == UNICODE_NUMERIC ? UNICODE_OTHER : class;
}

/* Where a run of one class, from `at` on, ends. */
static size_t run_end(const struct view *v, size_t at, int class)
{
    size_t next;
    while (class_at(v, at, &next) == class)
        at = next;
    return at;
}

/* The length of 's 't 're 've 'm 'll 'd at the start, or 0.  Without case, U+017F is an s. */
static size_t contraction(const struct view *v, bool any_case)
{
    if (v->n < 2 || v->text[0] != '\'')
        return 0;
    char a = v->text[1], b = v->n > 2 ? v->text[2] : '\0';
    if (any_case && v->n > 2 && memcmp(v->text + 1, "\xC5\xBF", 2) == 0)
        return 3;
    if (any_case) {
        a = a >= 'A' && a <= 'Z' ? (char)(a + 32) : a;
        b = b >= 'A' && b <= 'Z' ? (char)(b + 32) : b;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* \s+(?!\S)|\s+, for a text that begins with a space. */
static size_t spaces(const struct view *v)
{
    size_t end = 0, last = 0, next;
    while (class_at(v, end, &next) == UNICODE_SPACE) {
        last = end;
        end = next;
    }
    bool word_follows = end < v->n ? class_at(v, end, &next) != UNICODE_NUMERIC : v->is_followed;
    return word_follows && last > 0 ? last : end;
}

static size_t gpt2_word(const struct view *v)
{
    size_t length = contraction(v, false), begin = v->text[0] == ' ', next;
    if (length > 0)
        return length;
    int class = class_at(v, begin, &next);
    if (class < 0 || class == UNICODE_SPACE || (class == UNICODE_NUMERIC && begin > 0))
        return spaces(v);
    return class == UNICODE_NUMERIC ? next : run_end(v, next, class);
}

static bool is_newline(char c)
{
    return c == '\n' || c == '\r';
}

/* \s*[\r\n]+: the run of spaces up to its last newline; 0 if it has none. */
static size_t lines_end(const struct view *v)
{
    size_t end = 0, at = 0, next;
    while (class_at(v, at, &next) == UNICODE_SPACE) {
        if (is_newline(v->text[at]))
            end = next;
        at = next;
    }
    return end;
}

/* As many numbers as there are, at most n_most. */
static size_t numbers(const struct view *v, int n_most)
{
    size_t at = 0, next;
    for (int k = 0; k < n_most && class_at(v, at, &next) == UNICODE_NUMBER; k++)
        at = next;
    return at;
}

static size_t llama3_word(const struct view *v, int n_numbers)
{
    size_t length = contraction(v, true), next, after;
    if (length > 0)
        return length;
    int class = class_at(v, 0, &next);
    if (class == UNICODE_LETTER)
        return run_end(v, next, UNICODE_LETTER);
    if (class == UNICODE_NUMBER)
        return numbers(v, n_numbers);
    if (!is_newline(v->text[0]) && class_at(v, next, &after) == UNICODE_LETTER)
        return run_end(v, after, UNICODE_LETTER);
    size_t begin = v->text[0] == ' ';
    if (class_at(v, begin, &after) == UNICODE_OTHER) {
        size_t end = run_end(v, after, UNICODE_OTHER);
        while (end < v->n && is_newline(v->text[end]))
            end++;
        return end;
    }
    length = lines_end(v);
    return length > 0 ? length : spaces(v);
}

/* Up to the next U+2581; with `runs`, to the next one after another character. */
static size_t metaspace_word(const struct view *v, bool runs)
{
    size_t at = 0;
    while (runs && v->n - at >= 3 && memcmp(v->text + at, METASPACE, 3) == 0)
        at += 3;
    const char *end = v->text + v->n, *found = v->text + (at > 0 ? at : 1);
    while (found < end && (found = memchr(found, METASPACE[0], (size_t)(end - found))) != NULL) {
        if (end - found >= 3 && memcmp(found, METASPACE, 3) == 0)
            return (size_t)(found - v->text);
        found++;
    }
    return v->n;
}

size_t split_word(enum split_rule rule, const struct unicode *u, const char *text, size_t n,
                  bool is_followed)
{
    struct view v = {u, text, n, is_followed, rule == SPLIT_gpt2_digits};
    switch (rule) {
    case SPLIT_gpt2:
    case SPLIT_gpt2_digits:
        return gpt2_word(&v);
    case SPLIT_llama3:
        return llama3_word(&v, 3);
    case SPLIT_qwen2:
        return llama3_word(&v, 1);
    case SPLIT_metaspace:
        return metaspace_word(&v, false);
    case SPLIT_spaces:
        return metaspace_word(&v, true);
    case SPLIT_none:
        break;
    }
    return n;
}
