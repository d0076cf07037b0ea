/*
 * cpu.h -- what the files of this folder share: loops compiled per instruction level, and the rows
 * that are built on matmuls.
 */
#ifndef SNUG_CPU_CPU_H
#define SNUG_CPU_CPU_H

#include "cpu/level.h"
#include "cpu/gemm/gemm.h"
#include "exec/backend.h"

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A piece of a tensor: elements from `begin` on.  data NULL: left out. */
struct span {
    enum dtype dtype;
    void *data;
    int64_t begin;
};

/* What is left to do after a matmul made n_rows rows of x W^T in fp32:
 * v = acc + bias + more; before = v; y = act(v), or v act'(slope_at) where that is given.  acc may be
 * the place of `before` or of y; y may be that of slope_at or, with acc elsewhere, of more. */
struct linear_finish {
    int64_t n_rows, width;
    float *acc;
    const float *bias; /* NULL: none */
    enum act act;
    struct span before, y, slope_at, more; /* data NULL: left out */
};

/* What a row of classes should be: `each` everywhere, and `target` more at its target.  With label
 * smoothing s these are s / classes and 1 - s. */
struct labels {
    float target, each;
};

static inline struct labels labels_of(double smoothing, int64_t n_classes)
{
    return (struct labels){(float)(1.0 - smoothing), (float)(smoothing / (double)n_classes)};
}

/* Rows of logits, each `pitch` floats after the one before.  Writes lse if write_lse, else reads
 * it; losses (unless NULL) gets lse - logit of target per row; if make_gradient the logits become
 * factor * (softmax - labels), computed from the fp32 lse in either case. */
struct head_rows {
    int64_t n_rows, n_classes, pitch;
    float *logits, *lse;
    const int32_t *targets;
    double *losses;
    bool write_lse, make_gradient;
    float factor;
    struct labels labels;
};

/* The loops between and inside matmuls; simd_linear.c and simd_gemm.c, one set per level.
 * However they cut their work, no number's sum depends on it: nor do bits on the number of threads. */
struct cpu_loops {
    int lanes; /* floats in a register */
    void (*widen)(int threads, struct span from, int64_t n, float *to);
    void (*narrow)(int threads, struct span to, int64_t n, const float *from, bool add);
    void (*finish_linear)(int threads, const struct linear_finish *todo);
    void (*sum_columns)(int threads, struct span from, int64_t n_rows, int64_t width,
                        struct span sums, bool add);
    void (*finish_head)(int threads, const struct head_rows *todo);
    void (*gemm)(int threads, const struct gemm_shape *shape, const float *a, const float *b,
                 float *c, bool add, float *work);
    double (*fma_flops)(int threads, int64_t n_rounds); /* operations made: for the limits */
};

#define CPU_DECLARE(level)                                                              \
    extern const struct cpu_loops simd_loops_##level;                                   \
    void simd_gemm_##level(int threads, const struct gemm_shape *shape, const float *a, \
                           const float *b, float *c, bool add, float *work);            \
    double simd_fma_flops_##level(int threads, int64_t n_rounds);
LEVEL_LIST(CPU_DECLARE)
#undef CPU_DECLARE

/* A tile register of AMX: rows of 64 bytes. */
enum {
    TILE_SIDE = 16,   /* rows, and fp32 columns */
    TILE_DEPTH = 32,  /* bf16 columns */
    TILE_ELEMS = 512, /* of bf16: 1 KiB */
};

/* amx_limits.c: operations made by matmuls of tiles that touch no memory, for the limits. */
#if defined(SNUG_AMX)
double tile_flops_amx(int threads, int64_t n_rounds);
#endif

/* cpu_limits.c: what this machine does at best. */
bool cpu_measure(const struct device_facts *facts, struct device_limits *limits);

/* disk_pool.c: a file that has no name. */
enum snug_status cpu_open_pool(const struct device_facts *facts, int64_t n_bytes,
                               struct offload_pool **pool, struct snug_error *err);

/* Rows of linear.c and lm_head.c. */
const struct kernel *cpu_linear_kernels(int *n_rows);
const struct kernel *cpu_lm_head_kernels(int *n_rows);

/* ---- workspaces ---------------------------------------------------------------------------- */

/* Pieces of a workspace are taken one after the other, each on its own cache line. */
static inline size_t work_take(size_t *total, size_t bytes)
{
    size_t at = *total;
    *total += (bytes + 63) / 64 * 64;
    return at;
}

static inline float *work_at(void *work, size_t offset)
{
    return (float *)(void *)((char *)work + offset);
}

static inline size_t f32_bytes(int64_t n_elems)
{
    return (size_t)n_elems * sizeof(float);
}

static inline bool dtype_is_gemm(enum dtype dtype)
{
    return dtype == DTYPE_f32 || dtype == DTYPE_bf16 || dtype == DTYPE_f16;
}

static inline struct span span_of(const struct operand *operand, int64_t begin)
{
    enum dtype dtype = operand->data != NULL ? operand->tensor->dtype : DTYPE_f32;
    return (struct span){dtype, operand->data, begin};
}

/* `n` elements to read as fp32: in place, or widened into `buffer`. */
static inline const float *span_view(const struct cpu_loops *loops, int threads, struct span from,
                                     int64_t n, float *buffer)
{
    if (from.dtype == DTYPE_f32)
        return (const float *)from.data + from.begin;
    loops->widen(threads, from, n, buffer);
    return buffer;
}

#endif
