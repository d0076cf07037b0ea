/*
 * lr_schedule.c -- the learning rate of every step.
 *
 * All first rise over --warmup steps.  What follows, as a share of --lr:
 *
 *     constant         1
 *     linear, cosine   down to --lr-end at the last step
 *     wsd              1 (warm-up, stable), from --decay-from of the steps on down to --lr-end
 *     cyclic           the steps in --cycles equal parts, each warm-up and cosine again
 *
 * --lr itself may be scaled with the batch: tuned at --base-batch, it is multiplied by the ratio of
 * the batches, or by its root.
 */
#include "recipe/recipe.h"

#include <math.h>

bool recipe_lr_is_relative(const struct snug_recipe *recipe)
{
    return recipe->optimizer->relative_lr != NULL && recipe_lr(recipe) <= 0;
}

double recipe_scaled_lr(const struct snug_recipe *recipe, int64_t batch, double update)
{
    double lr =
        recipe_lr_is_relative(recipe) ? recipe->optimizer->relative_lr(update) : recipe_lr(recipe);
    double ratio = recipe->base_batch > 0 ? (double)batch / (double)recipe->base_batch : 1.0;
    switch ((enum lr_scaling)recipe->scale_lr) {
    case SCALE_LR_none:
        break;
    case SCALE_LR_linear:
        return lr * ratio;
    case SCALE_LR_sqrt:
        return lr * sqrt(ratio);
    }
    return lr;
}

/* Steps of a stretch of which the first `warmup` rise. */
struct stretch {
    int64_t at, length; /* steps done of it, and in all */
};

/* From 0 at the first step after the warm-up to 1 at the last of all. */
static double share_done(struct stretch s, int64_t warmup)
{
    int64_t left = s.length - warmup;
    double done = left <= 1 ? 0 : (double)(s.at - warmup) / (double)(left - 1);
    return done > 1 ? 1 : done;
}

static double cosine(double done, double end)
{
    return end + (1 - end) * 0.5 * (1 + cos(acos(-1) * done));
}

/* Where part k of a run begins; parts differ by a step where they do not divide it. */
static int64_t cycle_begin(int64_t n_steps, int64_t n_cycles, int64_t k)
{
    return n_steps / n_cycles * k + n_steps % n_cycles * k / n_cycles;
}

static struct stretch cycle_of(int64_t step, int64_t n_steps, int64_t n_cycles)
{
    int64_t k = (int64_t)((double)step / (double)n_steps * (double)n_cycles);
    while (k > 0 && cycle_begin(n_steps, n_cycles, k) > step)
        k--;
    while (k < n_cycles - 1 && cycle_begin(n_steps, n_cycles, k + 1) <= step)
        k++;
    int64_t begin = cycle_begin(n_steps, n_cycles, k);
    return (struct stretch){step - begin, cycle_begin(n_steps, n_cycles, k + 1) - begin};
}

double recipe_lr_at(const struct snug_recipe *recipe, int64_t batch, int64_t step, int64_t n_steps,
                    double update)
{
    double lr = recipe_scaled_lr(recipe, batch, update), end = recipe->lr_end;
    double options[MAX_OPTIONS];
    if (recipe->optimizer->lr_at != NULL && recipe_options(recipe, options, NULL) == SNUG_OK) {
        struct optim_rate rate = {lr, (double)(step + 1), (double)n_steps, (double)recipe->warmup};
        return recipe->optimizer->lr_at(&rate, options);
    }
    struct stretch all = {step, n_steps};
    if (recipe->schedule == SCHEDULE_cyclic)
        all = cycle_of(step, n_steps, recipe->cycles);
    if (all.at < recipe->warmup)
        return lr * (double)(all.at + 1) / (double)recipe->warmup;
    double done = share_done(all, recipe->warmup);
    switch ((enum schedule)recipe->schedule) {
    case SCHEDULE_constant:
        return lr;
    case SCHEDULE_linear:
        return lr * (1 - (1 - end) * done);
    case SCHEDULE_cosine:
    case SCHEDULE_cyclic:
        return lr * cosine(done, end);
    case SCHEDULE_wsd: {
        int64_t begin = (int64_t)floor(recipe->decay_from * (double)n_steps);
        if (step < begin)
            return lr;
        done = fmin(1, (double)(step - begin + 1) / (double)(n_steps - begin));
        return lr * (1 - (1 - end) * done);
    }
    }
    return lr;
}

