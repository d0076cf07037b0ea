/*
 * ref_image.c -- reference: convolution, pooling, positions and image layouts.
 *
 * Images are [N,H,W,C].  The window of output (h, w) covers rows h * stride - pad + kh of x, and
 * the columns likewise.  Pixels outside the image count as zero in a convolution; pooling skips
 * them.
 */
#include <math.h>

#include "cpu/ref/ref_common.h"

struct image {
    int64_t count, height, width, channels;
};

static struct image image_of(const struct operand *x)
{
    const int64_t *dim = x->tensor->shape.dim;
    return (struct image){dim[0], dim[1], dim[2], dim[3]};
}

static int64_t pixel(const struct image *image, int64_t n, int64_t h, int64_t w)
{
    return ((n * image->height + h) * image->width + w) * image->channels;
}

/* ---- convolutions -------------------------------------------------------------------------- */

struct conv {
    struct image x, y;
    int64_t kernel_h, kernel_w, stride, pad;
    int64_t in_group, out_group; /* input and output channels per group */
};

static struct conv conv_of(const struct kernel_call *call, const struct operand *x,
                           const struct operand *y, const struct operand *w)
{
    const struct image_attrs *a = attrs_of(call->op, image);
    struct conv conv = {.x = image_of(x), .y = image_of(y), .stride = a->stride, .pad = a->pad};
    conv.kernel_h = w->tensor->shape.dim[2];
    conv.kernel_w = w->tensor->shape.dim[3];
    conv.in_group = conv.x.channels / a->groups;
    conv.out_group = conv.y.channels / a->groups;
    return conv;
}

/* Index of weight [o, i, kh, kw]. */
static int64_t weight_at(const struct conv *c, int64_t o, int64_t i, int64_t kh, int64_t kw)
{
    return ((o * c->in_group + i) * c->kernel_h + kh) * c->kernel_w + kw;
}

/* The row (or column) of x under tap k of window p, or -1 if outside. */
static int64_t input_of(int64_t p, int64_t k, int64_t side, const struct conv *c)
{
    int64_t at = p * c->stride - c->pad + k;
    return at >= 0 && at < side ? at : -1;
}

/* The window whose tap k is at row (or column) `at`, or -1 if none. */
static int64_t window_of(int64_t at, int64_t k, int64_t places, const struct conv *c)
{
    int64_t from = at + c->pad - k;
    return from >= 0 && from % c->stride == 0 && from / c->stride < places ? from / c->stride : -1;
}

static double conv_sum(const struct kernel_call *call, const struct conv *c, int64_t n, int64_t h,
                       int64_t w, int64_t o)
{
    const struct operand *x = &call->in[0], *weight = &call->in[1];
    int64_t first = o / c->out_group * c->in_group;
    double sum = 0.0;
    for (int64_t kh = 0; kh < c->kernel_h; kh++)
        for (int64_t kw = 0; kw < c->kernel_w; kw++) {
            int64_t row = input_of(h, kh, c->x.height, c), column = input_of(w, kw, c->x.width, c);
            for (int64_t i = 0; row >= 0 && column >= 0 && i < c->in_group; i++)
                sum += load(x, pixel(&c->x, n, row, column) + first + i) *
                       load(weight, weight_at(c, o, i, kh, kw));
        }
    return sum;
}

enum snug_status ref_conv2d(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *bias = &call->in[2], *y = &call->out[0];
    struct conv c = conv_of(call, &call->in[0], y, &call->in[1]);
    for (int64_t n = 0; n < c.y.count; n++)
        for (int64_t h = 0; h < c.y.height; h++)
            for (int64_t w = 0; w < c.y.width; w++)
                for (int64_t o = 0; o < c.y.channels; o++) {
                    double sum = conv_sum(call, &c, n, h, w, o);
                    store(y, pixel(&c.y, n, h, w) + o, present(bias) ? sum + load(bias, o) : sum);
                }
    return SNUG_OK;
}

static double conv_grad_x_sum(const struct kernel_call *call, const struct conv *c, int64_t n,
                              int64_t h, int64_t w, int64_t channel)
{
    const struct operand *dy = &call->in[0], *weight = &call->in[1];
    int64_t first = channel / c->in_group * c->out_group, i = channel % c->in_group;
    double sum = 0.0;
    for (int64_t kh = 0; kh < c->kernel_h; kh++)
        for (int64_t kw = 0; kw < c->kernel_w; kw++) {
            int64_t row = window_of(h, kh, c->y.height, c),
                    column = window_of(w, kw, c->y.width, c);
            for (int64_t o = first; row >= 0 && column >= 0 && o < first + c->out_group; o++)
                sum += load(dy, pixel(&c->y, n, row, column) + o) *
                       load(weight, weight_at(c, o, i, kh, kw));
        }
    return sum;
}

