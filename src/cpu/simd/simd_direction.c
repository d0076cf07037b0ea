/*
 * simd_direction.c -- the ops that compute an update direction from a gradient.
 *
 * Sums over a tensor are split into pieces of whole rows, depending on the shape only, and the
 * pieces are added in fp64 in order, so the results do not depend on the number of threads.
 */
#include "cpu/simd/simd_common.h"
#include "optim/direction.h"

static void clear_output(const struct kernel_call *call, int k)
{
    const struct tensor *t = call->out[k].tensor;
    memset(call->out[k].data, 0, (size_t)shape_elems(&t->shape) * dtype_bytes(t->dtype));
}

/* ---- adafactor --------------------------------------------------------------------------- */

enum { PIECES_MOST = 32, LEAST_PER_PIECE = 4 * LEAST_PER_PART };

struct matrix { /* a tensor as rows and columns, split into pieces of whole rows */
    int64_t n_rows, n_columns, rows_per_piece, n_pieces;
};

/* A vector has rows of one element. */
static struct matrix as_matrix(const struct shape *shape)
{
    struct matrix m = {.n_rows = shape->dim[0]};
    m.n_columns = shape_elems(shape) / m.n_rows;
    int64_t least_rows = divide_up(LEAST_PER_PIECE, m.n_columns);
    m.rows_per_piece = divide_up(m.n_rows, PIECES_MOST);
    m.rows_per_piece = m.rows_per_piece < least_rows ? least_rows : m.rows_per_piece;
    m.n_pieces = divide_up(m.n_rows, m.rows_per_piece);
    return m;
}

struct adafactor_work {
    double *columns;         /* [pieces][columns]: sums of squares */
    double *steps, *weights; /* [pieces]: sums of squares */
    float *of_column;        /* [columns]: 1 / sqrt(C) */
};

static struct adafactor_work cut_work(void *work, const struct matrix *m)
{
    struct adafactor_work w = {.columns = work};
    w.steps = w.columns + m->n_pieces * m->n_columns;
    w.weights = w.steps + m->n_pieces;
    w.of_column = (float *)(w.weights + m->n_pieces);
    return w;
}

static size_t adafactor_work_bytes(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    (void)facts;
    struct matrix m = as_matrix(&program_tensor(prog, op->in[0])->shape);
    return (size_t)(m.n_pieces * (m.n_columns + 2)) * sizeof(double) +
           (size_t)m.n_columns * sizeof(float);
}

static OUT_OF_LINE double add_squares(const float *g, int64_t n, double *sums)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        double square = (double)g[i] * (double)g[i];
        sums[i] += square;
        sum += square;
    }
    return sum;
}

/* Computes the row means of a piece, and its column sums. */
static void sum_piece(const struct kernel_call *call, const struct adafactor_now *now,
                      const struct matrix *m, const struct adafactor_work *w, int64_t piece)
{
    float buffer[BLOCK_ELEMS], *r = call->in[3].data;
    double *sums = w->columns + piece * m->n_columns;
    int64_t end = least(m->n_rows, (piece + 1) * m->rows_per_piece);
    memset(sums, 0, (size_t)m->n_columns * sizeof *sums);
    for (int64_t i = piece * m->rows_per_piece; i < end; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < m->n_columns; j += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, m->n_columns - j);
            sum +=
                add_squares(in_view(call, 0, i * m->n_columns + j, count, buffer), count, sums + j);
        }
        r[i] = (float)adafactor_mean(now, (double)r[i], sum / (double)m->n_columns);
    }
}

static void finish_columns(const struct kernel_call *call, const struct adafactor_now *now,
                           const struct matrix *m, const struct adafactor_work *w)
{
    float *c = call->in[4].data;
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, m->n_columns))
    for (int64_t j = 0; j < m->n_columns; j++) {
        double sum = 0.0;
        for (int64_t piece = 0; piece < m->n_pieces; piece++)
            sum += w->columns[piece * m->n_columns + j];
        c[j] = (float)adafactor_mean(now, (double)c[j], sum / (double)m->n_rows);
        w->of_column[j] = (float)(1 / sqrt((double)c[j]));
    }
}

static OUT_OF_LINE double scale_row(const float *g, const float *of_column, float of_row, int64_t n,
                                    float *u)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float value = g[i] * of_row * of_column[i];
        u[i] = value;
        sum += (double)value * (double)value;
    }
    return sum;
}

/* Writes the direction of the rows of a piece, which may alias the gradient, and returns its sum of
 * squares. */
