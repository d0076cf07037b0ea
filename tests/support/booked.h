/*
 * booked.h -- the pass book on a program that was made by hand.
 */
#ifndef TESTS_SUPPORT_BOOKED_H
#define TESTS_SUPPORT_BOOKED_H

#include "exec/backend.h"

/* Chooses the kernels of all ops and books their workspaces; fails the test if it cannot. */
void book_kernels(struct program *prog, const struct backend *backend,
                  const struct device_facts *facts);

#endif
