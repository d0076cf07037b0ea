/*
 * rule.h -- what an elementwise optimizer is written with: one file says it all, once.
 *
 *     STATES(lion, m)                        numbers kept for each weight: s->m
 *     OPTIONS(lion, beta1, beta2)            what --opt sets: o->beta1
 *     CONSTANTS(lion, keep, beta1, ...)      numbers of one step, the same for all weights: k->keep
 *     PREPARE(lion) { ... }                  the constants, in fp64, from o and now->lr, decay, t
 *     STEP(lion) { ... }                     one weight: reads g, changes *w and s
 *     OPTIMIZER(lion, .about = ..., ...)     the description, a struct optimizer
 *
 * Compiled alone, the file is the description.  The kernels include it (optim/rules.h) with RULE_REAL
 * set to the type that they compute in, and get PREPARE and STEP: fp64 in the reference, fp32 in the
 * fast rows, where the compiler makes vectors of STEP.  So it may not branch to different work, and
 * calls nothing but root, power, larger and sign.  Numbers that are not whole come from the constants:
 * computed in fp64, they are rounded once.
 */
#ifndef SNUG_OPTIM_RULE_H
#define SNUG_OPTIM_RULE_H

#include <math.h>

#include "base/device_fn.h"

#ifdef RULE_REAL
typedef RULE_REAL real;
#define RULE_NAMES(name, what, text)
#define OPTIMIZER(rule_name, ...)
#define OPTIMIZER_LIKE(id, rule_name, ...)
#else
#include "optim/optim.h"
typedef double real;
#define RULE_NAMES(name, what, text) static const char name##_##what##_names[] = text;
#define OPTIMIZER(rule_name, ...)                                                        \
    const struct optimizer optimizer_##rule_name = {.name = #rule_name,                  \
                                                    .rule = RULE_##rule_name,            \
                                                    .states = rule_name##_state_names,   \
                                                    .options = rule_name##_option_names, \
                                                    .emit = optim_emit_rule,             \
                                                    __VA_ARGS__};
/* Another optimizer with the same rule, states and options. */
#define OPTIMIZER_LIKE(id, rule_name, ...)    \
    const struct optimizer optimizer_##id = { \
        .name = #id, .like = &optimizer_##rule_name, .emit = optim_emit_rule, __VA_ARGS__};
#endif

#define RULE_FUNCTION DEVICE_FN __attribute__((unused))

struct rule_now {         /* what PREPARE may read */
    double lr, decay;     /* of this tensor */
    double t, n_steps;    /* this update, from 1; how many the run will make */
    double average_share; /* of this update in the average of the weights */
    double d, d_before;   /* Prodigy's estimate with and without this gradient */
};

/* A struct of numbers can be walked as an array of them: the kernels fill it so. */
#define STATES(name, ...)                                                   \
    struct name##_states {                                                  \
        real __VA_ARGS__;                                                   \
    };                                                                      \
    enum { name##_n_states = sizeof(struct name##_states) / sizeof(real) }; \
    RULE_NAMES(name, state, #__VA_ARGS__)
#define NO_STATES(name)           \
    struct name##_states {        \
        real none;                \
    };                            \
    enum { name##_n_states = 0 }; \
    RULE_NAMES(name, state, "")

#define OPTIONS(name, ...)  \
    struct name##_options { \
        double __VA_ARGS__; \
    };                      \
    RULE_NAMES(name, option, #__VA_ARGS__)
#define NO_OPTIONS(name)    \
    struct name##_options { \
        double none;        \
    };                      \
    RULE_NAMES(name, option, "")

#define CONSTANTS(name, ...)        \
    struct name##_constants {       \
        real __VA_ARGS__;           \
    };                              \
    struct name##_exact_constants { \
        double __VA_ARGS__;         \
    };

#define PREPARE(name)                                                                         \
    RULE_FUNCTION void prepare_##name(const struct name##_options *o __attribute__((unused)), \
                                      const struct rule_now *now __attribute__((unused)),     \
                                      struct name##_exact_constants *k)

#define STEP(name)                                                                    \
    RULE_FUNCTION void step_##name(const struct name##_constants *k, real g, real *w, \
                                   struct name##_states *s __attribute__((unused)))

RULE_FUNCTION real root(real x)
{
#ifdef __cplusplus /* CUDA */
    return sqrt(x);
#else
    return _Generic(x, float : sqrtf, double : sqrt)(x);
#endif
}

/* x^p, x not negative.  A kernel with a faster one says so. */
RULE_FUNCTION real power(real x, real p)
{
#if defined(RULE_POWER)
    return RULE_POWER(x, p);
#elif defined(__cplusplus)
    return pow(x, p);
#else
    return _Generic(x, float : powf, double : pow)(x, p);
#endif
}

RULE_FUNCTION real larger(real a, real b)
{
    return a > b ? a : b;
}

RULE_FUNCTION real sign(real x)
{
    return x > 0 ? (real)1 : x < 0 ? (real)-1 : (real)0;
}

#endif
