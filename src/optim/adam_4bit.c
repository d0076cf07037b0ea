/*
 * adam_4bit.c -- Adam with 4-bit states, quantized as in base/quant_map.h.
 *
 * state: m, v in half a byte each, an fp32 scale per 128 elements: 1.06 bytes per parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(adam_4bit, adamw, .name = "adam-4bit", .about = "Adam with 4-bit states",
               .default_lr = 3e-4, .state_bits = 4)
