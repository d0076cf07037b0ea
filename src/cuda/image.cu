/*
 * image.cu -- pools of images and positions added to them.
 *
 * A thread makes one element of the result and gathers what it needs, also for the gradients: nothing is
 * added by two threads.  Neighbouring threads have neighbouring channels.
 */
#include "cuda/device.h"
#include "cuda/image.h"

enum { BLOCK = 256 };

/* An element of an image. */
struct place {
    int64_t n, h, w, c;
};

DEVICE struct place place_of(int64_t i, int64_t height, int64_t width, int64_t channels)
{
    int64_t pixel = i / channels, row = pixel / width;
    return {row / height, row % height, pixel % width, i % channels};
}

KERNEL maxpool(struct cuda_conv_shape s, int64_t n_elems, struct cuda_array x, struct cuda_array y,
               uint8_t *at)
{
    int64_t i = thread_index();
    if (i >= n_elems)
        return;
    struct place to = place_of(i, s.y_h, s.y_w, s.y_c);
    float most = -INFINITY;
    int64_t where = 0;
    bool found = false;
    for (int64_t kh = 0; kh < s.kernel_h; kh++)
        for (int64_t kw = 0; kw < s.kernel_w; kw++) {
            int64_t h = to.h * s.stride - s.pad + kh, w = to.w * s.stride - s.pad + kw;
            if (h < 0 || h >= s.x_h || w < 0 || w >= s.x_w)
                continue;
            float value = load(x.dtype, x.data, ((to.n * s.x_h + h) * s.x_w + w) * s.x_c + to.c);
            if (!found || value > most || value != value) {
                most = value;
                where = kh * s.kernel_w + kw;
                found = true;
            }
        }
    store(y.dtype, y.data, i, most);
    at[i] = (uint8_t)where;
}

/* The window whose tap k meets row (or column) `at`; -1: none. */
DEVICE int64_t meeting(const struct cuda_conv_shape &s, int64_t at, int64_t k, int64_t places)
{
    int64_t from = at + s.pad - k;
    return from >= 0 && from % s.stride == 0 && from / s.stride < places ? from / s.stride : -1;
}

KERNEL maxpool_grad(struct cuda_conv_shape s, int64_t n_elems, struct cuda_array dy,
                    const uint8_t *at, struct cuda_array dx)
{
    int64_t i = thread_index();
    if (i >= n_elems)
        return;
    struct place to = place_of(i, s.x_h, s.x_w, s.x_c);
    float sum = 0.0f;
    for (int64_t kh = 0; kh < s.kernel_h; kh++)
        for (int64_t kw = 0; kw < s.kernel_w; kw++) {
            int64_t h = meeting(s, to.h, kh, s.y_h), w = meeting(s, to.w, kw, s.y_w);
            int64_t from = ((to.n * s.y_h + h) * s.y_w + w) * s.y_c + to.c;
            if (h >= 0 && w >= 0 && at[from] == kh * s.kernel_w + kw)
                sum += load(dy.dtype, dy.data, from);
        }
    store(dx.dtype, dx.data, i, sum);
}

int cuda_maxpool(const struct cuda_conv_shape *shape, struct cuda_array x, struct cuda_array y,
                 uint8_t *at, void *stream)
{
    int64_t n = shape->n * shape->y_h * shape->y_w * shape->y_c;
    return launch(maxpool, grid_of(n, BLOCK), BLOCK, 0, stream, *shape, n, x, y, at);
}

int cuda_maxpool_grad(const struct cuda_conv_shape *shape, struct cuda_array dy, const uint8_t *at,
                      struct cuda_array dx, void *stream)
{
    int64_t n = shape->n * shape->x_h * shape->x_w * shape->x_c;
    return launch(maxpool_grad, grid_of(n, BLOCK), BLOCK, 0, stream, *shape, n, dy, at, dx);
}

KERNEL meanpool(int64_t n_elems, int64_t n_pixels, int64_t channels, struct cuda_array x,
                struct cuda_array y)
{
    int64_t i = thread_index();
    if (i >= n_elems)
        return;
    int64_t begin = i / channels * n_pixels * channels + i % channels;
    float sum = 0.0f;
    for (int64_t p = 0; p < n_pixels; p++)
        sum += load(x.dtype, x.data, begin + p * channels);
    store(y.dtype, y.data, i, sum / (float)n_pixels);
}

KERNEL meanpool_grad(int64_t n_elems, int64_t n_pixels, int64_t channels, struct cuda_array dy,
                     struct cuda_array dx)
{
    int64_t i = thread_index();
    if (i >= n_elems)
        return;
    int64_t from = i / channels / n_pixels * channels + i % channels;
    store(dx.dtype, dx.data, i, load(dy.dtype, dy.data, from) / (float)n_pixels);
}

int cuda_meanpool(int64_t n, int64_t n_pixels, int64_t channels, struct cuda_array x,
                  struct cuda_array y, void *stream)
{
    return launch(meanpool, grid_of(n * channels, BLOCK), BLOCK, 0, stream, n * channels, n_pixels,
                  channels, x, y);
}

int cuda_meanpool_grad(int64_t n, int64_t n_pixels, int64_t channels, struct cuda_array dy,
                       struct cuda_array dx, void *stream)
{
    int64_t n_elems = n * n_pixels * channels;
    return launch(meanpool_grad, grid_of(n_elems, BLOCK), BLOCK, 0, stream, n_elems, n_pixels,
                  channels, dy, dx);
}

KERNEL add_repeated(int64_t n, int64_t period, struct cuda_array x, struct cuda_array more,
                    struct cuda_array y)
{
    int64_t i = thread_index();
    if (i < n)
        store(y.dtype, y.data, i,
              load(x.dtype, x.data, i) + load(more.dtype, more.data, i % period));
}

int cuda_add_repeated(int64_t n, int64_t period, struct cuda_array x, struct cuda_array more,
                      struct cuda_array y, void *stream)
{
    return launch(add_repeated, grid_of(n, BLOCK), BLOCK, 0, stream, n, period, x, more, y);
}
