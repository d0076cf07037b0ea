/*
 * cpu_backend.c -- the CPU backend: which kernel runs an op, the memory, the threads.
 *
 * The rows come from four places, asked in this order: linear layers and the head on matmuls (rows_*.c), the fast families at the highest instruction level that this CPU has
 * (simd_*.c), the same at lower levels, the reference (ref_*.c).  SNUG_CPU_LEVEL=base|v3|v4 in the
 * environment asks for a lower level, to test it or to compare bits between machines.  Above v4 is
 * amx: the same rows, with matmuls and attention of bf16 on tiles (gemm_bf16.h, attention_bf16.h).
 * amx-emulated is the highest level of the CPU with the tiles in plain C, to test them anywhere.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(SNUG_OPENMP)
#include <omp.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif
#if defined(SNUG_LEVEL_v3)
#include <cpuid.h>
#include <stdatomic.h>
#endif
#if defined(SNUG_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/text.h"
#include "cpu/amx/attention_bf16.h"
#include "cpu/cpu.h"
#include "cpu/level.h"
#include "cpu/ref/ref.h"
#include "optim/eigen.h"

enum { HUGE_PAGE_BYTES = 2 << 20, FLUSH_AND_ZERO_DENORMALS = 0x8040 };

/* ---- instruction levels -------------------------------------------------------------------- */

static bool cpu_runs_base(void)
{
    return true;
}

#if defined(SNUG_LEVEL_v3)
/* Asked of the CPU itself: not every compiler knows their names.  Once, since plans ask for every op, and
 * in a virtual machine the host answers. */
static bool has_lzcnt_and_movbe(void)
{
    enum { UNKNOWN, NO, YES };
    static atomic_int known; /* a fact of the CPU: whoever is first finds the same */
    unsigned a, b, c, d;
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (found == UNKNOWN) {
        bool has_both = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_MOVBE) != 0 &&
                        __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
        found = has_both ? YES : NO;
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return found == YES;
}

static bool cpu_runs_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && has_lzcnt_and_movbe();
}
#endif

#if defined(SNUG_LEVEL_v4)
static bool cpu_runs_v4(void)
{
    return cpu_runs_v3() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}
#endif

#define FAMILY_FN(family, level) simd_##family##_kernels_##level,
#define LEVEL_FAMILIES(level) \
    static kernels_fn *const families_##level[] = {SIMD_FAMILIES(FAMILY_FN, level)};
LEVEL_LIST(LEVEL_FAMILIES)

static const struct level {
    const char *name;
    bool (*cpu_runs)(void);
    kernels_fn *const *families;
    const struct cpu_loops *loops;
} levels[] = {
#define LEVEL_ROW(level) {#level, cpu_runs_##level, families_##level, &simd_loops_##level},
    LEVEL_LIST(LEVEL_ROW)
#undef LEVEL_ROW
};

enum {
    N_LEVELS = sizeof levels / sizeof *levels,
    N_FAMILIES = sizeof families_base / sizeof *families_base
};

static kernels_fn *const gemm_families[] = {cpu_linear_kernels, cpu_lm_head_kernels};
enum { N_GEMM_FAMILIES = sizeof gemm_families / sizeof *gemm_families };

#if defined(SNUG_AMX)
/* AVX-512 that rounds to bf16: what stands between tile instructions. */
static bool cpu_runs_v4_bf16(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return cpu_runs_v4() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) != 0;
}
#endif

static bool emulates_tiles(void)
{
    const char *asked = getenv("SNUG_CPU_LEVEL");
    return asked != NULL && strcmp(asked, "amx-emulated") == 0;
}

static bool emulates_tiles_in_v4(void)
{
#if defined(SNUG_AMX)
    return emulates_tiles() && cpu_runs_v4_bf16();
#else
    return false;
#endif
}

/* The highest level of this CPU, or the one that the environment asks for if the CPU has it.  Beside
 * tiles emulated in plain C stand kernels in plain C: fused or not, an op has the same bits. */
static int level_in_use(void)
{
    const char *asked = getenv("SNUG_CPU_LEVEL");
    if (emulates_tiles() && !emulates_tiles_in_v4())
        return 0;
    for (int i = N_LEVELS - 1; asked != NULL && i >= 0; i--)
        if (strcmp(levels[i].name, asked) == 0 && levels[i].cpu_runs())
            return i;
    for (int i = N_LEVELS - 1; i >= 0; i--)
        if (levels[i].cpu_runs())
            return i;
    return 0; /* base: every CPU runs it */
}

const struct cpu_loops *cpu_loops(void)
{
    return levels[level_in_use()].loops;
}

/* ---- tiles --------------------------------------------------------------------------------- */

#if defined(SNUG_AMX)
/* The CPU has tiles, the system saves them, and it lets this process use them.  The last is asked
 * for here, once a process is enough and more do no harm.  The leaf with the palettes is not asked:
 * some hypervisors hide it, and palette 1 is the only one there is. */
