/*
 * collective_plan.c -- the bucket size of a collective, and the SNUG_NCCL variable.
 */
#include "exec/collective_plan.h"

#include "comm/comm.h"
#include "ir/collective_options.h"

#include <stdlib.h>
#include <string.h>

static struct comm_tensor shared_tensor(const struct program *prog, const struct op *op, int k)
{
    const struct tensor *whole = &prog->tensors[collective_whole(op, k)];
    return (struct comm_tensor){
        .dtype = whole->dtype, .n_elems = shape_elems(&whole->shape), .cut = collective_cut(op)};
}

int64_t collective_work_bytes(const struct program *prog, const struct op *op)
{
    struct comm_tensor tensors[MAX_INPUTS];
    for (int k = 0; k < op->n_in; k++)
        tensors[k] = shared_tensor(prog, op, k);
    return comm_work_bytes(tensors, op->n_in, collective_ranks(op));
}

static bool nccl_is(const char *word)
{
    const char *given = getenv("SNUG_NCCL");
    return given != NULL && strcmp(given, word) == 0;
}

bool collectives_are_off(void)
{
    return nccl_is("off");
}

bool collectives_are_forced(void)
{
    return nccl_is("force");
}
