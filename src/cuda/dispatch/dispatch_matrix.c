/*
 * dispatch_matrix.c -- shampoo, caspr and soap (src/optim/matrix_blocks.h, matrix_soap.h) on the
 * GPU.
 *
 * The GPU runs gemms and elementwise work.  The host computes eigenvectors and orthonormal rows:
 * every few steps a square matrix is copied to the host, LAPACK works on it, and the result is
 * copied back.  So the host controls the step: it reads the scalar table first, and the updates of
 * such a program are never captured in a CUDA graph.
 */
#include <stdlib.h>
#include <string.h>

#include "optim/eigen.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/optim/matrix_steps.h"
#include "cuda/lib/cuda_gemm.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/workspace.h"

#define MATRIX_REAL float
#include "optim/matrix_blocks.h"
#include "optim/matrix_soap.h"

enum { MOST_MATRIX_STATES = MAX_INPUTS - MATRIX_STATES };

struct prepared {
    struct factors_list list;
    struct cuda_gemm *gemms[MOST_GEMMS];
    /* Host memory: two square matrices, a value per row, and the workspace of LAPACK. */
    float *square[2], *values;
    int64_t *order;
    double *spectral;
};

struct tools {
    const struct kernel_call *call;
    struct prepared *p;
    double scalars[SCALAR_COUNT];
    size_t after; /* offset of the gemm workspace */
    int *error;   /* the first error */
    struct snug_error *err;
};

static void note(const struct tools *t, int error)
{
    if (*t->error == 0)
        *t->error = error;
}

/* ---- workspace and operands
 * -------------------------------------------------------------------- */

static size_t take_reals(size_t *total, int64_t n)
{
    return cuda_work_take(total, (size_t)n * sizeof(float));
}

static size_t take_copy(size_t *total, const struct tensor *tensor)
{
    (void)tensor; /* supports checked that it is fp32: no copy is needed */
    return *total;
}

static size_t take_sums(size_t *total, int64_t n, int64_t n_rows)
{
    (void)n, (void)n_rows;
    return cuda_work_take(total, (PARTS_MOST + 1) * sizeof(double));
}

static size_t take_order(size_t *total, int64_t n)
{
    return cuda_work_take(total, (size_t)n * sizeof(int64_t));
}

static size_t take_spectral(size_t *total, int64_t n)
{
    (void)n; /* host memory, in struct prepared */
    return *total;
}

static double scalar_of(const struct tools *t, enum scalar which)
{
    return t->scalars[which];
}

static double option_of(const struct tools *t, int which)
{
    return attrs_of(t->call->op, options)->options.value[which];
}

static const struct op *op_of(const struct tools *t)
{
    return t->call->op;
}

static real *reals_at(const struct tools *t, size_t offset)
{
    return cuda_work_at(t->call->work, offset);
}

static double *sums_at(const struct tools *t, size_t offset)
{
    return cuda_work_at(t->call->work, offset);
}

static real *values_at(const struct tools *t, size_t offset)
{
    (void)offset;
    return t->p->values;
}

static int64_t *order_at(const struct tools *t, size_t offset)
{
    (void)offset;
    return t->p->order;
}

static real *open_state(const struct tools *t, enum matrix_state which, size_t offset)
{
    (void)offset;
    return t->call->in[MATRIX_STATES + (int)which].data;
}

static void close_state(const struct tools *t, enum matrix_state which, const real *from)
{
    (void)t, (void)which, (void)from;
}

static real *open_direction(const struct tools *t, size_t offset)
{
    (void)offset;
    return t->call->out[0].data;
}

