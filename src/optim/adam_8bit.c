/*
 * adam_8bit.c -- Adam with states of 8 bits (Dettmers et al.): quantized elements of base/quant_map.h.
 *
 * state: m, v in a byte each, an fp32 scale for every 256: 2.03 bytes a parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(adam_8bit, adamw, .name = "adam-8bit", .about = "Adam with states of 8 bits",
               .default_lr = 3e-4, .state_bits = 8)
