/*
 * measure_rates.c -- measure how fast this machine runs each kind of op, with steps of small
 * models.
 *
 * Ops are timed inside a step, so that they find their operands in a cache exactly when they would
 * in the step of a large model.  One GPT-2 block at full width gives matmuls, attention and norms
 * at four lengths, one block with RMSNorm, RoPE and SwiGLU those ops at three; a small resnet gives
 * the convolutions; the block's update is run with every kind of optimizer state.  Ops of the same
 * kind, type and similar size form one point of a curve: the sum of their work over the sum of
 * their times, each op with its best time of a few steps.
 *
 * All trials are run in two rounds, so that the steps of one trial are some seconds apart.  On a
 * shared machine, load or a lower clock in one round may be gone in the other.
 */
#include "bench/bench.h"
#include "compile/compile_target.h"

#include <math.h>
#include <stdlib.h>

/* One block with the ops of Llama, and the norms of q and k of Qwen3. */
static const struct decoder_shape llama_block = {
    .family = DECODER_qwen3,
    .n_layer = 1,
    .n_head = 12,
    .n_kv_head = 4,
    .head_dim = 64,
    .n_embd = 768,
    .n_inner = 2048,
    .n_positions = 1024,
    .vocab_size = 8192,
    .norm_eps = 1e-6,
    .init_std = 0.02,
    .rope = {.theta = 1e4, .rope_factor = 1, .low_freq = 1, .high_freq = 4},
    .tied = true,
    .qk_norm = true};
static const struct vision_shape images = {VISION_resnet18, 3, 32, 32, 10, true};

enum { SETTINGS_MAX = 3, LONGEST = 1024, N_ROUNDS = 2 };

static const struct trial {
    enum subject { GPT2, LLAMA, IMAGES } subject;
    int64_t batch, seq;
    const char *settings[SETTINGS_MAX][2];
} trials[] = {
    {GPT2, 1, 16, {{"precision", "fp32"}}},
    {GPT2, 1, 64, {{"precision", "fp32"}}},
    {GPT2, 1, 256, {{"precision", "fp32"}}},
    {GPT2, 1, 1024, {{"precision", "fp32"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}}},
    {GPT2, 1, 64, {{"precision", "bf16"}}},
    {GPT2, 1, 256, {{"precision", "bf16"}}},
    {GPT2, 1, 1024, {{"precision", "bf16"}}},
    {GPT2, 1, 64, {{"precision", "fp16"}}},
    {GPT2, 1, 256, {{"precision", "fp16"}}},
    {GPT2, 1, 16, {{"precision", "fp32"}, {"state-bits", "16"}}},
    {GPT2, 1, 16, {{"precision", "fp32"}, {"state-bits", "8"}}},
    {GPT2, 1, 16, {{"precision", "fp32"}, {"state-bits", "4"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"state-bits", "16"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"state-bits", "8"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"state-bits", "4"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"master", "none"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"master", "none"}, {"state-bits", "16"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"master", "none"}, {"state-bits", "8"}}},
    {GPT2, 1, 16, {{"precision", "bf16"}, {"master", "none"}, {"state-bits", "4"}}},
    {LLAMA, 1, 16, {{"precision", "fp32"}}},
    {LLAMA, 1, 128, {{"precision", "fp32"}}},
    {LLAMA, 1, 1024, {{"precision", "fp32"}}},
    {LLAMA, 1, 16, {{"precision", "bf16"}}},
    {LLAMA, 1, 128, {{"precision", "bf16"}}},
    {LLAMA, 1, 1024, {{"precision", "bf16"}}},
    {LLAMA, 1, 128, {{"precision", "fp16"}}},
    {IMAGES, 4, 0, {{"precision", "fp32"}}},
    {IMAGES, 4, 0, {{"precision", "bf16"}}},
};
enum { N_TRIALS = (int)(sizeof trials / sizeof *trials) };

struct bucket { /* all ops of one point */
    double work, seconds, log_size;
    int n;
};

struct gathered {
    struct machine_rates *rates;
    struct compile_target target; /* with any rates: the plans' times are not read */
    struct bucket buckets[RATE_CURVES_MAX][RATE_POINTS_MAX]; /* per curve and size bucket */
    double *least[N_TRIALS]; /* best seconds of each op of a trial, over the rounds so far */
};

static struct rate_curve *curve_of(struct machine_rates *rates, const struct program *prog,
                                   const struct op *op)
{
    struct rate_curve wanted = {op->kind, op_dtype(prog, op), op_variant(op), 0, {{0, 0}}};
    int n = rates->rates.n_curves;
    for (int i = 0; i < n; i++) {
        struct rate_curve *c = &rates->curves[i];
        if (c->kind == wanted.kind && c->dtype == wanted.dtype && c->variant == wanted.variant)
            return c;
    }
    if (n == RATE_CURVES_MAX)
        return NULL;
    rates->curves[n] = wanted;
    rates->rates.n_curves++;
    return &rates->curves[n];
}

/* The size bucket of an op: matmuls by factors of 2 from 8, other ops by factors of 8 from 512. */
static int size_bucket(const struct program *prog, const struct op *op)
{
    double log_size = log2(op_size(prog, op));
    long i = op_has(op, TRAIT_gemm) ? lround(log_size - 3) : lround((log_size - 9) / 3);
    return i < 0 ? 0 : i >= RATE_POINTS_MAX ? RATE_POINTS_MAX - 1 : (int)i;
}

