/*
 * runtime_bytes.c -- predict the memory that a process needs in addition to its plan.
 *
 *     what                                                     depends on
 *     the program, its libraries and a small heap              nothing
 *     thread stacks and malloc arenas                          threads
 *     the MPI library, its buffers and its peers               ranks
 *     LAPACK, if an optimizer calls it                         kinds of ops
 *     op, tensor and kernel objects, checkpoint lists          ops and tensors
 *     oneDNN's matmul objects and JIT code                     kinds of ops
 *
 * Each figure is an upper bound: the measured value (docs/memory.md has the table) plus a fifth to
 * a third.  Evaluation during a run and saving are included.  Nothing depends on the sizes of
 * tensors: samples, weights and checkpoints are read and written in place.
 */
#include "compile/compile.h"

#include "exec/backend.h"

/* GPU memory: CUDA context and library code; 574 to 598 million bytes on an H200. */
static const int64_t gpu_runtime_bytes = (int64_t)640 << 20;

/* Bounds are rounded up to this, so recipes that differ by a few ops have the same runtime. */
static const int64_t unit_bytes = 4 << 20;
static const int64_t process_bytes = 16 << 20;
static const int64_t thread_bytes = 128 << 10;
static const int64_t mpi_bytes = 15 << 20, peer_bytes = 128 << 10;
static const int64_t lapack_bytes = 6 << 20;
static const int64_t op_bytes = 1536, tensor_bytes_each = 1024;

/* What an op's kernel prepares: one or several matmuls, each with its oneDNN objects. */
static int64_t prepared_bytes(enum op_kind kind)
{
    return kind_has(kind, TRAIT_lm_head)  ? 160 << 10
           : kind_has(kind, TRAIT_linear) ? (op_infos[kind].layer == LAYER_grad_w ? 10 : 6) << 10
           : kind_has(kind, TRAIT_blocks) ? 48 << 10
           : kind_has(kind, TRAIT_matrix) ? 16 << 10
                                          : 0;
}

static int64_t objects_bytes(const struct program *prog)
{
    return prog->n_ops * op_bytes + prog->n_tensors * tensor_bytes_each;
}

int64_t compiled_step_runtime_bytes(const struct compiled_step *s)
{
    int n_ranks = s->n_ranks * s->n_stages;
    bool has_lapack = false;
    if (compiled_step_is_on_gpu(s))
        return gpu_runtime_bytes;
    int64_t bytes = process_bytes + s->facts.threads * thread_bytes;
    if (n_ranks > 1)
        bytes += mpi_bytes + n_ranks * peer_bytes;
    for (int i = 0; i < s->prog.n_ops; i++) {
        bytes += prepared_bytes(s->prog.ops[i].kind);
        has_lapack |= op_has(&s->prog.ops[i], TRAIT_lapack);
    }
    if (has_lapack)
        bytes += lapack_bytes;
    bytes += objects_bytes(&s->prog) + objects_bytes(&s->whole);
    return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}
