/*
 * explain.h -- why a plan differs from textbook formulas.
 */
#ifndef SNUG_COMPILE_EXPLAIN_H
#define SNUG_COMPILE_EXPLAIN_H

#include "compile/compile.h"

enum { EXPLAIN_MOST = 5, EXPLAIN_WORDS = 256 };

struct explanation {
    const char *about; /* "gradients" */
    char words[EXPLAIN_WORDS];
};

/* What to know about adapters on random weights; NULL unless the recipe trains such. */
const char *explain_random_base(const struct snug_model *model, const struct snug_recipe *recipe);

/* The explanations that apply to this plan; `request` gave it.  Returns their number, or -1 if out
 * of memory. */
int explain_plan(const struct compile_request *request, const struct compiled_step *compiled,
                 struct explanation out[EXPLAIN_MOST]);

#endif
