/*
 * cpu.h -- declarations shared by the CPU backend: loops compiled per instruction level, gemm-based
 * kernels, workspace helpers.
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

/* The elements of a tensor from `begin` on.  data is NULL for an operand that is left out. */
struct span {
    enum dtype dtype;
    void *data;
    int64_t begin;
};

/* The epilogue of a matmul that computed n_rows rows of x W^T in fp32:
 * v = acc + bias + more; before = v; y = act(v), or v act'(slope_at) if slope_at is given.
 * acc may alias `before` or y.  y may alias slope_at or, if it does not alias acc, `more`. */
struct linear_finish {
    int64_t n_rows, width;
    float *acc;
    const float *bias; /* or NULL */
    enum act act;
    struct span before, y, slope_at, more; /* data is NULL if left out */
};

/* The target distribution of a row: `each` for every class, plus `target` for the target class.
 * With label smoothing s these are s / classes and 1 - s. */
struct labels {
    float target, each;
};

static inline struct labels labels_of(double smoothing, int64_t n_classes)
{
    return (struct labels){(float)(1.0 - smoothing), (float)(smoothing / (double)n_classes)};
}

/* Rows of logits, `pitch` floats apart.  Writes lse if write_lse is set, else reads it.  Stores
 * lse - logit of the target for each row in losses unless that is NULL.  If make_gradient is set,
 * overwrites the logits with factor * (softmax - labels), computed from the fp32 lse. */
struct head_rows {
    int64_t n_rows, n_classes, pitch;
    float *logits, *lse;
    const int32_t *targets;
    double *losses;
    bool write_lse, make_gradient;
    float factor;
    struct labels labels;
};

/* The loops between and inside matmuls (simd_linear.c, simd_gemm.c), one set per level.  The order
 * of each element's sum does not depend on the number of threads, so the results are
 * deterministic. */
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
    double (*fma_flops)(int threads, int64_t n_rounds); /* runs FMAs, returns their FLOPs */
};

#define CPU_DECLARE(level)                                                              \
    extern const struct cpu_loops simd_loops_##level;                                   \
    void simd_gemm_##level(int threads, const struct gemm_shape *shape, const float *a, \
                           const float *b, float *c, bool add, float *work);            \
    double simd_fma_flops_##level(int threads, int64_t n_rounds);
LEVEL_LIST(CPU_DECLARE)
#undef CPU_DECLARE

/* An AMX tile register: 16 rows of 64 bytes. */
enum {
    TILE_SIDE = 16,   /* rows, and fp32 columns */
    TILE_DEPTH = 32,  /* bf16 columns */
    TILE_ELEMS = 512, /* bf16 elements: 1 KiB */
};

/* amx_limits.c: runs tile matmuls that touch no memory and returns their FLOPs. */
#if defined(SNUG_AMX)
double tile_flops_amx(int threads, int64_t n_rounds);
#endif

/* cpu_limits.c: measures the peak rates of this machine. */
bool cpu_measure(const struct device_facts *facts, struct device_limits *limits);

/* disk_pool.c: an offload pool in an unlinked file. */
enum snug_status cpu_open_pool(const struct device_facts *facts, int64_t n_bytes,
                               struct offload_pool **pool, struct snug_error *err);

/* The kernels of linear.c and lm_head.c. */
const struct kernel *cpu_linear_kernels(int *n_kernels);
const struct kernel *cpu_lm_head_kernels(int *n_kernels);

/* ---- workspaces ---------------------------------------------------------------------------- */

/* Reserves the next piece of a workspace, aligned to a cache line, and returns its offset. */
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

/* `n` elements as fp32: in place if they are fp32, else widened into `buffer`. */
static inline const float *span_view(const struct cpu_loops *loops, int threads, struct span from,
                                     int64_t n, float *buffer)
{
    if (from.dtype == DTYPE_f32)
        return (const float *)from.data + from.begin;
    loops->widen(threads, from, n, buffer);
    return buffer;
}

#endif
