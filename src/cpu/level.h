/*
 * level.h -- compile the same SIMD source once per instruction level.
 *
 * The Makefile compiles every simd_*.c for each level that the compiler supports (base, v3, v4: the
 * x86-64 feature levels) with -DSNUG_LEVEL=<level>.  Inside such a file LEVEL(name) expands to
 * name_v4 and so on.  Everything except one exported function is static, so the copies do not
 * clash.  The backend chooses a copy for the CPU when it dispatches an op (cpu_backend.c).
 *
 * A family of kernels exports one function:
 *
 *     const struct kernel *LEVEL(simd_norm_kernels)(int *n_kernels) { ... static const array ... }
 *
 * To add a family, write simd_NAME.c and add NAME to SIMD_FAMILIES.
 */
#ifndef SNUG_CPU_LEVEL_H
#define SNUG_CPU_LEVEL_H

#include "exec/backend.h"

/* In dispatch order: the first kernel that supports an op runs it. */
#define SIMD_FAMILIES(X, level) \
    X(norm, level)              \
    X(rmsnorm, level)           \
    X(rope, level)              \
    X(swiglu, level)            \
    X(attention, level)         \
    X(attention_grad, level)    \
    X(elementwise, level)       \
    X(loss, level)              \
    X(embedding, level)         \
    X(optimizer, level)         \
    X(direction, level)         \
    X(average, level)           \
    X(matrix, level)            \
    X(winograd, level)          \
    X(winograd_w, level)        \
    X(conv, level)              \
    X(conv_w, level)            \
    X(batchnorm, level)         \
    X(pool, level)

/* The levels of this build, lowest first.  SNUG_LEVEL_v3 and _v4 come from tools/configure.sh. */
#ifdef SNUG_LEVEL_v3
#define LEVEL_LIST_V3(X) X(v3)
#else
#define LEVEL_LIST_V3(X)
#endif
#ifdef SNUG_LEVEL_v4
#define LEVEL_LIST_V4(X) X(v4)
#else
#define LEVEL_LIST_V4(X)
#endif
#define LEVEL_LIST(X) X(base) LEVEL_LIST_V3(X) LEVEL_LIST_V4(X)

#define LEVEL_PASTE(name, level)          name##_##level
#define LEVEL_PASTE_EXPANDED(name, level) LEVEL_PASTE(name, level)
#ifdef SNUG_LEVEL
#define LEVEL(name) LEVEL_PASTE_EXPANDED(name, SNUG_LEVEL)
#endif

#define LEVEL_DECLARE_FAMILY(family, level) \
    const struct kernel *simd_##family##_kernels_##level(int *n_kernels);
#define LEVEL_DECLARE(level) SIMD_FAMILIES(LEVEL_DECLARE_FAMILY, level)
LEVEL_LIST(LEVEL_DECLARE)
#undef LEVEL_DECLARE
#undef LEVEL_DECLARE_FAMILY

#endif
