/*
 * split.h -- pre-tokenizers: cut text into the words that BPE never merges across.
 *
 * The rules are the regular expressions of tokenizer.json files, written out in C.
 */
#ifndef SNUG_TOKEN_SPLIT_H
#define SNUG_TOKEN_SPLIT_H

#include "token/unicode.h"

enum split_rule {
    SPLIT_none,        /* the text is one word */
    SPLIT_gpt2,        /* contractions, letters, numbers, others, each with a space before */
    SPLIT_gpt2_digits, /* each numeric character alone, then as GPT-2 (SmolLM2, StarCoder) */
    SPLIT_llama3,      /* up to three numbers together */
    SPLIT_qwen2,       /* as llama3, but each number alone */
    SPLIT_metaspace,   /* before every U+2581, which stands for a space */
    SPLIT_spaces       /* before every run of U+2581 */
};

/* The rule of a regular expression, as it stands in tokenizer.json; SPLIT_none if there is none. */
enum split_rule split_rule_of(const char *pattern);

/* Returns the length of the first word of `text`, n > 0 bytes.  `is_followed`: a character that is
 * not a space follows the text. */
size_t split_word(enum split_rule rule, const struct unicode *u, const char *text, size_t n,
                  bool is_followed);

#endif