static double step_rows(const struct kernel_call *call, const struct adafactor_now *now,
                        const struct matrix *m, const float *of_column, double mean, int64_t piece)
{
    float buffer[BLOCK_ELEMS], buffer_u[BLOCK_ELEMS];
    const float *r = call->in[3].data;
    double sum = 0.0;
    int64_t end = least(m->n_rows, (piece + 1) * m->rows_per_piece);
    for (int64_t i = piece * m->rows_per_piece; i < end; i++) {
        float of_row = (float)(now->clip / sqrt((double)r[i] / mean));
        for (int64_t j = 0; j < m->n_columns; j += BLOCK_ELEMS) {
            int64_t at = i * m->n_columns + j, count = least(BLOCK_ELEMS, m->n_columns - j);
            float *u = out_target(call, 0, at, buffer_u);
            sum += scale_row(in_view(call, 0, at, count, buffer), of_column + j, of_row, count, u);
            out_store(call, 0, at, count, u);
        }
    }
    return sum;
}

static OUT_OF_LINE double scale_elements(const struct adafactor_now *now, int64_t n, const float *g,
                                         float *v, float *u)
{
    double beta = now->beta, clip = now->clip, eps1 = now->eps1, sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        double gradient = (double)g[i] * clip;
        v[i] = (float)(beta * (double)v[i] + (1 - beta) * (gradient * gradient + eps1));
        double value = gradient / sqrt((double)v[i]);
        u[i] = (float)value;
        sum += value * value;
    }
    return sum;
}

/* The same for a vector, where each element has its own mean. */
static double step_elements(const struct kernel_call *call, const struct adafactor_now *now,
                            const struct matrix *m, int64_t piece)
{
    float buffer[BLOCK_ELEMS], buffer_u[BLOCK_ELEMS], *v = call->in[3].data;
    double sum = 0.0;
    int64_t end = least(m->n_rows, (piece + 1) * m->rows_per_piece);
    for (int64_t at = piece * m->rows_per_piece; at < end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, end - at);
        float *u = out_target(call, 0, at, buffer_u);
        sum += scale_elements(now, count, in_view(call, 0, at, count, buffer), v + at, u);
        out_store(call, 0, at, count, u);
    }
    return sum;
}

static double sum_weights(const struct kernel_call *call, const struct matrix *m, int64_t piece)
{
    float buffer[BLOCK_ELEMS];
    double sum = 0.0;
    int64_t span = m->rows_per_piece * m->n_columns;
    int64_t end = least(m->n_rows * m->n_columns, (piece + 1) * span);
    for (int64_t at = piece * span; at < end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, end - at);
        sum += sum_squares_f64(in_view(call, 2, at, count, buffer), NULL, count);
    }
    return sum;
}

static double mean_of(const float *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

/* The root mean square of n elements, from the sums of squares of the pieces. */
static double size_of(const double *sums, int64_t n_pieces, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n_pieces; i++)
        sum += sums[i];
    return sqrt(sum / (double)n);
}

static bool adafactor_fits(const struct program *prog, const struct op *op)
{
    const unsigned scalars = 1u << 1, means = 3u << 3;
    return operands_fit(prog, op->n_in, op->in, scalars, means) &&
           operands_fit(prog, 1, op->out, 0, 0);
}

static enum snug_status run_adafactor(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    double *scalars = call->in[1].data;
    if (scalars[SCALAR_skip] != 0.0) {
        clear_output(call, 0);
        return SNUG_OK;
    }
    const struct direction_attrs *attrs = attrs_of(call->op, direction);
    struct adafactor_now now =
        adafactor_now(attrs->options.value, attrs->relative != 0, attrs->lr_factor, scalars);
    struct matrix m = as_matrix(&call->in[0].tensor->shape);
    struct adafactor_work w = cut_work(call->work, &m);
    bool factored = call->in[4].data != NULL;
    double mean = 0.0;
    int n_parts = (int)least(count_parts(call->facts, m.n_rows * m.n_columns), m.n_pieces);
    if (factored) {
#pragma omp parallel for schedule(static) num_threads(n_parts)
        for (int64_t piece = 0; piece < m.n_pieces; piece++)
            sum_piece(call, &now, &m, &w, piece);
        finish_columns(call, &now, &m, &w);
        mean = mean_of(call->in[3].data, m.n_rows);
    }
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t piece = 0; piece < m.n_pieces; piece++) {
        w.steps[piece] = factored ? step_rows(call, &now, &m, w.of_column, mean, piece)
                                  : step_elements(call, &now, &m, piece);
        w.weights[piece] = now.relative ? sum_weights(call, &m, piece) : 0.0;
    }
    int64_t n = m.n_rows * m.n_columns;
    adafactor_finish(&now, size_of(w.steps, m.n_pieces, n), size_of(w.weights, m.n_pieces, n),
                     scalars);
    return SNUG_OK;
}

