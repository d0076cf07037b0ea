/*
 * directions.h -- launchers of directions.cu: the step directions of adafactor, amos and prodigy,
 * and the sizes of their workspaces in bytes.
 */
#ifndef SNUG_CUDA_OPTIM_DIRECTIONS_H
#define SNUG_CUDA_OPTIM_DIRECTIONS_H

#include "cuda/kernels/launch.h"
#include "cuda/kernels/parts.h"
#include "ir/program.h"

struct direction_job { /* attributes of the op */
    double options[MAX_OPTIONS];
    bool relative;
    double lr_factor, eta;
    double *scalars; /* on the device */
};

enum { COLUMN_PARTS_MOST = 128 };

/* Rows per part of the column sums of a matrix. */
DEVICE_FN int64_t adafactor_part_rows(int64_t n_rows)
{
    int64_t least = (n_rows + COLUMN_PARTS_MOST - 1) / COLUMN_PARTS_MOST;
    return least < 64 ? 64 : least;
}

/* The pieces of the workspace, in this order (doubles first). */
struct adafactor_work {
    double *columns;                /* partial column sums, part by part */
    double *steps, *weights, *mean; /* squares of u and of W by parts; mean of the row means */
    float *of_row, *of_column;      /* u = g of_row of_column */
};

DEVICE_FN int64_t adafactor_column_parts(int64_t n_rows)
{
    return (n_rows + adafactor_part_rows(n_rows) - 1) / adafactor_part_rows(n_rows);
}

DEVICE_FN size_t adafactor_work_bytes(int64_t n_rows, int64_t n_columns, bool factored)
{
    size_t sums = 2 * (size_t)parts_count(n_rows * n_columns) + 1;
    if (!factored)
        return sums * sizeof(double);
    size_t columns = (size_t)(adafactor_column_parts(n_rows) * n_columns);
    return (columns + sums) * sizeof(double) + (size_t)(n_rows + n_columns) * sizeof(float);
}

struct amos_work { /* for a tensor with a single v: read by all its blocks */
    double most, of_weight, of_gradient;
};

DEVICE_FN size_t amos_work_bytes(int64_t n)
{
    return sizeof(struct amos_work) + (size_t)parts_count(n) * sizeof(double);
}

DEVICE_FN size_t prodigy_work_bytes(int64_t n)
{
    return 2 * (size_t)parts_count(n) * sizeof(double);
}

CUDA_LAUNCHERS_BEGIN
/* u may alias g.  If columns is NULL, rows has a value per element. */
CUDA_LAUNCHER int cuda_adafactor(const struct direction_job *job, int64_t n_rows, int64_t n_columns,
                                 struct cuda_array g, struct cuda_array w, float *rows,
                                 float *columns, struct cuda_array u, void *work, void *stream);
/* u may alias g.  v has n_groups values, each for a range of consecutive elements. */
CUDA_LAUNCHER int cuda_amos(const struct direction_job *job, int64_t n, int64_t n_groups,
                            struct cuda_array g, struct cuda_array w, float *v, float *b,
                            struct cuda_array u, void *work, void *stream);
CUDA_LAUNCHER int cuda_prodigy_sums(const struct direction_job *job, int64_t n, struct cuda_array g,
                                    struct cuda_array z, struct cuda_array x0, float *s,
                                    double *part, void *work, void *stream);
/* parts: two values for each of n tensors */
CUDA_LAUNCHER int cuda_prodigy_size(const struct direction_job *job, int64_t n, const double *parts,
                                    void *stream);
CUDA_LAUNCHERS_END

#endif
