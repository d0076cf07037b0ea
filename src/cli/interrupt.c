/*
 * interrupt.c -- Ctrl-C asks a run to save and stop; a second one ends it at once.
 *
 * A signal handler can reach nothing but file scope: this flag is the only such variable.
 */
#include "cli/cli.h"

#include <signal.h>

static volatile sig_atomic_t asked;

static void remember(int signal_number)
{
    (void)signal_number;
    asked = 1;
}

/* A signal that arrives ignored (a job put in the background by a script) stays ignored. */
static void watch(int signal_number)
{
    struct sigaction action = {.sa_handler = remember,
                               .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    struct sigaction before;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}

void interrupt_watch(void)
{
    watch(SIGINT);
    watch(SIGTERM);
}

bool interrupt_asked(void)
{
    return asked != 0;
}
