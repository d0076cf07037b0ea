/*
 * size.h -- how much a test does: the size and the part that the runner requests.
 *
 * `make test` runs every test at its small size, `make test-all` at the full size
 * (docs/testing.md).  A test that calls these functions prints the size it ran, and the runner
 * relies on that.  A program that runs as several parts (`parts:` in its first comment) takes the
 * items that belong to its part.
 */
#ifndef SNUG_TESTS_SIZE_H
#define SNUG_TESTS_SIZE_H

#include <stdbool.h>

/* SNUG_TEST_SIZE; full if it is not set. */
bool size_is_small(void);
int sized(int small, int full);

/* SNUG_TEST_PART, "2/3": is item `index`, from 0, in this part?  Every item is in exactly one. */
bool part_has(int index);

#endif
