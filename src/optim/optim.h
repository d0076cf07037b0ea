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
    const struct optimizer *optimizer;
    const double *options; /* the optimizer's, in its order */
    double decay, lr_factor;
    int state_bits; /* 32, 16: bf16; 8, 4: codes where the tensor is large enough */
    struct snug_error *err;
};

struct optimizer {
    const char *name;
    const char *about;            /* one line for the help */
    const struct optimizer *like; /* whose rule, states and options it has; NULL: its own */
    enum rule rule;
    const char *states;           /* "m, v": a tensor m.WEIGHT and v.WEIGHT each */
    const char *positive;         /* those of them that are never negative */
    const char *options;          /* "beta1, beta2, eps" */
    double defaults[MAX_OPTIONS]; /* of the options */
    double default_lr, default_decay;
    int state_bits;       /* 0: 32 */
    const char *schedule; /* of the learning rate, where the user names none; NULL: constant */
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

/* `name=value,...` over values, which hold the defaults before.  The message of a refusal names the
 * options that there are. */
void optimizer_default_options(const struct optimizer *optimizer, double values[MAX_OPTIONS]);
enum snug_status optimizer_read_options(const struct optimizer *optimizer, const char *text,
                                        double values[MAX_OPTIONS], struct snug_error *err);
void optimizer_write_options(const struct optimizer *optimizer, const double *values,
                             struct text *out);

/* The emit of every elementwise optimizer: its states and one op `update`.  An optimizer that leaves
 * some tensors to another calls it with a target whose optimizer, options, decay and lr_factor are
 * those of the other. */
enum snug_status optim_emit_rule(const struct optim_target *target);

/* Adds a state tensor PREFIX.WEIGHT of any shape (NULL: the weight's), zero at the start. */
enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, const struct shape *shape, tensor_id *id);

#endif
