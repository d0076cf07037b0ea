/*
 * simd_im2col.h -- implicit im2col: a convolution as a matmul of gathered windows and weights.
 *
 * Row p of the matrix A is the window of pixel p, tap by tap, channels innermost:
 *
 *     A[p, (ih, iw, c)] = from[n, row(h, ih), column(w, iw), c]       0 outside the image
 *     row(h, ih) = h * from_step + from_first + ih                    and so for columns
 *
 * Only a few rows of A exist at a time, in the workspace.  With channels last, the taps of a window
 * row are contiguous in the image, so a window row is one copy.  Forward, the pixels are those of y
 * and A is gathered from x.  In the gradient of x they are those of dx and A is gathered from dy:
 * with stride s, pixels of dx that are s apart use the same taps, so dx is computed in s x s phases
 * of that form.
 *
 * Everything is static: each file that includes this is compiled once per instruction level.
 */
#ifndef SNUG_CPU_SIMD_SIMD_IM2COL_H
#define SNUG_CPU_SIMD_SIMD_IM2COL_H

#include "cpu/simd/simd_common.h"
#include "cpu/simd/simd_tile.h"

/* One dimension of the window.  Tap i is weight kernel_first + i * kernel_step. */
struct axis {
    int64_t n_pixels, to_first, to_step;      /* pixels of the result: to_first + h * to_step */
    int64_t from_side, from_first, from_step; /* of the input image */
    int64_t n_taps, kernel_first, kernel_step;
};

struct gather {
    enum dtype dtype;
    const void *from;
    int64_t from_channels, first_channel, n_channels; /* of all groups; of this group */
    struct axis h, w;
    int64_t n_pixels; /* of all images */
    int64_t depth;    /* elements in a row of A */
};

/* The windows over x in the forward pass. */
static inline struct axis axis_forward(int64_t x_side, int64_t y_side, int64_t kernel,
                                       const struct image_attrs *a)
{
    return (struct axis){.n_pixels = y_side,
                         .to_step = 1,
                         .from_side = x_side,
                         .from_first = -a->pad,
                         .from_step = a->stride,
                         .n_taps = kernel,
                         .kernel_step = 1};
}

/* The pixels phase, phase + stride, ...  of dx.  Tap k reaches them if the stride divides (pixel +
 * pad - k).  Taps go from last to first, so the pixels of dy that they read ascend. */
static inline struct axis axis_backward(int64_t x_side, int64_t y_side, int64_t kernel,
                                        const struct image_attrs *a, int64_t phase)
{
    int64_t first_tap = (phase + a->pad) % a->stride;
    int64_t n_taps = kernel > first_tap ? divide_up(kernel - first_tap, a->stride) : 0;
    return (struct axis){.n_pixels = x_side > phase ? divide_up(x_side - phase, a->stride) : 0,
                         .to_first = phase,
                         .to_step = a->stride,
                         .from_side = y_side,
                         .from_first = (phase + a->pad - first_tap) / a->stride - (n_taps - 1),
                         .from_step = 1,
                         .n_taps = n_taps,
                         .kernel_first = first_tap + (n_taps - 1) * a->stride,
                         .kernel_step = -a->stride};
}

/* Gathers elements [begin, end) of a window row that starts at column `column` of an image row. */
static inline void gather_run(const struct gather *g, int64_t row, int64_t column, int64_t begin,
                              int64_t end, float *to)
{
    if (g->n_channels == g->from_channels) { /* one copy, clipped at the edges of the image */
        int64_t start = column * g->n_channels, stop = g->w.from_side * g->n_channels;
        int64_t low = start + begin < 0 ? least(-start, end) : begin;
        int64_t high = start + end > stop ? stop - start : end;
        high = high < low ? low : high;
        memset(to, 0, (size_t)(low - begin) * sizeof *to);
        load_f32(g->dtype, g->from, row * stop + start + low, high - low, to + (low - begin));
        memset(to + (high - begin), 0, (size_t)(end - high) * sizeof *to);
        return;
    }
    for (int64_t at = begin; at < end;) {
        int64_t tap = at / g->n_channels, channel = at % g->n_channels;
        int64_t n = least(g->n_channels - channel, end - at), place = column + tap;
        if (place < 0 || place >= g->w.from_side)
            memset(to + (at - begin), 0, (size_t)n * sizeof *to);
        else
            load_f32(g->dtype, g->from,
                     (row * g->w.from_side + place) * g->from_channels + g->first_channel + channel,
                     n, to + (at - begin));
        at += n;
    }
}

