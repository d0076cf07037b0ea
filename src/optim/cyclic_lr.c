/*
 * cyclic_lr.c -- NadamW with a cyclic learning rate (AlgoPerf's Cyclic LR): the rule of nadamw.c
 * with its own schedule in place of --schedule.  A cycle is a warmup of --warmup steps, then a
 * cosine down to lr-min.  Its length, n_steps / cycles, need not be a whole number.
 *
 * state: m, v: 8 bytes per parameter.
 */
#include "optim/rule.h"

enum { OPTION_cycles = 3, OPTION_lr_min }; /* after nadamw's options */

static double lr_at(const struct optim_rate *rate, const double *options)
{
    double least = options[OPTION_lr_min], rise = rate->lr - least, warmup = rate->warmup;
    double length = rate->n_steps / options[OPTION_cycles];
    double cycle = fmax(0, ceil((rate->t - fmax(length, warmup)) / length));
    double t = rate->t - cycle * length;
    if (cycle >= options[OPTION_cycles])
        return least;
    if (t <= warmup)
        return least + rise * t / warmup;
    return least + rise * 0.5 * (1 + cos(acos(-1) * (t - warmup) / (length - warmup)));
}

OPTIMIZER_LIKE(cyclic_lr, nadamw, .name = "cyclic-lr",
               .about = "NadamW with a cyclic learning rate", .default_lr = 3e-4,
               .default_decay = 0.1, .options = "beta1, beta2, eps, cycles, lr-min",
               .defaults = {0.9, 0.999, 1e-8, 2, 1e-10}, .lr_at = lr_at)
