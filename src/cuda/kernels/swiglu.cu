/*
 * swiglu.cu -- y = gate sigmoid(gate) up, and its gradient.
 *
 * A thread takes EACH packs of 8 elements, a block apart.  It loads all of them before it works on
 * the first, and stores only elements that nobody else reads, so outputs may be inputs.
 *
 * The floor, as a multiple of the bytes of y: 3 (read gate and up, write y), 5 for the gradient
 * (read dy, gate and up, write dgate and dup), 6 if it writes y as well.  An element takes two
 * special functions, 2^x and 1/x, of which an SM computes 16 per clock: in 16 bits a quarter to a
 * half of what the memory delivers.
 */
#include "cuda/kernels/raw.h"
#include "cuda/kernels/swiglu.h"

enum { BLOCK = 256, EACH = 2 };

DEVICE float sigmoid(float x)
{
    const float log2_e = 1.4426950408889634f;
    return __fdividef(1.0f, 1.0f + exp2_near(-log2_e * x));
}

/* Of pack k of this thread: its first element, and how many of its elements exist. */
DEVICE int64_t pack_at(int k)
{
    return ((int64_t)blockIdx.x * EACH * BLOCK + k * BLOCK + threadIdx.x) * PACK;
}

DEVICE int elems_at(int64_t at, int64_t n)
{
    return n - at < PACK ? (int)(n - at) : (int)PACK;
}

template <int TYPE>
KERNEL swiglu(int64_t n, struct cuda_array gate, struct cuda_array up, struct cuda_array y)
{
    raw_pack<TYPE> gates[EACH] = {}, ups[EACH] = {};
    for (int k = 0; k < EACH; k++) {
        int64_t at = pack_at(k);
        if (at >= n)
            break;
        gates[k] = raw_load_some<TYPE>(gate, at, elems_at(at, n));
        ups[k] = raw_load_some<TYPE>(up, at, elems_at(at, n));
    }
    for (int k = 0; k < EACH; k++) {
        int64_t at = pack_at(k);
        float g[PACK], u[PACK];
        if (at >= n)
            break;
        unpack<TYPE>(gates[k], g);
        unpack<TYPE>(ups[k], u);
        for (int i = 0; i < PACK; i++)
            g[i] = g[i] * sigmoid(g[i]) * u[i];
        store_some<TYPE>(y, at, elems_at(at, n), g);
    }
}

/* d(g s(g))/dg = s(g) (1 + g (1 - s(g))) */
template <int TYPE>
KERNEL swiglu_grad(int64_t n, struct cuda_array dy, struct cuda_array gate, struct cuda_array up,
                   struct cuda_array dgate, struct cuda_array dup, struct cuda_array y)
{
    raw_pack<TYPE> slopes[EACH] = {}, gates[EACH] = {}, ups[EACH] = {};
    for (int k = 0; k < EACH; k++) {
        int64_t at = pack_at(k);
        if (at >= n)
            break;
        slopes[k] = raw_load_some<TYPE>(dy, at, elems_at(at, n));
        gates[k] = raw_load_some<TYPE>(gate, at, elems_at(at, n));
        ups[k] = raw_load_some<TYPE>(up, at, elems_at(at, n));
    }
    for (int k = 0; k < EACH; k++) {
        int64_t at = pack_at(k);
        float slope[PACK], g[PACK], u[PACK], result[PACK];
        if (at >= n)
            break;
        unpack<TYPE>(slopes[k], slope);
        unpack<TYPE>(gates[k], g);
        unpack<TYPE>(ups[k], u);
        for (int i = 0; i < PACK; i++) {
            float s = sigmoid(g[i]);
            result[i] = g[i] * s * u[i];
            u[i] *= slope[i] * s * fmaf(g[i], 1.0f - s, 1.0f);
            g[i] *= slope[i] * s;
        }
        if (dgate.data != NULL)
            store_some<TYPE>(dgate, at, elems_at(at, n), u);
        if (dup.data != NULL)
            store_some<TYPE>(dup, at, elems_at(at, n), g);
        if (y.data != NULL)
            store_some<TYPE>(y, at, elems_at(at, n), result);
    }
}

/* The last pack is partial unless n is a multiple of PACK. */
int cuda_swiglu(int64_t n, struct cuda_array gate, struct cuda_array up, struct cuda_array y,
                void *stream)
{
    const struct cuda_array operands[] = {gate, up, y};
    auto kernel = kernel_of_type(type_of_packs(n, operands, 3), swiglu<DTYPE_f32>,
                                 swiglu<DTYPE_bf16>, swiglu<DTYPE_f16>, swiglu<ANY_TYPE>);
    return launch(kernel, grid_of(n, PACK * EACH * BLOCK), BLOCK, 0, stream, n, gate, up, y);
}

int cuda_swiglu_grad(int64_t n, struct cuda_array dy, struct cuda_array gate, struct cuda_array up,
                     struct cuda_array dgate, struct cuda_array dup, struct cuda_array y,
                     void *stream)
{
    const struct cuda_array operands[] = {dy, gate, up, dgate, dup, y};
    auto kernel =
        kernel_of_type(type_of_packs(n, operands, 6), swiglu_grad<DTYPE_f32>,
                       swiglu_grad<DTYPE_bf16>, swiglu_grad<DTYPE_f16>, swiglu_grad<ANY_TYPE>);
    return launch(kernel, grid_of(n, PACK * EACH * BLOCK), BLOCK, 0, stream, n, dy, gate, up, dgate,
                  dup, y);
}
