/*
 * recipe.h -- the recipe: all settings that plan, train and eval read from flags or a recipe file.
 */
#ifndef SNUG_RECIPE_RECIPE_H
#define SNUG_RECIPE_RECIPE_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/strategies.h"
#include "base/text.h"
#include "optim/optim.h"

enum schedule {
    SCHEDULE_constant,
    SCHEDULE_linear,
    SCHEDULE_cosine,
    SCHEDULE_cyclic,
    SCHEDULE_wsd
};
enum lr_scaling { SCALE_LR_none, SCALE_LR_linear, SCALE_LR_sqrt };
enum network { /* bit/s, or NVLink */
               NETWORK_25G,
               NETWORK_1G,
               NETWORK_10G,
               NETWORK_100G,
               NETWORK_200G,
               NETWORK_400G,
               NETWORK_nvlink,
               NETWORKS
};
enum { DROPOUT_FROM_CONFIG = -1 }; /* use the rates in the model's config.json */
/* model: of the folder of the model; without one, bytes for vocabularies of at most 256 tokens. */
enum recipe_tokenizer { TOKENIZER_model, TOKENIZER_bytes, TOKENIZER_path };
enum recipe_loss { RECIPE_LOSS_model, RECIPE_LOSS_cross_entropy, RECIPE_LOSS_mse };

enum { OPT_TEXT_MAX = 512, LORA_FROM_MAX = 1024, MAX_THREADS = 1024 };

enum recipe_device { DEVICE_cpu, DEVICE_cuda };

struct snug_recipe {
    int device;           /* enum recipe_device */
    int threads;          /* 0: all cores */
    int kernels;          /* 0: fast, 1: reference */
    int nondeterministic; /* 1: allow nondeterministic GPU kernels where they are faster */
    int target;           /* enum target: device of the time estimates */
    int64_t batch, micro_batch, seq; /* 0: the model's default */
    int precision;                   /* enum dtype */
    const struct optimizer *optimizer;
    char opt[OPT_TEXT_MAX];  /* its options as typed; parsed once the optimizer is known */
    int state_bits;          /* 0: the optimizer's default */
    int no_master;           /* 1: 16-bit weights without an fp32 master */
    double lr, weight_decay; /* NAN: the optimizer's default */
    double clip;             /* 0: none */
    int in_backward;         /* 1: update each weight as soon as its gradient is ready */
    int schedule;            /* enum schedule */
    int64_t warmup;
    double lr_end;      /* final fraction of lr: linear, cosine, wsd, each cycle of cyclic */
    int64_t cycles;     /* for cyclic */
    double decay_from;  /* for wsd: fraction of the steps before the decay */
    int scale_lr;       /* enum lr_scaling */
    int64_t base_batch; /* that lr was tuned for; 0: not set */
    int loss;           /* enum recipe_loss */
    int augment;        /* enum data_augment */
    int tokenizer;      /* enum recipe_tokenizer */
    char tokenizer_path[LORA_FROM_MAX]; /* TOKENIZER_path: a folder or a file */
    double dropout, label_smoothing;    /* 0: none */
    int checkpoint;                     /* enum checkpoint_how */
    int64_t checkpoint_every;           /* layers, for CHECKPOINT_every */
    int offload;                        /* bits of enum offload */
    int64_t lora;                       /* rank of the adapters, 0: no LoRA */
    double lora_alpha;                  /* NAN: twice the rank */
    char lora_on[LORA_ON_MAX];          /* names of layers and groups, separated by commas */
    int lora_base;                      /* bits of the frozen matrices, 0: as precision */
    char lora_from[LORA_FROM_MAX];      /* folder of the adapter to start from, or "" */
    int64_t ranks;                      /* 0: not set */
    int parallel;                       /* enum parallel */
    int zero;                           /* 0..3: what is sharded */
    int pipeline;                       /* enum pipeline */
    int64_t stages;                     /* of a pipeline; 0: one per rank */
    int network;                        /* enum network */
    int64_t memory;                     /* bytes, 0: no budget */
    char memory_origin[96];             /* source of a default budget (default_memory.c), else "" */
    int64_t seed;
    uint64_t given; /* bit k: key k of the table was set by the user */
};

/* recipe_values.c */
enum dtype recipe_dtype(const struct snug_recipe *recipe);
/* The optimizer options: defaults, overridden by --opt. */
enum snug_status recipe_options(const struct snug_recipe *recipe, double values[MAX_OPTIONS],
                                struct snug_error *err);
int recipe_state_bits(const struct snug_recipe *recipe);
int recipe_stages(const struct snug_recipe *recipe); /* 1: no pipeline */
double recipe_lora_alpha(const struct snug_recipe *recipe);
/* Resets all LoRA keys. */
void recipe_clear_lora(struct snug_recipe *recipe);
double recipe_lr(const struct snug_recipe *recipe); /* before --scale-lr */
double recipe_weight_decay(const struct snug_recipe *recipe);
int recipe_threads(const struct snug_recipe *recipe);

/* lr_schedule.c.  Without --lr, does the optimizer scale its rate by the size of the weights? */
bool recipe_lr_is_relative(const struct snug_recipe *recipe);
/* The learning rate before --schedule.  `update` counts from 1, without skipped updates; a relative
 * rate depends on it. */
double recipe_scaled_lr(const struct snug_recipe *recipe, int64_t batch, double update);
/* The learning rate of step `step` (from 0) of n_steps, which applies update number `update`. */
double recipe_lr_at(const struct snug_recipe *recipe, int64_t batch, int64_t step, int64_t n_steps,
                    double update);

/* recipe_check.c.  Refuse keys that contradict each other; recipe_check_steps has the checks that
 * need n_steps. */
enum snug_status recipe_check(const struct snug_recipe *recipe, struct snug_error *err);
enum snug_status recipe_check_steps(const struct snug_recipe *recipe, int64_t n_steps,
                                    struct snug_error *err);

/* recipe.c: names of values as they are typed, and the keys by name. */
const char *recipe_precision_name(const struct snug_recipe *recipe);             /* "bf16" */
void recipe_checkpoint_name(const struct snug_recipe *recipe, struct text *out); /* "every:2" */
const char *recipe_offload_name(const struct snug_recipe *recipe);
const char *recipe_schedule_name(const struct snug_recipe *recipe);
const char *recipe_pipeline_name(const struct snug_recipe *recipe);
/* Sets a key from the saved recipe of a resumed run, unless the user set it.  For "opt" this holds
 * for each option; the optimizer must be set first. */
enum snug_status recipe_inherit(struct snug_recipe *recipe, const char *key, const char *value,
                                struct snug_error *err);
bool recipe_is_given(const struct snug_recipe *recipe, const char *key); /* by the user */
/* Adds the value of a key, or nothing if the model, the optimizer or a default decides. */
void recipe_get(const struct snug_recipe *recipe, const char *key, struct text *out);
/* Adds all keys as `key = value` lines that snug_recipe_read can parse. */
void recipe_write(const struct snug_recipe *recipe, struct text *out);

/* recipe_line.c: adds " --key value" for every key that the user set. */
void recipe_write_flags(const struct snug_recipe *recipe, struct text *out);

#endif
