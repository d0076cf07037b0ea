/*
 * matrix_operands.h -- operands of the matrix optimizers (Muon, Shampoo, CASPR, SOAP): how a weight
 * is viewed as a matrix and cut into blocks, and where a state stores the statistics of a block.
 *
 * A tensor of more than two dimensions is viewed as [first, product of the others], a vector as one
 * row.  Blocks have at most `block` rows and columns and are numbered row by row from the upper
 * left.  One state stores the left statistics of all blocks one after the other in this order: for
 * each block a square matrix with as many rows as the block.  Another state stores the right
 * statistics, with as many rows as the block has columns.
 *
 * All these ops have the inputs  g, scalars, states...  and the outputs  u, states...  u is the
 * direction, in the shape of g; states are updated in place.
 */
#ifndef SNUG_IR_MATRIX_OPERANDS_H
#define SNUG_IR_MATRIX_OPERANDS_H

#include "ir/program.h"

enum { MATRIX_GRADIENT, MATRIX_SCALARS, MATRIX_STATES }; /* inputs */

/* The states of an op: input MATRIX_STATES + k.  orthogonalize has only m. */
enum matrix_state { STATE_m, STATE_v, STATE_l, STATE_r, STATE_pl, STATE_pr, STATE_l_then };

enum { MATRIX_SIDE_MOST = 30000 }; /* rows of a square matrix: LAPACK's workspace sizes are ints */

/* Indices into the options of each op. */
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
    int64_t row, col, rows, cols; /* position and size in the matrix */
    int64_t left, right;          /* offsets of its statistics in the two states, in elements */
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

/* Elements of the square matrices for all blocks along one side of length n. */
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
