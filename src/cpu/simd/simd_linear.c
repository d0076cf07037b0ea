/*
 * simd_linear.c -- the loops of the linear kernels and the LM head between matmuls: widen, narrow,
 * bias and activation, column sums, softmax.  One set per instruction level.
 */
#include "cpu/cpu.h"
#include "cpu/simd/simd_vec.h"

enum {
    STRIPE_COLS = 128, /* of a column sum: the buffers of a thread stay in L1 */
    STRIPE_ROWS = 64,  /* summed in fp32 before they are added to the fp64 sum */
    GROUP_STRIPES = 8, /* summed together: 128 KiB of stack */
    MOST_PIECES = 16   /* of rows */
};

static void widen(int threads, struct span from, int64_t n, float *to)
{
    (void)threads; /* unused without OpenMP */
    int64_t n_blocks = divide_up(n, LEAST_PER_PART);
#pragma omp parallel for schedule(static) num_threads(threads) if (n_blocks > 1)
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t at = i * LEAST_PER_PART;
        load_f32(from.dtype, from.data, from.begin + at, least(LEAST_PER_PART, n - at), to + at);
    }
}

static void narrow_block(struct span to, int64_t at, int64_t n, const float *from, bool add)
{
    if (!add) {
        store_f32(to.dtype, to.data, to.begin + at, n, from);
        return;
    }
    float sum[BLOCK_ELEMS];
    load_f32(to.dtype, to.data, to.begin + at, n, sum);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += from[i];
    store_f32(to.dtype, to.data, to.begin + at, n, sum);
}

static void narrow(int threads, struct span to, int64_t n, const float *from, bool add)
{
    (void)threads; /* unused without OpenMP */
    int64_t n_blocks = divide_up(n, BLOCK_ELEMS);
#pragma omp parallel for schedule(static) num_threads(threads) if (n_blocks > 8)
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t at = i * BLOCK_ELEMS;
        narrow_block(to, at, least(BLOCK_ELEMS, n - at), from + at, add);
    }
}

