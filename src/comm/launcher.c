/*
 * launcher.c -- find the launcher of this process by the environment variables that it sets.
 *
 *     mpirun of Open MPI   OMPI_COMM_WORLD_SIZE
 *     mpirun of MPICH      PMI_SIZE
 *     srun --mpi=pmi2      PMI_SIZE
 *     srun --mpi=pmix      PMIX_RANK, and SLURM_STEP_NUM_TASKS like every srun
 *     srun --mpi=none      SLURM_STEP_NUM_TASKS only
 *
 * A Slurm batch script has SLURM_NTASKS but is one process; only srun sets the variables of a step.
 * Ranks that cannot see each other would all train the same model into the same folder.  We refuse
 * that; only the first rank prints the error.
 */
#include "comm/launcher.h"

#include "base/plugin_file.h"

#include <stdlib.h>
#include <string.h>

#define TASKS   "SLURM_STEP_NUM_TASKS"
#define OPENMPI "libsnug_openmpi.so"
#define MPICH   "libsnug_mpich.so"

/* mpirun inside a Slurm step has the variables of both: the first entry that matches is used. */
static const struct launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", OPENMPI},
    {"PMI_SIZE", "PMI_SIZE", "PMI_RANK", MPICH},
    {"PMIX_RANK", TASKS, "PMIX_RANK", OPENMPI},
};
enum { N_LAUNCHERS = sizeof launchers / sizeof *launchers };

static int number_in(const char *variable)
{
    const char *text = getenv(variable);
    long n = text == NULL ? 0 : strtol(text, NULL, 10);
    return n > 0 && n <= 1 << 24 ? (int)n : 0;
}

static bool is_off(void)
{
    const char *mpi = getenv("SNUG_MPI");
    return mpi != NULL && strcmp(mpi, "off") == 0;
}

const struct launcher *launcher_find(void)
{
    for (int i = 0; i < N_LAUNCHERS && !is_off(); i++) {
        const struct launcher *launcher = &launchers[i];
        bool is_size = launcher->mark == launcher->size;
        if (is_size ? number_in(launcher->size) > 0 : getenv(launcher->mark) != NULL)
            return launcher;
    }
    return NULL;
}

int launcher_size(const struct launcher *launcher)
{
    return number_in(launcher->size);
}

int launcher_ranks(void)
{
    const struct launcher *launcher = launcher_find();
    int n = launcher == NULL ? 0 : launcher_size(launcher);
    return n > 0 ? n : 1;
}

int launcher_rank(void)
{
    const struct launcher *launcher = launcher_find();
    if (launcher == NULL)
        return -1;
    int rank = number_in(launcher->rank);
    return rank < launcher_ranks() ? rank : 0;
}

const char *launcher_plugin(int i)
{
    static const char *const plugins[] = {OPENMPI, MPICH};
    return i < (int)(sizeof plugins / sizeof *plugins) ? plugins[i] : NULL;
}

/* The srun command for the plugins that are installed. */
static const char *advice(void)
{
    char path[PATH_MAX];
    bool has_openmpi = plugin_file_find(OPENMPI, path);
    bool has_mpich = plugin_file_find(MPICH, path);
    if (has_openmpi && has_mpich)
        return "srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH)";
    if (has_mpich)
        return "srun --mpi=pmi2";
    return has_openmpi ? "srun --mpi=pmix" : "srun --mpi=pmix, once snug is built with Open MPI";
}

/* All ranks fail in the same way: only the first reports it. */
static enum snug_status status_of(const char *rank)
{
    return number_in(rank) == 0 ? SNUG_BAD_ARGUMENT : SNUG_PEER_FAILED;
}

enum snug_status launcher_check_tasks(struct snug_error *err)
{
    int n_tasks = number_in(TASKS);
    if (n_tasks <= 1 || is_off())
        return SNUG_OK;
    return snug_fail(err, status_of("SLURM_PROCID"),
                     "srun started %d tasks without MPI, and each would train alone; start them "
                     "with %s, or set SNUG_MPI=off for %d separate runs",
                     n_tasks, advice(), n_tasks);
}

enum snug_status launcher_check_size(const struct launcher *launcher, const char *mpi, int n_ranks,
                                     struct snug_error *err)
{
    int n_started = launcher_size(launcher);
    if (n_ranks != 1 || n_started <= 1)
        return SNUG_OK;
    return snug_fail(err, status_of(launcher->rank),
                     "%s=%d, but %s sees one process, and each would train alone; start them with "
                     "the mpirun of %s, or with %s",
                     launcher->size, n_started, mpi, mpi, advice());
}
