/*
 * adam.c -- Adam (Kingma and Ba): the rule of adamw.c, without decay unless it is asked for.
 *
 * state: m, v: 8 bytes a parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(adam, adamw, .about = "Adam: adamw without decay", .default_lr = 3e-4)
