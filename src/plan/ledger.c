/*
 * ledger.c -- plan_make and its variants, and the ledger: the peak, the bytes of each role at the
 * peak, and the flops and seconds of a step.
 */
#include "ir/collective_options.h"
#include "plan/plan.h"

#include <stdlib.h>

static int find_peak(const struct plan *plan, int n_ops, int64_t *delta)
{
    int64_t alive = 0, most = -1;
    int peak = 0;
    for (int i = 0; i < plan->n_blocks; i++) {
        delta[plan->blocks[i].first] += plan->blocks[i].bytes;
        delta[plan->blocks[i].last + 1] -= plan->blocks[i].bytes;
    }
    for (int i = 0; i < (n_ops > 0 ? n_ops : 1); i++) {
        alive += delta[i];
        if (alive > most) {
            most = alive;
            peak = i;
        }
    }
    return peak;
}

static bool is_recomputed(const struct program *prog, const struct op *op)
{
    return op->n_out > 0 && op->out[0] != TENSOR_NONE && prog->tensors[op->out[0]].recomputed;
}

/* The seconds of a section, by what runs concurrently: kernels, collectives and copies. */
struct section_seconds {
    double compute, collective, prefetch, evict;
};

/* Compute and copies overlap completely: the longer one hides the other. */
static double section_total(const struct section_seconds *s, const struct device_rates *rates)
{
    double longer = s->prefetch > s->evict ? s->prefetch : s->evict;
    double copies = s->collective + (rates->pool_is_duplex ? longer : s->prefetch + s->evict);
    return s->compute > copies ? s->compute : copies;
}

static void add_costs(const struct program *prog, const struct device_rates *rates,
                      struct plan *plan)
{
    struct section_seconds so_far = {0};
    for (int i = 0; i < prog->n_ops; i++) {
        double flops = op_flops(prog, &prog->ops[i]);
        double times = program_op_runs(prog, i);
        plan->step_flops += times * flops;
        if (is_recomputed(prog, &prog->ops[i]))
            plan->recompute_flops += times * flops;
        const struct op *op = &prog->ops[i];
        if (op_has(op, TRAIT_p2p))
            so_far.compute += times * p2p_seconds(prog, op, rates);
        else if (op_has(op, TRAIT_collective))
            so_far.collective += times * collective_seconds(prog, op, rates);
        else if (op_has(op, TRAIT_copy))
            *(op_infos[op->kind].writes_pool != 0 ? &so_far.evict : &so_far.prefetch) +=
                times * op_read_bytes(prog, op) / rates->pool_bytes_per_s;
        else
            so_far.compute += times * op_seconds(prog, op, rates);
        if (i == program_section_last(prog, i)) {
            double seconds = section_total(&so_far, rates);
            plan->step_seconds += seconds;
            plan->body_seconds += i < program_body_end(prog) ? seconds : 0;
            so_far = (struct section_seconds){0};
        }
    }
}

enum snug_status plan_ledger(const struct program *prog, const struct device_rates *rates,
                             struct plan *plan, struct snug_error *err)
{
    int64_t *delta = calloc((size_t)prog->n_ops + 2, sizeof *delta);
    int *owner = malloc(((size_t)plan->n_blocks + 1) * sizeof *owner);
    if (delta == NULL || owner == NULL) {
        free(delta);
        free(owner);
        return snug_fail(err, SNUG_NO_MEMORY, "ledger: no memory for %d ops", prog->n_ops);
    }
    plan->peak_op = find_peak(plan, prog->n_ops, delta);
    for (int i = 0; i < plan->n_blocks; i++)
        owner[i] = -1;
    for (int i = 0; i < prog->n_tensors; i++) { /* the newest tensor of a block owns its bytes */
        int block = plan->block_of[i];
        if (block < 0 || prog->tensors[i].base != TENSOR_NONE ||
            plan->alive_from[i] > plan->peak_op || plan->alive_to[i] < plan->peak_op)
            continue;
        if (owner[block] < 0 || plan->alive_from[i] > plan->alive_from[owner[block]])
            owner[block] = i;
    }
    for (int i = 0; i < plan->n_blocks; i++)
        if (owner[i] >= 0) {
            plan->at_peak[prog->tensors[owner[i]].role] += plan->blocks[i].bytes;
            plan->lower_bound += plan->blocks[i].bytes;
        }
    plan->fragmentation = plan->arena_bytes - plan->lower_bound;
    add_costs(prog, rates, plan);
    free(delta);
    free(owner);
    return SNUG_OK;
}

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
