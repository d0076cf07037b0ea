/*
 * test_cuda_oracle.c -- ten steps with every optimizer against PyTorch, as in tests/optim, with the
 * optimizer ops on CUDA kernels and all others on CPU kernels.
 *
 * This is possible only under emulation, where both kinds of kernels use host memory.  The linker
 * replaces the CPU backend by ours (--wrap).
 */
#include "../optim/test_oracle.c"

#include "cuda/dispatch/kernel_table.h"

const struct backend *__real_backend_cpu(void);
const struct backend *__wrap_backend_cpu(void);

static bool is_optimizers(enum op_kind kind)
{
    static const enum op_kind kinds[] = {
        OP_update,       OP_average,      OP_average_clock, OP_average_keep, OP_adafactor, OP_amos,
        OP_prodigy_sums, OP_prodigy_size, OP_orthogonalize, OP_shampoo,      OP_caspr,     OP_soap};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] == kind)
            return true;
    return false;
}

enum { FIRST_OF_CUDA = 1000000 }; /* the numbers of its kernels, beside those of the CPU */

static int choose(const struct program *prog, const struct op *op, const struct device_facts *facts)
{
    return is_optimizers(op->kind) ? FIRST_OF_CUDA + cuda_choose(prog, op, facts)
                                   : __real_backend_cpu()->choose(prog, op, facts);
}

static const struct kernel *kernel_of(int number)
{
    return number >= FIRST_OF_CUDA ? cuda_kernel(number - FIRST_OF_CUDA)
                                   : __real_backend_cpu()->kernel(number);
}

const struct backend *__wrap_backend_cpu(void)
{
    static struct backend mixed;
    mixed = *__real_backend_cpu();
    mixed.choose = choose;
    mixed.kernel = kernel_of;
    return &mixed;
}
