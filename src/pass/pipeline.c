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

/* Are the frozen matrices stored in another type than the other weights? */
static bool has_quantized_base(const struct pass_env *env)
{
    bool all_have_16 = env->config.compute != DTYPE_f32;
    return has_adapters(env) && env->config.base_bits != 0 &&
           !(env->config.base_bits == 16 && all_have_16);
}

/* Batch norm uses its running averages in an evaluation, and in a frozen model (LoRA). */
static bool uses_running_averages(const struct pass_env *env)
{
    return !env->config.train || has_adapters(env);
}

/* An evaluation of a run whose optimizer averages the weights. */
static bool reads_averages(const struct pass_env *env)
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
    X(inference,   uses_running_averages)  /* batch norm reads its running averages */             \
    X(regularize,  is_regularized)         /* dropout, label smoothing */                          \
    X(lora,        has_adapters)           /* freezes the model, adds low-rank adapters */         \
    X(precision,   in_16_bits)             /* dtypes, casts of inputs */                           \
    X(average,     reads_averages)         /* an evaluation reads averaged weights */              \
    X(stage,       has_stages)             /* the layers of this pipeline stage */                 \
    X(autodiff,    in_training)            /* the backward half */                                 \
    X(checkpoint,  recomputes)             /* recompute activations: gradient_checkpointing.c */   \
    X(accumulate,  in_training)            /* micro-batches: the body repeats */                   \
    X(optimizer,   in_training)            /* gradient norm, states, updates */                    \
    X(fuse,        always)                 /* merge ops that have a fused kernel */                \
    X(dequantize,  has_quantized_base)     /* frozen matrices in fewer bits */                     \
    X(drop_dead,   always)                 /* remove ops whose results nobody reads */             \
    X(unroll,      is_unrolled)            /* micro-batches in pipeline order */                   \
    X(shard,       has_ranks)              /* collectives, shards of the rank */                   \
    X(in_backward, updates_in_backward)    /* update when the gradient is complete */              \
    X(offload,     is_offloaded)           /* states, activations in the offload pool */           \
    X(bias_sums,   in_training)            /* bias gradients in the kernel of dy */                \
    X(book,        always)                 /* the kernel of each op, its workspace */
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
        return snug_fail(env->err, SNUG_BAD_ARGUMENT,
                         "there is no pass \"%s\"; --dump takes kernels, last or one of: %s", last,
                         pass_names());
    return SNUG_OK;
}
