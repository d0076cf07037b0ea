/*
 * simd_batchnorm.c -- batch normalisation, with relu and a residual, and its gradient.
 *
 * Forward and gradient each read their images twice: once for the sums of every channel, once for
 * the result.  Panels of 8 rows are summed in fp32, the panels of a bundle of rows in fp64.
 * Bundles depend on the shape only and are added in order, so the results do not depend on the
 * threads.  Variances are computed about the first row rather than about zero, so nothing cancels
 * if the mean is large.
 *
 * The gradient needs to know where relu was active.  It recomputes the sign from x, which it reads
 * anyway, or takes it from y if there is a residual.
 */
#include "cpu/simd/simd_common.h"

enum { PANEL = 8, BUNDLES_MAX = 64, LEAST_PER_BUNDLE = 1 << 15, BUFFERS = 4 };

/* Per-channel values, one line of the workspace each. */
enum line { LINE_mean, LINE_scale, LINE_beta, LINE_first, LINE_k1, LINE_k2, N_LINES };

struct norm {
    int64_t n_rows, width, pitch; /* pitch: width rounded up to cache lines */
    int64_t n_bundles;
    int n_parts;
    float *line[N_LINES];
    double *sums;   /* per bundle: two lines of `pitch` */
    float *buffers; /* per part: BUFFERS panels */
    bool is_relu;
};

static int64_t bundles_of(const struct shape *x)
{
    int64_t n = least(BUNDLES_MAX, divide_up(shape_elems(x), LEAST_PER_BUNDLE));
    return least(n, divide_up(shape_rows(x), PANEL));
}

static int64_t sums_floats(int64_t pitch, int64_t n_bundles)
{
    return n_bundles * 2 * pitch * 2;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    const struct shape *x = &program_tensor(prog, op->in[0])->shape;
    int64_t pitch = padded_floats(shape_last(x));
    return (size_t)(N_LINES * pitch + sums_floats(pitch, bundles_of(x)) +
                    facts->threads * BUFFERS * PANEL * pitch) *
           sizeof(float);
}

static struct norm norm_of(const struct kernel_call *call)
{
    const struct shape *x = &call->in[0].tensor->shape;
    struct norm n = {.n_rows = shape_rows(x),
                     .width = shape_last(x),
                     .pitch = padded_floats(shape_last(x)),
                     .n_bundles = bundles_of(x),
                     .is_relu = call->op->attrs.act == ACT_relu};
    float *at = call->work;
    for (int i = 0; i < N_LINES; i++, at += n.pitch)
        n.line[i] = at;
    n.sums = (double *)(void *)at;
    n.buffers = at + sums_floats(n.pitch, n.n_bundles);
    n.n_parts = (int)least(call->facts->threads, n.n_bundles);
    return n;
}

typedef void panel_fn(const struct kernel_call *call, const struct norm *n, int64_t begin,
                      int64_t n_rows, double *sums, float *buffers);

/* Calls fn for every panel of rows of every bundle, in order within a bundle. */
static void each_panel(const struct kernel_call *call, const struct norm *n, panel_fn *fn)
{
    int64_t taken = 0;
#pragma omp parallel for schedule(static, 1) num_threads(n->n_parts)
    for (int part = 0; part < n->n_parts; part++)
        for (int64_t b = next_item(&taken); b < n->n_bundles; b = next_item(&taken)) {
            struct range range = part_range(n->n_rows, (int)n->n_bundles, (int)b, PANEL);
            for (int64_t row = range.begin; row < range.end; row += PANEL)
                fn(call, n, row * n->width, least(PANEL, range.end - row),
                   n->sums + b * 2 * n->pitch, n->buffers + part * BUFFERS * PANEL * n->pitch);
        }
}

/* The two sums of a channel over all bundles. */
static void total(const struct norm *n, int64_t c, double *first, double *second)
{
    *first = *second = 0.0;
    for (int64_t b = 0; b < n->n_bundles; b++) {
        *first += n->sums[b * 2 * n->pitch + c];
        *second += n->sums[(b * 2 + 1) * n->pitch + c];
    }
}

static void clear_sums(const struct norm *n)
{
    memset(n->sums, 0, (size_t)sums_floats(n->pitch, n->n_bundles) * sizeof(float));
}

/* ---- forward ----------------------------------------------------------------------------- */

/* sum += g and other += g (x - middle) over the rows of a panel; if g is NULL, it is x - middle.
 * The number of rows is a constant where this is inlined, else gcc does not vectorize over
 * channels. */
