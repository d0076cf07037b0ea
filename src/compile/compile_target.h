/*
 * compile_target.h -- the machine that a step is compiled for, read from the environment once.
 *
 * compile_step reads it, or a caller that compiles several recipes does and puts it into each
 * request.  So all of them have the same number of threads, instruction level and rates.  These
 * recipes must agree in device, target, threads and network.
 */
#ifndef SNUG_COMPILE_COMPILE_TARGET_H
#define SNUG_COMPILE_COMPILE_TARGET_H

#include "compile/compile.h"
#include "compile/device_rates.h"

struct compile_target {
    int threads;                /* --threads, or the cores that this process may use */
    const struct cpu_isa *isa;  /* the CPU's instructions; NULL for a GPU */
    bool nccl_is_forced;        /* SNUG_NCCL=force: a single rank runs collectives with itself */
    struct machine_rates rates; /* points into itself: do not copy the target */
};

/* Reads the CPU, the environment and the file of measured rates. */
enum snug_status compile_target_find(const struct snug_recipe *recipe,
                                     struct compile_target *target, struct snug_error *err);

/* The target of a compiled step, without rates: its plan decides the time. */
void compile_target_of_run(const struct compiled_step *run, struct compile_target *target);

#endif
