/*
 * launcher.h -- who started this process, as one of how many.
 */
#ifndef SNUG_COMM_LAUNCHER_H
#define SNUG_COMM_LAUNCHER_H

#include "base/status.h"

/* A launcher of ranks, by the variables that it sets. */
struct launcher {
    const char *mark;   /* set: this launcher started the process */
    const char *size;   /* how many processes it started */
    const char *rank;   /* the number of this one */
    const char *plugin; /* for the MPI that goes with it */
};

/* NULL: no launcher that speaks for an MPI, or SNUG_MPI=off. */
const struct launcher *launcher_find(void);
/* How many processes it started; 0: it does not say. */
int launcher_size(const struct launcher *launcher);

/* How many ranks the launcher of this process says there are; 1: no launcher.  Which of them this one is; -1: no
 * launcher. */
int launcher_ranks(void);
int launcher_rank(void);

/* The i-th plugin that there may be; NULL: there are no more. */
const char *launcher_plugin(int i);

/* Without a launcher: fails if srun started several tasks that know nothing of each other. */
enum snug_status launcher_check_tasks(struct snug_error *err);
/* Fails if MPI, called by this name, sees n_ranks = 1 where the launcher started several. */
enum snug_status launcher_check_size(const struct launcher *launcher, const char *mpi, int n_ranks,
                                     struct snug_error *err);

#endif
