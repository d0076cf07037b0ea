/*
 * elementwise.cu -- act, act_grad, add, scale, cast, accumulate: one pass over memory each.
 *
 * A thread takes one pack of 8 elements: it loads them from one or two tensors, applies the
 * function and stores the result.  It reads the whole pack before it writes, and no other thread
 * touches those elements, so the output may alias an input.  Memory bandwidth is the only limit.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/elementwise.h"

enum { BLOCK = 256 };

/* gelu(x) = x/2 (1 + tanh(u(x))), u(x) = sqrt(2/pi) (x + 0.044715 x^3) */
DEVICE float gelu_tanh(float x)
{
    const float root = 0.79788456080286535588f, cube = 0.044715f;
    return tanhf(root * (x + cube * x * x * x));
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

DEVICE float act_of(enum act fn, float x)
{
    switch (fn) {
    case ACT_relu:
        return x < 0.0f ? 0.0f : x; /* NaN stays NaN */
    case ACT_gelu:
        return 0.5f * x * (1.0f + gelu_tanh(x));
    case ACT_sigmoid:
        return sigmoid(x);
    case ACT_tanh:
        return tanhf(x);
    default:
        return x;
    }
}

DEVICE float act_slope(enum act fn, float x)
{
    switch (fn) {
    case ACT_relu:
        return x > 0.0f ? 1.0f : 0.0f;
    case ACT_gelu: {
        const float root = 0.79788456080286535588f, cube = 0.044715f;
        float t = gelu_tanh(x), u_slope = root * (1.0f + 3.0f * cube * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * u_slope;
    }
    case ACT_sigmoid: {
        float s = sigmoid(x);
        return s * (1.0f - s);
    }
    case ACT_tanh: {
        float t = tanhf(x);
        return 1.0f - t * t;
    }
    default:
        return 1.0f;
    }
}

struct act_fn {
    enum act fn;
    DEVICE_MEMBER float operator()(float a, float) const
    {
        return act_of(fn, a);
    }
};
struct act_grad_fn {
    enum act fn;
    DEVICE_MEMBER float operator()(float dy, float x) const
    {
        return dy * act_slope(fn, x);
    }
};
struct add_fn {
    DEVICE_MEMBER float operator()(float a, float b) const
    {
        return a + b;
    }
};
struct scale_fn {
    float factor;
    DEVICE_MEMBER float operator()(float a, float) const
    {
        return factor * a;
    }
};

/* y = fn(a, b); b is 0 if absent */
template <class F>
KERNEL each_pack(F fn, int64_t n, bool aligned, struct cuda_array a, struct cuda_array b,
                 struct cuda_array y)
{
    int64_t at = thread_index() * PACK;
    if (at >= n)
        return;
    float x[PACK], second[PACK] = {0};
    int count = n - at < PACK ? (int)(n - at) : PACK;
    bool whole = aligned && count == PACK;
    if (whole) {
        pack_load(a.dtype, a.data, at, x);
        if (b.data != NULL)
            pack_load(b.dtype, b.data, at, second);
    } else {
        pack_load_part(a.dtype, a.data, at, count, x);
        if (b.data != NULL)
            pack_load_part(b.dtype, b.data, at, count, second);
    }
    for (int i = 0; i < PACK; i++)
        x[i] = fn(x[i], second[i]);
    if (whole)
        pack_store(y.dtype, y.data, at, x);
    else
        pack_store_part(y.dtype, y.data, at, count, x);
}

template <class F>
static int run_each(F fn, int64_t n, struct cuda_array a, struct cuda_array b, struct cuda_array y,
                    void *stream)
{
    bool aligned = pack_aligned(a.data) && pack_aligned(b.data) && pack_aligned(y.data);
    auto kernel = each_pack<F>;
    return launch(kernel, grid_of((n + PACK - 1) / PACK, BLOCK), BLOCK, 0, stream, fn, n, aligned,
                  a, b, y);
}

static const struct cuda_array none = {DTYPE_f32, NULL};

int cuda_act(enum act fn, int64_t n, struct cuda_array x, struct cuda_array y, void *stream)
{
    return run_each(act_fn{fn}, n, x, none, y, stream);
}

int cuda_act_grad(enum act fn, int64_t n, struct cuda_array dy, struct cuda_array x,
                  struct cuda_array dx, void *stream)
{
    return run_each(act_grad_fn{fn}, n, dy, x, dx, stream);
}

int cuda_add(int64_t n, struct cuda_array a, struct cuda_array b, struct cuda_array y, void *stream)
{
    return run_each(add_fn{}, n, a, b, y, stream);
}

int cuda_scale(float factor, int64_t n, struct cuda_array x, struct cuda_array y, void *stream)
{
    return run_each(scale_fn{factor}, n, x, none, y, stream);
}

KERNEL set_scalar(double *at, double value)
{
    *at = value;
}

int cuda_set_scalar(double *at, double value, void *stream)
{
    return launch(set_scalar, 1, 1, 0, stream, at, value);
}
