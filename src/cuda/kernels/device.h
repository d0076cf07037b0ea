/*
 * device.h -- the vocabulary of our kernels, for nvcc and for the emulation (emulate.h).
 *
 *     KERNEL name(int64_t n, const void *x, ...) { ... threadIdx, blockIdx, __syncthreads ... }
 *     DEVICE float f(float x) { ... }                            a function that kernels call
 *     SHARED float part[32];        DYNAMIC_SHARED(float, row);  shared memory of a block
 *     return launch(name, grid, block, shared_bytes, stream, n, x, ...);     0, or CUDA's error
 *
 * Pass a template kernel through a variable: auto k = name<4>; launch(k, ...).
 *
 * Elements are loaded from f32, bf16 or f16, computed in fp32, and rounded once to nearest even
 * when stored.  The type is a run-time value (enum dtype) that all threads share, so a switch over
 * it never diverges.  Kernels are deterministic: reductions use fixed trees, and there are no
 * atomic float additions.
 *
 * A pack is 8 consecutive elements, moved with 16-byte accesses.  Packs need 16-byte aligned
 * pointers and offsets that are multiples of 8 elements; pack_aligned checks the pointer.  Kernels
 * have a slow path for unaligned data (views may begin anywhere) and for the tail.
 */
#ifndef SNUG_CUDA_KERNELS_DEVICE_H
#define SNUG_CUDA_KERNELS_DEVICE_H

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "cuda/runtime.h"

#if defined(SNUG_CUDA_EMULATED)

#define KERNEL        static void
#define DEVICE        static inline
#define DEVICE_MEMBER inline
#define REGISTERS_MOST(n)
#define SHARED                     static
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulated_shared()

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL            static __global__ void
#define DEVICE            static __device__ __forceinline__
#define DEVICE_MEMBER     __device__ __forceinline__
#define REGISTERS_MOST(n) __maxnreg__(n)
#define SHARED            __shared__
#define DYNAMIC_SHARED(type, name)                                   \
    extern __shared__ __align__(16) unsigned char dynamic_shared_[]; \
    type *name = (type *)dynamic_shared_

/* More than 48 KB needs an opt-in; that counts the SHARED variables of the kernel too. */
enum { SHARED_BYTES_ANYWAY = 44 << 10 };

/* Each argument is converted to the type of its parameter. */
template <class... P, class... A>
static inline int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                         void *stream, A... args)
{
    if (shared_bytes > SHARED_BYTES_ANYWAY) {
        cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return (int)error;
    }
    kernel<<<grid, block, shared_bytes, (cudaStream_t)stream>>>(static_cast<P>(args)...);
    return (int)cudaGetLastError();
}

#endif

/* A parameter that stays in constant memory, so that it can be indexed dynamically. */
#if defined(SNUG_CUDA_EMULATED)
#define GRID_CONSTANT
#else
#define GRID_CONSTANT __grid_constant__
#endif

enum { WARP = 32, PACK = 8, BLOCK_MOST = 1024 };

DEVICE int64_t thread_index(void) /* in a one-dimensional grid */
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* The number of blocks for n threads. */
static inline unsigned grid_of(int64_t n, int block)
{
    return (unsigned)((n + block - 1) / block);
}

/* ---- reductions over a warp and over a block
 * -------------------------------------------------- */

struct add_two {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const
    {
        return a + b;
    }
};
struct larger_of_two { /* NaN wins */
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const
    {
        return a >= b || a != a ? a : b;
    }
};

template <class T, class F> DEVICE T warp_reduce(T value, F fn)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        value = fn(value, __shfl_xor_sync(0xffffffffu, value, mask));
    return value;
}

/* All threads of the block must call it; all get the result.  blockDim.x must be a multiple of
 * WARP. */
template <class T, class F> DEVICE T block_reduce(T value, T neutral, F fn)
{
    SHARED T part[BLOCK_MOST / WARP];
    int warp = (int)threadIdx.x / WARP, n_warps = ((int)blockDim.x + WARP - 1) / WARP;
    value = warp_reduce(value, fn);
    __syncthreads(); /* an earlier call may still be reading */
    if (threadIdx.x % WARP == 0)
        part[warp] = value;
    __syncthreads();
    int lane = (int)threadIdx.x % WARP;
    return warp_reduce(lane < n_warps ? part[lane] : neutral, fn);
}

template <class T> DEVICE T warp_sum(T value)
{
    return warp_reduce(value, add_two());
}
template <class T> DEVICE T warp_max(T value)
{
    return warp_reduce(value, larger_of_two());
}
template <class T> DEVICE T block_sum(T value)
{
    return block_reduce(value, (T)0, add_two());
}
template <class T> DEVICE T block_max(T value)
{
    return block_reduce(value, -(T)INFINITY, larger_of_two());
}

/* ---- elements of any float type ------------------------------------------------------------- */

/* Hardware conversions where available; they round as base/dtype.h does. */
DEVICE uint16_t to_bf16(float x)
{
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    return bf16_from_f32(x);
#endif
}

DEVICE uint16_t to_f16(float x)
{
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(x));
#else
    return f16_from_f32(x);
#endif
}

DEVICE float from_f16(uint16_t bits)
{
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    return f16_to_f32(bits);
#endif
}

DEVICE float load(enum dtype dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case DTYPE_f32:
        return ((const float *)data)[at];
    case DTYPE_bf16:
        return bf16_to_f32(((const uint16_t *)data)[at]);
    default:
        return from_f16(((const uint16_t *)data)[at]);
    }
}

