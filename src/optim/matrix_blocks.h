/*
 * matrix_blocks.h -- the steps of shampoo and caspr (src/optim), block by block: update the left
 * and right statistics, recompute their inverse roots every few steps, and multiply the momentum
 * by them.
 *
 * Both compute m, v, h and the Adam step `a` of a block.  `a` is stored in u and gives the length
 * of the direction.  Once preconditioning starts (option `start`), u gets the preconditioned
 * direction instead.
 */
#ifndef SNUG_OPTIM_MATRIX_BLOCKS_H
#define SNUG_OPTIM_MATRIX_BLOCKS_H

#include "optim/matrix_tools.h"

struct blocks_layout {
    struct matrix w;
    int64_t rows, cols, side; /* of the largest block; side: the larger of the two */
    size_t u, states[STATE_l_then + 1];
    size_t g, h, d, squares[2], values, sums, spectral, total;
};

/* The workspace layout, from u and the states as tensors of a program or of a kernel call. */
static struct blocks_layout blocks_layout(const struct tensor *u, int n_states,
                                          const struct tensor *const *states, int64_t block)
{
    struct blocks_layout l = {.w = matrix_of(&u->shape, block)};
    l.rows = matrix_least(l.w.rows, block);
    l.cols = matrix_least(l.w.cols, block);
    l.side = l.rows > l.cols ? l.rows : l.cols;
    l.u = take_copy(&l.total, u);
    for (int k = 0; k < n_states; k++)
        l.states[k] = take_copy(&l.total, states[k]);
    l.g = take_reals(&l.total, l.rows * l.cols);
    l.h = take_reals(&l.total, l.rows * l.cols);
    l.d = take_reals(&l.total, l.rows * l.cols);
    for (int i = 0; i < 2; i++)
        l.squares[i] = take_reals(&l.total, l.side * l.side);
    l.values = take_reals(&l.total, l.side);
    l.sums = take_sums(&l.total, l.w.rows * l.w.cols, l.rows);
    l.spectral = take_spectral(&l.total, l.side);
    return l;
}

/* Adds the gemm shapes of a full block and of the right, bottom and corner blocks. */
static inline void blocks_gemms(const struct matrix *w, struct factors_list *list)
{
    int64_t across = matrix_parts(w->cols, w->block), n = matrix_n_blocks(w);
    const int64_t places[] = {0, across - 1, n - across, n - 1};
    for (int i = 0; i < 4; i++) {
        struct matrix_block b = matrix_block_at(w, places[i]);
        factors_add_sides(list, b.rows, b.cols, true, true);
    }
}

/* The current block.  Its elements are not contiguous in u, m and v; its statistics are in l, r, pl
 * and pr. */
struct block_work {
    const struct tools *t;
    const struct blocks_layout *l;
    struct matrix_block at;
    real *g, *h, *d;              /* contiguous */
    real *u, *m, *v;              /* of the whole tensor */
    real *left, *right, *pl, *pr; /* of this block */
    real *left_then;              /* caspr only */
};

static double correction(const struct tools *t, int beta)
{
    return 1 - pow(option_of(t, beta), scalar_of(t, SCALAR_update_count));
}

/* Defined by the device: computes g, m, v, h, a of the block; returns the squared length of a. */
static double block_moments(const struct block_work *b, double eps);
/* Defined by the device: u = factor g. */
static void block_store(const struct block_work *b, double factor);

/* g = pl h pr; *squares is its squared length. */
static enum snug_status block_precondition(const struct block_work *b, double *squares)
{
    int64_t rows = b->at.rows, cols = b->at.cols;
    TRY(multiply(b->t, &(struct factors){rows, cols, rows, AS_STORED}, b->pl, b->h, b->d));
    TRY(multiply(b->t, &(struct factors){rows, cols, cols, AS_STORED}, b->d, b->pr, b->g));
    *squares = sum_squares(b->t, rows * cols, b->g, b->l->sums);
    return SNUG_OK;
}

/* Scales the eigenvectors, the rows of q, by (value + add)^(exponent / 2); then root = q^T q.
 * Overwrites q and values. */
static enum snug_status root_from(const struct block_work *b, int64_t n, real *q, real *values,
                                  double add, double exponent, real *root)
{
    for (int64_t row = 0; row < n; row++)
        values[row] = (real)pow((double)values[row] + add, exponent / 2);
    scale_rows(b->t, n, values, b->l->values, q);
    return multiply(b->t, &(struct factors){n, n, n, A_TRANSPOSED}, q, q, root);
}