enum snug_status ref_conv2d_grad_x(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dx = &call->out[0];
    struct conv c = conv_of(call, dx, &call->in[0], &call->in[1]);
    for (int64_t n = 0; n < c.x.count; n++)
        for (int64_t h = 0; h < c.x.height; h++)
            for (int64_t w = 0; w < c.x.width; w++)
                for (int64_t i = 0; i < c.x.channels; i++)
                    store(dx, pixel(&c.x, n, h, w) + i, conv_grad_x_sum(call, &c, n, h, w, i));
    return SNUG_OK;
}

static double conv_grad_w_sum(const struct kernel_call *call, const struct conv *c, int64_t o,
                              int64_t i, int64_t kh, int64_t kw)
{
    const struct operand *x = &call->in[0], *dy = &call->in[1];
    int64_t channel = o / c->out_group * c->in_group + i;
    double sum = 0.0;
    for (int64_t n = 0; n < c->y.count; n++)
        for (int64_t h = 0; h < c->y.height; h++)
            for (int64_t w = 0; w < c->y.width; w++) {
                int64_t row = input_of(h, kh, c->x.height, c),
                        column = input_of(w, kw, c->x.width, c);
                if (row >= 0 && column >= 0)
                    sum += load(x, pixel(&c->x, n, row, column) + channel) *
                           load(dy, pixel(&c->y, n, h, w) + o);
            }
    return sum;
}

enum snug_status ref_conv2d_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[1], *dw = &call->out[0], *dbias = &call->out[1];
    const struct image_attrs *a = attrs_of(call->op, image);
    struct conv c = {.x = image_of(&call->in[0]),
                     .y = image_of(dy),
                     .stride = a->stride,
                     .pad = a->pad,
                     .kernel_h = a->kernel_h,
                     .kernel_w = a->kernel_w};
    c.in_group = c.x.channels / a->groups;
    c.out_group = c.y.channels / a->groups;
    for (int64_t o = 0; o < c.y.channels; o++) {
        double sum = 0.0;
        for (int64_t i = 0, n = elems(dy) / c.y.channels; i < n; i++)
            sum += load(dy, i * c.y.channels + o);
        store_or_add(dbias, o, sum, call->add);
        for (int64_t i = 0; present(dw) && i < c.in_group; i++)
            for (int64_t kh = 0; kh < c.kernel_h; kh++)
                for (int64_t kw = 0; kw < c.kernel_w; kw++)
                    store_or_add(dw, weight_at(&c, o, i, kh, kw),
                                 conv_grad_w_sum(call, &c, o, i, kh, kw), call->add);
    }
    return SNUG_OK;
}

/* ---- pools --------------------------------------------------------------------------------- */

static struct conv pool_of(const struct kernel_call *call, const struct operand *x,
                           const struct operand *y)
{
    const struct image_attrs *a = attrs_of(call->op, image);
    return (struct conv){.x = image_of(x),
                         .y = image_of(y),
                         .stride = a->stride,
                         .pad = a->pad,
                         .kernel_h = a->kernel_h,
                         .kernel_w = a->kernel_w};
}

/* The maximum of a window and its index in the window.  NaN counts as the largest. */
static double pool_most(const struct operand *x, const struct conv *c, int64_t n, int64_t h,
                        int64_t w, int64_t channel, int64_t *place)
{
    double most = -INFINITY;
    bool found = false;
    for (int64_t kh = 0; kh < c->kernel_h; kh++)
        for (int64_t kw = 0; kw < c->kernel_w; kw++) {
            int64_t row = input_of(h, kh, c->x.height, c), column = input_of(w, kw, c->x.width, c);
            if (row < 0 || column < 0)
                continue;
            double value = load(x, pixel(&c->x, n, row, column) + channel);
            if (!found || value > most || isnan(value)) {
                most = value;
                *place = kh * c->kernel_w + kw;
                found = true;
            }
        }
    return most;
}

