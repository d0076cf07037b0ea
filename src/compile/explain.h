/*
 * explain.h -- why a plan is not what a textbook says.
 */
#ifndef SNUG_COMPILE_EXPLAIN_H
#define SNUG_COMPILE_EXPLAIN_H

#include "compile/compile.h"

enum { EXPLAIN_MOST = 4, EXPLAIN_WORDS = 256 };

struct explanation {
    const char *about; /* "gradients" */
    char words[EXPLAIN_WORDS];
};

/* What is true of this plan, at most EXPLAIN_MOST; returns how many, or -1: out of memory. */
int explain_plan(const struct snug_model *model, const struct snug_recipe *recipe,
                 const struct compiled_step *compiled, struct explanation out[EXPLAIN_MOST]);

#endif
