/*
 * dispatch.h -- what the dispatch files of the CUDA backend share, and the list of kernel families.
 *
 * A family is dispatch_NAME.c: it turns a struct kernel_call into calls of launchers (kernels/,
 * optim/, lib/), and exports its kernel table:
 *
 *     const struct kernel *cuda_kernels_NAME(int *n_kernels)
 *
 * supports and workspace_bytes depend on the program alone, because plans are made on machines
 * without a GPU.  run only enqueues work on the stream of the call; prepare may allocate.
 */
#ifndef SNUG_CUDA_DISPATCH_DISPATCH_H
#define SNUG_CUDA_DISPATCH_DISPATCH_H

#include "cuda/kernels/launch.h"
#include "exec/backend.h"

/* In order of preference: NVIDIA's libraries before the fallback kernels. */
#define CUDA_FAMILIES(X) \
    X(linear)            \
    X(attention_cudnn)   \
    X(attention)         \
    X(conv_cudnn)        \
    X(conv)              \
    X(lm_head)           \
    X(elementwise)       \
    X(norm)              \
    X(rope)              \
    X(embedding)         \
    X(loss)              \
    X(dropout)           \
    X(image)             \
    X(batchnorm)         \
    X(scalars)           \
    X(update)            \
    X(dequantize)        \
    X(average)           \
    X(direction)         \
    X(muon)              \
    X(matrix)            \
    X(copy)              \
    X(collective)

#define CUDA_FAMILY_FN(name) const struct kernel *cuda_kernels_##name(int *n_kernels);
CUDA_FAMILIES(CUDA_FAMILY_FN)
#undef CUDA_FAMILY_FN

/* The kernel table of a family: CUDA_KERNELS(norm) = {...}; then CUDA_KERNELS_END(norm). */
#define CUDA_KERNELS(name) static const struct kernel table_##name[]
#define CUDA_KERNELS_END(name)                                   \
    const struct kernel *cuda_kernels_##name(int *n_kernels)     \
    {                                                            \
        *n_kernels = sizeof table_##name / sizeof *table_##name; \
        return table_##name;                                     \
    }

static inline struct cuda_array cuda_array_of(const struct operand *x)
{
    return (struct cuda_array){.dtype = x->tensor == NULL ? DTYPE_f32 : x->tensor->dtype,
                               .data = x->data};
}

static inline int64_t cuda_elems(const struct operand *x)
{
    return shape_elems(&x->tensor->shape);
}

/* For supports: are all operands f32, bf16, f16 or not floats?  Bit k of f64_inputs and f64_outputs
 * allows f64 for operand k (the scalar table and sums of squares). */
bool cuda_floats_fit(const struct program *prog, const struct op *op, unsigned f64_inputs,
                     unsigned f64_outputs);

/* Turns the result of a launcher into a status; the error message names the op. */
enum snug_status cuda_done(const struct kernel_call *call, int error, struct snug_error *err);

#endif
