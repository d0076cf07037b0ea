/*
 * cpu_isa.h -- the instructions that kernels use: found once for a compiled step, and part of it.
 *
 * A level is a set of SIMD instructions for which the fast families are compiled (level.h); with tiles
 * a CPU also has functions for matmuls, gelu and attention of bf16.  lower.c asks for it when a step is
 * compiled (backend_cpu_isa) and leaves it in the step's device_facts, where kernels find it.
 */
#ifndef SNUG_CPU_CPU_ISA_H
#define SNUG_CPU_CPU_ISA_H

#include "cpu/amx/attention_bf16.h"
#include "cpu/cpu.h"
#include "cpu/gemm/gemm_bf16.h"

enum cpu_level { /* lowest first; a CPU that runs one runs those before it */
#define CPU_LEVEL(level) CPU_LEVEL_##level,
                 LEVEL_LIST(CPU_LEVEL)
#undef CPU_LEVEL
                     N_CPU_LEVELS
};

struct cpu_isa {
    const char *name; /* "v4", "v4 and amx" */
    enum cpu_level level;
    const struct cpu_loops *loops;
    /* NULL: without tiles */
    gemm_bf16_fn *gemm_bf16;
    const struct gelu_bf16 *gelu_bf16;
    const struct attention_bf16_fns *attention_bf16;
};

/* The highest of this CPU, or what SNUG_CPU_LEVEL in the environment asks for, if the CPU has it. */
const struct cpu_isa *cpu_isa_find(void);

/* That of a compiled step.  Facts that were made by hand may leave it out. */
static inline const struct cpu_isa *cpu_isa_of(const struct device_facts *facts)
{
    return facts->isa != NULL ? facts->isa : cpu_isa_find();
}

#endif
