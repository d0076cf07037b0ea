/*
 * matrix_steps.cu -- what the matrix optimizers do between gemms.
 *
 * Sums are in fp64, by parts and then over the parts, both with fixed trees (parts.h).
 */
#include "cuda/kernels/device.h"
#include "cuda/optim/matrix_steps.h"
#include "ir/program.h"

/* ---- muon ------------------------------------------------------------------------------------ */

struct muon_mix {
    float clip, keep, rest;
};

DEVICE struct muon_mix muon_mix(double mu, const double *scalars)
{
    struct muon_mix mix = {(float)scalars[SCALAR_clip], (float)mu, (float)(1 - mu)};
    return mix;
}

DEVICE float muon_u(const struct muon_mix *mix, float g, float m)
{
    return mix->rest * g + mix->keep * m;
}

KERNEL muon_momentum(double mu, const double *scalars, int64_t n, struct cuda_array g, float *m,
                     double *parts)
{
    if (scalars[SCALAR_skip] != 0.0)
        return;
    const struct muon_mix mix = muon_mix(mu, scalars);
    double squares = 0.0;
    EACH_OF(part_of(n))
    {
        float now = load(g.dtype, g.data, i) * mix.clip;
        m[i] = mix.keep * m[i] + mix.rest * now;
        double u = (double)muon_u(&mix, now, m[i]);
        squares += u * u;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = squares;
}

KERNEL muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g, const float *m,
                  const double *parts, uint16_t *x)
{
    if (scalars[SCALAR_skip] != 0.0)
        return;
    const struct muon_mix mix = muon_mix(mu, scalars);
    const float factor = (float)(1 / fmax(sqrt(sum_parts(parts, parts_count(n), 1)), 1e-7));
    EACH_OF(part_of(n))
    {
        float now = load(g.dtype, g.data, i) * mix.clip;
        x[i] = to_bf16(factor * muon_u(&mix, now, m[i]));
    }
}

KERNEL muon_end(const double *scalars, int64_t n, const uint16_t *x, struct cuda_array u)
{
    bool skip = scalars[SCALAR_skip] != 0.0;
    EACH_OF(part_of(n))
    store(u.dtype, u.data, i, skip ? 0.0f : bf16_to_f32(x[i]));
}

int cuda_muon_momentum(double mu, const double *scalars, int64_t n, struct cuda_array g, float *m,
                       double *parts, void *stream)
{
    return launch(muon_momentum, (unsigned)parts_count(n), PART_BLOCK, 0, stream, mu, scalars, n, g,
                  m, parts);
}

int cuda_muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g,
                    const float *m, const double *parts, uint16_t *x, void *stream)
{
    return launch(muon_begin, (unsigned)parts_count(n), PART_BLOCK, 0, stream, mu, scalars, n, g, m,
                  parts, x);
}

int cuda_muon_end(const double *scalars, int64_t n, const uint16_t *x, struct cuda_array u,
                  void *stream)
{
    return launch(muon_end, (unsigned)parts_count(n), PART_BLOCK, 0, stream, scalars, n, x, u);
}

/* ---- elements of fp32 matrices ------------------------------------------------------------- */

struct mix_fn {
    float keep, rest;
    float *y;
    const float *x;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        y[i] = keep * y[i] + rest * x[i];
    }
};
struct scale_fn {
    float factor;
    const float *from;
    float *to;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        to[i] = factor * from[i];
    }
};
struct identity_fn {
    int64_t n;
    float factor;
    float *a;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        a[i] = i % (n + 1) == 0 ? factor : 0.0f;
    }
};
struct scale_rows_fn {
    int64_t n;
    const float *values;
    float *q;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        q[i] *= values[i / n];
    }
};
struct take_fn {
    bool columns;
    int64_t width;
    const int64_t *order;
    const float *from;
    float *to;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        int64_t row = i / width, column = i % width;
        to[i] = from[(columns ? row : order[row]) * width + (columns ? order[column] : column)];
    }
};
struct store_fn {
    struct moments_job job;
    float factor;
    const float *g;
    float *u;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        u[job.first + i / job.cols * job.pitch + i % job.cols] = factor * g[i];
    }
};
struct adam_fn {
    float beta1, rest1, beta2, rest2, eps;
    float *x, *m, *v;
    DEVICE_MEMBER void operator()(int64_t i) const
    {
        m[i] = beta1 * m[i] + rest1 * x[i];
        v[i] = beta2 * v[i] + rest2 * x[i] * x[i];
        x[i] = m[i] / (sqrtf(v[i]) + eps);
    }
};

template <class F> KERNEL each_element(F fn, int64_t n)
{
    int64_t i = thread_index();
    if (i < n)
        fn(i);
}

template <class F> static int run_each(F fn, int64_t n, void *stream)
{
    auto kernel = each_element<F>;
    return launch(kernel, grid_of(n, PART_BLOCK), PART_BLOCK, 0, stream, fn, n);
}

int cuda_matrix_mix(int64_t n, float keep, float *y, float rest, const float *x, void *stream)
{
    return run_each(mix_fn{keep, rest, y, x}, n, stream);
}

