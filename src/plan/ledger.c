/*
 * ledger.c -- the ledger: the peak, the bytes of each role at the peak, and the flops and seconds
 * of a step.
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
