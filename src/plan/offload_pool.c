/*
 * offload_pool.c -- offsets of the offloaded tensors in the offload pool.
 *
 * Tensors are stored one after the other and never share bytes, which needs no lifetimes.  The pool
 * is a file or host memory, so its size matters less than that of the arena.
 */
#include "plan/plan.h"

#include <stdlib.h>

static enum snug_status find_on_host(const struct program *prog, tensor_id id,
                                     const struct program *host, const struct plan *host_plan,
                                     int64_t *at, struct snug_error *err)
{
    tensor_id there = program_find(host, prog->tensors[id].name);
    if (there == TENSOR_NONE || host_plan->pool_offset[there] < 0 ||
        tensor_bytes(host, there) != tensor_bytes(prog, id))
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "plan: \"%s\" has no matching tensor in the host program's offload pool",
                         prog->tensors[id].name);
    *at = host_plan->pool_offset[there];
    return SNUG_OK;
}

enum snug_status plan_place_offloaded(const struct program *prog, const struct program *host,
                                      const struct plan *host_plan, int alignment,
                                      struct plan *plan, struct snug_error *err)
{
    int64_t end = host != NULL ? host_plan->pool_bytes : 0;
    plan->pool_offset = malloc(((size_t)prog->n_tensors + 1) * sizeof *plan->pool_offset);
    if (plan->pool_offset == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "plan: no memory for %d offsets", prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        plan->pool_offset[i] = -1;
        if (!t->offloaded || t->base != TENSOR_NONE)
            continue;
        if (host != NULL) {
            TRY(find_on_host(prog, i, host, host_plan, &plan->pool_offset[i], err));
            continue;
        }
        plan->pool_offset[i] = end;
        end = (end + tensor_bytes(prog, i) + alignment - 1) / alignment * alignment;
    }
    plan->pool_bytes = end;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        if (t->offloaded && t->base != TENSOR_NONE)
            plan->pool_offset[i] =
                plan->pool_offset[t->base] + t->offset_elems * (int64_t)dtype_bytes(t->dtype);
    }
    return SNUG_OK;
}
