/*
 * pass.h -- a pass: it takes a program and rewrites it in place.
 *
 * The pipeline is the table in pipeline.c.  Every pass leaves a program that program_verify
 * accepts.  Debug builds verify after each pass, and the program can be dumped after any pass by
 * name.
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
    UPDATES_WAIT, /* at the end: they need the norm of gradients summed over micro-batches */
    UPDATES_IN_BACKWARD,
    UPDATES_IN_LAST,  /* in the backward half of the last micro-batch */
    UPDATES_IN_SECOND /* backward runs twice: once for the norm, once with the updates */
};

struct checkpointing {
    enum checkpoint_how how;
    int64_t every;
    /* auto: the budget for activations, temporaries and gradients that the body allocates */
    int64_t room_bytes;
};
/* Found by auto: the smallest budget that has a schedule, and the budget that saves everything.
 * Both are estimates; the plan has the exact bytes. */
struct checkpoint_bounds {
    int64_t least_bytes, most_bytes;
};
struct rank_place {
    int n_ranks; /* data-parallel ranks that share the batch; 0 or 1 for a single rank */
    int rank;    /* this rank's index; -1: pass_shard picks the one with most weights and states */
    enum parallel parallel;
    int zero;               /* 1: states are sharded; 2: gradients too; 3: weights too */
    bool collectives_alone; /* emit the collectives for a single rank, to exercise them */
    int n_stages, stage;    /* pipeline stages, and this rank's; n_stages 0 or 1: no pipeline */
};
enum { RANK_KINDS_MAX = 16 };
/* The ranks of one stage are numbered consecutively. */
static inline int rank_at(const struct rank_place *place, int stage, int rank)
{
    return stage * (place->n_ranks > 1 ? place->n_ranks : 1) + rank;
}
/* How the blocks (blocks.h) are split into stages.  An evaluation reuses the split of its run. */
struct stage_cut {
    int n_stages;              /* 0: not split yet */
    int begin[STAGES_MAX + 1]; /* the first block of each stage */
    int last_begin;            /* the first op of the last stage, in the whole forward program */
    double slowest;            /* time of the slowest stage, as a multiple of this stage's */
};

/* What the recipe asks for.  Passes only read it. */
struct pass_config {
    bool train;         /* false: forward only, for eval and generate */
    enum dtype compute; /* f32, bf16, f16 */
    bool master;        /* 16-bit weights have an fp32 master copy as optimizer state */
    int n_micro;        /* micro-batches accumulated per step */
    struct dropout_rates dropout;
    double label_smoothing;
    struct checkpointing checkpoint;

    int lora_rank;       /* rank of the adapters; 0: no adapters, all parameters are trained */
    const char *lora_on; /* the layers with adapters: names separated by commas */
    double lora_scale;   /* alpha / rank */
    int base_bits;       /* bits of frozen matrices: 16, 8, 4; 0: same type as the other weights */

    const struct optimizer *optimizer;
    const double *options; /* the optimizer's options, in its order */
    int state_bits;        /* bits per optimizer state element: 32, 16, 8, 4 */
    double lr, weight_decay, max_norm;
    bool in_backward; /* apply each update as soon as its gradient is complete */
    unsigned offload; /* bits of enum offload */
    struct rank_place ranks;
    enum pipeline pipeline;

    /* The training step whose weights and states this program evaluates; NULL: there is none. */
    const struct program *run;
    bool averages_only; /* compute only the averaged weights, as outputs */
};

/* What passes may ask about the device.  The answers depend on shapes only, so no pass knows which
 * device it compiles for.  A NULL function is never called. */
struct pass_device {
    const void *handle; /* first argument of every function below */
    /* Estimated time of an op, on a nominal device that is the same for all ranks. */
    double (*op_seconds)(const void *handle, const struct program *prog, const struct op *op);
    /* The kernel that runs an op, its workspace and its aliasing rule. */
    struct kernel_choice (*choose_kernel)(const void *handle, const struct program *prog,
                                          const struct op *op);
    /* Can the kernel sum the columns of its output at almost no cost? */
    bool (*sums_columns)(const void *handle, const struct program *prog, const struct op *op);
};

/* What passes leave for later passes and for plan reports.  Each comment starts with the pass that
 * writes the field. */
struct pass_results {
    /* autodiff, for checkpoint: the backward ops of forward op i are [backward_begin[i],
     * backward_begin[i - 1]); those of op 0 end with the list.  NULL once the list is rewritten. */
    int *backward_begin;
    int n_forward;
    double forward_flops; /* autodiff: per micro-batch, before fusion and recomputation */

    struct checkpoint_bounds checkpoint; /* checkpoint, with auto */

    bool *quantized; /* lora: per tensor of the model (n_quantized): is it stored in base_bits? */
    int n_quantized;

    struct stage_cut *cut; /* stage: an output, or an input if n_stages > 0; NULL: no stages */
    /* stage, unroll: if not NULL, receives the program of the whole model for one micro-batch */
    struct program *whole;
    bool *at_ends; /* stage: per tensor of the whole model: do both first and last stage read it? */
    int n_whole;   /* stage: number of tensors of the whole model */

    int rank; /* shard: config.ranks.rank, or the rank chosen for -1 */
    /* shard, for rank -1: one rank of each kind whose programs differ in sizes.  0: all ranks have
     * programs of the same sizes. */
    int rank_kinds[RANK_KINDS_MAX], n_rank_kinds;

    enum update_place update_place; /* in_backward: where the updates went */
    double repeated_flops;          /* in_backward: per step, of the second backward half */
};

struct pass_env {
    struct arena *scratch; /* the caller frees it after the pipeline */
    struct snug_error *err;
    struct pass_config config;
    struct pass_device device;
    struct pass_results results;
};

/* pass_NAME is in NAME.c, except pass_checkpoint: gradient_checkpointing.c. */
typedef enum snug_status pass_fn(struct program *prog, struct pass_env *env);

/* In the order of the pipeline.  The last one, book, chooses the kernel of every op and reserves
 * its workspace. */
pass_fn pass_inference, pass_regularize, pass_lora, pass_precision, pass_average, pass_stage,
    pass_autodiff, pass_checkpoint, pass_accumulate, pass_optimizer, pass_fuse, pass_dequantize,
    pass_drop_dead, pass_unroll, pass_shard, pass_in_backward, pass_offload, pass_bias_sums,
    pass_book;

/* pipeline.c */
/* Runs the pipeline up to and including the pass named `last` (NULL: all; "model": none). */
enum snug_status pass_run(struct program *prog, struct pass_env *env, const char *last);
/* The names of the passes in order, separated by spaces, for error messages. */
const char *pass_names(void);

#endif
