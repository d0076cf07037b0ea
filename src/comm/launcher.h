/*
 * launcher.h -- which launcher started this process, and with how many ranks.
 */
#ifndef SNUG_COMM_LAUNCHER_H
#define SNUG_COMM_LAUNCHER_H

#include "base/status.h"

/* A launcher, recognized by the environment variables that it sets. */
struct launcher {
    const char *mark;   /* variable that is set if this launcher started the process */
    const char *size;   /* variable with the number of processes */
    const char *rank;   /* variable with the number of this process */
    const char *plugin; /* for the MPI that goes with it */
};

/* NULL if no MPI launcher started this process, or with SNUG_MPI=off. */
const struct launcher *launcher_find(void);
/* The number of processes it started; 0 if unknown. */
int launcher_size(const struct launcher *launcher);

/* The number of ranks (1 without a launcher), and the number of this one (-1 without a
 * launcher). */
int launcher_ranks(void);
int launcher_rank(void);

/* The file name of the i-th MPI plugin, whether it exists or not; NULL after the last. */
const char *launcher_plugin(int i);

/* Without a launcher: fails if srun started several tasks that do not know of each other. */
enum snug_status launcher_check_tasks(struct snug_error *err);
/* Fails if `mpi` reports n_ranks = 1 although the launcher started several processes. */
enum snug_status launcher_check_size(const struct launcher *launcher, const char *mpi, int n_ranks,
                                     struct snug_error *err);

#endif
