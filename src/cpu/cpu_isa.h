/*
 * cpu_isa.h -- the instruction set that the kernels of a compiled step use.
 *
 * A level is a set of SIMD instructions that the fast kernel families are compiled for (level.h).
 * A CPU with AMX tiles also has functions for bf16 matmuls, gelu and attention.  A step is
 * compiled for one (backend_cpu_isa), which its device_facts carry to the kernels.
 */
#ifndef SNUG_CPU_CPU_ISA_H
#define SNUG_CPU_CPU_ISA_H

#include "cpu/amx/attention_bf16.h"
#include "cpu/cpu.h"
#include "cpu/gemm/gemm_bf16.h"

enum cpu_level { /* lowest first; a CPU that supports one supports all lower ones */
#define CPU_LEVEL(level) CPU_LEVEL_##level,
                 LEVEL_LIST(CPU_LEVEL)
#undef CPU_LEVEL
                     N_CPU_LEVELS
};

struct cpu_isa {
    const char *name; /* "v4", "v4 and amx" */
    enum cpu_level level;
    const struct cpu_loops *loops;
    /* NULL without tiles */
    gemm_bf16_fn *gemm_bf16;
    const struct gelu_bf16 *gelu_bf16;
    const struct attention_bf16_fns *attention_bf16;
};

/* The highest level of this CPU, or the one that the environment variable SNUG_CPU_LEVEL asks for
 * if the CPU supports it. */
const struct cpu_isa *cpu_isa_find(void);

/* Does the CPU report AMX, but not the CPUID leaf with its palettes?  Some hypervisors hide it. */
bool cpu_hides_tile_palettes(void);

#endif