static void close_direction(const struct tools *t, const real *from)
{
    (void)t, (void)from;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static enum snug_status multiply(const struct tools *t, const struct factors *f, const real *a,
                                 const real *b, real *c)
{
    int at = factors_find(&t->p->list, f);
    if (at < 0)
        return snug_fail(
            t->err, SNUG_BAD_PROGRAM, "%s: no gemm was prepared for %lld x %lld x %lld",
            op_infos[op_of(t)->kind].name, (long long)f->m, (long long)f->k, (long long)f->n);
    struct cuda_gemm_call todo = {.a = a,
                                  .b = b,
                                  .c = c,
                                  .alpha = 1,
                                  .work = cuda_work_at(t->call->work, t->after),
                                  .stream = t->call->stream};
    return cuda_gemm_run(t->p->gemms[at], &todo, t->err);
}

static void mix(const struct tools *t, int64_t n, double keep, real *y, double rest, const real *x)
{
    note(t, cuda_matrix_mix(n, (float)keep, y, (float)rest, x, t->call->stream));
}

static void copy_scaled(const struct tools *t, int64_t n, double factor, const real *from, real *to)
{
    note(t, cuda_matrix_scale(n, (float)factor, from, to, t->call->stream));
}

static void copy_reals(const struct tools *t, int64_t n, const real *from, real *to)
{
    copy_scaled(t, n, 1, from, to);
}

static void clear_reals(const struct tools *t, int64_t n, real *x)
{
    note(t, cuda_matrix_clear(n, x, t->call->stream));
}

static void set_identity(const struct tools *t, int64_t n, double factor, real *a)
{
    note(t, cuda_matrix_identity(n, (float)factor, a, t->call->stream));
}

/* Copies a sum to the host.  `error` is the status of the launch that computes it. */
static double fetch_sum(const struct tools *t, int error, const double *sum)
{
    double value = 0;
    note(t, error);
    note(t, cuda_matrix_fetch(&value, sum, sizeof value, t->call->stream));
    return value;
}

static double sum_of(const struct tools *t, int64_t n, int64_t step, const real *a, const real *b,
                     size_t offset)
{
    double *parts = sums_at(t, offset), *sum = parts + PARTS_MOST;
    return fetch_sum(t, cuda_matrix_sum(n, step, a, b, parts, sum, t->call->stream), sum);
}

static double sum_squares(const struct tools *t, int64_t n, const real *x, size_t offset)
{
    return sum_of(t, n, 1, x, x, offset);
}

static double sum_gemms(const struct tools *t, int64_t n, const real *a, const real *b,
                        size_t offset)
{
    return sum_of(t, n, 1, a, b, offset);
}

static double trace_of(const struct tools *t, int64_t n, const real *a, size_t offset)
{
    return sum_of(t, n, n + 1, a, NULL, offset);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void scale_rows(const struct tools *t, int64_t n, const real *values, size_t offset, real *q)
{
    void *stream = t->call->stream;
    note(t, cuda_matrix_send(reals_at(t, offset), values, (size_t)n * sizeof *values, stream));
    note(t, cuda_matrix_scale_rows(n, reals_at(t, offset), q, stream));
}

static void row_gemms(const struct tools *t, int64_t n, const real *a, const real *b, size_t offset,
                      real *values)
{
    void *stream = t->call->stream;
    note(t, cuda_matrix_row_dots(n, a, b, reals_at(t, offset), stream));
    note(t, cuda_matrix_fetch(values, reals_at(t, offset), (size_t)n * sizeof *values, stream));
}

static void take(const struct tools *t, bool columns, int64_t n_rows, int64_t width,
                 const int64_t *order, size_t offset, const real *from, real *to)
{
    size_t bytes = (size_t)(columns ? width : n_rows) * sizeof *order;
    int64_t *sent = cuda_work_at(t->call->work, offset);
    note(t, cuda_matrix_send(sent, order, bytes, t->call->stream));
    note(t, cuda_matrix_take(columns, n_rows, width, sent, from, to, t->call->stream));
}

static void take_rows(const struct tools *t, int64_t n_rows, int64_t width, const int64_t *order,
                      size_t offset, const real *from, real *to)
{
    take(t, false, n_rows, width, order, offset, from, to);
}

static void take_columns(const struct tools *t, int64_t n_rows, int64_t width, const int64_t *order,
                         size_t offset, const real *from, real *to)
{
    take(t, true, n_rows, width, order, offset, from, to);
}

/* ---- on the host
 * ------------------------------------------------------------------------------- */

static float *fetch_square(const struct tools *t, int64_t n, const real *a, int which)
{
    float *to = t->p->square[which];
    note(t, cuda_matrix_fetch(to, a, (size_t)(n * n) * sizeof *to, t->call->stream));
    return to;
}

static void send_square(const struct tools *t, int64_t n, const float *from, real *a)
{
    note(t, cuda_matrix_send(a, from, (size_t)(n * n) * sizeof *a, t->call->stream));
}

static bool find_eigen(const struct tools *t, int64_t n, real *a, real *values, bool quick,
                       bool vectors, size_t offset)
{
    (void)offset;
    float *found = fetch_square(t, n, a, 0);
    if (*t->error != 0 || !eigen_f32(n, found, values, quick, vectors, t->p->spectral))
        return false;
    if (vectors) {
        set_signs(n, found);
        send_square(t, n, found, a);
    }
    return true;
}

static bool make_orthonormal(const struct tools *t, int64_t n, real *z, size_t offset)
{
    (void)offset;
    float *rows = fetch_square(t, n, z, 0);
    if (*t->error != 0 || !orthonormal_f32(n, rows, t->p->spectral))
        return false;
    set_signs(n, rows);
    send_square(t, n, rows, z);
    return true;
}

static double check_root(const struct tools *t, int64_t n, const real *a, double add,
                         const real *root, size_t offset)
{
    (void)offset;
    const float *of_a = fetch_square(t, n, a, 0), *of_root = fetch_square(t, n, root, 1);
    return residual_of(n, of_a, add, of_root, t->p->spectral);
}

/* ---- elements -------------------------------------------------------------------------------- */

static struct moments_job moments_of(const struct block_work *b, double eps)
{
    const struct tools *t = b->t;
    double beta1 = option_of(t, PRECONDITION_beta1), beta = option_of(t, PRECONDITION_beta);
    return (struct moments_job){.rows = b->at.rows,
                                .cols = b->at.cols,
                                .first = b->at.row * b->l->w.cols + b->at.col,
                                .pitch = b->l->w.cols,
                                .clip = (float)scalar_of(t, SCALAR_clip),
                                .beta1 = (float)beta1,
                                .rest1 = (float)(1 - beta1),
                                .beta = (float)beta,
                                .rest = (float)(1 - beta),
                                .scale = (float)(1 / correction(t, PRECONDITION_beta1)),
                                .root_scale = (float)(1 / sqrt(correction(t, PRECONDITION_beta))),
                                .eps = (float)eps};
}

static double block_moments(const struct block_work *b, double eps)
{
    struct moments_job job = moments_of(b, eps);
    double *parts = sums_at(b->t, b->l->sums), *sum = parts + PARTS_MOST;
    struct cuda_array gradient = cuda_array_of(&b->t->call->in[MATRIX_GRADIENT]);
    return fetch_sum(b->t,
                     cuda_matrix_moments(&job, gradient, b->g, b->h, b->u, b->m, b->v, parts, sum,
                                         b->t->call->stream),
                     sum);
}

static void block_store(const struct block_work *b, double factor)
{
    struct moments_job job = moments_of(b, 0);
    note(b->t, cuda_matrix_store(&job, (float)factor, b->g, b->u, b->t->call->stream));
}

static void soap_read(const struct soap_work *s)
{
    const struct kernel_call *call = s->t->call;
    struct cuda_array to = {DTYPE_f32, s->g};
    note(s->t, cuda_scale((float)scalar_of(s->t, SCALAR_clip), s->l->n,
                          cuda_array_of(&call->in[MATRIX_GRADIENT]), to, call->stream));
}

static void soap_adam(const struct soap_work *s)
{
    const struct tools *t = s->t;
    double beta1 = option_of(t, SOAP_beta1), beta2 = option_of(t, SOAP_beta2);
    note(t, cuda_matrix_adam(s->l->n, (float)beta1, (float)(1 - beta1), (float)beta2,
                             (float)(1 - beta2), (float)option_of(t, SOAP_eps), s->x,
                             s->state[STATE_m], s->state[STATE_v], t->call->stream));
}

/* ---- the ops --------------------------------------------------------------------------------- */

struct state_tensors {
    const struct tensor *at[MOST_MATRIX_STATES]; /* NULL if left out */
};

static struct state_tensors planned_states(const struct program *prog, const struct op *op)
{
    struct state_tensors states = {{NULL}};
    for (int k = MATRIX_STATES; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE)
            states.at[k - MATRIX_STATES] = program_tensor(prog, op->in[k]);
    return states;
}

static struct state_tensors run_states(const struct kernel_call *call)
{
    struct state_tensors states;
    for (int k = 0; k < MOST_MATRIX_STATES; k++)
        states.at[k] = call->in[MATRIX_STATES + k].tensor;
    return states;
}

static int64_t block_of(const struct op *op)
{
    return (int64_t)attrs_of(op, options)->options.value[PRECONDITION_block];
}

static struct blocks_layout layout_in_blocks(const struct op *op, const struct tensor *u,
                                             const struct state_tensors *states)
{
    return blocks_layout(u, op->n_in - MATRIX_STATES, states->at, block_of(op));
}

/* What an op prepares. */
struct needs {
    int64_t side; /* side of the largest square matrix; 0 if there is none */
    bool even;    /* all blocks begin at multiples of 16 bytes */
    size_t total; /* the gemm workspace begins here */
    struct factors_list list;
};

static struct needs needs_of_blocks(const struct program *prog, const struct op *op)
{
    struct state_tensors states = planned_states(prog, op);
    struct blocks_layout l = layout_in_blocks(op, program_tensor(prog, op->out[0]), &states);
    struct needs needs = {
        .side = l.side, .even = (block_of(op) | l.w.rows | l.w.cols) % 2 == 0, .total = l.total};
    blocks_gemms(&l.w, &needs.list);
    return needs;
}

static struct needs needs_of_soap(const struct program *prog, const struct op *op)
{
    struct state_tensors states = planned_states(prog, op);
    struct soap_layout l = soap_layout(program_tensor(prog, op->out[0]), states.at);
    struct needs needs = {.side = l.side, .even = true, .total = l.total};
    factors_add_sides(&needs.list, l.rows, l.cols, l.rotates_left, l.rotates_right);
    return needs;
}

static struct cuda_gemm_shape shape_of(const struct needs *needs, const struct factors *f)
{
    return (struct cuda_gemm_shape){.m = f->m,
                                    .n = f->n,
                                    .k = f->k,
                                    .a_transposed = f->transposed == A_TRANSPOSED,
                                    .b_transposed = f->transposed == B_TRANSPOSED,
                                    .type = DTYPE_f32,
                                    .c_type = DTYPE_f32,
                                    .alignment = needs->even ? 16 : 4};
}

static bool supports(const struct program *prog, const struct op *op)
{
    for (int k = MATRIX_STATES; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].dtype != DTYPE_f32)
            return false;
    return cuda_floats_fit(prog, op, 1u << MATRIX_SCALARS, 0) &&
           prog->tensors[op->out[0]].dtype == DTYPE_f32;
}

static size_t work_bytes(const struct needs *needs)
{
    size_t most = 0;
    for (int i = 0; i < needs->list.n; i++) {
        struct cuda_gemm_shape shape = shape_of(needs, &needs->list.at[i]);
        size_t bytes = cuda_gemm_work_bytes(&shape);
        most = bytes > most ? bytes : most;
    }
    return cuda_work_bytes(needs->total + most);
}

static size_t blocks_workspace(const struct program *prog, const struct op *op,
                               const struct device_facts *facts)
{
    struct needs needs = needs_of_blocks(prog, op);
    (void)facts;
    return work_bytes(&needs);
}

static size_t soap_workspace(const struct program *prog, const struct op *op,
                             const struct device_facts *facts)
{
    struct needs needs = needs_of_soap(prog, op);
    (void)facts;
    return work_bytes(&needs);
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    for (int i = 0; p != NULL && i < p->list.n; i++)
        cuda_gemm_release(p->gemms[i]);
    if (p != NULL) {
        free(p->square[0]);
        free(p->square[1]);
        free(p->values);
        free(p->order);
        free(p->spectral);
    }
    free(p);
}

/* Adds a byte, so that malloc never gets 0 where there is no square matrix. */
static bool host_memory(struct prepared *p, size_t side)
{
    p->square[0] = malloc(side * side * sizeof(float) + 1);
    p->square[1] = malloc(side * side * sizeof(float) + 1);
    p->values = malloc(side * sizeof(float) + 1);
    p->order = malloc(side * sizeof(int64_t) + 1);
    p->spectral = malloc(spectral_work_bytes((int64_t)side) + 1);
    return p->square[0] != NULL && p->square[1] != NULL && p->values != NULL && p->order != NULL &&
           p->spectral != NULL;
}

static enum snug_status prepare_needs(const struct op *op, const struct needs *needs,
                                      void **prepared, struct snug_error *err)
{
    struct prepared *p = calloc(1, sizeof *p);
    if (p == NULL || !host_memory(p, (size_t)needs->side)) {
        release(p);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory while preparing it",
                         op_infos[op->kind].name);
    }
    p->list = needs->list;
    spectral_load();
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < p->list.n && status == SNUG_OK; i++) {
        struct cuda_gemm_shape shape = shape_of(needs, &p->list.at[i]);
        status = cuda_gemm_prepare(&shape, &p->gemms[i], err);
    }
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

