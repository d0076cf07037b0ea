/*
 * text_form.h -- tables shared by the printer (dump.c) and the parser (parse.c) of the text form:
 * words, attributes, and the characters of a bare name.  docs/program.md describes the form.
 */
#ifndef SNUG_IR_TEXT_FORM_H
#define SNUG_IR_TEXT_FORM_H

#include "ir/program.h"

struct words { /* the names of an enum's values, in order */
    const char *const *word;
    int count;
};

/* All of the following are defined in dump.c. */
extern const struct words role_words, dtype_words, init_words;
extern const struct words link_words; /* "gradient_of", as in gradient_of=W */

struct tensor_flag { /* a word that sets a bool of a tensor */
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

struct attr_spec {
    const char *name;
    enum attr_form form;
    size_t default_offset; /* in attr_defaults */
    struct words words;
};
extern const struct attr_spec attr_specs[ATTR_COUNT];

/* Offset of attribute i in struct attrs, for ops of a family that has it. */
size_t attr_offset(enum attr_family family, int i);
size_t attr_form_bytes(enum attr_form form);

/* Writes an attribute of the form word, integer, small or flag.  The value must fit. */
void attr_set_integer(void *field, enum attr_form form, int64_t value);

/* Letters, digits and . _ - / form a bare name; any other name is written in quotes. */
bool is_bare_letter(char letter);

#endif