static bool cpu_runs_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILE_DATA = 18 };
    const unsigned bf16_and_tile = 1u << 22 | 1u << 24, os_saves = 1u << 27, tile_state = 3u << 17;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!cpu_runs_v4_bf16() || !__get_cpuid(1, &a, &b, &c, &d) || (c & os_saves) == 0)
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bf16_and_tile) != bf16_and_tile)
        return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & tile_state) == tile_state &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#endif

enum tile_unit { TILES_none, TILES_emulated, TILES_emulated_v4, TILES_amx };

static enum tile_unit tiles_in_use(void)
{
    if (emulates_tiles_in_v4())
        return TILES_emulated_v4;
    if (emulates_tiles())
        return TILES_emulated;
#if defined(SNUG_AMX)
    const char *asked = getenv("SNUG_CPU_LEVEL");
    for (int i = 0; asked != NULL && i < N_LEVELS; i++)
        if (strcmp(levels[i].name, asked) == 0 && levels[i].cpu_runs())
            return TILES_none; /* a lower level */
    if (cpu_runs_amx())
        return TILES_amx;
#endif
    return TILES_none;
}

gemm_bf16_fn *cpu_gemm_bf16(void)
{
    static gemm_bf16_fn *const fns[] = {
        [TILES_emulated] = gemm_bf16_emulated,
#if defined(SNUG_AMX)
        [TILES_emulated_v4] = gemm_bf16_emulated_v4,
        [TILES_amx] = gemm_bf16_amx,
#endif
    };
    return fns[tiles_in_use()];
}

const struct gelu_bf16 *cpu_gelu_bf16(void)
{
    static const struct gelu_bf16 *const fns[] = {
        [TILES_emulated] = &gelu_bf16_emulated,
#if defined(SNUG_AMX)
        [TILES_emulated_v4] = &gelu_bf16_emulated_v4,
        [TILES_amx] = &gelu_bf16_amx,
#endif
    };
    return fns[tiles_in_use()];
}

const struct attention_bf16_fns *cpu_attention_bf16(void)
{
    static const struct attention_bf16_fns *const fns[] = {
        [TILES_emulated] = &attention_bf16_emulated,
#if defined(SNUG_AMX)
        [TILES_emulated_v4] = &attention_bf16_emulated_v4,
        [TILES_amx] = &attention_bf16_amx,
#endif
    };
    return fns[tiles_in_use()];
}

/* ---- choosing a row ------------------------------------------------------------------------ */

static const struct kernel *find_simd_kernel(const struct program *prog, const struct op *op,
                                             enum op_kind kind)
{
    const struct kernel *row = kernels_find(gemm_families, N_GEMM_FAMILIES, prog, op, kind);
    for (int i = level_in_use(); row == NULL && i >= 0; i--)
        row = kernels_find(levels[i].families, N_FAMILIES, prog, op, kind);
    return row;
}

static const struct kernel *choose(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    const struct kernel *row = facts->reference_only ? NULL : find_simd_kernel(prog, op, op->kind);
    return row != NULL ? row : ref_row(op->kind);
}

const char *backend_cpu_simd_kernels(enum op_kind kind)
{
    const struct kernel *row = find_simd_kernel(NULL, NULL, kind);
    return row != NULL ? row->name : ""; /* one row a kind, today */
}

bool backend_cpu_has_reference(enum op_kind kind)
{
    return ref_row(kind) != NULL;
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
        (void)madvise(block, bytes, MADV_HUGEPAGE); /* a hint: a kernel may not know it */
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

/* Of this thread and of those that OpenMP keeps for it.  A new thread has the mode of the one that
 * made it, so all of them had the caller's before. */
static void set_float_mode(int threads, unsigned mode)
{
    (void)threads; /* without OpenMP */
    (void)mode;
#if defined(__SSE__)
#pragma omp parallel num_threads(threads)
    _mm_setcsr(mode);
#endif
}

/* Denormal numbers cost a hundred cycles each and carry nothing that training needs. */
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
                                           .alloc = alloc_block,
                                           .release = release_block,
                                           .pool_place = "a file on disk",
                                           .open_pool = cpu_open_pool,
                                           .run_begin = run_begin,
                                           .run_end = run_end,
                                           .measure = cpu_measure};
    return &backend;
}

void backend_cpu_level(struct text *out)
{
    enum tile_unit unit = tiles_in_use();
    text_add(out, "%s%s", levels[level_in_use()].name,
             unit == TILES_none  ? ""
             : unit == TILES_amx ? " and amx"
                                 : ", amx-emulated");
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
    for (int i = 0; i < N_LEVELS; i++)
        text_add(out, " %s", levels[i].name);
#if defined(SNUG_AMX)
    text_add(out, " amx");
#endif
    text_add(out, ", this CPU runs ");
    backend_cpu_level(out);
    text_add(out, "\n");
}
