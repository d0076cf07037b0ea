/*
 * cpu_isa.c -- which instructions this CPU has, and which of them kernels are to use.
 *
 * SNUG_CPU_LEVEL=base|v3|v4 in the environment asks for a lower level, to test it or to compare bits
 * between machines.  Above v4 is amx: the same kernels, with matmuls and attention of bf16 on tiles
 * (gemm_bf16.h, attention_bf16.h).  amx-emulated has the tiles in plain C, to test them anywhere.
 */
#include "cpu/cpu_isa.h"

#include <stdlib.h>
#include <string.h>
#if defined(SNUG_LEVEL_v3)
#include <cpuid.h>
#include <stdatomic.h>
#endif
#if defined(SNUG_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const struct cpu_isa levels[N_CPU_LEVELS] = {
#define LEVEL_ISA(level_) \
    {.name = #level_, .level = CPU_LEVEL_##level_, .loops = &simd_loops_##level_},
    LEVEL_LIST(LEVEL_ISA)
#undef LEVEL_ISA
};

#define ISA_WITH_TILES(name_, level_, tiles)                                       \
    {                                                                              \
        .name = name_, .level = CPU_LEVEL_##level_, .loops = &simd_loops_##level_, \
        .gemm_bf16 = gemm_bf16_##tiles, .gelu_bf16 = &gelu_bf16_##tiles,           \
        .attention_bf16 = &attention_bf16_##tiles,                                 \
    }
/* Beside tiles emulated in plain C stand kernels in plain C: fused or not, an op has the same bits. */
static const struct cpu_isa emulated = ISA_WITH_TILES("base, amx-emulated", base, emulated);
#if defined(SNUG_AMX)
static const struct cpu_isa emulated_v4 = ISA_WITH_TILES("v4, amx-emulated", v4, emulated_v4);
static const struct cpu_isa amx = ISA_WITH_TILES("v4 and amx", v4, amx);
#endif

/* ---- what the CPU has ------------------------------------------------------------------------- */

enum {                               /* bits; those below are 1 << enum cpu_level */
       HAS_BF16 = 1 << N_CPU_LEVELS, /* AVX-512 that rounds to bf16: what stands between tiles */
       HAS_TILES = HAS_BF16 << 1
};

#if defined(SNUG_LEVEL_v3)
/* Asked of the CPU itself: not every compiler knows their names. */
static bool has_lzcnt_and_movbe(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_MOVBE) != 0 &&
           __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
}

static unsigned find_v3(void)
{
    bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
               __builtin_cpu_supports("bmi2") && has_lzcnt_and_movbe();
    return has ? 1u << CPU_LEVEL_v3 : 0;
}
#endif

#if defined(SNUG_LEVEL_v4)
static unsigned find_v4(void)
{
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512cd");
    return has ? 1u << CPU_LEVEL_v4 : 0;
}
#endif

#if defined(SNUG_AMX)
/* The CPU has tiles and the system saves them.  The leaf with the palettes is not asked: some
 * hypervisors hide it, and palette 1 is the only one there is. */
static unsigned find_tiles(void)
{
    const unsigned bf16_and_tile = 1u << 22 | 1u << 24, os_saves = 1u << 27, tile_state = 3u << 17;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & 1u << 5) == 0)
        return 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & os_saves) == 0)
        return HAS_BF16;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & bf16_and_tile) != bf16_and_tile)
        return HAS_BF16;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & tile_state) == tile_state ? HAS_BF16 | HAS_TILES : HAS_BF16;
}
#endif

static unsigned find_features(void)
{
    unsigned has = 1u << CPU_LEVEL_base;
#if defined(SNUG_LEVEL_v3)
    has |= find_v3();
#endif
#if defined(SNUG_LEVEL_v4)
    if ((has & 1u << CPU_LEVEL_v3) != 0)
        has |= find_v4();
#endif
#if defined(SNUG_AMX)
    if ((has & 1u << CPU_LEVEL_v4) != 0)
        has |= find_tiles();
#endif
    return has;
}

/* Asked once a process: in a virtual machine the host answers, and fit compiles thousands of steps. */
static unsigned features(void)
{
#if defined(SNUG_LEVEL_v3)
    static atomic_uint known; /* a fact of the CPU: whoever is first finds the same; 0: not yet */
    unsigned has = atomic_load_explicit(&known, memory_order_relaxed);
    if (has == 0) {
        has = find_features();
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has;
#else
    return find_features();
#endif
}

#if defined(SNUG_AMX)
/* The system lets this process use tiles.  Once a process is enough, and more do no harm. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#endif

/* ---- what is used ----------------------------------------------------------------------------- */

const struct cpu_isa *cpu_isa_find(void)
{
    const char *asked = getenv("SNUG_CPU_LEVEL");
    unsigned has = features();
    if (asked != NULL && strcmp(asked, "amx-emulated") == 0) {
#if defined(SNUG_AMX)
        if ((has & HAS_BF16) != 0)
            return &emulated_v4;
#endif
        return &emulated;
    }
    for (int i = N_CPU_LEVELS - 1; asked != NULL && i >= 0; i--)
        if (strcmp(levels[i].name, asked) == 0 && (has >> i & 1) != 0)
            return &levels[i];
#if defined(SNUG_AMX)
    if ((has & HAS_TILES) != 0 && may_use_tiles())
        return &amx;
#endif
    int highest = N_CPU_LEVELS - 1;
    while ((has >> highest & 1) == 0) /* base: every CPU runs it */
        highest--;
    return &levels[highest];
}
