/*
 * norm.h -- launchers of norm.cu.
 */
#ifndef SNUG_CUDA_KERNELS_NORM_H
#define SNUG_CUDA_KERNELS_NORM_H

#include "cuda/kernels/dropout.h"

/* Rows of `width` elements.  All arrays have one type, except mean, rstd, dgamma, dbeta and
 * dsum. */
struct cuda_norm {
    int64_t n_rows;
    int width; /* at most CUDA_NORM_WIDTH_MOST */
    enum dtype dtype;
    float eps;
    const void *a, *b; /* x = a if b is NULL, else x = sum = a + dropout(b) */
    const void *gamma, *beta;
    void *sum; /* may be a or b; only used with b */
    void *y;
    float *mean, *rstd; /* per row */
    struct cuda_dropout dropout;
};

struct cuda_norm_grad {
    int64_t n_rows;
    int width;
    enum dtype dtype;
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    const void *r;                   /* added to dx; may be NULL */
    void *dx;                        /* may be dy or r; optional */
    struct cuda_array dgamma, dbeta; /* both optional */
    struct cuda_array dsum;          /* column sums of dx before rounding; optional */
    bool add;                        /* these three: += instead of = */
    float *parts;                    /* workspace: cuda_norm_parts floats */
};

/* Rows up to CUDA_NORM_WIDTH are held in registers; longer ones are read more than once. */
enum { CUDA_NORM_WIDTH = 8192, CUDA_NORM_WIDTH_MOST = 1 << 24, CUDA_NORM_WIDE_TEAM = 256 };

/* Threads per row in the gradient: each holds at most two packs of 8 elements, if the row fits
 * registers at all. */
static inline int cuda_norm_grad_team(int64_t width)
{
    int team = 32;
    if (width > CUDA_NORM_WIDTH)
        return CUDA_NORM_WIDE_TEAM;
    while (16 * team < width)
        team *= 2;
    return team;
}

/* Blocks of the gradient, each with its own partial sums: enough for 512 threads on each of 132
 * SMs.  The count depends on the shape alone, so the bits do too.  If a team is one warp, a block
 * has CUDA_NORM_TEAMS teams. */
enum { CUDA_NORM_TEAMS = 4 };
static inline int64_t cuda_norm_blocks(int64_t n_rows, int64_t width)
{
    int team = cuda_norm_grad_team(width), n_teams = team == 32 ? (int)CUDA_NORM_TEAMS : 1;
    int64_t n = (n_rows + n_teams - 1) / n_teams, most = 132 * 512 / (team * n_teams);
    return n < most ? n : most;
}

/* Floats of workspace for the gradient. */
static inline int64_t cuda_norm_parts(int64_t n_rows, int64_t width, bool sums_dx)
{
    return cuda_norm_blocks(n_rows, width) * (sums_dx ? 3 : 2) * width;
}

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_norm(const struct cuda_norm *norm, void *stream);
CUDA_LAUNCHER int cuda_norm_grad(const struct cuda_norm_grad *grad, void *stream);
CUDA_LAUNCHERS_END

#endif