static void add_op(struct gathered *all, const struct program *prog, const struct op *op,
                   double seconds)
{
    struct rate_curve *curve = curve_of(all->rates, prog, op);
    double work = op_work(prog, op);
    if (curve == NULL || !(work > 0) || !(seconds > 0))
        return;
    struct bucket *b = &all->buckets[curve - all->rates->curves][size_bucket(prog, op)];
    b->work += work;
    b->seconds += seconds;
    b->log_size += log(op_size(prog, op));
    b->n++;
}

static double least_of(const double *values, int n)
{
    double least = values[0];
    for (int i = 1; i < n; i++)
        least = values[i] < least ? values[i] : least;
    return least;
}

/* Times the ops of a trial in one round; the last round adds them to the buckets. */
static enum snug_status run_trial(const struct compiled_step *compiled, int trial, int round,
                                  struct gathered *all, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    int n_steps = trials[trial].seq == LONGEST ? 1 : 2;
    size_t n_ops = (size_t)prog->n_ops + 1;
    double *seconds = malloc(n_ops * (size_t)n_steps * sizeof *seconds), *least = all->least[trial];
    if (least == NULL)
        least = all->least[trial] = malloc(n_ops * sizeof *least);
    enum snug_status status = seconds == NULL || least == NULL
                                  ? snug_fail(err, SNUG_NO_MEMORY, "out of memory")
                                  : bench_op_seconds(compiled, n_steps, seconds, err);
    for (int i = 0; i < prog->n_ops && status == SNUG_OK; i++) {
        double own = least_of(seconds + i * n_steps, n_steps);
        least[i] = round == 0 || own < least[i] ? own : least[i];
        if (round == N_ROUNDS - 1)
            add_op(all, prog, &prog->ops[i], least[i]);
    }
    free(seconds);
    return status;
}

static enum snug_status compile_trial(int trial, int round, struct gathered *all,
                                      struct snug_error *err)
{
    const struct trial *t = &trials[trial];
    struct snug_model model = {
        .family = t->subject == IMAGES ? MODEL_vision : MODEL_decoder,
        .name = "rates",
        .decoder = t->subject == LLAMA ? llama_block : decoder_gpt2(1, 12, 768, 1024, 8192),
        .vision = images};
    struct compiled_step compiled;
    snug_recipe *recipe = snug_recipe_new();
    enum snug_status status =
        recipe == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
    for (int i = 0; i < SETTINGS_MAX && t->settings[i][0] != NULL && status == SNUG_OK; i++)
        status = snug_recipe_set(recipe, t->settings[i][0], t->settings[i][1], err);
    if (status == SNUG_OK) {
        recipe->threads = all->target.threads;
        struct compile_request q = {.model = &model,
                                    .recipe = recipe,
                                    .train = true,
                                    .batch = t->batch,
                                    .seq = t->seq,
                                    .target = &all->target};
        status = compile_step(&q, &compiled, err);
    }
    if (status == SNUG_OK) {
        status = run_trial(&compiled, trial, round, all, err);
        compiled_step_free(&compiled);
    }
    snug_recipe_free(recipe);
    return status;
}

static void draw_curve(const struct bucket buckets[RATE_POINTS_MAX], struct rate_curve *curve)
{
    for (int k = 0; k < RATE_POINTS_MAX; k++)
        if (buckets[k].n > 0)
            curve->points[curve->n_points++] = (struct rate_point){
                exp(buckets[k].log_size / buckets[k].n), buckets[k].work / buckets[k].seconds};
}

/* Computes the curves, and the rates for kinds without one: flops from the largest fp32 matmuls,
 * bytes from the update of large tensors. */
static void draw_curves(struct gathered *all)
{
    struct device_rates *rates = &all->rates->rates;
    for (int i = 0; i < rates->n_curves; i++) {
        struct rate_curve *curve = &all->rates->curves[i];
        draw_curve(all->buckets[i], curve);
        if (curve->n_points == 0 || curve->dtype != DTYPE_f32 || curve->variant != 0)
            continue;
        double rate = curve->points[curve->n_points - 1].rate;
        if (curve->kind == OP_linear)
            rates->flops = rate;
        else if (curve->kind == OP_update)
            rates->bytes = fmax(rates->bytes, rate);
    }
}

enum snug_status rates_measure(const struct snug_recipe *recipe, struct machine_rates *rates,
                               struct snug_error *err)
{
    int threads = recipe_threads(recipe);
    struct device_limits limits;
    struct gathered *all = calloc(1, sizeof *all);
    struct device_facts facts = {.threads = threads, .isa = backend_cpu_isa()};
    if (all == NULL || !backend_cpu()->measure(&facts, &limits)) {
        free(all);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    rates->rates = (struct device_rates){.bytes = limits.update_bytes, .curves = rates->curves};
    all->rates = rates;
    all->target.threads = threads;
    all->target.isa = facts.isa;
    all->target.rates.rates = rates_generic_cpu(threads);
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < N_ROUNDS * N_TRIALS && status == SNUG_OK; i++)
        status = compile_trial(i % N_TRIALS, i / N_TRIALS, all, err);
    for (int i = 0; i < N_TRIALS; i++)
        free(all->least[i]);
    draw_curves(all);
    free(all);
    return status;
}