/* ---- shampoo --------------------------------------------------------------------------------- */

/* root = (a / correction + (eps - min(0, least eigenvalue)) I)^(-1/4); unchanged if the solver
 * fails. */
static enum snug_status shampoo_root(const struct block_work *b, int64_t n, const real *a,
                                     real *root)
{
    real *q = reals_at(b->t, b->l->squares[0]), *values = values_at(b->t, b->l->values);
    copy_scaled(b->t, n * n, 1 / correction(b->t, PRECONDITION_beta), a, q);
    if (!find_eigen(b->t, n, q, values, true, true, b->l->spectral))
        return SNUG_OK;
    double add = option_of(b->t, PRECONDITION_eps) - fmin(0, extreme(n, values, -1));
    return root_from(b, n, q, values, add, -0.25, root);
}

static enum snug_status shampoo_statistics(const struct block_work *b)
{
    int64_t rows = b->at.rows, cols = b->at.cols;
    double beta = option_of(b->t, PRECONDITION_beta);
    real *gemm = reals_at(b->t, b->l->squares[0]);
    TRY(multiply(b->t, &(struct factors){rows, rows, cols, B_TRANSPOSED}, b->g, b->g, gemm));
    mix(b->t, rows * rows, beta, b->left, 1 - beta, gemm);
    TRY(multiply(b->t, &(struct factors){cols, cols, rows, A_TRANSPOSED}, b->g, b->g, gemm));
    mix(b->t, cols * cols, beta, b->right, 1 - beta, gemm);
    return SNUG_OK;
}

static enum snug_status shampoo_block(const struct block_work *b)
{
    const double step = scalar_of(b->t, SCALAR_update_count);
    const double start = option_of(b->t, PRECONDITION_start);
    if (step == 1) {
        set_identity(b->t, b->at.rows, 1, b->pl);
        set_identity(b->t, b->at.cols, 1, b->pr);
    }
    double a_squares = block_moments(b, option_of(b->t, PRECONDITION_eps)), squares;
    TRY(shampoo_statistics(b));
    if (step == start || (step > start && fmod(step, option_of(b->t, PRECONDITION_every)) == 0)) {
        TRY(shampoo_root(b, b->at.rows, b->left, b->pl));
        TRY(shampoo_root(b, b->at.cols, b->right, b->pr));
    }
    if (step < start)
        return SNUG_OK;
    TRY(block_precondition(b, &squares));
    block_store(b, sqrt(a_squares) / (sqrt(squares) + 1e-16));
    return SNUG_OK;
}

/* ---- caspr ----------------------------------------------------------------------------------- */

/* Computes the eigenvalues of a, and its eigenvectors in squares[0] if wanted; false on failure. */
static bool caspr_eigen(const struct block_work *b, int64_t n, const real *a, bool vectors,
                        double *largest)
{
    real *q = reals_at(b->t, b->l->squares[0]), *values = values_at(b->t, b->l->values);
    copy_reals(b->t, n * n, a, q);
    if (!find_eigen(b->t, n, q, values, false, vectors, b->l->spectral))
        return false;
    *largest = extreme(n, values, 1);
    return true;
}

/* root = (a + eps largest I)^(-1/2); unchanged if that fails or is too inaccurate. */
static enum snug_status caspr_root(const struct block_work *b, int64_t n, const real *a, real *root)
{
    real *q = reals_at(b->t, b->l->squares[0]), *found = reals_at(b->t, b->l->squares[1]);
    real *values = values_at(b->t, b->l->values);
    double largest;
    if (!caspr_eigen(b, n, a, true, &largest))
        return SNUG_OK;
    double add = option_of(b->t, PRECONDITION_eps) * largest;
    if (extreme(n, values, -1) + add <= 0)
        return SNUG_OK;
    TRY(root_from(b, n, q, values, add, -0.5, found));
    if (check_root(b->t, n, a, add, found, b->l->spectral) <= 0.1)
        copy_reals(b->t, n * n, found, root);
    return SNUG_OK;
}

/* How much the new root changes the scale of R: tr(pl (l_then + eps largest I) pl) / n. */
static enum snug_status caspr_change(const struct block_work *b, double *change)
{
    int64_t n = b->at.rows;
    double largest = 0;
    real *square = reals_at(b->t, b->l->squares[1]);
    if (!caspr_eigen(b, n, b->left_then, false, &largest))
        return SNUG_OK;
    TRY(multiply(b->t, &(struct factors){n, n, n, AS_STORED}, b->pl, b->pl, square));
    double sum = sum_gemms(b->t, n * n, square, b->left_then, b->l->sums);
    double trace = trace_of(b->t, n, square, b->l->sums);
    *change = fmax(0, sum + option_of(b->t, PRECONDITION_eps) * largest * trace) / (double)n;
    return SNUG_OK;
}

