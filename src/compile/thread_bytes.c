/*
 * thread_bytes.c -- do the bytes of a plan depend on how many threads run it?
 *
 * Some kernels book a piece of workspace for each thread.  A plan with such an op has other bytes on a machine
 * with more cores, so its title says how many threads it is for.
 */
#include "compile/compile.h"

static size_t workspace_with(const struct compiled_step *s, const struct op *op, int threads)
{
    struct device_facts facts = s->facts;
    facts.threads = threads;
    const struct kernel *kernel = backend_choose(s->backend, &s->prog, op, &facts);
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