static inline __attribute__((always_inline)) void
add_rows(int64_t n_rows, int64_t width, const float *restrict x, const float *restrict g,
         const float *restrict middle, double *restrict sum, double *restrict other)
{
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
        float s = 0.0f, q = 0.0f;
#pragma GCC unroll 8
        for (int64_t row = 0; row < n_rows; row++) {
            float d = x[row * width + c] - middle[c];
            float with = g != NULL ? g[row * width + c] : d;
            s += with;
            q = fmadd(d, with, q);
        }
        sum[c] += (double)s;
        other[c] += (double)q;
    }
}

/* Adds the sums of g and of g (x - middle) or, if g is NULL, the moments of x about `middle`. */
static void add_panel(const struct norm *n, int64_t n_rows, const float *x, const float *g,
                      const float *middle, double *sums)
{
    double *other = sums + n->pitch;
    if (n_rows == PANEL && g == NULL)
        add_rows(PANEL, n->width, x, NULL, middle, sums, other);
    else if (n_rows == PANEL)
        add_rows(PANEL, n->width, x, g, middle, sums, other);
    else
        for (int64_t row = 0; row < n_rows; row++)
            add_rows(1, n->width, x + row * n->width, g == NULL ? NULL : g + row * n->width, middle,
                     sums, other);
}

static void moments_panel(const struct kernel_call *call, const struct norm *n, int64_t begin,
                          int64_t n_rows, double *sums, float *buffers)
{
    const float *x = in_view(call, 0, begin, n_rows * n->width, buffers);
    add_panel(n, n_rows, x, NULL, n->line[LINE_first], sums);
}

/* y = relu((x - mean) scale + beta (+ r)); r is the last input. */
static void normal_panel(const struct kernel_call *call, const struct norm *n, int64_t begin,
                         int64_t n_rows, double *sums, float *buffers)
{
    (void)sums;
    int64_t width = n->width, count = n_rows * width, panel = PANEL * n->pitch;
    int k_r = op_infos[call->op->kind].max_in - 1;
    bool has_r = call->op->n_in > k_r && call->in[k_r].data != NULL;
    const float *x = in_view(call, 0, begin, count, buffers);
    const float *r = has_r ? in_view(call, k_r, begin, count, buffers + panel) : NULL;
    const float *mean = n->line[LINE_mean], *scale = n->line[LINE_scale],
                *beta = n->line[LINE_beta];
    float *y = out_target(call, 0, begin, buffers + 2 * panel);
    float floor = n->is_relu ? 0.0f : -INFINITY;
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t at = row * width;
        if (has_r) {
#pragma omp simd
            for (int64_t c = 0; c < width; c++) {
                float v = fmadd(x[at + c] - mean[c], scale[c], beta[c]) + r[at + c];
                y[at + c] = v < floor ? floor : v;
            }
        } else {
#pragma omp simd
            for (int64_t c = 0; c < width; c++) {
                float v = fmadd(x[at + c] - mean[c], scale[c], beta[c]);
                y[at + c] = v < floor ? floor : v;
            }
        }
    }
    out_store(call, 0, begin, count, y);
}

/* Sets scale and beta of every channel for the given variances. */
static void set_lines(const struct kernel_call *call, const struct norm *n, int gamma,
                      const float *variance)
{
    double eps = attrs_of(call->op, norm)->eps;
    float *scale = n->line[LINE_scale];
    load_f32(call->in[gamma].tensor->dtype, call->in[gamma].data, 0, n->width, scale);
    load_f32(call->in[gamma + 1].tensor->dtype, call->in[gamma + 1].data, 0, n->width,
             n->line[LINE_beta]);
    for (int64_t c = 0; c < n->width; c++)
        scale[c] = (float)((double)scale[c] / sqrt((double)variance[c] + eps));
}

static enum snug_status run_batchnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct norm n = norm_of(call);
    float *mean = call->out[1].data, *variance = call->out[2].data, *first = n.line[LINE_first];
    load_f32(call->in[0].tensor->dtype, call->in[0].data, 0, n.width, first);
    clear_sums(&n);
    each_panel(call, &n, moments_panel);
    for (int64_t c = 0; c < n.width; c++) {
        double sum, square, count = (double)n.n_rows;
        total(&n, c, &sum, &square);
        mean[c] = n.line[LINE_mean][c] = (float)((double)first[c] + sum / count);
        variance[c] = (float)fmax(square / count - sum / count * (sum / count), 0.0);
    }
    set_lines(call, &n, 1, variance);
    each_panel(call, &n, normal_panel);
    return SNUG_OK;
}

static enum snug_status run_eval(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct norm n = norm_of(call);
    memcpy(n.line[LINE_mean], call->in[3].data, (size_t)n.width * sizeof(float));
    set_lines(call, &n, 1, call->in[4].data);
    each_panel(call, &n, normal_panel);
    return SNUG_OK;
}

/* ---- gradient ---------------------------------------------------------------------------- */

