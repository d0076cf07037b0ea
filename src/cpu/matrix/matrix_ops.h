/*
 * matrix_ops.h -- the matrix optimizers: workspace layouts, elementwise parts, steps.
 */
#ifndef SNUG_CPU_MATRIX_MATRIX_OPS_H
#define SNUG_CPU_MATRIX_MATRIX_OPS_H

#include "cpu/matrix/newton_schulz.h"
#include "optim/matrix_blocks.h"
#include "optim/matrix_soap.h"

/* ---- elementwise parts of shampoo, caspr and soap -------------------------------------------- */

/* Updates g, m, v, h and u of one row and returns the sum of u^2. */
static double block_row(const struct block_work *b, int64_t row, double eps)
{
    const struct tools *t = b->t;
    const int64_t n = b->at.cols, first = (b->at.row + row) * b->l->w.cols + b->at.col;
    const double beta1 = option_of(t, PRECONDITION_beta1), beta = option_of(t, PRECONDITION_beta);
    const real clip = (real)scalar_of(t, SCALAR_clip), keep1 = (real)beta1, keep = (real)beta;
    const real rest1 = (real)(1 - beta1), rest = (real)(1 - beta), least_root = (real)eps;
    const real scale = (real)(1 / correction(t, PRECONDITION_beta1));
    const real root_scale = (real)(1 / sqrt(correction(t, PRECONDITION_beta)));
    real *g = b->g + row * n, *h = b->h + row * n;
    real *u = b->u + first, *m = b->m + first, *v = b->v + first;
    double sum = 0;
    read_reals(&t->call->in[MATRIX_GRADIENT], first, n, g);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        g[i] *= clip;
        m[i] = keep1 * m[i] + rest1 * g[i];
        v[i] = keep * v[i] + rest * g[i] * g[i];
        h[i] = (keep1 * m[i] + rest1 * g[i]) * scale;
        u[i] = h[i] / (root_of(v[i]) * root_scale + least_root);
        sum += (double)u[i] * (double)u[i];
    }
    return sum;
}

static double block_moments(const struct block_work *b, double eps)
{
    const int threads = threads_for(b->t, b->at.rows * b->at.cols);
    double *sums = doubles_at(b->t, b->l->sums), total = 0;
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < b->at.rows; row++)
        sums[row] = block_row(b, row, eps);
    for (int64_t row = 0; row < b->at.rows; row++)
        total += sums[row];
    return total;
}

static void block_store(const struct block_work *b, double factor)
{
    const real by = (real)factor;
    for (int64_t row = 0; row < b->at.rows; row++) {
        real *u = b->u + (b->at.row + row) * b->l->w.cols + b->at.col;
        for (int64_t i = 0; i < b->at.cols; i++)
            u[i] = by * b->g[row * b->at.cols + i];
    }
}

static void soap_read(const struct soap_work *s)
{
    const int threads = threads_for(s->t, s->l->n);
    const real clip = (real)scalar_of(s->t, SCALAR_clip);
    const int64_t n = s->l->n;
    real *g = s->g;
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    {
        int64_t at = chunk * CHUNK_ELEMS;
        read_reals(&s->t->call->in[MATRIX_GRADIENT], at, least(CHUNK_ELEMS, n - at), g + at);
        EACH_IN_CHUNK(n)
        g[i] *= clip;
    }
}

static void soap_adam(const struct soap_work *s)
{
    const int threads = threads_for(s->t, s->l->n);
    const double beta1 = option_of(s->t, SOAP_beta1), beta2 = option_of(s->t, SOAP_beta2);
    const real keep1 = (real)beta1, rest1 = (real)(1 - beta1);
    const real keep2 = (real)beta2, rest2 = (real)(1 - beta2);
    const real eps = (real)option_of(s->t, SOAP_eps);
    const int64_t n = s->l->n;
    real *x = s->x, *m = s->state[STATE_m], *v = s->state[STATE_v];
    (void)threads; /* unused without OpenMP */
    EACH_CHUNK(n)
    EACH_IN_CHUNK(n)
    {
        m[i] = keep1 * m[i] + rest1 * x[i];
        v[i] = keep2 * v[i] + rest2 * x[i] * x[i];
        x[i] = m[i] / (root_of(v[i]) + eps);
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

enum { MOST_MATRIX_STATES = MAX_INPUTS - MATRIX_STATES };

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

/* Does this step leave the states as they are?  Then the direction is 0. */
static bool skips_step(const struct tools *t)
{
    const struct operand *u = &t->call->out[0];
    if (scalar_of(t, SCALAR_skip) == 0)
        return false;
    memset(u->data, 0, (size_t)shape_elems(&u->tensor->shape) * dtype_bytes(u->tensor->dtype));
    return true;
}

static struct blocks_layout layout_in_blocks(const struct op *op, const struct tensor *u,
                                             const struct state_tensors *states)
{
    return blocks_layout(u, op->n_in - MATRIX_STATES, states->at,
                         (int64_t)attrs_of(op, options)->options.value[PRECONDITION_block]);
}

/* The layouts when planning, from the program's tensors. */
static struct muon_layout planned_muon(const struct program *prog, const struct op *op)
{
    struct state_tensors states = planned_states(prog, op);
    return muon_layout(program_tensor(prog, op->out[0]), states.at[STATE_m]);
}

static struct blocks_layout planned_blocks(const struct program *prog, const struct op *op)
{
    struct state_tensors states = planned_states(prog, op);
    return layout_in_blocks(op, program_tensor(prog, op->out[0]), &states);
}

static struct soap_layout planned_soap(const struct program *prog, const struct op *op)
{
    struct state_tensors states = planned_states(prog, op);
    return soap_layout(program_tensor(prog, op->out[0]), states.at);
}

static enum snug_status step_orthogonalize(struct tools *t)
{
    struct state_tensors states = run_states(t->call);
    if (skips_step(t))
        return SNUG_OK;
    struct muon_layout l = muon_layout(t->call->out[0].tensor, states.at[STATE_m]);
    t->after = l.total;
    return muon_run(t, &l);
}

/* shampoo and caspr */
static enum snug_status step_blocks(struct tools *t)
{
    struct state_tensors states = run_states(t->call);
    if (skips_step(t))
        return SNUG_OK;
    struct blocks_layout l = layout_in_blocks(t->call->op, t->call->out[0].tensor, &states);
    t->after = l.total;
    return blocks_run(t, &l);
}

static enum snug_status step_soap(struct tools *t)
{
    struct state_tensors states = run_states(t->call);
    if (skips_step(t))
        return SNUG_OK;
    struct soap_layout l = soap_layout(t->call->out[0].tensor, states.at);
    t->after = l.total;
    return soap_run(t, &l);
}

#endif
