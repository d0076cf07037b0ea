/*
 * size.h -- how much a test does: the size and the part that the runner asks for.
 *
 * `make test` runs every test at its small size, `make test-all` at the full one (docs/testing.md).  A test that
 * asks here says in its output which size it ran; the runner relies on that.  A program that is asked to run
 * as several parts (`parts:` in its first comment) takes of its items those that are in this part.
 */
#ifndef SNUG_TESTS_SIZE_H
#define SNUG_TESTS_SIZE_H

#include <stdbool.h>

/* SNUG_TEST_SIZE; full if it is not set. */
bool size_is_small(void);
int sized(int small, int full);

/* SNUG_TEST_PART, "2/3": is item `index`, from 0, of this part?  Every item is of exactly one. */
bool part_has(int index);

#endif
