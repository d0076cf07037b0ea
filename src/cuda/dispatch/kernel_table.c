/*
 * kernel_table.c -- selects the CUDA kernel that runs an op.
 */
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/kernel_table.h"

static kernels_fn *const families[] = {
#define FAMILY_FN(name) cuda_kernels_##name,
    CUDA_FAMILIES(FAMILY_FN)
#undef FAMILY_FN
};

enum { N_FAMILIES = sizeof families / sizeof *families };

static int choose_least(const struct program *prog, const struct op *op,
                        const struct device_facts *facts)
{
    int best = 0, n_before = 0;
    size_t least = 0;
    for (int f = 0; f < N_FAMILIES; f++) {
        int n_kernels = 0;
        const struct kernel *kernels = families[f](&n_kernels);
        for (int i = 0; i < n_kernels; i++) {
            const struct kernel *kernel = &kernels[i];
            if (kernel->kind != op->kind ||
                (kernel->supports != NULL && !kernel->supports(prog, op)))
                continue;
            size_t bytes =
                kernel->workspace_bytes == NULL ? 0 : kernel->workspace_bytes(prog, op, facts);
            if (best == 0 || bytes < least) {
                best = n_before + i + 1;
                least = bytes;
            }
        }
        n_before += n_kernels;
    }
    return best;
}

int cuda_choose(const struct program *prog, const struct op *op, const struct device_facts *facts)
{
    return facts->least_workspace ? choose_least(prog, op, facts)
                                  : kernels_find(families, 0, N_FAMILIES, prog, op, op->kind);
}

const struct kernel *cuda_kernel(int number)
{
    return kernels_at(families, N_FAMILIES, number);
}

const char *backend_cuda_kernels(enum op_kind kind)
{
    const struct kernel *kernel =
        cuda_kernel(kernels_find(families, 0, N_FAMILIES, NULL, NULL, kind));
    return kernel != NULL ? kernel->name : "";
}

const struct backend *backend_cuda_table(void)
{
    static const struct backend backend = {.name = "cuda",
                                           .alignment = CUDA_ALIGNMENT,
                                           .choose = cuda_choose,
                                           .kernel = cuda_kernel,
                                           .pool_place = CUDA_POOL_PLACE};
    return &backend;
}

/* ---- what the dispatch files share
 * ------------------------------------------------------------- */

static bool float_fits(const struct program *prog, tensor_id id, bool may_be_f64)
{
    return id == TENSOR_NONE || may_be_f64 || prog->tensors[id].dtype != DTYPE_f64;
}

bool cuda_floats_fit(const struct program *prog, const struct op *op, unsigned f64_inputs,
                     unsigned f64_outputs)
{
    for (int k = 0; k < op->n_in; k++)
        if (!float_fits(prog, op->in[k], (f64_inputs >> k & 1) != 0))
            return false;
    for (int k = 0; k < op->n_out; k++)
        if (!float_fits(prog, op->out[k], (f64_outputs >> k & 1) != 0))
            return false;
    return true;
}

enum snug_status cuda_done(const struct kernel_call *call, int error, struct snug_error *err)
{
    if (error == 0)
        return SNUG_OK;
    const struct tensor *result = call->out[0].tensor;
    return snug_fail(err, SNUG_UNSUPPORTED, "CUDA error in %s%s%s: %s",
                     op_infos[call->op->kind].name, result == NULL ? "" : " of ",
                     result == NULL ? "" : result->name, cuda_error_text(error));
}
