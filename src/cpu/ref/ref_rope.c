/*
 * ref_rope.c -- reference: rotary position embedding.
 */
#include "cpu/ref/ref_common.h"
#include "ir/rope_angles.h"

/* Rotates the head that begins at element `begin`.  y may alias x. */
static void rotate(const struct operand *x, const struct operand *y, int64_t begin, int64_t depth,
                   const struct rope_attrs *rope, double position)
{
    for (int64_t i = 0; i < depth / 2; i++) {
        double angle = position * rope_frequency(rope, depth, i);
        double cosine = cos(angle), sine = rope->inverse ? -sin(angle) : sin(angle);
        double first = load(x, begin + i), second = load(x, begin + depth / 2 + i);
        store(y, begin + i, first * cosine - second * sine);
        store(y, begin + depth / 2 + i, second * cosine + first * sine);
    }
}

enum snug_status ref_rope(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *positions = &call->in[1], *y = &call->out[0];
    const struct rope_attrs *rope = attrs_of(call->op, rope);
    int64_t n_time = x->tensor->shape.dim[1], depth = last(x) / rope->heads;
    for (int64_t row = 0; row < rows(x); row++) {
        int64_t position =
            present(positions) ? ((const int32_t *)positions->data)[row] : row % n_time;
        for (int64_t h = 0; h < rope->heads; h++)
            rotate(x, y, row * last(x) + h * depth, depth, rope, (double)position);
    }
    return SNUG_OK;
}
