/*
 * pipeline.c -- the table of passes: which, in what order, and when.
 */
#include "optim/optim.h"
#include "pass/pass.h"

#include <string.h>

static bool always(const struct pass_env *env)
{
    (void)env;
    return true;
}

static bool in_training(const struct pass_env *env)
{
    return env->config.train;
}

static bool has_adapters(const struct pass_env *env)
{
    return env->config.lora_rank > 0;
}

/* Bits of the base that are not those of all weights. */
static bool has_quantized_base(const struct pass_env *env)
{
    bool all_have_16 = env->config.compute != DTYPE_f32;
    return has_adapters(env) && env->config.base_bits != 0 &&
           !(env->config.base_bits == 16 && all_have_16);
}

/* A model that is frozen has norms that are frozen, too. */
static bool does_not_move(const struct pass_env *env)
{
    return !env->config.train || has_adapters(env);
}

static bool beside_averages(const struct pass_env *env)
{
    return env->config.run != NULL && env->config.optimizer->average != AVERAGE_none;
}

static bool in_16_bits(const struct pass_env *env)
{
    return env->config.compute != DTYPE_f32;
}

static bool recomputes(const struct pass_env *env)
{
    return env->config.train && env->config.checkpoint.how != CHECKPOINT_none;
}

static bool is_regularized(const struct pass_env *env)
{
    return env->config.train &&
           (dropout_is_any(&env->config.dropout) || env->config.label_smoothing > 0);
}

static bool updates_in_backward(const struct pass_env *env)
{
    return env->config.train && env->config.in_backward;
}

static bool is_offloaded(const struct pass_env *env)
{
    return env->config.offload != OFFLOAD_none;
}

static bool has_stages(const struct pass_env *env)
{
    return env->config.ranks.n_stages > 1;
}

static bool is_unrolled(const struct pass_env *env)
{
    return env->config.train && (has_stages(env) || env->config.pipeline == PIPELINE_pipedream);
}

static bool has_ranks(const struct pass_env *env)
{
    return env->config.ranks.n_ranks > 1 || has_stages(env) || env->config.ranks.collectives_alone;
}

/* clang-format off */
#define PASS_LIST(X)                                                                               \
    X(inference,  does_not_move) /* running averages for those of the batch */                   \
    X(regularize, is_regularized) /* dropout, label smoothing */                                   \
    X(lora,       has_adapters) /* thin matrices beside frozen ones */                             \
    X(precision,  in_16_bits)  /* dtypes, casts of inputs */                                       \
    X(average,    beside_averages) /* of the weights, in their place */                            \
    X(stage,      has_stages)  /* this rank's part of the layers */                                \
    X(autodiff,   in_training) /* the backward half */                                             \
    X(checkpoint, recomputes)  /* recompute activations: gradient_checkpointing.c */               \
    X(accumulate, in_training) /* micro-batches as a repeated body */                              \
    X(optimizer,  in_training) /* gradient norm, states, updates */                                \
    X(fuse,       always)      /* as coarse as the best kernels */                                 \
    X(dequantize,     has_quantized_base) /* frozen matrices in fewer bits */                              \
    X(drop_dead,  always)      /* what nobody reads */                                             \
    X(unroll,     is_unrolled) /* micro-batches in the order of the pipeline */                    \
    X(shard,      has_ranks)   /* sums over ranks, and who has what */                             \
    X(in_backward, updates_in_backward) /* updates where gradients are complete */                 \
    X(offload,    is_offloaded) /* states and activations to the offload pool, and back */                \
    X(bias_sums,  in_training) /* where a gradient is made, not where it is read */                \
    X(book,       always)      /* the kernel of each op, its workspace */
/* clang-format on */

static const struct {
    const char *name;
    pass_fn *run;
    bool (*enabled)(const struct pass_env *env);
} passes[] = {
#define PASS_ROW(name, enabled) {#name, pass_##name, enabled},
    PASS_LIST(PASS_ROW)
#undef PASS_ROW
};
enum { N_PASSES = (int)(sizeof passes / sizeof *passes) };

const char *pass_names(void)
{
#define PASS_WORD(name, enabled) " " #name
    return "model" PASS_LIST(PASS_WORD);
#undef PASS_WORD
}

enum snug_status pass_run(struct program *prog, struct pass_env *env, const char *last)
{
    if (last != NULL && strcmp(last, "model") == 0)
        return SNUG_OK;
    env->results.rank = env->config.ranks.rank;
    for (int i = 0; i < N_PASSES; i++) {
        if (passes[i].enabled(env))
            TRY(passes[i].run(prog, env));
#ifdef SNUG_DEBUG
        struct snug_error broken;
        enum snug_status status = program_verify(prog, &broken);
        if (status != SNUG_OK)
            return snug_fail(env->err, status == SNUG_NO_MEMORY ? status : SNUG_BAD_PROGRAM,
                             "after pass %s: %.400s", passes[i].name, broken.message);
#endif
        if (last != NULL && strcmp(last, passes[i].name) == 0)
            return SNUG_OK;
    }
    if (last != NULL && strcmp(last, "last") != 0)
        return snug_fail(env->err, SNUG_BAD_ARGUMENT, "there is no pass \"%s\"; the passes are: %s",
                         last, pass_names());
    return SNUG_OK;
}
