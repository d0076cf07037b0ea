/*
 * conv_emulated.c -- conv_cudnn.h with plain loops in host memory, for the emulation: sums in fp32,
 * rounded once.
 */
#include <stdlib.h>

#include "cuda/lib/conv_cudnn.h"
#include "cuda/emulation/stand_in.h"

struct cuda_conv {
    struct cuda_conv_shape shape;
    enum dtype type, w_type;
};

struct work {
    struct cuda_conv conv;
    struct cuda_conv_call call;
};

/* Like the library, it has no fp32 gradient of 16-bit operands.  Three groups are rejected, as a
 * library might, to test the fallback. */
enum snug_status cuda_conv_prepare(const struct cuda_conv_shape *shape, enum dtype type,
                                   enum dtype w_type, size_t most_work_bytes,
                                   struct cuda_conv **conv, struct snug_error *err)
{
    (void)most_work_bytes;
    *conv = NULL;
    if (type != w_type || shape->groups == 3)
        return SNUG_OK;
    *conv = malloc(sizeof **conv);
    if (*conv == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "convolution: out of memory while preparing it");
    **conv = (struct cuda_conv){*shape, type, w_type};
    return SNUG_OK;
}

void cuda_conv_release(struct cuda_conv *conv)
{
    free(conv);
}

struct tap { /* offsets of one weight, and of the elements of both images that it connects */
    int64_t x, w, y;
};

/* Returns false if the tap is outside the image. */
static bool find_tap(const struct cuda_conv_shape *s, const int64_t y_pixel[3], int64_t o,
                     int64_t i, int64_t kh, int64_t kw, struct tap *tap)
{
    int64_t in_group = s->x_c / s->groups, out_group = s->y_c / s->groups;
    int64_t h = y_pixel[1] * s->stride - s->pad + kh, w = y_pixel[2] * s->stride - s->pad + kw;
    tap->x = ((y_pixel[0] * s->x_h + h) * s->x_w + w) * s->x_c + o / out_group * in_group + i;
    tap->w = ((o * s->kernel_h + kh) * s->kernel_w + kw) * in_group + i;
    tap->y = ((y_pixel[0] * s->y_h + y_pixel[1]) * s->y_w + y_pixel[2]) * s->y_c + o;
    return h >= 0 && h < s->x_h && w >= 0 && w < s->x_w;
}

/* All three operands in fp32; the result starts as zeros. */
struct widened {
    float *x, *w, *y;
};

static float *widen(enum dtype type, const void *data, int64_t n, bool is_result)
{
    float *copy = calloc((size_t)n, sizeof *copy);
    if (copy == NULL)
        abort(); /* a test machine has this much memory */
    for (int64_t i = 0; i < n && !is_result; i++)
        copy[i] = (float)dtype_load(type, data, i);
    return copy;
}

static void add_product(enum cuda_conv_kind kind, const struct widened *all, const struct tap *tap)
{
    if (kind == CONV_forward)
        all->y[tap->y] += all->x[tap->x] * all->w[tap->w];
    else if (kind == CONV_grad_x)
        all->x[tap->x] += all->y[tap->y] * all->w[tap->w];
    else
        all->w[tap->w] += all->x[tap->x] * all->y[tap->y];
}

static void add_pixel(const struct cuda_conv_shape *s, const struct widened *all, int64_t pixel)
{
    int64_t at[3] = {pixel / s->y_w / s->y_h, pixel / s->y_w % s->y_h, pixel % s->y_w};
    for (int64_t o = 0; o < s->y_c; o++)
        for (int64_t k = 0; k < s->kernel_h * s->kernel_w; k++)
            for (int64_t i = 0; i < s->x_c / s->groups; i++) {
                struct tap tap;
                if (find_tap(s, at, o, i, k / s->kernel_w, k % s->kernel_w, &tap))
                    add_product(s->kind, all, &tap);
            }
}

static void narrow(enum dtype type, void *data, int64_t n, const float *from)
{
    for (int64_t i = 0; i < n; i++)
        dtype_store(type, data, i, (double)from[i]);
}

static void run(const void *arguments)
{
    const struct work *w = arguments;
    const struct cuda_conv_shape *s = &w->conv.shape;
    enum dtype type = w->conv.type, w_type = w->conv.w_type;
    int64_t n_x = s->n * s->x_h * s->x_w * s->x_c, n_y = s->n * s->y_h * s->y_w * s->y_c;
    int64_t n_w = s->y_c * s->kernel_h * s->kernel_w * s->x_c / s->groups;
    struct widened all = {.x = widen(type, w->call.x, n_x, s->kind == CONV_grad_x),
                          .w = widen(w_type, w->call.w, n_w, s->kind == CONV_grad_w),
                          .y = widen(type, w->call.y, n_y, s->kind == CONV_forward)};
    for (int64_t pixel = 0; pixel < s->n * s->y_h * s->y_w; pixel++)
        add_pixel(s, &all, pixel);
    if (s->kind == CONV_forward)
        narrow(type, w->call.y, n_y, all.y);
    else if (s->kind == CONV_grad_x)
        narrow(type, w->call.x, n_x, all.x);
    else
        narrow(w_type, w->call.w, n_w, all.w);
    free(all.x);
    free(all.w);
    free(all.y);
}

enum snug_status cuda_conv_run(const struct cuda_conv *conv, const struct cuda_conv_call *call,
                               struct snug_error *err)
{
    if (call->work == NULL || (uintptr_t)call->work % 256 != 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "convolution: the workspace is missing or not 256-byte aligned");
    struct work work = {*conv, *call};
    stand_in_submit(call->stream, run, &work, sizeof work);
    return SNUG_OK;
}