static void finish_block(const struct linear_finish *todo, int64_t row, int64_t col, int64_t n,
                         float *v)
{
    int64_t at = row * todo->width + col;
    float buffer[BLOCK_ELEMS];
    if (todo->bias != NULL) {
        const float *bias = todo->bias + col;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            v[i] += bias[i];
    }
    if (todo->more.data != NULL) {
        const float *more =
            view_f32(todo->more.dtype, todo->more.data, todo->more.begin + at, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            v[i] += more[i];
    }
    if (todo->before.data != NULL)
        store_f32(todo->before.dtype, todo->before.data, todo->before.begin + at, n, v);
    const struct span *slope_at = &todo->slope_at;
    if (slope_at->data != NULL) {
        act_grad_block(todo->act, n, v,
                       view_f32(slope_at->dtype, slope_at->data, slope_at->begin + at, n, buffer),
                       v);
        store_f32(todo->y.dtype, todo->y.data, todo->y.begin + at, n, v);
        return;
    }
    float *y = todo->act == ACT_none
                   ? v
                   : target_f32(todo->y.dtype, todo->y.data, todo->y.begin + at, buffer);
    if (todo->act != ACT_none) /* round first, as a separate act op would see it */
        act_block(todo->act, n, round_as(todo->y.dtype, n, v, buffer), y);
    store_f32(todo->y.dtype, todo->y.data, todo->y.begin + at, n, y);
}

static void finish_linear(int threads, const struct linear_finish *todo)
{
    (void)threads; /* unused without OpenMP */
    int64_t n_blocks = divide_up(todo->width, BLOCK_ELEMS);
#pragma omp parallel for schedule(static) \
    num_threads(threads) if (todo->n_rows * todo->width > LEAST_PER_PART)
    for (int64_t row = 0; row < todo->n_rows; row++)
        for (int64_t j = 0; j < n_blocks; j++)
            finish_block(todo, row, j * BLOCK_ELEMS,
                         least(BLOCK_ELEMS, todo->width - j * BLOCK_ELEMS),
                         todo->acc + row * todo->width + j * BLOCK_ELEMS);
}

static void sum_stripe(struct span from, struct range rows, int64_t width, int64_t col, int64_t n,
                       double *sums)
{
    float part[STRIPE_COLS], buffer[STRIPE_COLS];
    for (int64_t j = 0; j < n; j++)
        sums[j] = 0.0;
    for (int64_t top = rows.begin; top < rows.end; top += STRIPE_ROWS) {
        int64_t end = least(rows.end, top + STRIPE_ROWS);
        memset(part, 0, sizeof part);
        for (int64_t row = top; row < end; row++) {
            const float *x =
                view_f32(from.dtype, from.data, from.begin + row * width + col, n, buffer);
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                part[j] += x[j];
        }
        for (int64_t j = 0; j < n; j++)
            sums[j] += (double)part[j];
    }
}

/* Adds up the sums of the pieces of a stripe, in order. */
static void join_pieces(double (*pieces)[STRIPE_COLS], int64_t n_pieces, struct span sums,
                        int64_t col, int64_t n, bool add)
{
    float rounded[STRIPE_COLS];
    for (int64_t j = 0; j < n; j++) {
        double total = 0.0;
        for (int64_t i = 0; i < n_pieces; i++)
            total += pieces[i][j];
        rounded[j] = (float)total;
    }
    narrow_block(sums, col, n, rounded, add);
}

/* A narrow matrix has few stripes.  They are split into pieces of rows, depending on the shape
 * only, so that there is work for every thread. */
static void sum_columns(int threads, struct span from, int64_t n_rows, int64_t width,
                        struct span sums, bool add)
{
    (void)threads; /* unused without OpenMP */
    double pieces[GROUP_STRIPES][MOST_PIECES][STRIPE_COLS];
    int64_t piece_rows = divide_up(divide_up(n_rows, MOST_PIECES), STRIPE_ROWS) * STRIPE_ROWS;
    int64_t n_pieces = divide_up(n_rows, piece_rows);
    for (int64_t first = 0; first < width; first += GROUP_STRIPES * STRIPE_COLS) {
        int64_t n_stripes = least(GROUP_STRIPES, divide_up(width - first, STRIPE_COLS));
#pragma omp parallel for schedule(static) num_threads(threads) if (n_rows * width > LEAST_PER_PART)
        for (int64_t i = 0; i < n_stripes * n_pieces; i++) {
            int64_t stripe = i % n_stripes, piece = i / n_stripes;
            int64_t col = first + stripe * STRIPE_COLS, row = piece * piece_rows;
            sum_stripe(from, (struct range){row, least(n_rows, row + piece_rows)}, width, col,
                       least(STRIPE_COLS, width - col), pieces[stripe][piece]);
        }
        for (int64_t stripe = 0; stripe < n_stripes; stripe++) {
            int64_t col = first + stripe * STRIPE_COLS;
            join_pieces(pieces[stripe], n_pieces, sums, col, least(STRIPE_COLS, width - col), add);
        }
    }
}

/* ---- the LM head --------------------------------------------------------------------------- */

static double row_lse(const float *logits, int64_t n)
{
    float top = logits[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    double sum = 0.0;
    for (int64_t at = 0; at < n; at += BLOCK_ELEMS) {
        float part = 0.0f;
        int64_t end = least(n, at + BLOCK_ELEMS);
#pragma omp simd reduction(+ : part)
        for (int64_t i = at; i < end; i++)
            part += exp_f32(logits[i] - top);
        sum += (double)part;
    }
    return (double)top + log(sum);
}

/* Overwrites a row of logits with its gradient. */
static void logits_to_gradient(const struct head_rows *todo, float *logits, int32_t target,
                               float lse)
{
    float factor = todo->factor, each = todo->labels.each, hit = todo->labels.target + each;
    float at_target = factor * (expf(logits[target] - lse) - hit);
#pragma omp simd
    for (int64_t i = 0; i < todo->n_classes; i++)
        logits[i] = factor * (exp_f32(logits[i] - lse) - each);
    logits[target] = at_target;
}

static void finish_head(int threads, const struct head_rows *todo)
{
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) \
    num_threads(threads) if (todo->n_rows * todo->n_classes > LEAST_PER_PART)
    for (int64_t row = 0; row < todo->n_rows; row++) {
        float *logits = todo->logits + row * todo->pitch;
        int32_t target = todo->targets[row];
        if (todo->write_lse) {
            double lse = row_lse(logits, todo->n_classes);
            todo->lse[row] = (float)lse;
            if (todo->losses != NULL)
                todo->losses[row] = lse - (double)logits[target];
        }
        if (todo->make_gradient)
            logits_to_gradient(todo, logits, target, todo->lse[row]);
    }
}

const struct cpu_loops LEVEL(simd_loops) = {
    .lanes = VEC_ELEMS,
    .widen = widen,
    .narrow = narrow,
    .finish_linear = finish_linear,
    .sum_columns = sum_columns,
    .finish_head = finish_head,
    .gemm = LEVEL(simd_gemm),
    .fma_flops = LEVEL(simd_fma_flops),
};
