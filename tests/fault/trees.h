/*
 * trees.h -- whole folders: copy, compare, and mask what depends on time in their files.
 */
#ifndef TESTS_FAULT_TREES_H
#define TESTS_FAULT_TREES_H

#include <stdbool.h>
#include <stddef.h>

void tree_copy(const char *from, const char *to); /* `to` is made */
/* The first difference in words, or "".  Numbers that a clock decides may differ. */
const char *tree_difference(const char *a, const char *b);
/* Blots out the values of keys that a clock, or the size of the process, decides.  There is room for
 * a NUL after the text; returns its length now. */
size_t tree_blot(char *text, size_t n_bytes);

#endif
