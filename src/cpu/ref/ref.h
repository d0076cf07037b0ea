/*
 * ref.h -- the reference kernels: plain loops that define what every op computes.
 *
 * There is one for every row of ops.def (the linker says so if one is missing).  Each element is
 * read and written through double, so one piece of code serves every float type and every mix of
 * types.  They are slow and simple on purpose: no threads, no blocking, no cleverness to check.
 */
#ifndef SNUG_CPU_REF_REF_H
#define SNUG_CPU_REF_REF_H

#include "exec/backend.h"

const struct kernel *ref_kernels(int *n_rows);
const struct kernel *ref_row(enum op_kind kind); /* NULL: no such op */

/* Every id must lie in [0, limit); the message names the tensor, the place and the id. */
enum snug_status ref_check_ids(const struct operand *ids, int64_t limit, struct snug_error *err);

#endif