/* ---- prodigy ----------------------------------------------------------------------------- */

enum { CHUNK_ELEMS = 16 * BLOCK_ELEMS };

static size_t prodigy_work_bytes(const struct program *prog, const struct op *op,
                                 const struct device_facts *facts)
{
    (void)facts;
    return (size_t)divide_up(tensor_elems(prog, op->in[0]), CHUNK_ELEMS) * 2 * sizeof(double);
}

static bool prodigy_fits(const struct program *prog, const struct op *op)
{
    const unsigned scalars = 1u << 1, s = 1u << 4;
    return operands_fit(prog, op->n_in, op->in, scalars, s) &&
           program_tensor(prog, op->out[0])->dtype == DTYPE_f64;
}

struct prodigy_factors {
    float clip, keep, step;
};

static OUT_OF_LINE void add_prodigy(const struct prodigy_factors *now, int64_t n, const float *g,
                                    const float *z, const float *x0, float *s, double sums[2])
{
    float clip = now->clip, keep = now->keep, step = now->step;
    double gemm = 0.0, size = 0.0;
#pragma omp simd reduction(+ : gemm, size)
    for (int64_t i = 0; i < n; i++) {
        float gradient = g[i] * clip;
        gemm += (double)gradient * ((double)x0[i] - (double)z[i]);
        s[i] = keep * s[i] + step * gradient;
        size += (double)fabsf(s[i]);
    }
    sums[0] += gemm;
    sums[1] += size;
}

static void sum_chunk(const struct kernel_call *call, const struct prodigy_factors *now,
                      int64_t begin, int64_t end, double sums[2])
{
    float buffers[3][BLOCK_ELEMS], *s = call->in[4].data;
    sums[0] = sums[1] = 0.0;
    for (int64_t at = begin; at < end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, end - at);
        const float *g = in_view(call, 0, at, count, buffers[0]);
        const float *z = in_view(call, 2, at, count, buffers[1]);
        const float *x0 = in_view(call, 3, at, count, buffers[2]);
        add_prodigy(now, count, g, z, x0, s + at, sums);
    }
}

static enum snug_status run_prodigy_sums(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const double *scalars = call->in[1].data;
    double *part = call->out[0].data, *sums = call->work;
    clear_output(call, 0);
    if (scalars[SCALAR_skip] != 0.0)
        return SNUG_OK;
    struct prodigy_now now = prodigy_now(attrs_of(call->op, direction)->options.value, scalars);
    struct prodigy_factors factors = {(float)scalars[SCALAR_clip], (float)now.keep,
                                      (float)now.step};
    int64_t n = shape_elems(&call->in[0].tensor->shape), n_chunks = divide_up(n, CHUNK_ELEMS);
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n))
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        sum_chunk(call, &factors, chunk * CHUNK_ELEMS, least(n, (chunk + 1) * CHUNK_ELEMS),
                  sums + 2 * chunk);
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        part[0] += sums[2 * chunk];
        part[1] += sums[2 * chunk + 1];
    }
    return SNUG_OK;
}

/* ---- amos -------------------------------------------------------------------------------- */

static size_t amos_work_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    (void)facts;
    return (size_t)divide_up(tensor_elems(prog, op->in[0]), CHUNK_ELEMS) * sizeof(double);
}

static bool amos_fits(const struct program *prog, const struct op *op)
{
    const unsigned scalars = 1u << 1, v_and_b = 3u << 3;
    return operands_fit(prog, op->n_in, op->in, scalars, v_and_b) &&
           operands_fit(prog, 1, op->out, 0, 0);
}

static inline float clamp_f32(float g, float most)
{
    float below = g < most ? g : most;
    return below > -most ? below : -most;
}

static OUT_OF_LINE double sum_clamped(const float *g, int64_t n, float clip, float most)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        double value = (double)clamp_f32(g[i] * clip, most);
        sum += value * value;
    }
    return sum;
}

static double amos_squares(const struct kernel_call *call, const struct amos_now *now, double most,
                           int64_t begin, int64_t end)
{
    float buffer[BLOCK_ELEMS];
    double sum = 0.0;
    for (int64_t at = begin; at < end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, end - at);
        sum +=
            sum_clamped(in_view(call, 0, at, count, buffer), count, (float)now->clip, (float)most);
    }
    return sum;
}