static enum snug_status caspr_statistics(const struct block_work *b, double change)
{
    int64_t rows = b->at.rows, cols = b->at.cols;
    double beta = option_of(b->t, PRECONDITION_beta);
    real *gemm = reals_at(b->t, b->l->squares[0]);
    TRY(multiply(b->t, &(struct factors){rows, rows, cols, B_TRANSPOSED}, b->g, b->g, gemm));
    mix(b->t, rows * rows, beta, b->left, 1 - beta, gemm);
    TRY(multiply(b->t, &(struct factors){rows, cols, rows, AS_STORED}, b->pl, b->g, b->d));
    TRY(multiply(b->t, &(struct factors){cols, cols, rows, A_TRANSPOSED}, b->d, b->d, gemm));
    mix(b->t, cols * cols, beta * change, b->right, (1 - beta) / (double)rows, gemm);
    return SNUG_OK;
}

static void caspr_begin(const struct block_work *b)
{
    double eps = option_of(b->t, PRECONDITION_eps);
    set_identity(b->t, b->at.rows, eps, b->left);
    set_identity(b->t, b->at.rows, eps, b->left_then);
    set_identity(b->t, b->at.cols, 1, b->right);
    set_identity(b->t, b->at.rows, 1, b->pl);
    set_identity(b->t, b->at.cols, 1, b->pr);
}

/* Adds the block's share to the squared lengths of a and of u. */
static enum snug_status caspr_block(const struct block_work *b, double *a_squares,
                                    double *u_squares)
{
    const double step = scalar_of(b->t, SCALAR_update_count);
    const double every = option_of(b->t, PRECONDITION_every);
    double change = 1, squares;
    if (step == 1)
        caspr_begin(b);
    *a_squares += block_moments(b, 1e-8);
    if (step > 1 && fmod(step - 1, every) == 0) {
        TRY(caspr_change(b, &change));
        copy_reals(b->t, b->at.rows * b->at.rows, b->left, b->left_then);
    }
    TRY(caspr_statistics(b, change));
    if (fmod(step, every) == 0) {
        TRY(caspr_root(b, b->at.rows, b->left, b->pl));
        TRY(caspr_root(b, b->at.cols, b->right, b->pr));
    }
    if (step <= option_of(b->t, PRECONDITION_start))
        return SNUG_OK;
    TRY(block_precondition(b, &squares));
    *u_squares += squares;
    block_store(b, 1);
    return SNUG_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

static enum snug_status each_block(struct block_work *b, real *const *states)
{
    bool is_caspr = states[STATE_l_then] != NULL;
    double a_squares = 0, u_squares = 0;
    for (int64_t i = 0; i < matrix_n_blocks(&b->l->w); i++) {
        b->at = matrix_block_at(&b->l->w, i);
        b->left = states[STATE_l] + b->at.left;
        b->right = states[STATE_r] + b->at.right;
        b->pl = states[STATE_pl] + b->at.left;
        b->pr = states[STATE_pr] + b->at.right;
        if (is_caspr) {
            b->left_then = states[STATE_l_then] + b->at.left;
            TRY(caspr_block(b, &a_squares, &u_squares));
        } else {
            TRY(shampoo_block(b));
        }
    }
    if (u_squares > 0) /* caspr grafts the whole tensor at once */
        copy_scaled(b->t, b->l->w.rows * b->l->w.cols, sqrt(a_squares / u_squares), b->u, b->u);
    return SNUG_OK;
}

static enum snug_status blocks_run(const struct tools *t, const struct blocks_layout *l)
{
    real *states[STATE_l_then + 1] = {NULL};
    int n_states = op_of(t)->n_in - MATRIX_STATES;
    for (int k = 0; k < n_states; k++)
        states[k] = open_state(t, (enum matrix_state)k, l->states[k]);
    struct block_work b = {.t = t,
                           .l = l,
                           .g = reals_at(t, l->g),
                           .h = reals_at(t, l->h),
                           .d = reals_at(t, l->d),
                           .u = open_direction(t, l->u),
                           .m = states[STATE_m],
                           .v = states[STATE_v]};
    TRY(each_block(&b, states));
    close_direction(t, b.u);
    for (int k = 0; k < n_states; k++)
        close_state(t, (enum matrix_state)k, states[k]);
    return SNUG_OK;
}

#endif
