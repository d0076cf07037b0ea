/*
 * text_form.h -- what the printer and the parser of programs have to agree on: words, attributes
 * and the letters of a bare name.  docs/program.md describes the form.
 */
#ifndef SNUG_IR_TEXT_FORM_H
#define SNUG_IR_TEXT_FORM_H

#include "ir/program.h"

struct words { /* the words of an enum, in its order */
    const char *const *word;
    int count;
};

extern const struct words role_words, dtype_words, init_words;
extern const struct words link_words; /* "gradient_of": what stands before = and the parameter */

struct tensor_flag { /* a word alone that sets a bool of a tensor */
    const char *word;
    size_t offset; /* in struct tensor */
};
enum { N_TENSOR_FLAGS = 6 };
extern const struct tensor_flag tensor_flags[N_TENSOR_FLAGS];

enum attr_form {
    ATTR_FORM_word,
    ATTR_FORM_integer,
    ATTR_FORM_small,
    ATTR_FORM_flag,
    ATTR_FORM_real,
    ATTR_FORM_reals
};

struct attr_row {
    const char *name;
    enum attr_form form;
    size_t default_offset; /* in attr_defaults */
    struct words words;
};
extern const struct attr_row attr_rows[ATTR_COUNT];

/* Where attribute i is in struct attrs, for ops of a family that has it. */
size_t attr_offset(enum attr_family family, int i);
size_t attr_form_bytes(enum attr_form form);

/* Words, integers, small ones and flags, as integers; the value must fit. */
int64_t attr_integer(const void *field, enum attr_form form);
void attr_set_integer(void *field, enum attr_form form, int64_t value);

/* Letters, digits and . _ - / make a bare word; any other name is written in quotes. */
bool is_bare_letter(char letter);

#endif