static OUT_OF_LINE void mix_block(float of_weight, const float *w, float of_gradient,
                                  const float *g, float clip, float most, float *u, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        u[i] = fmadd(of_weight, w[i], of_gradient * clamp_f32(g[i] * clip, most));
}

static void amos_direction(const struct kernel_call *call, const struct amos_now *now, double most,
                           struct amos_mix mix, int64_t begin, int64_t end)
{
    float buffer_g[BLOCK_ELEMS], buffer_w[BLOCK_ELEMS], buffer_u[BLOCK_ELEMS];
    for (int64_t at = begin; at < end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, end - at);
        const float *g = in_view(call, 0, at, count, buffer_g);
        const float *w = in_view(call, 2, at, count, buffer_w);
        float *u = out_target(call, 0, at, buffer_u);
        mix_block((float)mix.of_weight, w, (float)mix.of_gradient, g, (float)now->clip, (float)most,
                  u, count);
        out_store(call, 0, at, count, u);
    }
}

/* The next v, given the mean of the clamped squares; also computes *mix. */
static float next_v(const struct amos_now *now, float v, double square, struct amos_mix *mix)
{
    float next = (float)(now->beta2 * (double)v + square);
    *mix = amos_mix(now, (double)next, square);
    return next;
}

/* v has one element per row; each row is processed by one thread. */
static void amos_rows(const struct kernel_call *call, const struct amos_now *now, int64_t n_rows,
                      int64_t width)
{
    float *v = call->in[3].data;
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n_rows *width))
    for (int64_t row = 0; row < n_rows; row++) {
        int64_t begin = row * width, end = begin + width;
        double most = amos_most(now, (double)v[row]);
        double square = amos_squares(call, now, most, begin, end) / (double)width;
        struct amos_mix mix;
        v[row] = next_v(now, v[row], square, &mix);
        amos_direction(call, now, most, mix, begin, end);
    }
}

/* v has a single element. */
static void amos_whole(const struct kernel_call *call, const struct amos_now *now, int64_t n)
{
    float *v = call->in[3].data;
    double *sums = call->work, most = amos_most(now, (double)v[0]), sum = 0.0;
    int64_t n_chunks = divide_up(n, CHUNK_ELEMS);
    int n_parts = count_parts(call->facts, n);
    struct amos_mix mix;
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < n_chunks; i++)
        sums[i] = amos_squares(call, now, most, i * CHUNK_ELEMS, least(n, (i + 1) * CHUNK_ELEMS));
    for (int64_t i = 0; i < n_chunks; i++)
        sum += sums[i];
    v[0] = next_v(now, v[0], sum / (double)n, &mix);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < n_chunks; i++)
        amos_direction(call, now, most, mix, i * CHUNK_ELEMS, least(n, (i + 1) * CHUNK_ELEMS));
}

static enum snug_status run_amos(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    double *scalars = call->in[1].data;
    float *b = call->in[4].data;
    if (scalars[SCALAR_skip] != 0.0) {
        clear_output(call, 0);
        return SNUG_OK;
    }
    int64_t n = shape_elems(&call->in[0].tensor->shape);
    int64_t n_groups = shape_elems(&call->in[3].tensor->shape);
    const struct direction_attrs *attrs = attrs_of(call->op, direction);
    struct amos_now now = amos_now(attrs->options.value, attrs->eta, attrs->lr_factor, scalars,
                                   (double)(n / n_groups), (double)b[0]);
    if (n_groups > 1)
        amos_rows(call, &now, n_groups, n / n_groups);
    else
        amos_whole(call, &now, n);
    b[0] = (float)now.next_b;
    scalars[SCALAR_direction_scale] = scalars[SCALAR_direction_lr] = 1;
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_adafactor,
     .name = KERNEL_NAME,
     .supports = adafactor_fits,
     .workspace_bytes = adafactor_work_bytes,
     .run = run_adafactor},
    {.kind = OP_prodigy_sums,
     .name = KERNEL_NAME,
     .supports = prodigy_fits,
     .workspace_bytes = prodigy_work_bytes,
     .run = run_prodigy_sums},
    {.kind = OP_amos,
     .name = KERNEL_NAME,
     .supports = amos_fits,
     .workspace_bytes = amos_work_bytes,
     .run = run_amos},
};

const struct kernel *LEVEL(simd_direction_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
