/*
 * dispatch_average.c -- average_clock, average_keep and average with weight_average.cu.
 */
#include <string.h>

#include "cuda/optim/weight_average.h"
#include "cuda/dispatch/dispatch.h"
#include "optim/average.h"

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << AVERAGE_SCALARS, 0);
}

static bool supports_clock(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << AVERAGE_SCALARS, 1u);
}

static struct average_job clock_job(const struct kernel_call *call)
{
    struct average_job job = {.average = attrs_of(call->op, average)->average,
                              .scalars = call->in[AVERAGE_SCALARS].data};
    memcpy(job.options, attrs_of(call->op, average)->options.value, sizeof job.options);
    return job;
}

/* The job of the ops that read a weight and its average. */
static struct average_job job_of(const struct kernel_call *call)
{
    struct average_job job = clock_job(call);
    job.n = cuda_elems(&call->in[AVERAGE_WEIGHT]);
    job.n_copies = cuda_elems(&call->in[AVERAGE_KEPT]) / job.n;
    return job;
}

static enum snug_status run_clock(const struct kernel_call *call, struct snug_error *err)
{
    struct average_job job = clock_job(call);
    return cuda_done(call, cuda_average_clock(&job, call->stream), err);
}

static enum snug_status run_keep(const struct kernel_call *call, struct snug_error *err)
{
    struct average_job job = job_of(call);
    return cuda_done(call,
                     cuda_average_keep(&job, cuda_array_of(&call->in[AVERAGE_WEIGHT]),
                                       cuda_array_of(&call->in[AVERAGE_KEPT]), call->stream),
                     err);
}

static enum snug_status run_average(const struct kernel_call *call, struct snug_error *err)
{
    struct average_job job = job_of(call);
    return cuda_done(call,
                     cuda_average(&job, cuda_array_of(&call->in[AVERAGE_WEIGHT]),
                                  cuda_array_of(&call->in[AVERAGE_KEPT]),
                                  cuda_array_of(&call->out[0]), call->stream),
                     err);
}

CUDA_KERNELS(average) = {
    {.kind = OP_average_clock, .name = "cuda", .supports = supports_clock, .run = run_clock},
    {.kind = OP_average_keep, .name = "cuda", .supports = supports, .run = run_keep},
    {.kind = OP_average, .name = "cuda", .supports = supports, .run = run_average},
};
CUDA_KERNELS_END(average)
