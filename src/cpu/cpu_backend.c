/*
 * cpu_backend.c -- the CPU backend: kernel dispatch, memory and threads.
 *
 * Dispatch tries the kernels in this order: the gemm-based linear layers and LM head (gemm/), the
 * SIMD families at the instruction level of the compiled step (simd/, cpu_isa.h), the same families
 * at lower levels, the reference (ref/).
 */
#include <sys/mman.h>
#if defined(SNUG_OPENMP)
#include <omp.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "base/text.h"
#include "cpu/cpu.h"
#include "cpu/cpu_isa.h"
#include "cpu/level.h"
#include "cpu/ref/ref.h"
#include "optim/eigen.h"

enum { HUGE_PAGE_BYTES = 2 << 20, FLUSH_AND_ZERO_DENORMALS = 0x8040 };

/* The two gemm-based families, the SIMD families of each level, lowest first, then the
 * reference. */
#define FAMILY_FN(family, level) simd_##family##_kernels_##level,
#define LEVEL_FAMILIES(level)    SIMD_FAMILIES(FAMILY_FN, level)
static kernels_fn *const families[] = {cpu_linear_kernels, cpu_lm_head_kernels,
                                       LEVEL_LIST(LEVEL_FAMILIES) ref_kernels};
enum {
    N_FAMILIES = sizeof families / sizeof *families,
    N_GEMM_FAMILIES = 2,
    REFERENCE_FAMILY = N_FAMILIES - 1,
    N_LEVEL_FAMILIES = (REFERENCE_FAMILY - N_GEMM_FAMILIES) / N_CPU_LEVELS
};

/* ---- choosing a kernel --------------------------------------------------------------------- */

static int find_fast(const struct program *prog, const struct op *op, enum op_kind kind,
                     const struct cpu_isa *isa)
{
    int number = kernels_find(families, 0, N_GEMM_FAMILIES, prog, op, kind);
    for (int i = (int)isa->level; number == 0 && i >= 0; i--) {
        int begin = N_GEMM_FAMILIES + i * N_LEVEL_FAMILIES;
        number = kernels_find(families, begin, begin + N_LEVEL_FAMILIES, prog, op, kind);
    }
    return number;
}

static int choose(const struct program *prog, const struct op *op, const struct device_facts *facts)
{
    int number = facts->reference_only ? 0 : find_fast(prog, op, op->kind, facts->isa);
    return number != 0 ? number
                       : kernels_find(families, REFERENCE_FAMILY, N_FAMILIES, prog, op, op->kind);
}

static const struct kernel *kernel_of(int number)
{
    return kernels_at(families, N_FAMILIES, number);
}

const char *backend_cpu_simd_kernels(enum op_kind kind)
{
    const struct kernel *kernel = kernel_of(find_fast(NULL, NULL, kind, cpu_isa_find()));
    return kernel != NULL ? kernel->name : ""; /* the first one that runs this kind of op */
}

bool backend_cpu_has_reference(enum op_kind kind)
{
    return ref_kernel(kind) != NULL;
}

/* ---- memory and threads -------------------------------------------------------------------- */

static void *alloc_block(size_t bytes)
{
    void *block = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return NULL;
#if defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE_BYTES)
        (void)madvise(block, bytes, MADV_HUGEPAGE); /* a hint, which the OS may ignore */
#endif
    return block;
}

static void release_block(void *block, size_t bytes)
{
    if (block != NULL)
        munmap(block, bytes > 0 ? bytes : 1);
}

static unsigned get_float_mode(void)
{
#if defined(__SSE__)
    return _mm_getcsr();
#else
    return 0;
#endif
}

/* Sets the mode of this thread and of its OpenMP threads.  A new thread inherits the mode of its
 * creator, so all of them had the caller's mode before. */
static void set_float_mode(int threads, unsigned mode)
{
    (void)threads; /* unused without OpenMP */
    (void)mode;
#if defined(__SSE__)
#pragma omp parallel num_threads(threads)
    _mm_setcsr(mode);
#endif
}

/* Flushes denormals to zero: each costs a hundred cycles, and training does not need them. */
static struct run_modes run_begin(const struct device_facts *facts)
{
    struct run_modes modes = {.float_mode = get_float_mode()};
#if defined(SNUG_OPENMP)
    modes.threads = omp_get_max_threads();
    modes.dynamic_threads = omp_get_dynamic() != 0;
    omp_set_dynamic(0);
    omp_set_num_threads(facts->threads);
#endif
    set_float_mode(facts->threads, modes.float_mode | FLUSH_AND_ZERO_DENORMALS);
    return modes;
}

static void run_end(const struct device_facts *facts, const struct run_modes *modes)
{
    set_float_mode(facts->threads, modes->float_mode);
#if defined(SNUG_OPENMP)
    omp_set_num_threads(modes->threads);
    omp_set_dynamic(modes->dynamic_threads);
#endif
}

const struct backend *backend_cpu(void)
{
    static const struct backend backend = {.name = "cpu",
                                           .alignment = 64,
                                           .choose = choose,
                                           .kernel = kernel_of,
                                           .alloc = alloc_block,
                                           .release = release_block,
                                           .pool_place = "a file on disk",
                                           .open_pool = cpu_open_pool,
                                           .run_begin = run_begin,
                                           .run_end = run_end,
                                           .measure = cpu_measure};
    return &backend;
}

const struct cpu_isa *backend_cpu_isa(void)
{
    return cpu_isa_find();
}

const char *backend_cpu_isa_name(const struct cpu_isa *isa)
{
    return isa->name;
}

void backend_cpu_describe(struct text *out)
{
    gemm_describe(out);
    spectral_describe(out);
#if defined(SNUG_OPENMP)
    int n_threads = omp_get_max_threads();
    text_add(out, "OpenMP, %d thread%s\n", n_threads, n_threads == 1 ? "" : "s");
#else
    text_add(out, "without OpenMP: one thread\n");
#endif
    text_add(out, "kernels:");
#define SAY_LEVEL(level) text_add(out, " " #level);
    LEVEL_LIST(SAY_LEVEL)
#undef SAY_LEVEL
#if defined(SNUG_AMX)
    text_add(out, " amx");
#endif
    text_add(out, ", this CPU runs %s\n", cpu_isa_find()->name);
}
