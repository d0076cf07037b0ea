/*
 * cpu_isa.c -- detect the instructions of this CPU and choose those that the kernels use.
 *
 * SNUG_CPU_LEVEL=base|v3|v4 in the environment selects a lower level, to test it or to compare bits
 * between machines.  Above v4 there is amx: the same kernels, with bf16 matmuls and attention on
 * tiles (gemm_bf16.h, attention_bf16.h).  amx-emulated emulates the tiles in plain C, so they can
 * be tested anywhere.
 */
#include "cpu/cpu_isa.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
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
/* Tiles emulated in plain C go with the base kernels, so fused and separate ops give the same
 * bits. */
static const struct cpu_isa emulated = ISA_WITH_TILES("base, amx-emulated", base, emulated);
#if defined(SNUG_AMX)
static const struct cpu_isa emulated_v4 = ISA_WITH_TILES("v4, amx-emulated", v4, emulated_v4);
static const struct cpu_isa amx = ISA_WITH_TILES("v4 and amx", v4, amx);
#endif

/* ---- detection ------------------------------------------------------------------------------- */

enum {                               /* flags above 1 << enum cpu_level */
       HAS_BF16 = 1 << N_CPU_LEVELS, /* AVX-512 bf16 conversions, for the code between tiles */
       HAS_TILES = HAS_BF16 << 1,
       HIDES_PALETTES = HAS_TILES << 1
};

#if defined(__x86_64__)
static unsigned find_hidden_palettes(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1u);
    bool has_palettes = __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a >= 1;
    return has_amx && !has_palettes ? HIDES_PALETTES : 0;
}
#endif

#if defined(SNUG_LEVEL_v3)
/* Uses CPUID directly: not every compiler knows the names of these two. */
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
/* Requires that the CPU has tiles and the OS saves them.  Does not query the palette leaf: some
 * hypervisors hide it, and palette 1 is the only one. */
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
#if defined(__x86_64__)
    has |= find_hidden_palettes();
#endif
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

/* Detects once per process: in a virtual machine CPUID traps to the host, and fit compiles
 * thousands of steps. */
static unsigned features(void)
{
#if defined(__x86_64__)
    static atomic_uint known; /* 0 before detection; all threads store the same value */
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
/* Asks the OS to let this process use tiles.  Repeated calls do no harm. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#endif

bool cpu_hides_tile_palettes(void)
{
    return (features() & HIDES_PALETTES) != 0;
}

/* ---- selection ------------------------------------------------------------------------------- */

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
    while ((has >> highest & 1) == 0) /* ends at base, which every CPU supports */
        highest--;
    return &levels[highest];
}
