/*
 * pass.h -- a pass: program in, program out.
 *
 * The pipeline is the table in pipeline.c.  Every pass leaves a program that program_verify accepts;
 * debug builds check that after each one, and any of them can be dumped by name.
 */
#ifndef SNUG_PASS_PASS_H
#define SNUG_PASS_PASS_H

#include "ir/program.h"

struct optimizer;

enum lora_on { LORA_ON_attention, LORA_ON_mlp, LORA_ON_all };

struct pass_env {
    struct arena *scratch; /* freed by the caller after the pipeline */
    struct snug_error *err;

    bool train;         /* false: forward only, for eval and generate */
    enum dtype compute; /* f32, bf16, f16 */
    bool master;        /* 16-bit weights keep an fp32 copy as optimizer state */
    int n_micro;        /* micro-batches accumulated per step */
    double dropout, label_smoothing;

    int lora_rank; /* of adapters; 0: all parameters are trained */
    enum lora_on lora_on;
    double lora_scale; /* alpha / rank */
    int base_bits;     /* of frozen matrices: 16, 8, 4; 0: as all weights */
    bool *coded;       /* per tensor of the model, n_coded: is it kept in those?  Set by lora */
    int n_coded;

    const struct optimizer *optimizer;
    const double *options; /* the optimizer's, in its order */
    int state_bits;        /* of an optimizer state: 32, 16, 8, 4 */
    double lr, weight_decay, max_norm;

    const struct program *run; /* whose averages of weights are evaluated; NULL: the weights are */
    bool averages_only;        /* nothing but those averages, as outputs */

    /* How much workspace the kernel of an op wants; `device` is handed back. */
    size_t (*workspace_bytes)(const void *device, const struct program *prog, const struct op *op);
    const void *device;
};

typedef enum snug_status pass_fn(struct program *prog, struct pass_env *env);

pass_fn pass_inference, pass_regularize, pass_lora, pass_precision, pass_average, pass_autodiff,
    pass_decode, pass_accumulate, pass_optimizer, pass_fuse, pass_drop_dead, pass_book;

/* Runs the table up to and including the pass named `last` (NULL: all of them; "model": none). */
enum snug_status pass_run(struct program *prog, struct pass_env *env, const char *last);
/* The names, in order, separated by spaces: for messages. */
const char *pass_names(void);

#endif
