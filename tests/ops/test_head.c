/*
 * test_head.c -- the two algorithms of the LM head on AMX against each other: whole rows stored,
 * and logits computed twice.  The op cases compare both with the reference, at sizes that a
 * reference can compute.  Here are more rows than one chunk, chunks that change the algorithm,
 * results that begin in the middle of a tensor, and the end of the workspace.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cpu/cpu_isa.h"
#include "cpu/gemm/lm_head_bf16.h"

enum { WIDTH = 40, CLASSES = 70, GUARD = 64, DX_BEGIN = 3, DW_BEGIN = 5 };

struct head_case {
    int64_t n_rows;
    int64_t far_row; /* whose target lies far below another class; -1: none does */
    bool wants_dx, wants_dw, is_f32, adds;
};

struct head_result {
    float *dx, *dw, *lse;
    double *losses;
};

static void *make(size_t bytes)
{
    void *block = calloc(1, bytes);
    assert_non_null(block);
    return block;
}

static void fill(uint64_t seed, uint16_t *to, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = bf16_from_f32((float)(scale * (2 * rng_uniform(seed, 0, (uint64_t)i) - 1)));
}

/* Both ways begin with the same numbers in dW; what lies behind the workspace stays as it is. */
static struct head_result run_head(const struct head_case *c, bool twice, const uint16_t *x,
                                   const uint16_t *w, const int32_t *targets)
{
    enum dtype type = c->is_f32 ? DTYPE_f32 : DTYPE_bf16;
    int64_t n_dx = c->n_rows * WIDTH, n_dw = CLASSES * WIDTH;
    struct head_result r = {.dx = make((size_t)n_dx * sizeof(float)),
                            .dw = make((size_t)n_dw * sizeof(float)),
                            .lse = make((size_t)c->n_rows * sizeof(float)),
                            .losses = make((size_t)c->n_rows * sizeof(double))};
    void *dx = make((size_t)(DX_BEGIN + n_dx) * sizeof(float));
    void *dw = make((size_t)(DW_BEGIN + n_dw) * sizeof(float));
    struct lm_head_bf16 head = {.n_rows = c->n_rows,
                                .width = WIDTH,
                                .n_classes = CLASSES,
                                .threads = 2,
                                .makes_lse = true,
                                .wants_dx = c->wants_dx,
                                .wants_dw = c->wants_dw,
                                .dx_is_f32 = c->is_f32,
                                .dw_is_f32 = c->is_f32,
                                .is_smoothed = twice}; /* labels are not: it only takes that way */
    struct lm_head_bf16_operands operands = {.x = x,
                                             .w = w,
                                             .targets = targets,
                                             .lse = r.lse,
                                             .losses = r.losses,
                                             .factor = 0.5f,
                                             .labels = labels_of(0.0, CLASSES),
                                             .dx = {type, dx, DX_BEGIN},
                                             .dw = {type, dw, DW_BEGIN},
                                             .add_dw = c->adds};
    for (int64_t i = 0; i < n_dw; i++)
        if (c->is_f32)
            ((float *)dw)[DW_BEGIN + i] = 1.0f;
        else
            ((uint16_t *)dw)[DW_BEGIN + i] = bf16_from_f32(1.0f);
    size_t bytes = (lm_head_bf16_work_bytes(&head) + 63) / 64 * 64;
    unsigned char *work = aligned_alloc(64, bytes + GUARD);
    assert_non_null(work);
    memset(work, 0x5a, bytes + GUARD);
    lm_head_bf16_run(&head, &operands, gemm_bf16_emulated, cpu_isa_find()->loops, work);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(work[bytes + (size_t)i], 0x5a);
    for (int64_t i = 0; i < n_dx; i++)
        r.dx[i] =
            c->is_f32 ? ((float *)dx)[DX_BEGIN + i] : bf16_to_f32(((uint16_t *)dx)[DX_BEGIN + i]);
    for (int64_t i = 0; i < n_dw; i++)
        r.dw[i] =
            c->is_f32 ? ((float *)dw)[DW_BEGIN + i] : bf16_to_f32(((uint16_t *)dw)[DW_BEGIN + i]);
    free(work);
    free(dx);
    free(dw);
    return r;
}

static void free_result(struct head_result *r)
{
    free(r->dx);
    free(r->dw);
    free(r->lse);
    free(r->losses);
}

/* Within a share of the largest. */
static void expect_near(const float *a, const float *b, int64_t n, double share, const char *what)
{
    double most = 0.0, gap = 0.0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        most = fmax(most, fabs((double)b[i]));
        gap = fmax(gap, fabs((double)a[i] - (double)b[i]));
    }
    if (gap > share * most)
        fail_msg("%s: %g apart, the largest is %g", what, gap, most);
}

