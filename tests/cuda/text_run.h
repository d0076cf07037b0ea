/*
 * text_run.h -- a program in text form, compiled and ready to run on a backend.
 */
#ifndef TESTS_CUDA_TEXT_RUN_H
#define TESTS_CUDA_TEXT_RUN_H

#include "exec/exec.h"
#include "support/booked.h"
#include "support/training.h"

struct text_run {
    struct program prog;
    struct plan plan;
    struct exec *exec;
};

static void text_run_open(struct text_run *run, const char *text, const struct backend *on)
{
    struct snug_error err = {0};
    const struct device_facts one_thread = {.threads = 1, .isa = backend_cpu_isa()};
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9, .pool_bytes_per_s = 1e9};
    must(program_parse(text, &run->prog, &err), &err);
    must(program_verify(&run->prog, &err), &err);
    book_kernels(&run->prog, on, &one_thread);
    must(plan_make(&run->prog, on->alignment, &rates, &run->plan, &err), &err);
    must(exec_create(&run->prog, &run->plan, on, &one_thread, NULL, &run->exec, &err), &err);
}

static void text_run_close(struct text_run *run)
{
    exec_free(run->exec);
    plan_free(&run->plan);
    program_free(&run->prog);
}

#endif
