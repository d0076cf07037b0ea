/*
 * norm.h -- launchers of norm.cu.
 */
#ifndef SNUG_CUDA_KERNELS_NORM_H
#define SNUG_CUDA_KERNELS_NORM_H

#include "cuda/kernels/dropout.h"

/* Rows of `width` elements.  All arrays have one type, except mean, rstd, dgamma, dbeta and dsum.
 * mean NULL: rmsnorm, which has no beta either. */
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

/* n_sums is the number of column sums of the gradient: 1 for rmsnorm (dgamma), 2 for layernorm, 3
 * with dsum.
 *
 * Rows of rmsnorm up to CUDA_NORM_HEAD share a warp (norm_heads.cu), those of the other norms never
 * do. */
enum { CUDA_NORM_HEAD = 256, CUDA_NORM_HEADS_BLOCK = 256, CUDA_NORM_HEADS_GRAD_ROWS = 2 };
static inline bool cuda_norm_is_head(int64_t width, int n_sums)
{
    return n_sums == 1 && width <= CUDA_NORM_HEAD;
}

/* Threads per head: one for each 8 elements, rounded up to a power of two. */
static inline int cuda_norm_heads_team(int64_t width)
{
    int team = 1;
    while (8 * team < width)
        team *= 2;
    return team;
}

/* Blocks of the gradient; under emulation few, so that small tensors take more than one round. */
#if defined(SNUG_CUDA_EMULATED)
enum { CUDA_NORM_HEADS_BLOCKS = 3 };
#else
enum { CUDA_NORM_HEADS_BLOCKS = 3 * 132 };
#endif
static inline int64_t cuda_norm_heads_blocks(int64_t n_rows, int64_t width)
{
    int n_teams = (int)CUDA_NORM_HEADS_BLOCK / cuda_norm_heads_team(width);
    int each = (int)CUDA_NORM_HEADS_GRAD_ROWS * n_teams;
    int64_t n = (n_rows + each - 1) / each;
    return n < CUDA_NORM_HEADS_BLOCKS ? n : (int64_t)CUDA_NORM_HEADS_BLOCKS;
}

/* Threads per row in the gradient: each holds at most two packs of 8 elements, if the row fits
 * registers at all. */
static inline int cuda_norm_grad_team(int64_t width, int n_sums)
{
    int team = 32;
    if (width > CUDA_NORM_WIDTH)
        return n_sums == 1 ? 2 * CUDA_NORM_WIDE_TEAM : (int)CUDA_NORM_WIDE_TEAM;
    while (16 * team < width)
        team = n_sums == 1 ? team + 32 : 2 * team;
    return team;
}

/* Blocks of the gradient, each with its own partial sums: as many as 132 SMs hold at once, at least
 * two if a row does not fit registers, else about 512 threads (with one column sum up to 640).  The
 * count depends on the shape alone, so the bits do too.  If a team is one warp, a block has
 * CUDA_NORM_TEAMS teams. */
enum { CUDA_NORM_TEAMS = 4, CUDA_NORM_SMS = 132 };
static inline int64_t cuda_norm_blocks(int64_t n_rows, int64_t width, int n_sums)
{
    if (cuda_norm_is_head(width, n_sums))
        return cuda_norm_heads_blocks(n_rows, width);
    int team = cuda_norm_grad_team(width, n_sums), n_teams = team == 32 ? (int)CUDA_NORM_TEAMS : 1;
    int per_sm = (512 + team * n_teams - 1) / (team * n_teams);
    if (width > CUDA_NORM_WIDTH)
        per_sm = 2;
    else if (per_sm * team > 640)
        per_sm--;
    int64_t n = (n_rows + n_teams - 1) / n_teams, most = CUDA_NORM_SMS * per_sm;
    return n < most ? n : most;
}

/* Floats of workspace for the gradient. */
static inline int64_t cuda_norm_parts(int64_t n_rows, int64_t width, int n_sums)
{
    return cuda_norm_blocks(n_rows, width, n_sums) * n_sums * width;
}

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_norm(const struct cuda_norm *norm, void *stream);
CUDA_LAUNCHER int cuda_norm_grad(const struct cuda_norm_grad *grad, void *stream);
CUDA_LAUNCHERS_END

#endif
