/*
 * rule.h -- macros to write an elementwise optimizer once, in one file, for all kernels.
 *
 *     STATES(lion, m)                        state per weight element: s->m
 *     OPTIONS(lion, beta1, beta2)            what --opt sets: o->beta1
 *     CONSTANTS(lion, keep, beta1, ...)      values of one step, the same for all elements: k->keep
 *     PREPARE(lion) { ... }                  computes the constants, in fp64, from o and now
 *     STEP(lion) { ... }                     updates one element: reads g, changes *w and s
 *     OPTIMIZER(lion, .about = ..., ...)     the description, a struct optimizer
 *
 * Compiled on its own, the file defines the description.  The kernels include it (optim/rules.h)
 * with RULE_REAL set to their compute type and get PREPARE and STEP: fp64 in the reference, fp32
 * in the fast kernels, where the compiler vectorizes STEP.  So STEP has no data-dependent branches
 * and calls only root, power, larger and sign.  Fractional values come from the constants, which
 * are computed in fp64 and rounded once.
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
    double t, n_steps;    /* this update, counted from 1; updates of the whole run */
    double average_share; /* the weight of this update in the average of the weights */
    double d, d_before;   /* Prodigy's estimate with and without this gradient */
};

/* The kernels fill this struct of reals as an array. */
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

/* x^p for x >= 0.  A kernel can define RULE_POWER as a faster version. */
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
