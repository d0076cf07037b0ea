/*
 * dispatch_scalars.c -- sum_squares with sums.cu; grad_norm, its parts and take_row with
 * scalars.cu.
 */
#include "cuda/dispatch/dispatch.h"
#include "cuda/optim/scalars.h"
#include "cuda/kernels/sums.h"

static bool supports_sum_squares(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 0, 1) && program_tensor(prog, op->out[0])->dtype == DTYPE_f64;
}

/* Calls that are batched use the workspace of the first one, and each may be the first. */
enum { SQUARES_WORK_BYTES = CUDA_SQUARE_LIST_PARTS * sizeof(double) };

static size_t sum_squares_bytes(const struct program *prog, const struct op *op,
                                const struct device_facts *facts)
{
    (void)prog;
    (void)op;
    (void)facts;
    return SQUARES_WORK_BYTES;
}

/* The output of a later op may overlap the workspace of the first one. */
static bool does_not_overlap(const struct operand *out, const char *work)
{
    const char *at = out->data;
    return at + sizeof(double) <= work || at >= work + SQUARES_WORK_BYTES;
}

static enum snug_status run_several_sums(const struct kernel_call *calls, int n, int *n_run,
                                         struct snug_error *err)
{
    struct cuda_square tensors[CUDA_SQUARE_TENSORS];
    int64_t n_parts = 0;
    *n_run = 0;
    for (int i = 0; i < n && i < CUDA_SQUARE_TENSORS; i++) {
        const struct kernel_call *call = &calls[i];
        int64_t n_elems = cuda_elems(&call->in[0]);
        n_parts += cuda_square_parts(n_elems);
        if (n_parts > CUDA_SQUARE_LIST_PARTS || !does_not_overlap(&call->out[0], calls->work))
            break;
        tensors[(*n_run)++] = (struct cuda_square){
            .n = n_elems, .x = cuda_array_of(&call->in[0]), .sum = call->out[0].data};
    }
    return cuda_done(calls, cuda_sum_squares(*n_run, tensors, calls->work, calls->stream), err);
}

static enum snug_status run_sum_squares(const struct kernel_call *call, struct snug_error *err)
{
    int n_run;
    return run_several_sums(call, 1, &n_run, err);
}

static enum snug_status run_scalars(const struct kernel_call *call, struct snug_error *err)
{
    double *scalars = call->out[0].data;
    const double *parts = call->in[0].data;
    int error = 0;
    switch (call->op->kind) {
    case OP_grad_norm:
        error =
            cuda_grad_norm(parts, cuda_elems(&call->in[0]), attrs_of(call->op, grad_norm)->max_norm,
                           attrs_of(call->op, grad_norm)->dynamic_scale, scalars, call->stream);
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

CUDA_KERNELS(scalars) = {
    {.kind = OP_sum_squares,
     .name = "cuda",
     .supports = supports_sum_squares,
     .workspace_bytes = sum_squares_bytes,
     .run = run_sum_squares,
     .run_several = run_several_sums},
    {.kind = OP_grad_norm, .name = "cuda", .run = run_scalars},
    {.kind = OP_open_updates, .name = "cuda", .run = run_scalars},
    {.kind = OP_check_gradient, .name = "cuda", .run = run_scalars},
    {.kind = OP_close_updates, .name = "cuda", .run = run_scalars},
    {.kind = OP_next_loss_scale, .name = "cuda", .run = run_scalars},
    {.kind = OP_take_row, .name = "cuda", .supports = supports_take_row, .run = run_take_row},
};
CUDA_KERNELS_END(scalars)