int cuda_matrix_scale(int64_t n, float factor, const float *from, float *to, void *stream)
{
    return run_each(scale_fn{factor, from, to}, n, stream);
}

int cuda_matrix_clear(int64_t n, float *x, void *stream)
{
    return (int)cudaMemsetAsync(x, 0, (size_t)n * sizeof *x, (cudaStream_t)stream);
}

int cuda_matrix_identity(int64_t n, float factor, float *a, void *stream)
{
    return run_each(identity_fn{n, factor, a}, n * n, stream);
}

int cuda_matrix_scale_rows(int64_t n, const float *values, float *q, void *stream)
{
    return run_each(scale_rows_fn{n, values, q}, n * n, stream);
}

int cuda_matrix_take(bool columns, int64_t n_rows, int64_t width, const int64_t *order,
                     const float *from, float *to, void *stream)
{
    return run_each(take_fn{columns, width, order, from, to}, n_rows * width, stream);
}

int cuda_matrix_store(const struct moments_job *job, float factor, const float *g, float *u,
                      void *stream)
{
    return run_each(store_fn{*job, factor, g, u}, job->rows * job->cols, stream);
}

int cuda_matrix_adam(int64_t n, float beta1, float rest1, float beta2, float rest2, float eps,
                     float *x, float *m, float *v, void *stream)
{
    return run_each(adam_fn{beta1, rest1, beta2, rest2, eps, x, m, v}, n, stream);
}

/* ---- sums ------------------------------------------------------------------------------------ */

KERNEL sum_products(int64_t n, int64_t step, const float *a, const float *b, double *parts)
{
    double sum = 0.0;
    EACH_OF(part_of(n))
    sum += (double)a[i * step] * (b != NULL ? (double)b[i * step] : 1.0);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

KERNEL sum_whole(int64_t n_parts, const double *parts, double *sum)
{
    double whole = sum_parts(parts, n_parts, 1);
    if (threadIdx.x == 0)
        *sum = whole;
}

int cuda_matrix_sum(int64_t n, int64_t step, const float *a, const float *b, double *parts,
                    double *sum, void *stream)
{
    int64_t n_parts = parts_count(n);
    int error =
        launch(sum_products, (unsigned)n_parts, PART_BLOCK, 0, stream, n, step, a, b, parts);
    return error != 0 ? error : launch(sum_whole, 1, PART_BLOCK, 0, stream, n_parts, parts, sum);
}

/* One block per row. */
KERNEL row_dots(int64_t n, const float *a, const float *b, float *values)
{
    int64_t first = (int64_t)blockIdx.x * n;
    struct range row = {first, first + n};
    double sum = 0.0;
    EACH_OF(row)
    sum += (double)a[i] * (double)b[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        values[blockIdx.x] = (float)sum;
}

int cuda_matrix_row_dots(int64_t n, const float *a, const float *b, float *values, void *stream)
{
    return launch(row_dots, (unsigned)n, PART_BLOCK, 0, stream, n, a, b, values);
}

KERNEL block_moments(struct moments_job job, struct cuda_array gradient, float *g, float *h,
                     float *u, float *m, float *v, double *parts)
{
    double sum = 0.0;
    EACH_OF(part_of(job.rows * job.cols))
    {
        int64_t at = job.first + i / job.cols * job.pitch + i % job.cols;
        float now = load(gradient.dtype, gradient.data, at) * job.clip;
        float moment = job.beta1 * m[at] + job.rest1 * now;
        float square = job.beta * v[at] + job.rest * now * now;
        float ahead = (job.beta1 * moment + job.rest1 * now) * job.scale;
        float step = ahead / (sqrtf(square) * job.root_scale + job.eps);
        g[i] = now;
        h[i] = ahead;
        m[at] = moment;
        v[at] = square;
        u[at] = step;
        sum += (double)step * (double)step;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

int cuda_matrix_moments(const struct moments_job *job, struct cuda_array gradient, float *g,
                        float *h, float *u, float *m, float *v, double *parts, double *sum,
                        void *stream)
{
    int64_t n_parts = parts_count(job->rows * job->cols);
    int error = launch(block_moments, (unsigned)n_parts, PART_BLOCK, 0, stream, *job, gradient, g,
                       h, u, m, v, parts);
    return error != 0 ? error : launch(sum_whole, 1, PART_BLOCK, 0, stream, n_parts, parts, sum);
}

/* ---- to the host and back -------------------------------------------------------------------- */

static int copy_now(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                    void *stream)
{
    cudaError_t error = cudaStreamSynchronize((cudaStream_t)stream); /* fails while the stream is
                                                                      * captured */
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream);
    return (int)(error == cudaSuccess ? cudaStreamSynchronize((cudaStream_t)stream) : error);
}

int cuda_matrix_fetch(void *to, const void *from, size_t bytes, void *stream)
{
    return copy_now(to, from, bytes, cudaMemcpyDeviceToHost, stream);
}

int cuda_matrix_send(void *to, const void *from, size_t bytes, void *stream)
{
    return copy_now(to, from, bytes, cudaMemcpyHostToDevice, stream);
}