static void compare_ways(const struct head_case *c, double x_scale)
{
    uint16_t *x = make((size_t)(c->n_rows * WIDTH) * sizeof *x);
    uint16_t *w = make(CLASSES * WIDTH * sizeof *w);
    int32_t *targets = make((size_t)c->n_rows * sizeof *targets);
    fill(1, x, c->n_rows * WIDTH, x_scale);
    fill(2, w, CLASSES * WIDTH, 1.0);
    for (int64_t row = 0; row < c->n_rows; row++)
        targets[row] = (int32_t)(row % CLASSES);
    for (int j = 0; c->far_row >= 0 && j < WIDTH;
         j++) /* the class after the target's is far above */
        x[c->far_row * WIDTH + j] =
            bf16_from_f32(100 * bf16_to_f32(w[(targets[c->far_row] + 1) % CLASSES * WIDTH + j]));
    struct head_result kept = run_head(c, false, x, w, targets);
    struct head_result twice = run_head(c, true, x, w, targets);
    expect_near(kept.lse, twice.lse, c->n_rows, 1e-5, "lse");
    expect_near(kept.dx, twice.dx, c->n_rows * WIDTH, 8e-3, "dx");
    expect_near(kept.dw, twice.dw, CLASSES * WIDTH, 8e-3, "dw");
    for (int64_t row = 0; row < c->n_rows; row++)
        assert_true(fabs(kept.losses[row] - twice.losses[row]) <= 1e-4 * (1 + twice.losses[row]));
    free_result(&kept);
    free_result(&twice);
    free(x);
    free(w);
    free(targets);
}

static void test_both_ways_agree(void **state)
{
    (void)state;
    for (int which = 0; which < 16; which++) {
        struct head_case c = {.n_rows = which & 1 ? 4101 : 33,
                              .far_row = -1,
                              .wants_dx = !(which & 8) || !(which & 1),
                              .wants_dw = !(which & 8) || which & 1,
                              .is_f32 = which & 2,
                              .adds = which & 4};
        compare_ways(&c, 0.5);
    }
}

/* The first, the second or the last of three chunks is done again. */
static void test_a_chunk_that_cannot_be_kept(void **state)
{
    (void)state;
    const int64_t far_rows[] = {0, 3000, 4100};
    for (int i = 0; i < 6; i++) {
        struct head_case c = {.n_rows = 4101,
                              .far_row = far_rows[i / 2],
                              .wants_dx = true,
                              .wants_dw = true,
                              .is_f32 = i % 2 == 0,
                              .adds = true};
        compare_ways(&c, 0.5);
    }
}

/* Where logits are in the billions, the target's own by another order of adding may be hundreds above all that
 * tiles make: no exponential is left. */
static void test_a_sum_of_nothing(void **state)
{
    (void)state;
    enum { N_TRIES = 40, WIDE = 768 };
    static uint16_t x[WIDE], w[2 * WIDE];
    static float dx[WIDE], dw[2 * WIDE];
    for (int t = 0; t < N_TRIES; t++) {
        int32_t target = 0;
        float lse;
        double loss;
        fill((uint64_t)t, x, WIDE, 1e5);
        for (int j = 0; j < WIDE; j++) { /* class 0 is the top by far */
            w[j] = x[j];
            w[WIDE + j] = bf16_from_f32(-bf16_to_f32(x[j]));
        }
        struct lm_head_bf16 head = {.n_rows = 1,
                                    .width = WIDE,
                                    .n_classes = 2,
                                    .threads = 1,
                                    .makes_lse = true,
                                    .wants_dx = true,
                                    .wants_dw = true,
                                    .dx_is_f32 = true,
                                    .dw_is_f32 = true};
        struct lm_head_bf16_operands operands = {.x = x,
                                                 .w = w,
                                                 .targets = &target,
                                                 .lse = &lse,
                                                 .losses = &loss,
                                                 .factor = 1.0f,
                                                 .labels = labels_of(0.0, 2),
                                                 .dx = {DTYPE_f32, dx, 0},
                                                 .dw = {DTYPE_f32, dw, 0}};
        void *work = aligned_alloc(64, (lm_head_bf16_work_bytes(&head) + 63) / 64 * 64);
        assert_non_null(work);
        lm_head_bf16_run(&head, &operands, gemm_bf16_emulated, cpu_isa_find()->loops, work);
        free(work);
        for (int j = 0; j < WIDE; j++)
            assert_true(isfinite(dx[j]) && isfinite(dw[j]) && isfinite(dw[WIDE + j]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways_agree),
        cmocka_unit_test(test_a_chunk_that_cannot_be_kept),
        cmocka_unit_test(test_a_sum_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
