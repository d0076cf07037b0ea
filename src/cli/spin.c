/*
 * spin.c -- limits how long an idle OpenMP thread spins before it sleeps.
 *
 * A waiting thread of GCC's OpenMP spins for 300,000 iterations, some milliseconds, before it
 * sleeps.  On a busy machine it spins while the thread it waits for has no core, and a step of a
 * small model, with its hundred short parallel regions, takes thirty times as long.  A thousand
 * iterations cost about as much as a sleep and a wakeup: an idle machine loses 2% on the smallest
 * models, and a busy machine gets its core back (docs/cpu.md has the figures).
 *
 * libgomp reads the count from the environment when it is loaded, before main, and offers no other
 * way to set it.  So the program sets the variable and execs itself: the same process with the same
 * arguments, open files and signals.  The second time the variable is set, so it does not exec
 * again.  If exec is not possible, the program continues with the default.
 */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#if defined(_OPENMP)

/* Under Valgrind, exec would leave Valgrind.  If the dynamic linker was called to start the
 * program, /proc/self/exe is the linker. */
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
