/*
 * simd_swiglu.c -- swiglu and its gradient: one pass over memory each.
 *
 * Outputs may alias inputs: a block is read before it is written.
 */
#include "cpu/simd/simd_common.h"

static bool all_floats(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 0);
}

static OUT_OF_LINE void swiglu_block(int64_t n, const float *gate, const float *up, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] * sigmoid_f32(gate[i]) * up[i];
}

/* With s = sigmoid(g):  dgate = dy up s (1 + g (1 - s)),  dup = dy g s.  e s = 1 - s without
 * cancellation. */
static OUT_OF_LINE void grad_block(int64_t n, const float *dy, const float *gate, const float *up,
                                   float *dgate, float *dup)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], e = exp_f32(-g);
        float s = 1.0f / (1.0f + e), slope = dy[i] * s;
        float of_gate = slope * up[i] * fmadd(g, e * s, 1.0f);
        dup[i] = slope * g;
        dgate[i] = of_gate;
    }
}

static enum snug_status run_swiglu(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t n = shape_elems(&call->out[0].tensor->shape);
    int n_parts = count_parts(call->facts, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        float buffer_gate[BLOCK_ELEMS], buffer_up[BLOCK_ELEMS], buffer_y[BLOCK_ELEMS];
        struct range range = part_range(n, n_parts, part, BLOCK_ELEMS);
        for (int64_t at = range.begin; at < range.end; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, range.end - at);
            const float *gate = in_view(call, 0, at, count, buffer_gate);
            const float *up = in_view(call, 1, at, count, buffer_up);
            float *y = out_target(call, 0, at, buffer_y);
            swiglu_block(count, gate, up, y);
            out_store(call, 0, at, count, y);
        }
    }
    return SNUG_OK;
}

/* The target of an output, or the buffer if it is left out. */
static float *target_or_buffer(const struct kernel_call *call, int k, int64_t begin, float *buffer)
{
    return call->out[k].data != NULL ? out_target(call, k, begin, buffer) : buffer;
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t n = shape_elems(&call->in[0].tensor->shape);
    int n_parts = count_parts(call->facts, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        float buffers[5][BLOCK_ELEMS];
        struct range range = part_range(n, n_parts, part, BLOCK_ELEMS);
        for (int64_t at = range.begin; at < range.end; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, range.end - at);
            const float *in[3];
            float *out[2];
            for (int k = 0; k < 3; k++)
                in[k] = in_view(call, k, at, count, buffers[k]);
            if (call->out[2].data != NULL) { /* before the gradient: dgate may alias gate */
                float *y = out_target(call, 2, at, buffers[3]);
                swiglu_block(count, in[1], in[2], y);
                out_store(call, 2, at, count, y);
            }
            for (int k = 0; k < 2; k++)
                out[k] = target_or_buffer(call, k, at, buffers[3 + k]);
            grad_block(count, in[0], in[1], in[2], out[0], out[1]);
            for (int k = 0; k < 2; k++)
                if (call->out[k].data != NULL)
                    out_store(call, k, at, count, out[k]);
        }
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_swiglu, .name = KERNEL_NAME, .supports = all_floats, .run = run_swiglu},
    {.kind = OP_swiglu_grad, .name = KERNEL_NAME, .supports = all_floats, .run = run_grad},
};

const struct kernel *LEVEL(simd_swiglu_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