enum snug_status ref_maxpool(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0], *at = &call->out[1];
    struct conv c = pool_of(call, x, y);
    for (int64_t n = 0; n < c.y.count; n++)
        for (int64_t h = 0; h < c.y.height; h++)
            for (int64_t w = 0; w < c.y.width; w++)
                for (int64_t k = 0; k < c.y.channels; k++) {
                    int64_t place = 0, to = pixel(&c.y, n, h, w) + k;
                    store(y, to, pool_most(x, &c, n, h, w, k, &place));
                    store(at, to, (double)place);
                }
    return SNUG_OK;
}

static double pool_grad_sum(const struct kernel_call *call, const struct conv *c, int64_t n,
                            int64_t h, int64_t w, int64_t channel)
{
    const struct operand *dy = &call->in[0], *at = &call->in[1];
    double sum = 0.0;
    for (int64_t kh = 0; kh < c->kernel_h; kh++)
        for (int64_t kw = 0; kw < c->kernel_w; kw++) {
            int64_t row = window_of(h, kh, c->y.height, c),
                    column = window_of(w, kw, c->y.width, c);
            int64_t from = pixel(&c->y, n, row, column) + channel;
            if (row >= 0 && column >= 0 && (int64_t)load(at, from) == kh * c->kernel_w + kw)
                sum += load(dy, from);
        }
    return sum;
}

enum snug_status ref_maxpool_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dx = &call->out[0];
    struct conv c = pool_of(call, dx, &call->in[0]);
    for (int64_t n = 0; n < c.x.count; n++)
        for (int64_t h = 0; h < c.x.height; h++)
            for (int64_t w = 0; w < c.x.width; w++)
                for (int64_t k = 0; k < c.x.channels; k++)
                    store(dx, pixel(&c.x, n, h, w) + k, pool_grad_sum(call, &c, n, h, w, k));
    return SNUG_OK;
}

enum snug_status ref_meanpool(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    int64_t count = rows(y), channels = last(y), n_pixels = rows(x) / count;
    for (int64_t n = 0; n < count; n++)
        for (int64_t c = 0; c < channels; c++) {
            double sum = 0.0;
            for (int64_t p = 0; p < n_pixels; p++)
                sum += load(x, (n * n_pixels + p) * channels + c);
            store(y, n * channels + c, sum / (double)n_pixels);
        }
    return SNUG_OK;
}

enum snug_status ref_meanpool_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *dx = &call->out[0];
    int64_t count = rows(dy), channels = last(dy), n_pixels = rows(dx) / count;
    for (int64_t n = 0; n < count; n++)
        for (int64_t p = 0; p < n_pixels; p++)
            for (int64_t c = 0; c < channels; c++)
                store(dx, (n * n_pixels + p) * channels + c,
                      load(dy, n * channels + c) / (double)n_pixels);
    return SNUG_OK;
}

/* ---- positions ------------------------------------------------------------------------------ */

enum snug_status ref_add_positions(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *positions = &call->in[1];
    for (int64_t i = 0, n = elems(x), period = elems(positions); i < n; i++)
        store(&call->out[0], i, load(x, i) + load(positions, i % period));
    return SNUG_OK;
}

enum snug_status ref_add_positions_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *dx = &call->out[0], *dpositions = &call->out[1];
    int64_t n = elems(dy), period = n / dy->tensor->shape.dim[0];
    for (int64_t i = 0; present(dpositions) && i < period; i++) {
        double sum = 0.0;
        for (int64_t at = i; at < n; at += period)
            sum += load(dy, at);
        store_or_add(dpositions, i, sum, call->add);
    }
    for (int64_t i = 0; present(dx) && i < n; i++)
        store(dx, i, load(dy, i));
    return SNUG_OK;
}

/* ---- layouts ------------------------------------------------------------------------------- */

/* [N,A,B] to [N,B,A] */
static void transpose_planes(const struct operand *x, const struct operand *y, int64_t n, int64_t a,
                             int64_t b)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < a; j++)
            for (int64_t k = 0; k < b; k++)
                store(y, (i * b + k) * a + j, load(x, (i * a + j) * b + k));
}

enum snug_status ref_channels_last(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const int64_t *dim = call->in[0].tensor->shape.dim;
    transpose_planes(&call->in[0], &call->out[0], dim[0], dim[1], dim[2] * dim[3]);
    return SNUG_OK;
}

enum snug_status ref_channels_first(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const int64_t *dim = call->in[0].tensor->shape.dim;
    transpose_planes(&call->in[0], &call->out[0], dim[0], dim[1] * dim[2], dim[3]);
    return SNUG_OK;
}
