/*
 * test_mlp.c -- a small MLP against a forward and backward pass in plain doubles, written here.
 *
 * Covers every activation, both losses, fast and reference kernels, whole batches and
 * micro-batches: compares the losses of each step and all weights after three steps of SGD with
 * decay and clipping.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/training.h"

enum { IN = 5, HIDDEN = 7, OUT = 3, BATCH = 8, N_STEPS = 3, SEED = 11 };
static const double max_error = 1e-5, lr = 0.3, decay = 0.02, max_norm = 1.5;

/* ---- the oracle --------------------------------------------------------------------------------- */

struct mlp { /* one flat list each, so that norms and updates are one loop */
    double w0[HIDDEN][IN], b0[HIDDEN], w1[OUT][HIDDEN], b1[OUT];
};
enum { N_NUMBERS = sizeof(struct mlp) / sizeof(double) };

struct samples {
    float x[BATCH][IN], real[BATCH][OUT];
    int32_t class[BATCH];
};

static double act(const char *fn, double x)
{
    return strcmp(fn, "relu") == 0      ? (x > 0 ? x : 0)
           : strcmp(fn, "sigmoid") == 0 ? 1 / (1 + exp(-x))
           : strcmp(fn, "tanh") == 0
               ? tanh(x)
               : 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* Smooth functions by a fourth-order difference: no second place where a formula can be wrong. */
static double act_slope(const char *fn, double x)
{
    double h = 1e-3;
    if (strcmp(fn, "relu") == 0)
        return x > 0;
    return (8 * (act(fn, x + h) - act(fn, x - h)) - (act(fn, x + 2 * h) - act(fn, x - 2 * h))) /
           (12 * h);
}

/* The loss of one sample, as a share of the batch's mean, and its gradient by the outputs. */
static double loss_of(const double *y, const struct samples *s, int i, bool classes, double *dy)
{
    double loss = 0, sum = 0;
    for (int o = 0; o < OUT; o++)
        sum += exp(y[o]);
    for (int o = 0; o < OUT; o++) {
        double difference = y[o] - (double)s->real[i][o];
        bool is_target = s->class[i] == o;
        dy[o] = classes ? (exp(y[o]) / sum - is_target) / BATCH : 2 * difference / (BATCH * OUT);
        loss += classes ? is_target * (log(sum) - y[o]) / BATCH
                        : difference * difference / (BATCH * OUT);
    }
    return loss;
}

static double oracle_gradient(const struct mlp *m, const struct samples *s, const char *fn,
                              bool classes, struct mlp *g)
{
    double loss = 0;
    *g = (struct mlp){0};
    for (int i = 0; i < BATCH; i++) {
        double before[HIDDEN], y[OUT], dy[OUT];
        for (int h = 0; h < HIDDEN; h++) {
            before[h] = m->b0[h];
            for (int k = 0; k < IN; k++)
                before[h] += m->w0[h][k] * (double)s->x[i][k];
        }
        for (int o = 0; o < OUT; o++) {
            y[o] = m->b1[o];
            for (int h = 0; h < HIDDEN; h++)
                y[o] += m->w1[o][h] * act(fn, before[h]);
        }
        loss += loss_of(y, s, i, classes, dy);
        for (int h = 0; h < HIDDEN; h++) {
            double arrives = 0;
            for (int o = 0; o < OUT; o++) {
                g->w1[o][h] += dy[o] * act(fn, before[h]);
                arrives += dy[o] * m->w1[o][h];
            }
            double through = arrives * act_slope(fn, before[h]);
            g->b0[h] += through;
            for (int k = 0; k < IN; k++)
                g->w0[h][k] += through * (double)s->x[i][k];
        }
        for (int o = 0; o < OUT; o++)
            g->b1[o] += dy[o];
    }
    return loss;
}

static void descend(double *w, const double *g, int n, double clip, double own_decay)
{
    for (int i = 0; i < n; i++)
        w[i] -= lr * (g[i] * clip + own_decay * w[i]);
}

/* One step; returns the loss before it.  *norm: of the gradient before clipping. */
static double oracle_step(struct mlp *m, const struct samples *s, const char *fn, bool classes,
                          double *norm)
{
    struct mlp g;
    double loss = oracle_gradient(m, s, fn, classes, &g), squares = 0;
    double numbers[N_NUMBERS];
    memcpy(numbers, &g, sizeof g);
    for (int i = 0; i < N_NUMBERS; i++)
        squares += numbers[i] * numbers[i];
    *norm = sqrt(squares);
    double clip = fmin(1, max_norm / (*norm + 1e-6));
    descend(&m->w0[0][0], &g.w0[0][0], HIDDEN * IN, clip, decay);
    descend(m->b0, g.b0, HIDDEN, clip, 0);
    descend(&m->w1[0][0], &g.w1[0][0], OUT * HIDDEN, clip, decay);
    descend(m->b1, g.b1, OUT, clip, 0);
    return loss;
}

/* ---- snug ------------------------------------------------------------------------------------------ */

static void make_samples(int step, struct samples *s)
{
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < IN; k++)
            s->x[i][k] = (float)(3 * rng_normal(SEED, (uint64_t)step, (uint64_t)(i * IN + k)));
        for (int o = 0; o < OUT; o++)
            s->real[i][o] =
                (float)(2 * rng_normal(SEED + 1, (uint64_t)step, (uint64_t)(i * OUT + o)));
        s->class[i] = (int32_t)(rng_u64(SEED + 2, (uint64_t)step, (uint64_t)i) % OUT);
    }
}

