/*
 * interrupt.c -- Ctrl-C, SIGTERM or SIGHUP asks a run to save and stop; a second Ctrl-C or SIGTERM
 * kills it at once.
 *
 * An evaluation is canceled and a save is finished.  A step is finished too if it ends within the
 * grace period.  The wait is limited because SIGKILL often follows SIGTERM (in Slurm after 30 s),
 * and the last checkpoint is already on disk.  SIGALRM is the timer.
 *
 * Signal handlers can only reach file-scope variables; this is the only reason for those below.
 */
#include "cli/cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { FAREWELL_MAX = 1200 };
static volatile sig_atomic_t asked;
static atomic_int in_step; /* 1: a step is running, and `farewell` is complete */
static atomic_int grace_s;
static atomic_int is_armed; /* 1: the timer runs; further signals do not restart it */
static char farewell[FAREWELL_MAX];

static void give_up(int signal_number)
{
    (void)signal_number;
    if (atomic_load(&in_step) == 0) {
        alarm(1); /* between steps or saving: check again in a second */
        return;
    }
    (void)!write(STDERR_FILENO, farewell, strlen(farewell));
    _exit(CLI_STOPPED);
}

static void remember(int signal_number)
{
    asked = 1;
    signal(SIGPIPE, SIG_IGN); /* the reader of our output may have got the same signal */
    if (atomic_load(&grace_s) < 0 || atomic_exchange(&is_armed, 1) == 1)
        return;
    if (atomic_load(&grace_s) == 0)
        give_up(signal_number);
    else
        alarm((unsigned)atomic_load(&grace_s));
}

/* A signal that was ignored at start (nohup, a background job of a script) stays ignored. */
static void watch(int signal_number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags | (int)SA_RESTART};
    struct sigaction before;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, &action, NULL);
}

void interrupt_watch(void)
{
    atomic_store(&grace_s, -1);
    watch(SIGINT, remember, (int)SA_RESETHAND);
    watch(SIGTERM, remember, (int)SA_RESETHAND);
    watch(SIGHUP, remember, 0); /* sent twice when a shell ends: by the shell and by the kernel */
}

void interrupt_set_grace(int seconds)
{
    atomic_store(&grace_s, seconds);
    watch(SIGALRM, give_up, 0);
}

void interrupt_begin_step(const char *message)
{
    atomic_store(&in_step, 0);
    snprintf(farewell, sizeof farewell - 1, message[0] == '\0' ? "" : "snug: %s", message);
    snug_printable(farewell);
    strcat(farewell, farewell[0] == '\0' ? "" : "\n");
    atomic_store(&in_step, 1);
}

void interrupt_end_step(void)
{
    atomic_store(&in_step, 0);
}

bool interrupt_asked(void)
{
    return asked != 0;
}
