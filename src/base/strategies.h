/*
 * strategies.h -- enums for choices in a recipe, shared by the recipe parser and the code that
 * implements them: passes, data loader, time estimate.
 */
#ifndef SNUG_BASE_STRATEGIES_H
#define SNUG_BASE_STRATEGIES_H

#include <stdbool.h>

/* --checkpoint: which activations are recomputed in backward instead of saved. */
enum checkpoint_how {
    CHECKPOINT_none,
    CHECKPOINT_cheap, /* cheap ones: activation functions, norms, dropout */
    CHECKPOINT_all,   /* all: each layer is recomputed from the model's inputs */
    CHECKPOINT_sqrt,  /* about sqrt(layers) segments, whose inputs are saved */
    CHECKPOINT_every, /* segments of K layers */
    CHECKPOINT_auto   /* the least recomputation that fits the budget */
};

/* --offload: a bit set of what is in the offload pool between uses. */
enum offload { OFFLOAD_none, OFFLOAD_states = 1, OFFLOAD_activations = 2 };

/* --parallel: every rank has the model (ddp), or rank 0 has it (ps, parameter server). */
enum parallel { PARALLEL_ddp, PARALLEL_ps };

/* --pipeline: the order in which stages run the forward and backward passes of micro-batches. */
enum pipeline {
    PIPELINE_none,
    PIPELINE_naive,    /* one micro-batch at a time */
    PIPELINE_gpipe,    /* all forward, then all backward */
    PIPELINE_1f1b,     /* like gpipe, with no more micro-batches in flight than stages */
    PIPELINE_pipedream /* like 1f1b, with an update after every micro-batch */
};

enum { STAGES_MAX = 1024 };

/* --lora-on: names of layers and groups of layers, separated by commas. */
#define LORA_ON_DEFAULT "attention"
enum { LORA_ON_MAX = 256, LORA_ON_WORD_MAX = 64 };

/* --augment: a bit set of augmentations for training images. */
enum data_augment { DATA_AUGMENT_none = 0, DATA_AUGMENT_flip = 1, DATA_AUGMENT_shift = 2 };

/* --target: the device whose speed a plan estimates. */
enum target {
    TARGET_here,
    TARGET_cpu,
    TARGET_v100,
    TARGET_a100,
    TARGET_h100,
    TARGET_h200,
    TARGET_4090,
    N_TARGETS
};
/* A GPU implies --device cuda unless a device was given. */
static inline bool target_is_gpu(enum target target)
{
    return target != TARGET_here && target != TARGET_cpu;
}

#endif
