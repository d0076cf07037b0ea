/*
 * dropout_rates.h -- the dropout rates of a model, one for each place where GPT-2 applies dropout.
 */
#ifndef SNUG_IR_DROPOUT_RATES_H
#define SNUG_IR_DROPOUT_RATES_H

#include <stdbool.h>

struct dropout_rates { /* 0 disables dropout there */
    double embedding;  /* embd_pdrop in config.json */
    double attention;  /* attn_pdrop: the attention probabilities */
    double residual;   /* resid_pdrop: the end of each residual branch; without any, activations */
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
