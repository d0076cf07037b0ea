/*
 * optim.h -- what an optimizer is: its options, the states it keeps per parameter and the ops that
 * update it.  An elementwise one is written with optim/rule.h.
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
    enum weight_layout layout; /* of its layer */
    const struct optimizer *optimizer;
    const double *options; /* the optimizer's, in its order */
    double decay, lr_factor;
    double lr;                /* --lr or the optimizer's default */
    enum direction direction; /* grad is one that an op has made: see the op update */
    int state_bits; /* 32, 16: bf16; 8, 4: quantized elements where the tensor is large enough */
    struct snug_error *err;
};

struct optim_rate {                /* a learning rate's place in the run */
    double lr, t, n_steps, warmup; /* --lr; this step, from 1; of the run; of its beginning */
};

struct optimizer {
    const char *name;
    const char *about;            /* one line for the help */
    const struct optimizer *like; /* whose rule and states it has; NULL: its own */
    enum rule rule;
    const char *states;    /* "m, v": a tensor m.WEIGHT and v.WEIGHT each; NULL: emit adds them */
    const char *states_if; /* the option with which, above 0, there are any; NULL: always */
    const char *positive;  /* those of them that are never negative */
    const char *copies;    /* those that start as the weight, and are always fp32 */
    /* "beta1, beta2, eps": those that the rule reads first.  NULL: as `like`, with its defaults. */
    const char *options;
    double defaults[MAX_OPTIONS]; /* of the options */
    double default_lr, default_decay;
    bool own_decay; /* it decays weights by a rule of its own: --weight-decay is refused */
    int state_bits; /* 0: 32 */
    /* What evaluation and saved models use in the place of the weights: an average of them, made from
     * the states AVERAGE_STATE.WEIGHT. */
    enum average average;
    const char *average_state;
    /* --lr where neither the user nor default_lr gives one, from the states of the program. */
    double (*usual_lr)(const struct program *prog, double n_steps, double warmup);
    /* The learning rate of update t (from 1) where there is no --lr: each tensor multiplies it with the
     * size of its weights, and --schedule, --warmup and --scale-lr are applied to it as to --lr. */
    double (*relative_lr)(double t);
    /* The learning rate of a step, for those that have a schedule of their own; NULL: --schedule. */
    double (*lr_at)(const struct optim_rate *rate, const double *options);
    /* Adds the states of one parameter, then the ops that update it. */
    enum snug_status (*emit)(const struct optim_target *target);
    /* Instead of emit, for those that need numbers of all parameters at once. */
    enum snug_status (*emit_all)(const struct optim_target *targets, int n_targets);
};

#define RULE(name) extern const struct optimizer optimizer_##name;
#include "ir/rules.def"
#undef RULE

const struct optimizer *optimizer_find(const char *name); /* NULL: none of that name */
const struct optimizer *optimizer_at(int index);          /* NULL: past the last */
void optimizer_list_names(struct text *out);              /* "adamw, adam, ..." */
void optimizer_list(struct text *out);                    /* a line each: name, what it is */

/* `name=value,...` over values, which hold the defaults before.  The message of a refusal names the
 * options that there are. */
void optimizer_default_options(const struct optimizer *optimizer, double values[MAX_OPTIONS]);
enum snug_status optimizer_read_options(const struct optimizer *optimizer, const char *text,
                                        double values[MAX_OPTIONS], struct snug_error *err);
/* Are there states whose size --state-bits can change?  soap, say, has all of them in fp32. */
bool optimizer_has_state_bits(const struct optimizer *optimizer, const double *options);
void optimizer_write_options(const struct optimizer *optimizer, const double *values,
                             struct text *out);

/* The emit of every elementwise optimizer: its states and one op `update`.  An optimizer that leaves
 * some tensors to another calls it with a target whose optimizer, options, decay and lr_factor are
 * those of the other. */
enum snug_status optim_emit_rule(const struct optim_target *target);

/* For optimizers that work on whole matrices: an op of this kind makes a direction of the gradient and
 * the states, which `apply` then subtracts: another's rule without states (sgd's, say).  Options are
 * those of the op. */
enum snug_status optim_emit_direction(const struct optim_target *target, enum op_kind kind,
                                      const double options[MAX_OPTIONS], int n_states,
                                      const tensor_id *states, const struct optim_target *apply);

/* Adds a state tensor PREFIX.WEIGHT of any shape (NULL: the weight's), zero at the start. */
enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, const struct shape *shape, tensor_id *id);

/* Adds the fp32 master of a 16-bit weight. */
enum snug_status optim_add_master(const struct optim_target *target, tensor_id *id);

/* Adds a state PREFIX.WEIGHT in fp32 that starts as the weight.  That of the average (average_state) is added
 * once: the second time it is found. */
enum snug_status optim_add_copy(const struct optim_target *target, const char *prefix,
                                tensor_id *id);

/* Refuses a beta1 of 0 (the first option), with which x cannot be told from y and z. */
enum snug_status optim_check_schedule_free(const struct optim_target *target);

/* Adds the op that says once a step, before all updates, how the step counts in the average. */
enum snug_status optim_add_average_clock(const struct optim_target *target);

/* Adds a tensor step.WEIGHT for the direction of a step that an op makes of the gradient and the op update
 * then takes.  It can lie on the gradient. */
enum snug_status optim_add_direction(const struct optim_target *target, tensor_id *id);

#endif
