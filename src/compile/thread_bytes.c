/*
 * thread_bytes.c -- does the size of a plan depend on the number of threads?
 *
 * Some kernels book workspace per thread.  A plan with such an op needs more memory on a machine
 * with more cores, so its header names the number of threads.
 */
#include "compile/compile.h"

static size_t workspace_with(const struct compiled_step *s, const struct op *op, int threads)
{
    struct device_facts facts = s->facts;
    facts.threads = threads;
    const struct kernel *kernel = s->backend->kernel(op->kernel);
    bool has_none = kernel == NULL || kernel->workspace_bytes == NULL;
    return has_none ? 0 : kernel->workspace_bytes(&s->prog, op, &facts);
}

bool compiled_step_has_thread_bytes(const struct compiled_step *s)
{
    int threads = s->facts.threads;
    for (int i = 0; i < s->prog.n_ops; i++) {
        const struct op *op = &s->prog.ops[i];
        size_t now = workspace_with(s, op, threads);
        if (now != workspace_with(s, op, threads == 1 ? 2 : 1) ||
            now != workspace_with(s, op, 2 * threads))
            return true;
    }
    return false;
}
