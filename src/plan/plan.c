/*
 * plan.c -- plan_make and its variants: run the stages that plan.h declares, in order.
 */
#include "plan/plan.h"

#include <stdlib.h>

static enum snug_status set_offsets(const struct program *prog, struct plan *plan,
                                    struct snug_error *err)
{
    plan->offset = malloc(((size_t)prog->n_tensors + 1) * sizeof *plan->offset);
    if (plan->offset == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "plan: no memory for %d offsets", prog->n_tensors);
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        int block = plan->block_of[i];
        plan->offset[i] = block < 0 ? -1
                                    : plan->blocks[block].offset +
                                          t->offset_elems * (int64_t)dtype_bytes(t->dtype);
    }
    return SNUG_OK;
}

/* Gives the persistent blocks their offsets in the host; plan_lifetimes puts these blocks first. */
static enum snug_status use_host_offsets(const struct program *prog, const struct program *host,
                                         const struct plan *host_plan, struct plan *plan,
                                         int *n_placed, struct snug_error *err)
{
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        if (!t->persistent || t->base != TENSOR_NONE || plan->block_of[i] < 0)
            continue;
        tensor_id at = program_find(host, t->name);
        if (at == TENSOR_NONE || !host->tensors[at].persistent ||
            host->tensors[at].dtype != t->dtype ||
            tensor_bytes(host, at) != tensor_bytes(prog, i) || host_plan->offset[at] < 0)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan: \"%s\" has no matching persistent tensor in the host program",
                             t->name);
        plan->blocks[plan->block_of[i]].offset = host_plan->offset[at];
    }
    while (*n_placed < plan->n_blocks && plan->blocks[*n_placed].persistent)
        ++*n_placed;
    return SNUG_OK;
}

/* With a host, the plan uses the host's arena (plan_make_over).  Without rates, no ledger. */
static enum snug_status make(const struct program *prog, const struct program *host,
                             const struct plan *host_plan, int alignment,
                             const struct device_rates *rates, struct plan *plan,
                             struct snug_error *err)
{
    *plan = (struct plan){0};
    int n_placed = 0;
    enum snug_status status = program_check_sizes(prog, err);
    if (status == SNUG_OK)
        status = plan_lifetimes(prog, plan, err);
    if (status == SNUG_OK && host != NULL)
        status = use_host_offsets(prog, host, host_plan, plan, &n_placed, err);
    if (status == SNUG_OK)
        status = plan_place(plan->blocks + n_placed, plan->n_blocks - n_placed, prog->n_ops,
                            alignment, host != NULL ? host_plan->persistent_bytes : 0,
                            &plan->persistent_bytes, &plan->arena_bytes, err);
    if (status == SNUG_OK)
        status = set_offsets(prog, plan, err);
    if (status == SNUG_OK)
        status = plan_place_offloaded(prog, host, host_plan, alignment, plan, err);
    if (status == SNUG_OK && rates != NULL)
        status = plan_ledger(prog, rates, plan, err);
#ifdef SNUG_DEBUG
    if (status == SNUG_OK)
        status = host != NULL ? plan_check_over(prog, plan->offset, plan->arena_bytes, alignment,
                                                host, host_plan->offset, err)
                              : plan_check(prog, plan->offset, plan->arena_bytes, alignment, err);
    if (status == SNUG_OK)
        status = plan_check_pool(prog, plan->pool_offset, plan->pool_bytes, err);
#endif
    if (status != SNUG_OK)
        plan_free(plan);
    return status;
}

enum snug_status plan_make(const struct program *prog, int alignment,
                           const struct device_rates *rates, struct plan *plan,
                           struct snug_error *err)
{
    return make(prog, NULL, NULL, alignment, rates, plan, err);
}

enum snug_status plan_make_over(const struct program *prog, const struct program *host,
                                const struct plan *host_plan, int alignment, struct plan *plan,
                                struct snug_error *err)
{
    return make(prog, host, host_plan, alignment, NULL, plan, err);
}

enum snug_status plan_estimate(const struct program *prog, const struct device_rates *rates,
                               struct plan *plan, struct snug_error *err)
{
    *plan = (struct plan){0};
    enum snug_status status = program_check_sizes(prog, err);
    if (status == SNUG_OK)
        status = plan_lifetimes(prog, plan, err);
    if (status == SNUG_OK)
        status = plan_ledger(prog, rates, plan, err);
    plan->arena_bytes = plan->lower_bound;
    plan->fragmentation = 0;
    if (status != SNUG_OK)
        plan_free(plan);
    return status;
}

enum snug_status plan_is_within(const struct program *prog, int alignment, int64_t limit_bytes,
                                bool *is_within, struct snug_error *err)
{
    struct plan plan = {0};
    enum snug_status status = program_check_sizes(prog, err);
    if (status == SNUG_OK)
        status = plan_lifetimes(prog, &plan, err);
    if (status == SNUG_OK)
        status = plan_place_within(plan.blocks, plan.n_blocks, prog->n_ops, alignment, limit_bytes,
                                   is_within, err);
    plan_free(&plan);
    return status;
}

void plan_free(struct plan *plan)
{
    free(plan->block_of);
    free(plan->alive_from);
    free(plan->alive_to);
    free(plan->blocks);
    free(plan->offset);
    free(plan->pool_offset);
    *plan = (struct plan){0};
}
