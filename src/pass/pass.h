/*
 * pass.h -- a pass: program in, program out.
 *
 * The pipeline is the table in pipeline.c.  Every pass leaves a program that program_verify accepts;
 * debug builds check that after each one, and any of them can be dumped by name.
 */
#ifndef SNUG_PASS_PASS_H
#define SNUG_PASS_PASS_H

#include "base/strategies.h"
#include "ir/dropout_rates.h"
#include "ir/kernel_choice.h"
#include "ir/program.h"

struct optimizer;

enum update_place {
    UPDATES_AT_END,
    UPDATES_WAIT, /* at the end: with accumulation the norm is known no earlier */
    UPDATES_IN_BACKWARD,
    UPDATES_IN_LAST,  /* in the backward half of the last micro-batch */
    UPDATES_IN_SECOND /* backward twice: for the norm, then with the updates */
};

struct checkpointing {
    enum checkpoint_how how;
    int64_t every;
    int64_t room_bytes; /* auto: for activations, temporaries and gradients that come in the body */
};
/* Found by auto: the least room for which there is a way, and what is enough for all.  Both are estimates;
 * the plan says what is true. */
struct checkpoint_bounds {
    int64_t least_bytes, most_bytes;
};
struct rank_place {
    int n_ranks; /* that share the batch, each with this program; 0, 1: this one is alone */
    int rank;    /* among them; -1: the one with most weights and states, which shard finds */
    enum parallel parallel;
    int zero;               /* 1: states are sharded; 2: gradients too; 3: and weights */
    bool collectives_alone; /* with itself, to try the collectives */
    int n_stages, stage;    /* the model is cut into; this rank's.  0, 1: it is whole */
};
enum { RANK_KINDS_MAX = 16 };
/* Ranks with the same stage follow each other. */
static inline int rank_at(const struct rank_place *place, int stage, int rank)
{
    return stage * (place->n_ranks > 1 ? place->n_ranks : 1) + rank;
}
/* Where blocks (blocks.h) were cut into stages: so that an evaluation is cut like its run. */
struct stage_cut {
    int n_stages; /* 0: not yet */
    int begin[STAGES_MAX + 1];
    int last_begin; /* the first op of the last stage, in the whole forward program */
    double slowest; /* seconds of the slowest stage, as a multiple of this rank's */
};

/* What the recipe asks for, and the run beside which a program is made.  Passes read it and change nothing. */
struct pass_config {
    bool train;         /* false: forward only, for eval and generate */
    enum dtype compute; /* f32, bf16, f16 */
    bool master;        /* 16-bit weights keep an fp32 copy as optimizer state */
    int n_micro;        /* micro-batches accumulated per step */
    struct dropout_rates dropout;
    double label_smoothing;
    struct checkpointing checkpoint;

    int lora_rank; /* of adapters; 0: all parameters are trained */
    enum lora_on lora_on;
    double lora_scale; /* alpha / rank */
    int base_bits;     /* of frozen matrices: 16, 8, 4; 0: as all weights */

    const struct optimizer *optimizer;
    const double *options; /* the optimizer's, in its order */
    int state_bits;        /* of an optimizer state: 32, 16, 8, 4 */
    double lr, weight_decay, max_norm;
    bool in_backward; /* updates as soon as gradients are complete */
    unsigned offload; /* bits of enum offload */
    struct rank_place ranks;
    enum pipeline pipeline;

    const struct program *run; /* whose averages of weights are evaluated; NULL: the weights are */
    bool averages_only;        /* nothing but those averages, as outputs */
};

/* What passes may ask the device, through functions of shapes: no pass knows which device it is.  A function
 * that is NULL is not asked. */
struct pass_device {
    const void *handle; /* handed back to all of them */
    /* Seconds of an op, on a device that all ranks agree on. */
    double (*op_seconds)(const void *handle, const struct program *prog, const struct op *op);
    /* The kernel of an op, and what it asks of the plan. */
    struct kernel_choice (*choose_kernel)(const void *handle, const struct program *prog,
                                          const struct op *op);
    /* Does it sum the columns of its output for nearly nothing? */
    bool (*sums_columns)(const void *handle, const struct program *prog, const struct op *op);
};

/* What passes leave for later passes and for whoever explains the plan; the name is that of the pass. */
struct pass_results {
    /* autodiff, for checkpoint: the gradient of forward op i is the ops from backward_begin[i] up to
     * backward_begin[i - 1], of op 0 up to the last.  NULL once the list is rewritten. */
    int *backward_begin;
    int n_forward;
    double forward_flops; /* of those ops, a micro-batch: before anything is fused or repeated */

    struct checkpoint_bounds checkpoint; /* checkpoint, with auto */

    bool *quantized; /* lora: per tensor of the model, n_quantized: is it kept in base_bits? */
    int n_quantized;

    struct stage_cut *cut; /* stage: a place for it, or where the run was cut; NULL: no stages */
    /* stage, unroll: NULL, or a place for the program of the whole model, a micro-batch of it */
    struct program *whole;
    bool *at_ends; /* stage: per tensor of that, a weight of the first and of the last stage */
    int n_whole;   /* tensors of it */

    int rank; /* shard: that of config.ranks, or where it is -1 the one with most weights and states */
    /* shard, where it was -1: one rank of each kind whose programs differ in their sizes.  0: all ranks have
     * the same. */
    int rank_kinds[RANK_KINDS_MAX], n_rank_kinds;

    enum update_place update_place; /* in_backward: what it could do */
    double repeated_flops;          /* a step, of the second backward half */
};

struct pass_env {
    struct arena *scratch; /* freed by the caller after the pipeline */
    struct snug_error *err;
    struct pass_config config;
    struct pass_device device;
    struct pass_results results;
};

typedef enum snug_status pass_fn(struct program *prog, struct pass_env *env);

pass_fn pass_inference, pass_regularize, pass_lora, pass_precision, pass_average, pass_stage,
    pass_autodiff, pass_checkpoint, pass_accumulate, pass_optimizer, pass_fuse, pass_dequantize,
    pass_drop_dead, pass_unroll, pass_in_backward, pass_shard, pass_offload, pass_bias_sums,
    pass_book;

/* Runs the table up to and including the pass named `last` (NULL: all of them; "model": none). */
enum snug_status pass_run(struct program *prog, struct pass_env *env, const char *last);
/* The names, in order, separated by spaces: for messages. */
const char *pass_names(void);

#endif
