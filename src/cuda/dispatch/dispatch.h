/*
 * dispatch.h -- what the kernels of the CUDA backend share, and the list of their families.
 *
 * A family is rows_NAME.c: from struct kernel_call to the launchers of NAME.h.  It exports
 *
 *     const struct kernel *cuda_kernels_NAME(int *n_rows)
 *
 * supports and workspace_bytes are functions of the program alone: plans are made on machines that have
 * no GPU.  run only starts kernels on the stream of the call; prepare may allocate.
 */
#ifndef SNUG_CUDA_DISPATCH_DISPATCH_H
#define SNUG_CUDA_DISPATCH_DISPATCH_H

#include "cuda/kernels/launch.h"
#include "exec/backend.h"

/* In the order in which they are asked: what NVIDIA's libraries do, then own kernels. */
#define CUDA_FAMILIES(X) \
    X(linear)            \
    X(attention_library) \
    X(attention)         \
    X(conv_library)      \
    X(conv)              \
    X(head)              \
    X(elementwise)       \
    X(norm)              \
    X(embedding)         \
    X(loss)              \
    X(dropout)           \
    X(image)             \
    X(batchnorm)         \
    X(scalars)           \
    X(update)            \
    X(quants)            \
    X(average)           \
    X(direction)         \
    X(muon)              \
    X(matrix)            \
    X(copy)              \
    X(collective)

#define CUDA_FAMILY_FN(name) const struct kernel *cuda_kernels_##name(int *n_rows);
CUDA_FAMILIES(CUDA_FAMILY_FN)
#undef CUDA_FAMILY_FN

/* The body of a family: CUDA_KERNELS(norm) = {...rows...}; then CUDA_KERNELS_END(norm). */
#define CUDA_KERNELS(name) static const struct kernel table_##name[]
#define CUDA_KERNELS_END(name)                                \
    const struct kernel *cuda_kernels_##name(int *n_rows)     \
    {                                                         \
        *n_rows = sizeof table_##name / sizeof *table_##name; \
        return table_##name;                                  \
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

/* For supports: are all operands f32, bf16, f16, or not floats at all?  (f64: the scalar table and
 * sums of squares; name them in `f64_inputs` and `f64_outputs`, bit k.) */
bool cuda_floats_fit(const struct program *prog, const struct op *op, unsigned f64_inputs,
                     unsigned f64_outputs);

/* The status of a launcher's result; the message names the op. */
enum snug_status cuda_done(const struct kernel_call *call, int error, struct snug_error *err);

#endif
