/*
 * adam_4bit.c -- Adam with states of 4 bits: quantized elements of base/quant_map.h.
 *
 * state: m, v in half a byte each, an fp32 scale for every 128: 1.06 bytes a parameter.
 */
#include "optim/rule.h"

OPTIMIZER_LIKE(adam_4bit, adamw, .name = "adam-4bit", .about = "Adam with states of 4 bits",
               .default_lr = 3e-4, .state_bits = 4)
