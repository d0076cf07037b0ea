/*
 * spin.c -- bounds how long an idle OpenMP thread spins before it sleeps.
 *
 * A thread of GCC's OpenMP that waits for the others spins for 300,000 rounds, some milliseconds, before it
 * sleeps.  On a machine with other work to do it spins while the one that it waits for has no core, and a
 * step of a small model, with its hundred short parallel regions, takes thirty times as long.  A thousand
 * rounds are about what falling asleep and being woken cost: an idle machine loses 2% at the smallest models,
 * and a busy one gets its core back (docs/cpu.md has the figures).
 *
 * The number is read from the environment when the library is loaded, before main, and can be set in no other
 * way.  So the program sets it and executes itself once more: the same process with the same arguments, open
 * files and signals.  The variable that is set then is what ends it.  Where that is not possible the
 * program goes on as it is.
 */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#if defined(_OPENMP)

/* Valgrind would lose the program that it looks at.  A program that the dynamic linker was asked to start has
 * the linker in /proc/self/exe. */
static bool can_execute_itself(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return (preload == NULL || strstr(preload, "vgpreload") == NULL) && getauxval(AT_BASE) != 0;
}

void spin_bound(char **argv)
{
    char path[4096];
    if (getenv("GOMP_SPINCOUNT") != NULL || getenv("OMP_WAIT_POLICY") != NULL ||
        !can_execute_itself())
        return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || length >= (ssize_t)sizeof path - 1)
        return;
    path[length] = '\0';
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0)
        execv(path, argv); /* returns only if it fails */
}

#else

void spin_bound(char **argv)
{
    (void)argv;
}

#endif
