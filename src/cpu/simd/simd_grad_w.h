/*
 * simd_grad_w.h -- the last step of all weight gradients of convolutions: the sums over pieces of
 * the pixels, stored as [piece, group, tap, channel, out], are added in order and transposed to W's
 * layout.  Also the gradient of the bias.
 *
 * Everything is static: each file that includes this is compiled once per instruction level.
 */
#ifndef SNUG_CPU_SIMD_SIMD_GRAD_W_H
#define SNUG_CPU_SIMD_SIMD_GRAD_W_H

#include "cpu/cpu_isa.h"
#include "cpu/simd/simd_common.h"

enum {
    OUT_BLOCK = 16, /* outputs transposed at a time */
    RUN = 144       /* elements of each: one at a time, every store would hit another page */
};

struct weight_sums {
    int64_t n_pieces, n_groups, n_taps, n_channels, n_out; /* channels and outputs per group */
    int64_t pitch;                                         /* n_out, padded */
};

static inline int64_t piece_floats(const struct weight_sums *s)
{
    return s->n_groups * s->n_taps * s->n_channels * s->pitch;
}

/* The offset of the sums of a piece, group, tap and channel, at output 0. */
static inline int64_t sums_at(const struct weight_sums *s, int64_t piece, int64_t group,
                              int64_t tap, int64_t channel)
{
    return (((piece * s->n_groups + group) * s->n_taps + tap) * s->n_channels + channel) * s->pitch;
}

/* to[n, OUT_BLOCK] = the sums of all pieces for elements first .. first + n of [channel, tap]. */
static void add_pieces(const struct weight_sums *s, const float *sums, int64_t group,
                       int64_t first_out, int64_t first, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t channel = (first + i) / s->n_taps, tap = (first + i) % s->n_taps;
        const float *line = sums + sums_at(s, 0, group, tap, channel) + first_out;
        float *total = to + i * OUT_BLOCK;
        memcpy(total, line, OUT_BLOCK * sizeof *total);
        for (int64_t piece = 1; piece < s->n_pieces; piece++)
            for (int j = 0; j < OUT_BLOCK; j++)
                total[j] += line[piece * piece_floats(s) + j];
    }
}

/* dW[o, c, taps] (+)= the sums of all pieces, for OUT_BLOCK outputs of a group. */
static void lay_out_block(const struct kernel_call *call, const struct weight_sums *s,
                          const float *sums, int64_t group, int64_t first_out)
{
    const struct operand *dw = &call->out[0];
    int64_t n_out = least(OUT_BLOCK, s->n_out - first_out), per_out = s->n_channels * s->n_taps;
    float totals[RUN * OUT_BLOCK], row[RUN];
    for (int64_t first = 0; first < per_out; first += RUN) {
        int64_t n = least(RUN, per_out - first);
        add_pieces(s, sums, group, first_out, first, n, totals);
        for (int64_t j = 0; j < n_out; j++) {
            int64_t at = (group * s->n_out + first_out + j) * per_out + first;
            memset(row, 0, sizeof row);
            if (call->add)
                load_f32(dw->tensor->dtype, dw->data, at, n, row);
            for (int64_t i = 0; i < n; i++)
                row[i] += totals[i * OUT_BLOCK + j];
            store_f32(dw->tensor->dtype, dw->data, at, n, row);
        }
    }
}

static void lay_out_weights(const struct kernel_call *call, const struct weight_sums *s,
                            const float *sums)
{
    int64_t per_group = divide_up(s->n_out, OUT_BLOCK), n_blocks = per_group * s->n_groups;
    int n_parts = count_parts(call->facts, piece_floats(s));
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < n_blocks; i++)
        lay_out_block(call, s, sums, i / per_group, i % per_group * OUT_BLOCK);
}

/* dbias (+)= the sum of dy over all pixels, unless it is left out. */
static void sum_bias(const struct kernel_call *call)
{
    const struct operand *dy = &call->in[1], *dbias = &call->out[1];
    const struct shape *shape = &dy->tensor->shape;
    if (call->op->n_out > 1 && dbias->data != NULL)
        call->facts->isa->loops->sum_columns(call->facts->threads, span_of(dy, 0),
                                             shape_rows(shape), shape_last(shape),
                                             span_of(dbias, 0), call->add);
}

#endif
