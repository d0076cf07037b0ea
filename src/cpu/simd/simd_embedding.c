/*
 * simd_embedding.c -- embedding lookup (plus position embeddings), and the gradient.
 *
 * The gradient adds many rows of dy into few rows of the table.  To sum each table row in fp32, in
 * the order of the positions, and write it once, the positions are first sorted by id (a counting
 * sort in the workspace).  Then every part takes some columns of all rows, so the parts are equal
 * however often an id occurs.
 *
 *     starts  [V + 1]  index in `order` of the first position of an id
 *     order   [N]      positions 0..N, sorted by id, ascending within an id
 */
#include "cpu/simd/simd_common.h"

static bool embedding_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 0, 0, 0);
}

/* inputs 2 and 3 are only shapes: their dtype does not matter */
static bool embedding_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 0 | 1u << 2 | 1u << 3, 0, 0);
}

static enum snug_status run_embedding(const struct kernel_call *call, struct snug_error *err)
{
    const int32_t *ids = call->in[0].data;
    const struct tensor *table = call->in[1].tensor;
    int64_t n_ids = shape_elems(&call->in[0].tensor->shape);
    int64_t n_time = shape_last(&call->in[0].tensor->shape), width = shape_last(&table->shape);
    bool has_positions = call->op->n_in > 2 && call->in[2].data != NULL;
    TRY(check_ids(call, 0, shape_rows(&table->shape), err));
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n_ids *width))
    for (int64_t n = 0; n < n_ids; n++) {
        float buffer[BLOCK_ELEMS], buffer_p[BLOCK_ELEMS], buffer_y[BLOCK_ELEMS];
        for (int64_t at = 0; at < width; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, width - at);
            const float *x = in_view(call, 1, ids[n] * width + at, count, buffer);
            if (has_positions) {
                const float *p = in_view(call, 2, n % n_time * width + at, count, buffer_p);
                float *y = out_target(call, 0, n * width + at, buffer_y);
#pragma omp simd
                for (int64_t i = 0; i < count; i++)
                    y[i] = x[i] + p[i];
                x = y;
            }
            out_store(call, 0, n * width + at, count, x);
        }
    }
    return SNUG_OK;
}

/* ---- gradient ---------------------------------------------------------------------------- */

enum { COLUMN_STEP = 32 }; /* columns are split at cache lines, even for 16-bit elements */

static size_t embedding_grad_work_bytes(const struct program *prog, const struct op *op,
                                        const struct device_facts *facts)
{
    (void)facts;
    int64_t n_rows = shape_rows(&program_tensor(prog, op->in[2])->shape);
    return (size_t)(n_rows + 1 + tensor_elems(prog, op->in[0])) * sizeof(int32_t);
}

/* Counting sort; the ids have been checked. */
static void sort_by_id(const int32_t *ids, int64_t n_ids, int64_t n_rows, int32_t *starts,
                       int32_t *order)
{
    memset(starts, 0, (size_t)(n_rows + 1) * sizeof *starts);
    for (int64_t n = 0; n < n_ids; n++)
        starts[ids[n] + 1]++;
    for (int64_t v = 0; v < n_rows; v++)
        starts[v + 1] += starts[v];
    for (int64_t n = 0; n < n_ids; n++)
        order[starts[ids[n]]++] = (int32_t)n; /* moves each start to that of the next id */
    memmove(starts + 1, starts, (size_t)n_rows * sizeof *starts);
    starts[0] = 0;
}

/* Columns `range` of row `row` of output k (+)= the sum of n rows of dy: those `listed`, or first,
 * first + step, ... */
static void sum_rows(const struct kernel_call *call, int k, int64_t row, struct range range,
                     const int32_t *listed, int64_t first, int64_t step, int64_t n)
{
    if (n == 0 && call->add)
        return;
    const struct operand *out = &call->out[k];
    int64_t width = shape_last(&out->tensor->shape);
    float sum[BLOCK_ELEMS], buffer[BLOCK_ELEMS];
    for (int64_t at = range.begin; at < range.end; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, range.end - at);
        if (call->add)
            load_f32(out->tensor->dtype, out->data, row * width + at, count, sum);
        else
            memset(sum, 0, (size_t)count * sizeof *sum);
        for (int64_t j = 0; j < n; j++) {
            int64_t from = listed != NULL ? listed[j] : first + j * step;
            const float *dy = in_view(call, 1, from * width + at, count, buffer);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                sum[i] += dy[i];
        }
        out_store(call, k, row * width + at, count, sum);
    }
}

static enum snug_status run_embedding_grad(const struct kernel_call *call, struct snug_error *err)
{
    const int32_t *ids = call->in[0].data;
    int64_t n_ids = shape_elems(&call->in[0].tensor->shape);
    int64_t n_time = shape_last(&call->in[0].tensor->shape);
    int64_t width = shape_last(&call->in[1].tensor->shape);
    int64_t n_rows = shape_rows(&call->in[2].tensor->shape);
    bool has_table = call->out[0].data != NULL;
    bool has_positions = call->op->n_out > 1 && call->out[1].data != NULL;
    int64_t n_positions = has_positions ? shape_rows(&call->out[1].tensor->shape) : 0;
    int32_t *starts = call->work, *order = starts + n_rows + 1;
    TRY(check_ids(call, 0, n_rows, err));
    sort_by_id(ids, n_ids, n_rows, starts, order);
    int n_parts = count_parts(call->facts, (n_ids + n_rows) * width);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct range columns = part_range(width, n_parts, part, COLUMN_STEP);
        for (int64_t v = 0; has_table && v < n_rows; v++)
            sum_rows(call, 0, v, columns, order + starts[v], 0, 0, starts[v + 1] - starts[v]);
        for (int64_t t = 0; t < n_positions; t++)
            sum_rows(call, 1, t, columns, NULL, t, n_time, t < n_time ? n_ids / n_time : 0);
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_embedding, .name = KERNEL_NAME, .supports = embedding_fits, .run = run_embedding},
    {.kind = OP_embedding_grad,
     .name = KERNEL_NAME,
     .supports = embedding_grad_fits,
     .workspace_bytes = embedding_grad_work_bytes,
     .run = run_embedding_grad},
};

const struct kernel *LEVEL(simd_embedding_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
