/*
 * optim.h -- an optimizer: its options, its states per parameter and the ops of its update.
 * Elementwise optimizers are written with optim/rule.h.
 */
#ifndef SNUG_OPTIM_OPTIM_H
#define SNUG_OPTIM_OPTIM_H

#include "ir/program.h"

struct text;

enum optim_kind { OPTIM_matrix, OPTIM_vector, OPTIM_embedding, OPTIM_head };

struct optim_target { /* one parameter, ready to be updated */
    struct program *prog;
    tensor_id grad, scalars, weight;
    tensor_id master; /* fp32 copy of a 16-bit weight, or TENSOR_NONE */
    enum optim_kind kind;
    enum weight_layout layout; /* of a linear layer's matrix */
    const struct optimizer *optimizer;
    const double *options; /* the optimizer's options, in its order */
    double decay, lr_factor;
    double lr;                /* --lr or the optimizer's default */
    enum direction direction; /* not none: grad is a direction computed by an op (see op update) */
    int state_bits;           /* 32; 16: bf16; 8, 4: quantized if the tensor is large enough */
    struct snug_error *err;
};

struct optim_rate {         /* what a learning-rate schedule depends on */
    double lr, t;           /* --lr; this step, counted from 1 */
    double n_steps, warmup; /* steps of the run; warmup steps */
};

struct optimizer {
    const char *name;
    const char *about;            /* one line for the help */
    const struct optimizer *like; /* the optimizer whose rule and states it uses; NULL: its own */
    enum rule rule;
    const char *states;    /* "m, v": tensors m.WEIGHT and v.WEIGHT; NULL: emit adds them */
    const char *states_if; /* it has states only if this option is above 0; NULL: always */
    const char *positive;  /* the states that are never negative */
    const char *copies;    /* the states that start as a copy of the weight and are always fp32 */
    /* "beta1, beta2, eps", those that the rule reads first.  NULL: the options and defaults of
     * `like`. */
    const char *options;
    double defaults[MAX_OPTIONS]; /* of the options */
    double default_lr, default_decay;
    bool own_decay; /* it has its own weight decay: --weight-decay is an error */
    int state_bits; /* 0: 32 */
    /* Evaluation and saved models use this average of the weights, computed from the states
     * AVERAGE_STATE.WEIGHT. */
    enum average average;
    const char *average_state;
    /* The default learning rate, computed from the program, for optimizers without a default_lr. */
    double (*usual_lr)(const struct program *prog, double n_steps, double warmup);
    /* The learning rate of update t (from 1) if there is no --lr.  It is relative: each tensor
     * multiplies it by the size of its weights.  --schedule, --warmup and --scale-lr apply to it as
     * to --lr. */
    double (*relative_lr)(double t);
    /* The learning rate of a step, for optimizers with their own schedule; NULL: use --schedule. */
    double (*lr_at)(const struct optim_rate *rate, const double *options);
    /* Adds the states of one parameter, then the ops that update it. */
    enum snug_status (*emit)(const struct optim_target *target);
    /* Used instead of emit by optimizers whose update depends on all parameters. */
    enum snug_status (*emit_all)(const struct optim_target *targets, int n_targets);
};

#define RULE(name) extern const struct optimizer optimizer_##name;
#include "ir/rules.def"
#undef RULE

const struct optimizer *optimizer_find(const char *name); /* NULL: unknown name */
const struct optimizer *optimizer_at(int index);          /* NULL: past the last */
void optimizer_list_names(struct text *out);              /* "adamw, adam, ..." */
void optimizer_list(struct text *out);                    /* one line each: name, description */

/* Reads `name=value,...` into values, which hold the defaults.  The error for an unknown name lists
 * the options. */
void optimizer_default_options(const struct optimizer *optimizer, double values[MAX_OPTIONS]);
enum snug_status optimizer_read_options(const struct optimizer *optimizer, const char *text,
                                        double values[MAX_OPTIONS], struct snug_error *err);
/* Does --state-bits change any state?  Not for soap, say, whose states are all fp32. */
bool optimizer_has_state_bits(const struct optimizer *optimizer, const double *options);
void optimizer_write_options(const struct optimizer *optimizer, const double *values,
                             struct text *out);

/* The emit of every elementwise optimizer: adds its states and one op `update`.  An optimizer that
 * delegates some tensors to another calls it with the optimizer, options, decay and lr_factor of
 * the other. */
enum snug_status optim_emit_rule(const struct optim_target *target);

/* For optimizers that work on whole matrices: adds an op of this kind, which computes a direction
 * from the gradient and the states, and an `update` that applies it by the rule of `apply` (sgd's,
 * say).  `options` are those of the direction op. */
enum snug_status optim_emit_direction(const struct optim_target *target, enum op_kind kind,
                                      const double options[MAX_OPTIONS], int n_states,
                                      const tensor_id *states, const struct optim_target *apply);

/* Adds a state PREFIX.WEIGHT, initially zero; shape NULL: that of the weight. */
enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, const struct shape *shape, tensor_id *id);

/* Adds the fp32 master of a 16-bit weight. */
enum snug_status optim_add_master(const struct optim_target *target, tensor_id *id);

/* Adds an fp32 state PREFIX.WEIGHT that starts as a copy of the weight.  If PREFIX is the
 * average_state and the tensor already exists, returns that one. */
enum snug_status optim_add_copy(const struct optim_target *target, const char *prefix,
                                tensor_id *id);

/* Fails if beta1, the first option, is 0: then x cannot be computed from y and z. */
enum snug_status optim_check_schedule_free(const struct optim_target *target);

/* Adds the op that computes, once per step before all updates, the step's weight in the average. */
enum snug_status optim_add_average_clock(const struct optim_target *target);

/* Adds a tensor step.WEIGHT for the direction that an op computes from the gradient and the op
 * update applies.  It may alias the gradient. */
enum snug_status optim_add_direction(const struct optim_target *target, tensor_id *id);

#endif