/* What a stage cannot do, and what to do instead. */
static enum snug_status check_stage(const struct snug_recipe *recipe, struct snug_error *err)
{
    const struct {
        bool is_asked;
        const char *what, *instead;
    } missing[] = {
        {recipe->in_backward != 0, "--update in-backward",
         "gradients are sums over micro-batches and live through all of them; use --update end"},
        {recipe->lora > 0, "--lora",
         "a run saves the model with its adapters in it, and no rank has all of it; use --parallel "
         "ddp with --zero 1"},
        {recipe->offload != OFFLOAD_none, "--offload",
         "what is sent has to stay where it is until it has arrived; take more stages instead"},
        {recipe->zero == 2, "--zero 2", "use --zero 1"},
        {recipe->zero == 3, "--zero 3", "use --zero 1"},
        {recipe->parallel == PARALLEL_ps, "--parallel ps", "use --parallel ddp"},
    };
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i].is_asked)
            return snug_fail(err, SNUG_UNSUPPORTED, "%s is not there with --pipeline %s: %s",
                             missing[i].what, recipe_pipeline_name(recipe), missing[i].instead);
    if (recipe->optimizer->average != AVERAGE_none || recipe->optimizer->emit_all != NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "--optimizer %s needs all weights on every rank: use --parallel ddp",
                         recipe->optimizer->name);
    return SNUG_OK;
}

static enum snug_status check_stages(const struct snug_recipe *recipe, struct snug_error *err)
{
    long long ranks = recipe->ranks > 1 ? recipe->ranks : 1, stages = recipe_stages(recipe);
    bool is_async = recipe->pipeline == PIPELINE_pipedream;
    if (recipe->pipeline == PIPELINE_none && recipe->stages > 1)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--stages %lld says nothing without --pipeline: choose gpipe or 1f1b",
                         (long long)recipe->stages);
    if (ranks < stages)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--stages %lld needs as many ranks, and there %s %lld: give --ranks to a plan, or "
            "start as mpirun -n %lld",
            stages, ranks == 1 ? "is" : "are", ranks, stages);
    if (ranks % stages != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--stages %lld cannot share %lld rank%s equally: choose a divisor", stages,
                         ranks, ranks == 1 ? "" : "s");
    if (is_async && ranks != stages)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--pipeline pipedream has one rank for each stage: leave --stages out, or "
                         "use 1f1b");
    if (is_async && recipe->precision == DTYPE_f16)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--pipeline pipedream has no loss scale that all stages agree on: use "
                         "--precision bf16");
    return stages > 1 || is_async ? check_stage(recipe, err) : SNUG_OK;
}

/* Keys that the optimizer would not read. */
static enum snug_status check_optimizer(const struct snug_recipe *recipe, struct snug_error *err)
{
    const struct optimizer *optimizer = recipe->optimizer;
    double options[MAX_OPTIONS];
    TRY(recipe_options(recipe, options, err));
    if (optimizer->own_decay && recipe_weight_decay(recipe) > 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--optimizer %s decays weights by a rule of its own: leave --weight-decay "
                         "out, or see its options in --opt",
                         optimizer->name);
    if (optimizer->lr_at != NULL && recipe->schedule != SCHEDULE_constant)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--optimizer %s has a schedule of its own: leave --schedule out",
                         optimizer->name);
    if (recipe_state_bits(recipe) != 32 && !optimizer_has_state_bits(optimizer, options))
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--optimizer %s has no states that --state-bits applies to: leave it out",
                         optimizer->name);
    return SNUG_OK;
}

enum snug_status recipe_check(const struct snug_recipe *recipe, struct snug_error *err)
{
    if (recipe->scale_lr != SCALE_LR_none && recipe->base_batch == 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--scale-lr needs --base-batch: the batch that --lr was tuned for");
    if (recipe->scale_lr == SCALE_LR_none && recipe->base_batch > 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--base-batch says nothing without --scale-lr linear or sqrt");
    if (recipe->device == DEVICE_cuda && recipe->kernels != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--kernels reference is for --device cpu");
    if (recipe->parallel == PARALLEL_ps && recipe->zero > 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--parallel ps has the model on rank 0, --zero %d in shards: keep one",
                         recipe->zero);
    TRY(check_stages(recipe, err));
    TRY(check_optimizer(recipe, err));
    const char *idle = recipe->lora > 0                       ? NULL
                       : recipe->lora_on != LORA_ON_attention ? "lora-on"
                       : !isnan(recipe->lora_alpha)           ? "lora-alpha"
                       : recipe->lora_base != 0               ? "lora-base"
                       : recipe->lora_from[0] != '\0'         ? "lora-from"
                                                              : NULL;
    if (idle != NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--%s says nothing without --lora RANK", idle);
    return SNUG_OK;
}

enum snug_status recipe_check_steps(const struct snug_recipe *recipe, int64_t n_steps,
                                    struct snug_error *err)
{
    if (recipe->schedule == SCHEDULE_cyclic && n_steps / recipe->cycles <= recipe->warmup)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--cycles %lld of %lld steps leave no step after --warmup %lld: take fewer "
            "or longer ones",
            (long long)recipe->cycles, (long long)n_steps, (long long)recipe->warmup);
    if (recipe->schedule == SCHEDULE_wsd &&
        (double)recipe->warmup > recipe->decay_from * (double)n_steps)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--warmup %lld of %lld steps ends after --decay-from %g",
                         (long long)recipe->warmup, (long long)n_steps, recipe->decay_from);
    return SNUG_OK;
}
