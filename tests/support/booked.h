/*
 * booked.h -- runs the pass `book` on a program that a test built.
 */
#ifndef TESTS_SUPPORT_BOOKED_H
#define TESTS_SUPPORT_BOOKED_H

#include "exec/backend.h"

/* Chooses the kernels of all ops and books their workspaces, or fails the test. */
void book_kernels(struct program *prog, const struct backend *backend,
                  const struct device_facts *facts);

#endif
