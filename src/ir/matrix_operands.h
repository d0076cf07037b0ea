/*
 * matrix_operands.h -- a weight as the ops see it that work on whole matrices: rows and columns, blocks, and
 * where the statistics of a block lie in a state.
 *
 * A tensor with more than two dimensions is its first by all the others; a vector is one row.  Blocks
 * are cut from the upper left, at most `block` on a side, and go row by row; the statistics of the
 * left side of all blocks, squares of their rows, follow each other in one state in that order, and
 * so do those of the right side.
 *
 * All these ops read  g, scalars, states...  and write  u, states...: u is the direction, as large as
 * g; a state that an output names is the same tensor as the input.
 */
#ifndef SNUG_IR_MATRIX_OPERANDS_H
#define SNUG_IR_MATRIX_OPERANDS_H

#include "ir/program.h"

enum { MATRIX_GRADIENT, MATRIX_SCALARS, MATRIX_STATES }; /* inputs */

/* The states of an op, counted from MATRIX_STATES; orthogonalize has m alone. */
enum matrix_state { STATE_m, STATE_v, STATE_l, STATE_r, STATE_pl, STATE_pr, STATE_l_then };

enum { MATRIX_SIDE_MOST = 30000 }; /* of a square: its workspace is counted in ints by LAPACK */

/* What the options of each op are. */
enum { ORTHOGONALIZE_mu, ORTHOGONALIZE_steps };
enum { /* shampoo and caspr */
       PRECONDITION_beta1,
       PRECONDITION_beta,
       PRECONDITION_eps,
       PRECONDITION_block,
       PRECONDITION_every,
       PRECONDITION_start
};
enum { SOAP_beta1, SOAP_beta2, SOAP_shampoo_beta, SOAP_eps, SOAP_every, SOAP_max_dim };

struct matrix {
    int64_t rows, cols, block;
};

struct matrix_block {
    int64_t row, col, rows, cols; /* where it is and how large */
    int64_t left, right;          /* elements of the states before its own */
};

static inline struct matrix matrix_of(const struct shape *shape, int64_t block)
{
    int64_t rows = shape->n_dims < 2 ? 1 : shape->dim[0];
    return (struct matrix){rows, shape_elems(shape) / rows, block};
}

static inline int64_t matrix_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t matrix_parts(int64_t n, int64_t block)
{
    return n / block + (n % block != 0);
}

/* Squares of the parts of one side. */
static inline int64_t matrix_squares(int64_t n, int64_t block)
{
    return n / block * block * block + n % block * (n % block);
}

static inline int64_t matrix_left_elems(const struct matrix *m)
{
    return matrix_parts(m->cols, m->block) * matrix_squares(m->rows, m->block);
}

static inline int64_t matrix_right_elems(const struct matrix *m)
{
    return matrix_parts(m->rows, m->block) * matrix_squares(m->cols, m->block);
}

static inline int64_t matrix_n_blocks(const struct matrix *m)
{
    return matrix_parts(m->rows, m->block) * matrix_parts(m->cols, m->block);
}

static inline struct matrix_block matrix_block_at(const struct matrix *m, int64_t index)
{
    int64_t across = matrix_parts(m->cols, m->block), i = index / across, j = index % across;
    struct matrix_block b = {.row = i * m->block, .col = j * m->block};
    b.rows = matrix_least(m->block, m->rows - b.row);
    b.cols = matrix_least(m->block, m->cols - b.col);
    b.left = i * across * m->block * m->block + j * b.rows * b.rows;
    b.right = i * matrix_squares(m->cols, m->block) + j * m->block * m->block;
    return b;
}

#endif
