/*
 * ref_common.h -- helpers shared by the reference kernels.  Private to this folder.
 */
#ifndef SNUG_CPU_REF_REF_COMMON_H
#define SNUG_CPU_REF_REF_COMMON_H

#include "cpu/ref/ref.h"

/* ref_KIND runs the op KIND. */
#define OP(kind, ...) \
    enum snug_status ref_##kind(const struct kernel_call *call, struct snug_error *err);
#include "ir/ops.def"
#undef OP

/* Workspace of the few kernels that need one, in doubles. */
struct attention_sizes;
int64_t ref_attention_work_elems(const struct attention_sizes *sizes);
int64_t ref_attention_grad_work_elems(const struct attention_sizes *sizes);
int64_t ref_head_grad_work_elems(const struct shape *x);

/* The workspace of the matrix optimizers, in bytes; blocks: shampoo and caspr. */
size_t ref_orthogonalize_work_bytes(const struct program *prog, const struct op *op);
size_t ref_blocks_work_bytes(const struct program *prog, const struct op *op);
size_t ref_soap_work_bytes(const struct program *prog, const struct op *op);

/* fn(x) and fn'(x) */
double ref_fn(enum act fn, double x);
double ref_fn_slope(enum act fn, double x);

static inline bool present(const struct operand *x)
{
    return x->data != NULL;
}

static inline int64_t elems(const struct operand *x)
{
    return shape_elems(&x->tensor->shape);
}

static inline int64_t rows(const struct operand *x)
{
    return shape_rows(&x->tensor->shape);
}

static inline int64_t last(const struct operand *x)
{
    return shape_last(&x->tensor->shape);
}

static inline double load(const struct operand *x, int64_t index)
{
    return dtype_load(x->tensor->dtype, x->data, index);
}

static inline void store(const struct operand *x, int64_t index, double value)
{
    dtype_store(x->tensor->dtype, x->data, index, value);
}

/* The value after rounding to the tensor's dtype. */
static inline double as_stored(const struct operand *x, double value)
{
    double bits = 0.0; /* large enough for any float type */
    dtype_store(x->tensor->dtype, &bits, 0, value);
    return dtype_load(x->tensor->dtype, &bits, 0);
}

/* += or =, for outputs that accumulate.  Does nothing if the output is left out. */
static inline void store_or_add(const struct operand *x, int64_t index, double value, bool add)
{
    if (present(x))
        store(x, index, add ? load(x, index) + value : value);
}

/* to (+)= the column sums of x as stored. */
static inline void sum_columns(const struct operand *x, const struct operand *to, bool add)
{
    int64_t n_rows = rows(x), width = last(x);
    for (int64_t c = 0; present(to) && c < width; c++) {
        double sum = 0.0;
        for (int64_t n = 0; n < n_rows; n++)
            sum += load(x, n * width + c);
        store_or_add(to, c, sum, add);
    }
}

/* The dot product of two strided ranges of `n` elements. */
static inline double dot(const struct operand *a, int64_t a_begin, int64_t a_step,
                         const struct operand *b, int64_t b_begin, int64_t b_step, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += load(a, a_begin + i * a_step) * load(b, b_begin + i * b_step);
    return sum;
}

/* A running log(sum(exp(value))).  It never calls exp with a positive argument. */
struct log_sum {
    double max, sum;
    int64_t n;
};

void log_sum_add(struct log_sum *acc, double value);
double log_sum_value(const struct log_sum *acc);

#endif
