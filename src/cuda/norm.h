/*
 * norm.h -- launchers of norm.cu.
 */
#ifndef SNUG_CUDA_NORM_H
#define SNUG_CUDA_NORM_H

#include "cuda/dropout.h"

/* Rows of `width` elements.  All arrays but mean, rstd, dgamma and dbeta have one type. */
struct cuda_norm {
    int64_t n_rows;
    int width; /* at most CUDA_NORM_WIDTH */
    enum dtype dtype;
    float eps;
    const void *a, *b; /* b NULL: x = a, else x = sum = a + dropout(b) */
    const void *gamma, *beta;
    void *sum; /* may be a or b; only with b */
    void *y;
    float *mean, *rstd; /* of each row */
    struct cuda_dropout dropout;
};

struct cuda_norm_grad {
    int64_t n_rows;
    int width;
    enum dtype dtype;
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    const void *r;                   /* added to dx; NULL: nothing */
    void *dx;                        /* may be dy or r; NULL: left out */
    struct cuda_array dgamma, dbeta; /* either may be left out */
    bool add;                        /* to dgamma and dbeta */
    float *parts;                    /* as many as cuda_norm_parts says */
};

enum { CUDA_NORM_WIDTH = 8192, CUDA_NORM_PARTS_MOST = 528 };

/* Sums of rows that are kept apart, at most: four blocks for each of 132 processors.  By the shape
 * alone, as the bits are.  Where a team is a warp, a block has CUDA_NORM_TEAMS of them. */
enum { CUDA_NORM_TEAMS = 4 };
static inline int64_t cuda_norm_blocks(int64_t n_rows, int64_t width)
{
    int64_t n_teams = width > 1024 ? 1 : (int64_t)CUDA_NORM_TEAMS;
    int64_t n = (n_rows + n_teams - 1) / n_teams;
    return n < CUDA_NORM_PARTS_MOST ? n : (int64_t)CUDA_NORM_PARTS_MOST;
}

/* Floats of workspace for the gradient. */
static inline int64_t cuda_norm_parts(int64_t n_rows, int64_t width)
{
    return cuda_norm_blocks(n_rows, width) * 2 * width;
}

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_norm(const struct cuda_norm *norm, void *stream);
CUDA_LAUNCHER int cuda_norm_grad(const struct cuda_norm_grad *grad, void *stream);
CUDA_LAUNCHERS_END

#endif
