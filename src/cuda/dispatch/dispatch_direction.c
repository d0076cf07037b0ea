/*
 * dispatch_direction.c -- adafactor, amos, prodigy_sums and prodigy_size with directions.cu.
 */
#include <string.h>

#include "cuda/optim/directions.h"
#include "cuda/dispatch/dispatch.h"

enum { SCALARS_IN = 1 }; /* input 1 is the scalar table, as is output 1 of adafactor and amos */

static struct direction_job job_of(const struct kernel_call *call)
{
    const struct direction_attrs *attrs = attrs_of(call->op, direction);
    struct direction_job job = {.relative = attrs->relative != 0,
                                .lr_factor = attrs->lr_factor,
                                .eta = attrs->eta,
                                .scalars = call->in[SCALARS_IN].data};
    memcpy(job.options, attrs->options.value, sizeof job.options);
    return job;
}

static bool is_f32(const struct program *prog, tensor_id id)
{
    return id == TENSOR_NONE || prog->tensors[id].dtype == DTYPE_f32;
}

/* ---- adafactor ------------------------------------------------------------------------------- */

static bool adafactor_fits(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << SCALARS_IN, 1u << 1) && is_f32(prog, op->in[3]) &&
           (op->n_in < 5 || is_f32(prog, op->in[4]));
}

static size_t adafactor_work(const struct program *prog, const struct op *op,
                             const struct device_facts *facts)
{
    (void)facts;
    int64_t n = tensor_elems(prog, op->in[0]), n_rows = tensor_elems(prog, op->in[3]);
    return adafactor_work_bytes(n_rows, n / n_rows, op->n_in == 5 && op->in[4] != TENSOR_NONE);
}

static enum snug_status run_adafactor(const struct kernel_call *call, struct snug_error *err)
{
    struct direction_job job = job_of(call);
    int64_t n_rows = cuda_elems(&call->in[3]), n_columns = cuda_elems(&call->in[0]) / n_rows;
    return cuda_done(call,
                     cuda_adafactor(&job, n_rows, n_columns, cuda_array_of(&call->in[0]),
                                    cuda_array_of(&call->in[2]), call->in[3].data, call->in[4].data,
                                    cuda_array_of(&call->out[0]), call->work, call->stream),
                     err);
}

/* ---- amos ------------------------------------------------------------------------------------ */

static bool amos_fits(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << SCALARS_IN, 1u << 1) && is_f32(prog, op->in[3]) &&
           is_f32(prog, op->in[4]);
}

static size_t amos_work(const struct program *prog, const struct op *op,
                        const struct device_facts *facts)
{
    (void)facts;
    return amos_work_bytes(tensor_elems(prog, op->in[0]));
}

static enum snug_status run_amos(const struct kernel_call *call, struct snug_error *err)
{
    struct direction_job job = job_of(call);
    return cuda_done(call,
                     cuda_amos(&job, cuda_elems(&call->in[0]), cuda_elems(&call->in[3]),
                               cuda_array_of(&call->in[0]), cuda_array_of(&call->in[2]),
                               call->in[3].data, call->in[4].data, cuda_array_of(&call->out[0]),
                               call->work, call->stream),
                     err);
}

/* ---- prodigy --------------------------------------------------------------------------------- */

static bool prodigy_sums_fits(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << SCALARS_IN, 1u << 0) && is_f32(prog, op->in[4]);
}

static size_t prodigy_sums_work(const struct program *prog, const struct op *op,
                                const struct device_facts *facts)
{
    (void)facts;
    return prodigy_work_bytes(tensor_elems(prog, op->in[0]));
}

static enum snug_status run_prodigy_sums(const struct kernel_call *call, struct snug_error *err)
{
    struct direction_job job = job_of(call);
    return cuda_done(call,
                     cuda_prodigy_sums(&job, cuda_elems(&call->in[0]), cuda_array_of(&call->in[0]),
                                       cuda_array_of(&call->in[2]), cuda_array_of(&call->in[3]),
                                       call->in[4].data, call->out[0].data, call->work,
                                       call->stream),
                     err);
}

static enum snug_status run_prodigy_size(const struct kernel_call *call, struct snug_error *err)
{
    struct direction_job job = job_of(call);
    return cuda_done(
        call, cuda_prodigy_size(&job, cuda_elems(&call->in[0]) / 2, call->in[0].data, call->stream),
        err);
}

CUDA_KERNELS(direction) = {
    {.kind = OP_adafactor,
     .name = "cuda",
     .supports = adafactor_fits,
     .workspace_bytes = adafactor_work,
     .run = run_adafactor},
    {.kind = OP_amos,
     .name = "cuda",
     .supports = amos_fits,
     .workspace_bytes = amos_work,
     .run = run_amos},
    {.kind = OP_prodigy_sums,
     .name = "cuda",
     .supports = prodigy_sums_fits,
     .workspace_bytes = prodigy_sums_work,
     .run = run_prodigy_sums},
    {.kind = OP_prodigy_size, .name = "cuda", .run = run_prodigy_size},
};
CUDA_KERNELS_END(direction)
