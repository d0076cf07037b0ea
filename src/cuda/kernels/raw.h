/*
 * raw.h -- packs of operands in their storage type, for kernels that are compiled per type.
 *
 * Such a kernel issues several loads and unpacks the first pack when all of them are in flight;
 * with a switch over types it would wait for each.  ANY_TYPE is the slow path: each operand has its
 * own type, may begin anywhere, and the last pack of a row may be partial.
 *
 *     auto kernel = kernel_of_type(type_of_packs(channels, operands, n), K<DTYPE_f32>,
 *                                  K<DTYPE_bf16>, K<DTYPE_f16>, K<ANY_TYPE>);
 */
#ifndef SNUG_CUDA_KERNELS_RAW_H
#define SNUG_CUDA_KERNELS_RAW_H

#include "cuda/kernels/device.h"
#include "cuda/kernels/launch.h"

enum { ANY_TYPE = -1 };

/* 8 elements.  16-bit types take half the registers that floats would. */
template <int DTYPE> struct raw_pack {
    pack_16 bits;
};
template <> struct raw_pack<DTYPE_f32> {
    pack_f32 half[2];
};
template <> struct raw_pack<ANY_TYPE> {
    pack_f32 half[2]; /* already converted to floats */
};

template <int DTYPE> DEVICE void unpack(const raw_pack<DTYPE> &raw, float x[PACK])
{
    pack_load(DTYPE == ANY_TYPE ? DTYPE_f32 : (enum dtype)DTYPE, &raw, 0, x);
}

/* Loads a pack as stored.  The address must be aligned; not for ANY_TYPE. */
template <int DTYPE> DEVICE raw_pack<DTYPE> raw_at(const void *data, int64_t at)
{
    const size_t bytes = DTYPE == DTYPE_f32 ? 4 : 2;
    return *(const raw_pack<DTYPE> *)((const char *)data + at * bytes);
}

template <int DTYPE> DEVICE raw_pack<DTYPE> raw_of(const float x[PACK])
{
    raw_pack<DTYPE> raw;
    if constexpr (DTYPE == DTYPE_bf16 || DTYPE == DTYPE_f16)
        raw.bits = pack_of((enum dtype)DTYPE, x);
    else
        pack_store(DTYPE_f32, &raw, 0, x);
    return raw;
}

/* Loads n elements; n is PACK unless the type is ANY_TYPE. */
template <int DTYPE>
DEVICE raw_pack<DTYPE> raw_load_some(const struct cuda_array &from, int64_t at, int n)
{
    if (DTYPE != ANY_TYPE)
        return raw_at<DTYPE>(from.data, at);
    float x[PACK];
    pack_load_part(from.dtype, from.data, at, n, x);
    return raw_of<DTYPE>(x);
}

template <int DTYPE>
DEVICE void store_some(const struct cuda_array &to, int64_t at, int n, const float x[PACK])
{
    if (DTYPE != ANY_TYPE)
        pack_store((enum dtype)DTYPE, to.data, at, x);
    else
        pack_store_part(to.dtype, to.data, at, n, x);
}

/* The common type of all operands if their rows consist of whole, aligned packs; otherwise
 * ANY_TYPE. */
static inline int type_of_packs(int64_t n_columns, const struct cuda_array operands[],
                                int n_operands)
{
    enum dtype dtype = operands[0].dtype;
    for (int i = 0; i < n_operands; i++)
        if (operands[i].data != NULL &&
            (operands[i].dtype != dtype || !pack_aligned(operands[i].data)))
            return ANY_TYPE;
    return n_columns % PACK == 0 ? (int)dtype : (int)ANY_TYPE;
}

template <class K> static inline K kernel_of_type(int type, K f32, K bf16, K f16, K any)
{
    return type == DTYPE_f32 ? f32 : type == DTYPE_bf16 ? bf16 : type == DTYPE_f16 ? f16 : any;
}

#endif
