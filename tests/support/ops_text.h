/*
 * ops_text.h -- the ops of a program as one line, for tests of passes.
 */
#ifndef TESTS_SUPPORT_OPS_TEXT_H
#define TESTS_SUPPORT_OPS_TEXT_H

#include "ir/program.h"

/* The ops in text form, joined by "; ".  The caller frees it. */
char *ops_of(const struct program *prog);

#endif
