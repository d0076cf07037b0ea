/*
 * ref.h -- the reference kernels: plain loops that define what every op computes.
 *
 * Every op of ops.def has one; if it is missing, the program does not link.  Elements are loaded
 * and stored as double, so one piece of code serves every float type and every mix of types.  The
 * kernels are slow and simple on purpose: no threads, no blocking.
 */
#ifndef SNUG_CPU_REF_REF_H
#define SNUG_CPU_REF_REF_H

#include "exec/backend.h"

const struct kernel *ref_kernels(int *n_kernels);
const struct kernel *ref_kernel(enum op_kind kind); /* NULL if there is no such op */

/* Fails unless every id is in [0, limit).  The error names the tensor, the position and the id. */
enum snug_status ref_check_ids(const struct operand *ids, int64_t limit, struct snug_error *err);

#endif
