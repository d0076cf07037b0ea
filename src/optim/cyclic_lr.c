/*
 * cyclic_lr.c -- NadamW with a cyclic learning rate (AlgoPerf's Cyclic LR): the rule of nadamw.c, and
 * --schedule cyclic unless another is asked for: --cycles times a warm-up and a cosine.
 *
 * state: m, v: 8 bytes a parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(cyclic_lr, nadamw, .name = "cyclic-lr",
               .about = "NadamW, its learning rate in cycles", .default_lr = 3e-4,
               .default_decay = 0.1, .schedule = "cyclic")