static enum snug_status prepare_blocks(const struct program *prog, const struct op *op,
                                       const struct device_facts *facts, void **prepared,
                                       struct snug_error *err)
{
    struct needs needs = needs_of_blocks(prog, op);
    (void)facts;
    return prepare_needs(op, &needs, prepared, err);
}

static enum snug_status prepare_soap(const struct program *prog, const struct op *op,
                                     const struct device_facts *facts, void **prepared,
                                     struct snug_error *err)
{
    struct needs needs = needs_of_soap(prog, op);
    (void)facts;
    return prepare_needs(op, &needs, prepared, err);
}

/* Copies the scalars to the host.  Does this step run?  If not, the direction is 0. */
static bool begin_step(struct tools *t)
{
    const struct kernel_call *call = t->call;
    const struct operand *u = &call->out[0];
    note(t, cuda_matrix_fetch(t->scalars, call->in[MATRIX_SCALARS].data, sizeof t->scalars,
                              call->stream));
    if (*t->error == 0 && t->scalars[SCALAR_skip] != 0)
        clear_reals(t, cuda_elems(u), u->data);
    return *t->error == 0 && t->scalars[SCALAR_skip] == 0;
}

static enum snug_status run_blocks(const struct kernel_call *call, struct snug_error *err)
{
    int error = 0;
    struct tools t = {.call = call, .p = call->prepared, .error = &error, .err = err};
    if (!begin_step(&t))
        return cuda_done(call, error, err);
    struct state_tensors states = run_states(call);
    struct blocks_layout l = layout_in_blocks(call->op, call->out[0].tensor, &states);
    t.after = l.total;
    TRY(blocks_run(&t, &l));
    return cuda_done(call, error, err);
}

static enum snug_status run_soap(const struct kernel_call *call, struct snug_error *err)
{
    int error = 0;
    struct tools t = {.call = call, .p = call->prepared, .error = &error, .err = err};
    if (!begin_step(&t))
        return cuda_done(call, error, err);
    struct state_tensors states = run_states(call);
    struct soap_layout l = soap_layout(call->out[0].tensor, states.at);
    t.after = l.total;
    TRY(soap_run(&t, &l));
    return cuda_done(call, error, err);
}

CUDA_KERNELS(matrix) = {
#define MATRIX_KERNEL(op_kind, family)                                                          \
    {                                                                                           \
        .kind = OP_##op_kind, .name = GEMM_NAME, .supports = supports,                          \
        .workspace_bytes = family##_workspace, .prepare = prepare_##family, .release = release, \
        .run = run_##family                                                                     \
    }
    MATRIX_KERNEL(shampoo, blocks),
    MATRIX_KERNEL(caspr, blocks),
    MATRIX_KERNEL(soap, soap),
#undef MATRIX_KERNEL
};
CUDA_KERNELS_END(matrix)
