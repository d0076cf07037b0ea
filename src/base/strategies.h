/*
 * strategies.h -- the choices that a recipe names and that passes, the data loader and the time estimate carry
 * out: the one place that both sides include.
 */
#ifndef SNUG_BASE_STRATEGIES_H
#define SNUG_BASE_STRATEGIES_H

#include <stdbool.h>

/* --checkpoint: which activations are recomputed in backward instead of being saved. */
enum checkpoint_how {
    CHECKPOINT_none,
    CHECKPOINT_cheap, /* cheap ones: activation functions, norms, dropout */
    CHECKPOINT_all,   /* all of them: for each layer again from the model's inputs */
    CHECKPOINT_sqrt,  /* about sqrt(layers) segments, whose inputs are saved */
    CHECKPOINT_every, /* segments of K layers */
    CHECKPOINT_auto   /* the least recomputation that fits the budget */
};

/* --offload: bits, what lives in the offload pool between its uses. */
enum offload { OFFLOAD_none, OFFLOAD_states = 1, OFFLOAD_activations = 2 };

/* --parallel: the model is on every rank, or on rank 0 (parameter server). */
enum parallel { PARALLEL_ddp, PARALLEL_ps };

/* --pipeline: in which order the stages run forward and backward of the micro-batches. */
enum pipeline {
    PIPELINE_none,
    PIPELINE_naive, /* one micro-batch at a time */
    PIPELINE_gpipe, /* all forward, then all backward */
    PIPELINE_1f1b,  /* as gpipe, with no more micro-batches in flight than keep all stages busy */
    PIPELINE_pipedream /* as 1f1b, and every micro-batch is an update of its own */
};

enum { STAGES_MAX = 1024 };

/* --lora-on: which linear layers have adapters. */
enum lora_on { LORA_ON_attention, LORA_ON_mlp, LORA_ON_all };

/* --augment: bits, of training images. */
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
