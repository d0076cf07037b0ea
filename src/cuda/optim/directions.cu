/*
 * directions.cu -- the step direction of optimizers that are not purely elementwise: adafactor,
 * amos, prodigy.
 *
 * Sums are in fp64, with fixed trees: one block sums a part of the elements, then one block sums
 * the parts.  A kernel that reads sums runs after the kernel that computes them.  The constants of
 * the step (src/optim/direction.h) are computed by the first thread of each block.
 */
#include "cuda/kernels/device.h"
#include "cuda/optim/directions.h"
#include "optim/direction.h"

enum { BLOCK = PART_BLOCK, N_WARPS = BLOCK / WARP };

DEVICE bool skips(const struct direction_job *job)
{
    return job->scalars[SCALAR_skip] != 0.0;
}

DEVICE void clear(struct range part, struct cuda_array u)
{
    EACH_OF(part)
    store(u.dtype, u.data, i, 0.0f);
}

/* ---- adafactor ------------------------------------------------------------------------------- */

DEVICE struct adafactor_now adafactor_of(const struct direction_job *job)
{
    return adafactor_now(job->options, job->relative, job->lr_factor, job->scalars);
}

/* One warp per row: updates the running mean of its squares. */
KERNEL adafactor_rows(struct direction_job job, int64_t n_rows, int64_t n_columns,
                      struct cuda_array g, float *rows)
{
    SHARED struct adafactor_now now;
    if (skips(&job))
        return;
    if (threadIdx.x == 0)
        now = adafactor_of(&job);
    __syncthreads();
    int64_t row = (int64_t)blockIdx.x * N_WARPS + threadIdx.x / WARP;
    double sum = 0.0;
    for (int64_t j = threadIdx.x % WARP; row < n_rows && j < n_columns; j += WARP) {
        double value = (double)load(g.dtype, g.data, row * n_columns + j);
        sum += value * value;
    }
    sum = warp_sum(sum);
    if (row < n_rows && threadIdx.x % WARP == 0)
        rows[row] = (float)adafactor_mean(&now, (double)rows[row], sum / (double)n_columns);
}

/* One thread per column, over a part of its rows. */
KERNEL adafactor_columns(struct direction_job job, int64_t n_rows, int64_t n_columns,
                         int64_t part_rows, struct cuda_array g, double *sums)
{
    int64_t column = thread_index(), first = (int64_t)blockIdx.y * part_rows;
    int64_t end = first + part_rows < n_rows ? first + part_rows : n_rows;
    if (skips(&job) || column >= n_columns)
        return;
    double sum = 0.0;
    for (int64_t i = first; i < end; i++) {
        double value = (double)load(g.dtype, g.data, i * n_columns + column);
        sum += value * value;
    }
    sums[(int64_t)blockIdx.y * n_columns + column] = sum;
}

