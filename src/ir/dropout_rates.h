/*
 * dropout_rates.h -- how much a model drops in training, in each of the places where GPT-2 and its kin drop.
 */
#ifndef SNUG_IR_DROPOUT_RATES_H
#define SNUG_IR_DROPOUT_RATES_H

#include <stdbool.h>

struct dropout_rates { /* 0: nothing is dropped there */
    double embedding;  /* config.json: embd_pdrop */
    double attention;  /* attn_pdrop: its probabilities */
    double residual;   /* resid_pdrop: what ends a branch; without branches, activations */
};

static inline struct dropout_rates dropout_everywhere(double rate)
{
    return (struct dropout_rates){rate, rate, rate};
}

static inline bool dropout_is_any(const struct dropout_rates *rates)
{
    return rates->embedding > 0 || rates->attention > 0 || rates->residual > 0;
}

#endif