/* dy where relu was active, else zero, as fp32: in place, or in the second buffer. */
static const float *open_panel(const struct kernel_call *call, const struct norm *n, const float *x,
                               int64_t begin, int64_t n_rows, float *buffers)
{
    int64_t width = n->width, count = n_rows * width, panel = PANEL * n->pitch;
    float *g = buffers + panel;
    const float *dy = in_view(call, 0, begin, count, g);
    if (!n->is_relu)
        return dy;
    if (call->op->n_in > 6 && call->in[6].data != NULL) {
        const float *y = in_view(call, 6, begin, count, buffers + 2 * panel);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            g[i] = y[i] > 0.0f ? dy[i] : 0.0f;
        return g;
    }
    const float *mean = n->line[LINE_mean], *scale = n->line[LINE_scale],
                *beta = n->line[LINE_beta];
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t at = row * width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) {
            float v = fmadd(x[at + c] - mean[c], scale[c], beta[c]);
            g[at + c] = v > 0.0f ? dy[at + c] : 0.0f;
        }
    }
    return g;
}

static void grad_sums_panel(const struct kernel_call *call, const struct norm *n, int64_t begin,
                            int64_t n_rows, double *sums, float *buffers)
{
    const float *x = in_view(call, 1, begin, n_rows * n->width, buffers);
    const float *g = open_panel(call, n, x, begin, n_rows, buffers);
    add_panel(n, n_rows, x, g, n->line[LINE_mean], sums);
}

/* dx = scale (g - k1 - (x - mean) k2), dr = g.  dx may alias dy or x, so dr is written first. */
static void grad_panel(const struct kernel_call *call, const struct norm *n, int64_t begin,
                       int64_t n_rows, double *sums, float *buffers)
{
    (void)sums;
    int64_t width = n->width, count = n_rows * width;
    const float *x = in_view(call, 1, begin, count, buffers);
    const float *g = open_panel(call, n, x, begin, n_rows, buffers);
    const float *mean = n->line[LINE_mean], *scale = n->line[LINE_scale];
    const float *k1 = n->line[LINE_k1], *k2 = n->line[LINE_k2];
    if (call->op->n_out > 3 && call->out[3].data != NULL)
        out_store(call, 3, begin, count, g);
    if (call->out[0].data == NULL)
        return;
    float *dx = out_target(call, 0, begin, buffers + 3 * PANEL * n->pitch);
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t at = row * width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            dx[at + c] = scale[c] * (g[at + c] - k1[c] - (x[at + c] - mean[c]) * k2[c]);
    }
    out_store(call, 0, begin, count, dx);
}

/* out[k] (+)= value, for one channel */
static void add_to(const struct kernel_call *call, int k, int64_t c, double value)
{
    const struct operand *out = &call->out[k];
    float old = 0.0f;
    if (out->data == NULL)
        return;
    if (call->add)
        load_f32(out->tensor->dtype, out->data, c, 1, &old);
    float sum = (float)((double)old + value);
    store_f32(out->tensor->dtype, out->data, c, 1, &sum);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct norm n = norm_of(call);
    const float *variance = call->in[5].data;
    memcpy(n.line[LINE_mean], call->in[4].data, (size_t)n.width * sizeof(float));
    set_lines(call, &n, 2, variance);
    clear_sums(&n);
    each_panel(call, &n, grad_sums_panel);
    for (int64_t c = 0; c < n.width; c++) {
        double sum_g, sum_gd, count = (double)n.n_rows;
        double rstd = 1.0 / sqrt((double)variance[c] + attrs_of(call->op, norm)->eps);
        total(&n, c, &sum_g, &sum_gd);
        add_to(call, 1, c, sum_gd * rstd);
        add_to(call, 2, c, sum_g);
        n.line[LINE_k1][c] = (float)(sum_g / count);
        n.line[LINE_k2][c] = (float)(sum_gd * rstd * rstd / count);
    }
    each_panel(call, &n, grad_panel);
    return SNUG_OK;
}

static bool forward_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 1u << 1 | 1u << 2);
}

static bool eval_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 1u << 3 | 1u << 4, 0);
}

static bool grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 1u << 4 | 1u << 5, 0);
}

static const struct kernel kernels[] = {
    {.kind = OP_batchnorm,
     .name = KERNEL_NAME,
     .supports = forward_fits,
     .workspace_bytes = workspace_bytes,
     .run = run_batchnorm},
    {.kind = OP_batchnorm_eval,
     .name = KERNEL_NAME,
     .supports = eval_fits,
     .workspace_bytes = workspace_bytes,
     .run = run_eval},
    {.kind = OP_batchnorm_grad,
     .name = KERNEL_NAME,
     .supports = grad_fits,
     .workspace_bytes = workspace_bytes,
     .run = run_grad},
};

const struct kernel *LEVEL(simd_batchnorm_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
