/*
 * recipe_check.c -- the checks of keys that contradict each other.
 */
#include "recipe/recipe.h"

#include <math.h>
#include <string.h>

/* Rejects flags that do not work with pipeline stages, with the reason or the alternative. */
static enum snug_status check_stage(const struct snug_recipe *recipe, struct snug_error *err)
{
    const struct {
        bool is_asked;
        const char *what, *instead;
    } missing[] = {
        {recipe->in_backward != 0, "--update in-backward",
         "gradients accumulate over all micro-batches; use --update end"},
        {recipe->lora > 0, "--lora",
         "a run saves the merged model, and no rank has all of it; use --zero 1 without a "
         "pipeline"},
        {recipe->offload != OFFLOAD_none, "--offload",
         "a tensor must stay in memory until it has been sent; use more stages instead"},
        {recipe->zero == 2, "--zero 2", "use --zero 1"},
        {recipe->zero == 3, "--zero 3", "use --zero 1"},
        {recipe->parallel == PARALLEL_ps, "--parallel ps", "use --parallel ddp"},
    };
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i].is_asked)
            return snug_fail(err, SNUG_UNSUPPORTED, "%s does not work with --pipeline %s: %s",
                             missing[i].what, recipe_pipeline_name(recipe), missing[i].instead);
    if (recipe->optimizer->average != AVERAGE_none || recipe->optimizer->emit_all != NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "--optimizer %s needs all weights on every rank: leave --pipeline out",
                         recipe->optimizer->name);
    return SNUG_OK;
}

static enum snug_status check_stages(const struct snug_recipe *recipe, struct snug_error *err)
{
    long long ranks = recipe->ranks > 1 ? recipe->ranks : 1, stages = recipe_stages(recipe);
    bool is_async = recipe->pipeline == PIPELINE_pipedream;
    if (recipe->pipeline == PIPELINE_none && recipe->stages > 1)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--stages %lld has no effect without --pipeline: add --pipeline 1f1b or gpipe",
            (long long)recipe->stages);
    if (ranks < stages)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--stages %lld needs at least that many ranks, but there %s %lld: plan "
                         "with --ranks, or "
                         "start with mpirun -n %lld",
                         stages, ranks == 1 ? "is" : "are", ranks, stages);
    if (ranks % stages != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--stages %lld does not divide %lld rank%s: choose a divisor", stages,
                         ranks, ranks == 1 ? "" : "s");
    if (is_async && ranks != stages)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--pipeline pipedream needs one rank for each stage: leave --stages out, or "
            "use 1f1b");
    if (is_async && recipe->precision == DTYPE_f16)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--pipeline pipedream does not support the loss scaling of fp16: use "
                         "--precision bf16");
    return stages > 1 || is_async ? check_stage(recipe, err) : SNUG_OK;
}

/* Rejects keys that the optimizer would ignore. */
static enum snug_status check_optimizer(const struct snug_recipe *recipe, struct snug_error *err)
{
    const struct optimizer *optimizer = recipe->optimizer;
    double options[MAX_OPTIONS];
    TRY(recipe_options(recipe, options, err));
    if (optimizer->own_decay && recipe_weight_decay(recipe) > 0)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--optimizer %s has its own weight decay: leave --weight-decay out, or set "
            "its options with --opt",
            optimizer->name);
    if (optimizer->lr_at != NULL && recipe->schedule != SCHEDULE_constant)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--optimizer %s has its own schedule: leave --schedule out",
                         optimizer->name);
    if (recipe_state_bits(recipe) != 32 && !optimizer_has_state_bits(optimizer, options))
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--optimizer %s has no states that --state-bits applies to: leave --state-bits "
            "out",
            optimizer->name);
    return SNUG_OK;
}

enum snug_status recipe_check(const struct snug_recipe *recipe, struct snug_error *err)
{
    if (recipe->scale_lr != SCALE_LR_none && recipe->base_batch == 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--scale-lr needs --base-batch: the batch that --lr was tuned for");
    if (recipe->scale_lr == SCALE_LR_none && recipe->base_batch > 0)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--base-batch has no effect without --scale-lr: add --scale-lr linear or sqrt");
    if (recipe->device == DEVICE_cuda && recipe->kernels != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--kernels reference needs --device cpu");
    if (recipe->parallel == PARALLEL_ps && recipe->zero > 0)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--parallel ps keeps all optimizer states on rank 0, --zero %d shards them: "
            "choose one",
            recipe->zero);
    TRY(check_stages(recipe, err));
    TRY(check_optimizer(recipe, err));
    const char *unused = recipe->lora > 0                                ? NULL
                         : strcmp(recipe->lora_on, LORA_ON_DEFAULT) != 0 ? "lora-on"
                         : !isnan(recipe->lora_alpha)                    ? "lora-alpha"
                         : recipe->lora_base != 0                        ? "lora-base"
                         : recipe->lora_from[0] != '\0'                  ? "lora-from"
                                                                         : NULL;
    if (unused != NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--%s has no effect without --lora RANK", unused);
    return SNUG_OK;
}

enum snug_status recipe_check_steps(const struct snug_recipe *recipe, int64_t n_steps,
                                    struct snug_error *err)
{
    if (recipe->schedule == SCHEDULE_cyclic && n_steps / recipe->cycles <= recipe->warmup)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--cycles %lld in %lld steps leaves no step after --warmup %lld: use "
                         "fewer cycles, more "
                         "steps or less warmup",
                         (long long)recipe->cycles, (long long)n_steps, (long long)recipe->warmup);
    if (recipe->schedule == SCHEDULE_wsd &&
        (double)recipe->warmup > recipe->decay_from * (double)n_steps)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--warmup %lld of %lld steps ends after --decay-from %g: use a shorter warmup",
            (long long)recipe->warmup, (long long)n_steps, recipe->decay_from);
    return SNUG_OK;
}
