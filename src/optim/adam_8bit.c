/*
 * adam_8bit.c -- Adam with 8-bit states (Dettmers et al.), quantized as in base/quant_map.h.
 *
 * state: m, v in a byte each, an fp32 scale per 256 elements: 2.03 bytes per parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(adam_8bit, adamw, .name = "adam-8bit", .about = "Adam with 8-bit states",
               .default_lr = 3e-4, .state_bits = 8)
