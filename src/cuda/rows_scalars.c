/*
 * rows_scalars.c -- sum_squares over sums.cu; grad_norm, the pieces of it, and take_row over scalars.cu.
 */
#include "cuda/rows.h"
#include "cuda/scalars.h"
#include "cuda/sums.h"

static bool supports_sum_squares(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 1) && program_tensor(prog, op->out[0])->dtype == DTYPE_f64;
}

static size_t sum_squares_bytes(const struct program *prog, const struct op *op,
                                const struct device_facts *facts)
{
    int64_t n_parts = cuda_square_parts(tensor_elems(prog, op->in[0]));
    (void)facts;
    return n_parts == 1 ? 0 : (size_t)n_parts * sizeof(double);
}

static enum snug_status run_sum_squares(const struct kernel_call *call, struct snug_error *err)
{
    int64_t n = cuda_elems(&call->in[0]), n_parts = cuda_square_parts(n);
    double *parts = n_parts == 1 ? call->out[0].data : call->work;
    int error = cuda_sum_squares(n, cuda_array_of(&call->in[0]), NULL, parts, call->stream);
    if (error == 0 && n_parts > 1)
        error = cuda_total(parts, n_parts, 1.0, cuda_array_of(&call->out[0]), false, call->stream);
    return cuda_done(call, error, err);
}

static enum snug_status run_scalars(const struct kernel_call *call, struct snug_error *err)
{
    const struct attrs *attrs = &call->op->attrs;
    double *scalars = call->out[0].data;
    const double *parts = call->in[0].data;
    int error = 0;
    switch (call->op->kind) {
    case OP_grad_norm:
        error = cuda_grad_norm(parts, cuda_elems(&call->in[0]), attrs->max_norm,
                               attrs->dynamic_scale != 0, scalars, call->stream);
        break;
    case OP_open_updates:
        error = cuda_open_updates(scalars, call->stream);
        break;
    case OP_check_gradient:
        error = cuda_check_gradient(parts, scalars, call->stream);
        break;
    case OP_close_updates:
        error = cuda_close_updates(parts, cuda_elems(&call->in[0]), scalars, call->stream);
        break;
    default: /* next_loss_scale */
        error = cuda_next_loss_scale(scalars, call->stream);
        break;
    }
    return cuda_done(call, error, err);
}

static bool supports_take_row(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 2, 0);
}

static enum snug_status run_take_row(const struct kernel_call *call, struct snug_error *err)
{
    const int64_t *dim = call->in[0].tensor->shape.dim;
    return cuda_done(call,
                     cuda_take_row(dim[0], dim[1], dim[2], cuda_array_of(&call->in[0]),
                                   call->in[1].data, cuda_array_of(&call->out[0]), call->stream),
                     err);
}

CUDA_ROWS(scalars) = {
    {.kind = OP_sum_squares,
     .name = "cuda",
     .supports = supports_sum_squares,
     .workspace_bytes = sum_squares_bytes,
     .run = run_sum_squares},
    {.kind = OP_grad_norm, .name = "cuda", .run = run_scalars},
    {.kind = OP_open_updates, .name = "cuda", .run = run_scalars},
    {.kind = OP_check_gradient, .name = "cuda", .run = run_scalars},
    {.kind = OP_close_updates, .name = "cuda", .run = run_scalars},
    {.kind = OP_next_loss_scale, .name = "cuda", .run = run_scalars},
    {.kind = OP_take_row, .name = "cuda", .supports = supports_take_row, .run = run_take_row},
};
CUDA_ROWS_END(scalars)