/* One block: the mean of the row means. */
KERNEL adafactor_mean_row(struct direction_job job, int64_t n_rows, const float *rows, double *mean)
{
    double sum = 0.0;
    if (skips(&job))
        return;
    for (int64_t i = threadIdx.x; i < n_rows; i += BLOCK)
        sum += (double)rows[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *mean = sum / (double)n_rows;
}

/* The factors of an element for its row and its column.  Also updates the running mean of the
 * column. */
KERNEL adafactor_sides(struct direction_job job, int64_t n_rows, int64_t n_columns,
                       struct adafactor_work work, const float *rows, float *columns)
{
    SHARED struct adafactor_now now;
    if (skips(&job))
        return;
    if (threadIdx.x == 0)
        now = adafactor_of(&job);
    __syncthreads();
    int64_t i = thread_index();
    if (i < n_rows)
        work.of_row[i] = (float)(now.clip / sqrt((double)rows[i] / *work.mean));
    if (i < n_columns) {
        double sum = 0.0;
        for (int64_t part = 0; part < adafactor_column_parts(n_rows); part++)
            sum += work.columns[part * n_columns + i];
        columns[i] = (float)adafactor_mean(&now, (double)columns[i], sum / (double)n_rows);
        work.of_column[i] = (float)(1 / sqrt((double)columns[i]));
    }
}

/* Writes the partial sums: `squares`, and the squares of W if the learning rate is relative to
 * them. */
DEVICE void close_part(const struct direction_job *job, struct range part, struct cuda_array w,
                       double squares, struct adafactor_work work)
{
    double of_weights = 0.0;
    for (int64_t i = part.begin + threadIdx.x; job->relative && i < part.end; i += BLOCK) {
        double value = (double)load(w.dtype, w.data, i);
        of_weights += value * value;
    }
    squares = block_sum(squares);
    of_weights = block_sum(of_weights);
    if (threadIdx.x == 0) {
        work.steps[blockIdx.x] = squares;
        work.weights[blockIdx.x] = of_weights;
    }
}

KERNEL adafactor_matrix(struct direction_job job, int64_t n_rows, int64_t n_columns,
                        struct cuda_array g, struct cuda_array w, struct cuda_array u,
                        struct adafactor_work work)
{
    struct range part = part_of(n_rows * n_columns);
    if (skips(&job)) {
        clear(part, u);
        return;
    }
    double squares = 0.0;
    EACH_OF(part)
    {
        int64_t row = i / n_columns;
        float value =
            load(g.dtype, g.data, i) * work.of_row[row] * work.of_column[i - row * n_columns];
        squares += (double)value * (double)value;
        store(u.dtype, u.data, i, value);
    }
    close_part(&job, part, w, squares, work);
}

/* A tensor that is not factored: each element has its own running mean. */
KERNEL adafactor_vector(struct direction_job job, int64_t n, struct cuda_array g,
                        struct cuda_array w, float *v, struct cuda_array u,
                        struct adafactor_work work)
{
    SHARED struct adafactor_now now;
    struct range part = part_of(n);
    if (skips(&job)) {
        clear(part, u);
        return;
    }
    if (threadIdx.x == 0)
        now = adafactor_of(&job);
    __syncthreads();
    double squares = 0.0;
    EACH_OF(part)
    {
        double gradient = (double)load(g.dtype, g.data, i);
        v[i] = (float)adafactor_mean(&now, (double)v[i], gradient * gradient);
        double value = gradient * now.clip / sqrt((double)v[i]);
        squares += value * value;
        store(u.dtype, u.data, i, (float)value);
    }
    close_part(&job, part, w, squares, work);
}

KERNEL adafactor_end(struct direction_job job, int64_t n, struct adafactor_work work)
{
    if (skips(&job))
        return;
    double steps = sum_parts(work.steps, parts_count(n), 1);
    double weights = sum_parts(work.weights, parts_count(n), 1);
    if (threadIdx.x == 0) {
        struct adafactor_now now = adafactor_of(&job);
        adafactor_finish(&now, sqrt(steps / (double)n), sqrt(weights / (double)n), job.scalars);
    }
}

static struct adafactor_work cut_work(void *block, int64_t n_rows, int64_t n_columns, bool factored)
{
    int64_t n_parts = parts_count(n_rows * n_columns);
    struct adafactor_work work;
    work.columns = (double *)block;
    work.steps = work.columns + (factored ? adafactor_column_parts(n_rows) * n_columns : 0);
    work.weights = work.steps + n_parts;
    work.mean = work.weights + n_parts;
    work.of_row = (float *)(work.mean + 1);
    work.of_column = work.of_row + n_rows;
    return work;
}

/* Updates the running means of rows and columns, and computes the factors. */
static int launch_sides(const struct direction_job *job, int64_t n_rows, int64_t n_columns,
                        struct cuda_array g, float *rows, float *columns,
                        struct adafactor_work work, void *stream)
{
    int64_t longest = n_rows > n_columns ? n_rows : n_columns;
    dim3 parts(grid_of(n_columns, BLOCK), (unsigned)adafactor_column_parts(n_rows));
    int error = launch(adafactor_rows, grid_of(n_rows, N_WARPS), BLOCK, 0, stream, *job, n_rows,
                       n_columns, g, rows);
    if (error == 0)
        error = launch(adafactor_columns, parts, BLOCK, 0, stream, *job, n_rows, n_columns,
                       adafactor_part_rows(n_rows), g, work.columns);
    if (error == 0)
        error = launch(adafactor_mean_row, 1, BLOCK, 0, stream, *job, n_rows, rows, work.mean);
    if (error == 0)
        error = launch(adafactor_sides, grid_of(longest, BLOCK), BLOCK, 0, stream, *job, n_rows,
                       n_columns, work, rows, columns);
    return error;
}

int cuda_adafactor(const struct direction_job *job, int64_t n_rows, int64_t n_columns,
                   struct cuda_array g, struct cuda_array w, float *rows, float *columns,
                   struct cuda_array u, void *work_block, void *stream)
{
    int64_t n = n_rows * n_columns;
    struct adafactor_work work = cut_work(work_block, n_rows, n_columns, columns != NULL);
    unsigned n_parts = (unsigned)parts_count(n);
    int error = 0;
    if (columns == NULL) {
        error = launch(adafactor_vector, n_parts, BLOCK, 0, stream, *job, n, g, w, rows, u, work);
    } else {
        error = launch_sides(job, n_rows, n_columns, g, rows, columns, work, stream);
        if (error == 0)
            error = launch(adafactor_matrix, n_parts, BLOCK, 0, stream, *job, n_rows, n_columns, g,
                           w, u, work);
    }
    return error != 0 ? error : launch(adafactor_end, 1, BLOCK, 0, stream, *job, n, work);
}

/* ---- amos ------------------------------------------------------------------------------------ */

DEVICE struct amos_now amos_of(const struct direction_job *job, int64_t k, const float *b)
{
    return amos_now(job->options, job->eta, job->lr_factor, job->scalars, (double)k, (double)b[0]);
}

DEVICE double amos_squares(struct range part, struct cuda_array g, double clip, double most)
{
    double sum = 0.0;
    EACH_OF(part)
    {
        double value = amos_clamp((double)load(g.dtype, g.data, i) * clip, most);
        sum += value * value;
    }
    return block_sum(sum);
}

DEVICE void amos_direction(struct range part, struct cuda_array g, struct cuda_array w, double clip,
                           struct amos_work mix, struct cuda_array u)
{
    EACH_OF(part)
    {
        double gradient = amos_clamp((double)load(g.dtype, g.data, i) * clip, mix.most);
        double value =
            mix.of_weight * (double)load(w.dtype, w.data, i) + mix.of_gradient * gradient;
        store(u.dtype, u.data, i, (float)value);
    }
}

/* Updates v with the mean of the clamped squares; returns the coefficients of the direction. */
DEVICE struct amos_work amos_move(const struct amos_now *now, double most, double square, float *v)
{
    *v = (float)(now->beta2 * (double)*v + square);
    struct amos_mix mix = amos_mix(now, (double)*v, square);
    struct amos_work work = {most, mix.of_weight, mix.of_gradient};
    return work;
}

DEVICE void amos_finish(const struct direction_job *job, const struct amos_now *now, float *b)
{
    b[0] = (float)now->next_b;
    job->scalars[SCALAR_direction_scale] = job->scalars[SCALAR_direction_lr] = 1;
}

/* One block per row; each row has its own v. */
KERNEL amos_rows(struct direction_job job, int64_t width, struct cuda_array g, struct cuda_array w,
                 float *v, const float *b, struct cuda_array u)
{
    SHARED struct amos_now now;
    SHARED struct amos_work work;
    int64_t row = blockIdx.x;
    struct range part = {row * width, (row + 1) * width};
    if (skips(&job)) {
        clear(part, u);
        return;
    }
    if (threadIdx.x == 0) {
        now = amos_of(&job, width, b);
        work.most = amos_most(&now, (double)v[row]);
    }
    __syncthreads();
    double squares = amos_squares(part, g, now.clip, work.most);
    if (threadIdx.x == 0)
        work = amos_move(&now, work.most, squares / (double)width, &v[row]);
    __syncthreads();
    amos_direction(part, g, w, now.clip, work, u);
}

KERNEL amos_rows_end(struct direction_job job, int64_t width, float *b)
{
    if (skips(&job))
        return;
    struct amos_now now = amos_of(&job, width, b);
    amos_finish(&job, &now, b);
}

/* A single v for the whole tensor, in three kernels: the partial sums, */
KERNEL amos_parts(struct direction_job job, int64_t n, struct cuda_array g, const float *v,
                  const float *b, double *parts)
{
    SHARED double clip, most;
    if (skips(&job))
        return;
    if (threadIdx.x == 0) {
        struct amos_now now = amos_of(&job, n, b);
        clip = now.clip;
        most = amos_most(&now, (double)*v);
    }
    __syncthreads();
    double squares = amos_squares(part_of(n), g, clip, most);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = squares;
}

/* the total, which updates v and b, */
KERNEL amos_whole(struct direction_job job, int64_t n, float *v, float *b, const double *parts,
                  struct amos_work *work)
{
    if (skips(&job))
        return;
    double squares = sum_parts(parts, parts_count(n), 1);
    if (threadIdx.x == 0) {
        struct amos_now now = amos_of(&job, n, b);
        *work = amos_move(&now, amos_most(&now, (double)*v), squares / (double)n, v);
        amos_finish(&job, &now, b);
    }
}

/* and the direction. */
KERNEL amos_steps(struct direction_job job, int64_t n, struct cuda_array g, struct cuda_array w,
                  const struct amos_work *work, struct cuda_array u)
{
    if (skips(&job))
        clear(part_of(n), u);
    else
        amos_direction(part_of(n), g, w, job.scalars[SCALAR_clip], *work, u);
}

int cuda_amos(const struct direction_job *job, int64_t n, int64_t n_groups, struct cuda_array g,
              struct cuda_array w, float *v, float *b, struct cuda_array u, void *work_block,
              void *stream)
{
    struct amos_work *work = (struct amos_work *)work_block;
    double *parts = (double *)(work + 1);
    unsigned n_parts = (unsigned)parts_count(n);
    int error;
    if (n_groups > 1) {
        int64_t width = n / n_groups;
        error = launch(amos_rows, (unsigned)n_groups, BLOCK, 0, stream, *job, width, g, w, v, b, u);
        return error != 0 ? error : launch(amos_rows_end, 1, 1, 0, stream, *job, width, b);
    }
    error = launch(amos_parts, n_parts, BLOCK, 0, stream, *job, n, g, v, b, parts);
    if (error == 0)
        error = launch(amos_whole, 1, BLOCK, 0, stream, *job, n, v, b, parts, work);
    return error != 0 ? error
                      : launch(amos_steps, n_parts, BLOCK, 0, stream, *job, n, g, w, work, u);
}

/* ---- prodigy --------------------------------------------------------------------------------- */

KERNEL prodigy_parts(struct direction_job job, int64_t n, struct cuda_array g, struct cuda_array z,
                     struct cuda_array x0, float *s, double *parts)
{
    SHARED struct prodigy_now now;
    struct range part = part_of(n);
    double dot = 0.0, size = 0.0;
    if (skips(&job))
        return;
    if (threadIdx.x == 0)
        now = prodigy_now(job.options, job.scalars);
    __syncthreads();
    const float clip = (float)job.scalars[SCALAR_clip];
    const float keep = (float)now.keep, step = (float)now.step;
    EACH_OF(part)
    {
        float gradient = load(g.dtype, g.data, i) * clip;
        dot += (double)gradient *
               ((double)load(x0.dtype, x0.data, i) - (double)load(z.dtype, z.data, i));
        s[i] = keep * s[i] + step * gradient;
        size += (double)fabsf(s[i]);
    }
    dot = block_sum(dot);
    size = block_sum(size);
    if (threadIdx.x == 0) {
        parts[2 * blockIdx.x] = dot;
        parts[2 * blockIdx.x + 1] = size;
    }
}

KERNEL prodigy_whole(struct direction_job job, int64_t n, const double *parts, double *part)
{
    bool skip = skips(&job);
    double dot = skip ? 0.0 : sum_parts(parts, parts_count(n), 2);
    double size = skip ? 0.0 : sum_parts(parts + 1, parts_count(n), 2);
    if (threadIdx.x == 0) {
        part[0] = dot;
        part[1] = size;
    }
}

KERNEL prodigy_estimate(struct direction_job job, int64_t n, const double *parts)
{
    if (skips(&job))
        return;
    double dot = sum_parts(parts, n, 2), size = sum_parts(parts + 1, n, 2);
    if (threadIdx.x == 0)
        prodigy_size(job.options, dot, size, job.scalars);
}

int cuda_prodigy_sums(const struct direction_job *job, int64_t n, struct cuda_array g,
                      struct cuda_array z, struct cuda_array x0, float *s, double *part, void *work,
                      void *stream)
{
    int error = launch(prodigy_parts, (unsigned)parts_count(n), BLOCK, 0, stream, *job, n, g, z, x0,
                       s, (double *)work);
    return error != 0
               ? error
               : launch(prodigy_whole, 1, BLOCK, 0, stream, *job, n, (const double *)work, part);
}

int cuda_prodigy_size(const struct direction_job *job, int64_t n, const double *parts, void *stream)
{
    return launch(prodigy_estimate, 1, BLOCK, 0, stream, *job, n, parts);
}