static void read_weights(snug_trainer *trainer, struct mlp *m)
{
    struct {
        const char *name;
        double *to;
        int n;
    } parts[] = {{"layers.0.weight", &m->w0[0][0], HIDDEN * IN},
                 {"layers.0.bias", m->b0, HIDDEN},
                 {"layers.1.weight", &m->w1[0][0], OUT * HIDDEN},
                 {"layers.1.bias", m->b1, OUT}};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        struct snug_error err;
        float values[N_NUMBERS];
        must(snug_trainer_read(trainer, parts[p].name, values, parts[p].n, &err), &err);
        for (int i = 0; i < parts[p].n; i++)
            parts[p].to[i] = (double)values[i];
    }
}

struct run {
    double losses[N_STEPS + 1], norms[N_STEPS + 1]; /* before each step, and after the last */
    struct mlp weights;                             /* after the last */
};

/* The losses before each of the steps and after the last, and the weights there; or the oracle's. */
static void train(const char *fn, const char *loss, const char *kernels, int micro, bool use_oracle,
                  struct run *run)
{
    struct snug_error err;
    struct mlp m = {0};
    char spec[100], keys[300];
    bool classes = strcmp(loss, "cross_entropy") == 0;
    snprintf(spec, sizeof spec, "mlp:%d-%d-%d,act=%s,loss=%s", IN, HIDDEN, OUT, fn, loss);
    snprintf(keys, sizeof keys,
             "optimizer=sgd lr=%g weight-decay=%g clip=%g threads=1 kernels=%s batch=%d "
             "micro-batch=%d schedule=constant",
             lr, decay, max_norm, kernels, BATCH, micro);
    snug_model *model = model_of(spec);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {.data = "none", .steps = N_STEPS + 1};
    snug_trainer *trainer = NULL;
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    read_weights(trainer, &m);
    *run = (struct run){0};
    for (int i = 0; i <= N_STEPS; i++) {
        struct samples s;
        struct snug_metrics metrics = {0};
        make_samples(i, &s);
        const void *inputs[] = {s.x, classes ? (const void *)s.class : (const void *)s.real};
        if (i == N_STEPS) { /* the weights after the last step; one more tells the loss there */
            if (!use_oracle)
                read_weights(trainer, &m);
            run->weights = m;
        }
        if (!use_oracle)
            must(snug_trainer_step(trainer, inputs, &metrics, &err), &err);
        run->norms[i] = metrics.grad_norm;
        run->losses[i] =
            use_oracle ? oracle_step(&m, &s, fn, classes, &run->norms[i]) : metrics.loss;
    }
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static double compare(const struct run *found, const struct run *truth, const char *what)
{
    double a[N_NUMBERS], b[N_NUMBERS], worst = 0;
    memcpy(a, &found->weights, sizeof a);
    memcpy(b, &truth->weights, sizeof b);
    for (int i = 0; i <= N_STEPS; i++) {
        double error = relative_error(&found->losses[i], &truth->losses[i], 1);
        worst = fmax(worst, error);
        if (!(error < max_error))
            fail_msg("%s: loss %.9g after %d steps is not %.9g (%.2g)", what, found->losses[i], i,
                     truth->losses[i], error);
        error = relative_error(&found->norms[i], &truth->norms[i], 1); /* clipping hides a factor */
        worst = fmax(worst, error);
        if (!(error < max_error))
            fail_msg("%s: gradient norm %.9g after %d steps is not %.9g (%.2g)", what,
                     found->norms[i], i, truth->norms[i], error);
    }
    double error = relative_error(a, b, N_NUMBERS);
    if (!(error < max_error))
        fail_msg("%s: the weights after %d steps are off by %.2g", what, N_STEPS, error);
    return fmax(worst, error);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static const char *const acts[] = {"relu", "gelu", "sigmoid", "tanh"};
static const char *const losses[] = {"cross_entropy", "mse"};

static void test_against_doubles(void **state)
{
    (void)state;
    static const char *const kernels[] = {"fast", "reference"};
    double worst = 0;
    int n_clipped = 0;
    for (int i = 0; i < 16; i++) {
        const char *fn = acts[i % 4], *loss = losses[i / 4 % 2], *rows = kernels[i / 8];
        char what[100];
        struct run found, truth;
        snprintf(what, sizeof what, "%s, %s, %s kernels", fn, loss, rows);
        train(fn, loss, rows, BATCH, true, &truth);
        train(fn, loss, rows, BATCH, false, &found);
        for (int k = 0; k < N_STEPS; k++)
            n_clipped += truth.norms[k] > max_norm;
        worst = fmax(worst, compare(&found, &truth, what));
    }
    assert_in_range(n_clipped, 1, 16 * N_STEPS - 1); /* both cases occur, or half was tested */
    print_message("# largest relative error %.2e, %d of %d steps clip\n", worst, n_clipped,
                  16 * N_STEPS);
}

static void test_micro_batches_agree(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 8; i++) {
        char what[100];
        struct run whole, split;
        snprintf(what, sizeof what, "%s, %s, 4 micro-batches", acts[i % 4], losses[i / 4]);
        train(acts[i % 4], losses[i / 4], "fast", BATCH, false, &whole);
        train(acts[i % 4], losses[i / 4], "fast", BATCH / 4, false, &split);
        worst = fmax(worst, compare(&split, &whole, what));
    }
    print_message("# 1 and 4 micro-batches: at most %.2e apart\n", worst);
    assert_true(worst < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_doubles),
        cmocka_unit_test(test_micro_batches_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
