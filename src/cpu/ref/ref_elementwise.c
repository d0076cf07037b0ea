/*
 * ref_elementwise.c -- reference: activations, swiglu, add, scale, dequantize, dropout, cast,
 * accumulate, take_row.
 *
 * Each element is loaded before it is stored, so outputs may alias inputs.
 */
#include <math.h>

#include "base/quant_map.h"
#include "cpu/dropout_mask.h"
#include "cpu/ref/ref_common.h"

/* gelu(x) = x/2 (1 + tanh(u(x))), u(x) = sqrt(2/pi) (x + 0.044715 x^3) */
static const double gelu_root = 0.79788456080286535588, gelu_cube = 0.044715;

static double gelu_tanh(double x)
{
    return tanh(gelu_root * (x + gelu_cube * x * x * x));
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

double ref_fn(enum act fn, double x)
{
    switch (fn) {
    case ACT_none:
        return x;
    case ACT_relu:
        return x < 0.0 ? 0.0 : x; /* NaN stays NaN */
    case ACT_gelu:
        return 0.5 * x * (1.0 + gelu_tanh(x));
    case ACT_sigmoid:
        return sigmoid(x);
    case ACT_tanh:
        return tanh(x);
    }
    return NAN;
}

double ref_fn_slope(enum act fn, double x)
{
    switch (fn) {
    case ACT_none:
        return 1.0;
    case ACT_relu:
        return x > 0.0 ? 1.0 : 0.0;
    case ACT_gelu: {
        double t = gelu_tanh(x);
        double u_slope = gelu_root * (1.0 + 3.0 * gelu_cube * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * u_slope;
    }
    case ACT_sigmoid: {
        double s = sigmoid(x);
        return s * (1.0 - s);
    }
    case ACT_tanh: {
        double t = tanh(x);
        return 1.0 - t * t;
    }
    }
    return NAN;
}

enum snug_status ref_act(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store(y, i, ref_fn(call->op->attrs.act, load(x, i)));
    return SNUG_OK;
}

enum snug_status ref_act_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    for (int64_t i = 0, n = elems(dx); i < n; i++)
        store(dx, i, load(dy, i) * ref_fn_slope(call->op->attrs.act, load(x, i)));
    return SNUG_OK;
}

enum snug_status ref_swiglu(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *gate = &call->in[0], *up = &call->in[1], *y = &call->out[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store(y, i, load(gate, i) * sigmoid(load(gate, i)) * load(up, i));
    return SNUG_OK;
}

/* d(g s(g))/dg = s(g) (1 + g (1 - s(g))) */
enum snug_status ref_swiglu_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *dy = &call->in[0], *gate = &call->in[1], *up = &call->in[2];
    for (int64_t i = 0, n = elems(dy); i < n; i++) {
        double g = load(gate, i), s = sigmoid(g), slope = load(dy, i), u = load(up, i);
        if (present(&call->out[0]))
            store(&call->out[0], i, slope * u * s * (1.0 + g * (1.0 - s)));
        if (present(&call->out[1]))
            store(&call->out[1], i, slope * g * s);
        if (present(&call->out[2]))
            store(&call->out[2], i, g * s * u);
    }
    return SNUG_OK;
}

enum snug_status ref_add(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store(y, i, load(a, i) + load(b, i));
    return SNUG_OK;
}

enum snug_status ref_scale(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    double factor = attrs_of(call->op, options)->options.value[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store(y, i, factor * load(x, i));
    return SNUG_OK;
}

/* The quantized values are fp32, so the fp32 multiplication is part of the definition. */
enum snug_status ref_dequantize(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const uint8_t *quants = call->in[0].data;
    const float *scales = call->in[1].data;
    const struct operand *y = &call->out[0];
    struct quant_map map;
    quant_map_make(&map, (int)attrs_of(call->op, quant)->state_bits, true);
    int64_t block = quant_block_elems(map.bits);
    for (int64_t i = 0, n = elems(y); i < n; i++) {
        int quant = map.bits == 8 ? quants[i] : quants[i / 2] >> (i % 2 * 4) & 15;
        store(y, i, (double)(map.value[quant] * scales[i / block]));
    }
    return SNUG_OK;
}

enum snug_status ref_dropout(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    struct dropout dropout = dropout_of(call, 1);
    for (int64_t i = 0, n = elems(y); i < n; i++) {
        double factor = (double)dropout_factor(&dropout, (uint64_t)i);
        store(y, i, factor == 0.0 ? 0.0 : factor * load(x, i));
    }
    return SNUG_OK;
}

enum snug_status ref_cast(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store(y, i, load(x, i));
    return SNUG_OK;
}

enum snug_status ref_accumulate(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *y = &call->out[0];
    for (int64_t i = 0, n = elems(y); i < n; i++)
        store_or_add(y, i, load(x, i), call->add);
    return SNUG_OK;
}

enum snug_status ref_take_row(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *x = &call->in[0], *y = &call->out[0];
    int64_t n_batch = x->tensor->shape.dim[0], n_time = x->tensor->shape.dim[1], width = last(x);
    double wanted = load(&call->in[1], SCALAR_row);
    if (!(wanted >= 0.0 && wanted < (double)n_time))
        return snug_fail(err, SNUG_BAD_ARGUMENT, "take_row: %s has rows 0..%lld, not row %g",
                         x->tensor->name, (long long)n_time - 1, wanted);
    int64_t row = (int64_t)wanted;
    for (int64_t b = 0; b < n_batch; b++)
        for (int64_t c = 0; c < width; c++)
            store(y, b * width + c, load(x, (b * n_time + row) * width + c));
    return SNUG_OK;
}