#if defined(__AVX512F__)
/* Gathers a window row of at most one vector: one load, masked at the edges, and one store. */
static inline void gather_short_run(const struct gather *g, int64_t row, int64_t column, int64_t n,
                                    float *to)
{
    int64_t start = column * g->n_channels, stop = g->w.from_side * g->n_channels;
    int64_t low = start < 0 ? least(-start, n) : 0;
    int64_t high = start + n > stop ? stop - start : n;
    unsigned there = high <= low ? 0 : (1u << high) - (1u << low);
    const float *from = (const float *)g->from + row * stop + start;
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1),
                          _mm512_maskz_loadu_ps((__mmask16)there, from));
}
#endif

/* Gathers elements [begin, end) of a window row from column `column` on.  The image row exists. */
static inline void gather_window_row(const struct gather *g, int64_t row, int64_t column,
                                     int64_t begin, int64_t end, float *to)
{
#if defined(__AVX512F__)
    if (end - begin <= VEC_ELEMS && begin == 0 && g->dtype == DTYPE_f32 &&
        g->n_channels == g->from_channels) {
        gather_short_run(g, row, column, end, to);
        return;
    }
#endif
    gather_run(g, row, column, begin, end, to);
}

/* to[n_rows, k_end - k_begin] = those columns of rows first .. of A. */
static inline void gather_rows(const struct gather *g, int64_t first, int64_t n_rows,
                               int64_t k_begin, int64_t k_end, float *to)
{
    int64_t per_row = g->w.n_taps * g->n_channels, width = k_end - k_begin;
    int64_t w = first % g->w.n_pixels, h = first / g->w.n_pixels % g->h.n_pixels;
    int64_t n = first / (g->w.n_pixels * g->h.n_pixels);
    for (int64_t p = 0; p < n_rows; p++) {
        int64_t column = w * g->w.from_step + g->w.from_first;
        for (int64_t at = k_begin; at < k_end;) {
            int64_t tap = at / per_row, begin = at % per_row;
            int64_t end = least(per_row, begin + k_end - at);
            int64_t row = h * g->h.from_step + g->h.from_first + tap;
            float *place = to + p * width + (at - k_begin);
            if (row < 0 || row >= g->h.from_side)
                memset(place, 0, (size_t)(end - begin) * sizeof *to);
            else
                gather_window_row(g, n * g->h.from_side + row, column, begin, end, place);
            at += end - begin;
        }
        if (++w == g->w.n_pixels) {
            w = 0;
            if (++h == g->h.n_pixels) {
                h = 0;
                n++;
            }
        }
    }
}

/* True if A is the image itself or the columns of a group: fp32, one tap, stride 1. */
static inline bool gather_is_image(const struct gather *g)
{
    const struct axis *h = &g->h, *w = &g->w;
    return g->dtype == DTYPE_f32 && h->n_taps == 1 && w->n_taps == 1 && h->from_step == 1 &&
           w->from_step == 1 && h->from_first == 0 && w->from_first == 0 &&
           h->n_pixels == h->from_side && w->n_pixels == w->from_side;
}

/* n rounded up to whole vectors of the widest level, so that the workspace is the same for all. */
static inline int64_t padded_columns(int64_t n)
{
    return padded_floats(n);
}

#endif