DEVICE void store(enum dtype dtype, void *data, int64_t at, float value)
{
    switch (dtype) {
    case DTYPE_f32:
        ((float *)data)[at] = value;
        break;
    case DTYPE_bf16:
        ((uint16_t *)data)[at] = to_bf16(value);
        break;
    default:
        ((uint16_t *)data)[at] = to_f16(value);
        break;
    }
}

/* The value after rounding to this type. */
DEVICE float as_stored(enum dtype dtype, float value)
{
    return dtype == DTYPE_f32    ? value
           : dtype == DTYPE_bf16 ? bf16_to_f32(to_bf16(value))
                                 : from_f16(to_f16(value));
}

/* 2^x, with denormal results flushed to 0.  __expf is this plus a multiplication and three
 * instructions for denormals. */
DEVICE float exp2_near(float x)
{
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* ---- packs ---------------------------------------------------------------------------------- */

struct alignas(16) pack_f32 {
    float at[4];
};
/* Two elements per word, the first in the lower half: separate uint16_t would take a register
 * each. */
struct alignas(16) pack_16 {
    uint32_t two[PACK / 2];
};

DEVICE uint32_t two_to_16(enum dtype dtype, float first, float second)
{
#if defined(__CUDA_ARCH__)
    if (dtype == DTYPE_bf16) {
        __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
        return *(const uint32_t *)&both;
    }
    __half2 both = __floats2half2_rn(first, second);
    return *(const uint32_t *)&both;
#else
    return dtype == DTYPE_bf16 ? bf16_from_f32(first) | (uint32_t)bf16_from_f32(second) << 16
                               : f16_from_f32(first) | (uint32_t)f16_from_f32(second) << 16;
#endif
}

DEVICE pack_16 pack_of(enum dtype dtype, const float x[PACK])
{
    pack_16 bits;
    for (int i = 0; i < PACK / 2; i++)
        bits.two[i] = two_to_16(dtype, x[2 * i], x[2 * i + 1]);
    return bits;
}

DEVICE void pack_unpack(enum dtype dtype, const pack_16 &bits, float x[PACK])
{
    for (int i = 0; i < PACK / 2; i++) {
        uint16_t first = (uint16_t)bits.two[i], second = (uint16_t)(bits.two[i] >> 16);
        x[2 * i] = dtype == DTYPE_bf16 ? bf16_to_f32(first) : from_f16(first);
        x[2 * i + 1] = dtype == DTYPE_bf16 ? bf16_to_f32(second) : from_f16(second);
    }
}

static inline bool pack_aligned(const void *data)
{
    return ((uintptr_t)data & 15) == 0;
}

DEVICE void pack_load(enum dtype dtype, const void *data, int64_t at, float x[PACK])
{
    if (dtype == DTYPE_f32) {
        const pack_f32 *from = (const pack_f32 *)((const float *)data + at);
        pack_f32 low = from[0], high = from[1];
        for (int i = 0; i < PACK / 2; i++) {
            x[i] = low.at[i];
            x[i + PACK / 2] = high.at[i];
        }
        return;
    }
    pack_16 bits = *(const pack_16 *)((const uint16_t *)data + at);
    pack_unpack(dtype, bits, x);
}

/* Stores a pack with one 16-byte access.  Assigning the struct made nvcc emit four 4-byte stores
 * for every bf16 and f16 pack in batchnorm.cu, though not in image.cu. */
DEVICE void pack_16_store(void *to, const pack_16 &bits)
{
#if defined(__CUDA_ARCH__)
    uint64_t low = bits.two[0] | (uint64_t)bits.two[1] << 32;
    uint64_t high = bits.two[2] | (uint64_t)bits.two[3] << 32;
    *(unsigned __int128 *)to = low | (unsigned __int128)high << 64;
#else
    *(pack_16 *)to = bits;
#endif
}

DEVICE void pack_store(enum dtype dtype, void *data, int64_t at, const float x[PACK])
{
    if (dtype == DTYPE_f32) {
        pack_f32 low, high;
        for (int i = 0; i < PACK / 2; i++) {
            low.at[i] = x[i];
            high.at[i] = x[i + PACK / 2];
        }
        pack_f32 *to = (pack_f32 *)((float *)data + at);
        to[0] = low;
        to[1] = high;
        return;
    }
    pack_16_store((uint16_t *)data + at, pack_of(dtype, x));
}

/* The first n elements of a pack that may be partial or unaligned; the others are 0. */
DEVICE void pack_load_part(enum dtype dtype, const void *data, int64_t at, int n, float x[PACK])
{
    for (int i = 0; i < PACK; i++)
        x[i] = i < n ? load(dtype, data, at + i) : 0.0f;
}

DEVICE void pack_store_part(enum dtype dtype, void *data, int64_t at, int n, const float x[PACK])
{
    for (int i = 0; i < PACK; i++)
        if (i < n)
            store(dtype, data, at + i, x[i]);
}

/* ---- asynchronous copies to shared memory
 * ------------------------------------------------------ */

/* Starts a 16-byte copy.  The thread that started it sees the data after copies_wait_but_one. */
DEVICE void copy_ahead(void *shared, const void *global)
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
#else
    memcpy(shared, global, 16);
#endif
}

/* Closes a group: all copies of this thread since the last call. */
DEVICE void copies_group(void)
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

/* Waits until all groups of this thread but the latest are complete. */
DEVICE void copies_wait_but_one(void)
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group 1;" : : : "memory");
#endif
}

#endif
