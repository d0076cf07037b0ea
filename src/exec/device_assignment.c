/*
 * device_assignment.c -- assign GPUs to ranks and choose the transport between them.
 *
 * Ranks on the same machine are found by host name, so it does not matter which launcher started
 * them.  Every rank receives the facts of all ranks, so all reach the same decision.
 */
#include "exec/device_assignment.h"

#include "exec/collective_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_MAX = 64 };

struct rank_gpu { /* the facts of one rank, sent to all others */
    char host[HOST_MAX], place[DEVICE_TEXT_MAX];
    int32_t gpu, has_direct;
    char direct[DEVICE_TEXT_MAX]; /* its NCCL version, or why it has none */
};

void device_assignment_free(struct device_assignment *device_assignment)
{
    if (device_assignment != NULL)
        free(device_assignment->gpu);
    free(device_assignment);
}

static enum snug_status share_with_all(struct comm *comm, const struct rank_gpu *own,
                                       struct rank_gpu *all, struct snug_error *err)
{
    TRY(comm_gather(comm, 0, own, sizeof *own, all, err));
    return comm_broadcast(comm, 0, all, (int64_t)sizeof *all * comm->n_ranks, err);
}

static struct rank_gpu gpu_of_host(void)
{
    struct rank_gpu rank_gpu = {0};
    gethostname(rank_gpu.host, sizeof rank_gpu.host - 1);
    return rank_gpu;
}

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

/* How many of the first `end` ranks run on this machine. */
static enum snug_status count_here(struct comm *comm, int end, int *n_here, struct snug_error *err)
{
    struct rank_gpu *all = calloc((size_t)comm->n_ranks, sizeof *all), own = gpu_of_host();
    if (all == NULL)
        return no_memory(err);
    enum snug_status status = share_with_all(comm, &own, all, err);
    *n_here = 0;
    for (int rank = 0; rank < end; rank++)
        *n_here += strcmp(all[rank].host, own.host) == 0;
    free(all);
    return status;
}

enum snug_status device_assignment_ranks_here(struct comm *comm, int *n_here,
                                              struct snug_error *err)
{
    return count_here(comm, comm->n_ranks, n_here, err);
}

static enum snug_status own_number(struct comm *comm, int n_gpus, int *number,
                                   struct snug_error *err)
{
    int before = 0;
    TRY(count_here(comm, comm->rank, &before, err));
    *number = n_gpus > 0 ? before % n_gpus : 0;
    return SNUG_OK;
}

enum snug_status device_assignment_take(struct comm *comm, const struct device_hooks *hooks,
                                        struct device **device, struct snug_error *err)
{
    int number = 0;
    if (comm != NULL)
        TRY(own_number(comm, hooks->count(), &number, err));
    return hooks->open(number, device, err);
}

/* ---- transport ------------------------------------------------------------------------------- */

/* True if NCCL cannot be used, with the reason. */
static bool find_obstacle(const struct rank_gpu *all, int n_ranks, char why[TRANSPORT_TEXT_MAX])
{
    if (collectives_are_off()) {
        snprintf(why, TRANSPORT_TEXT_MAX, "SNUG_NCCL is off");
        return true;
    }
    for (int b = 1; b < n_ranks; b++)
        for (int a = 0; a < b; a++)
            if (strcmp(all[a].host, all[b].host) == 0 && strcmp(all[a].place, all[b].place) == 0) {
                snprintf(why, TRANSPORT_TEXT_MAX, "ranks %d and %d share a GPU", a, b);
                return true;
            }
    for (int a = 0; a < n_ranks; a++)
        if (!all[a].has_direct) {
            snprintf(why, TRANSPORT_TEXT_MAX, "rank %d has no NCCL, %s", a, all[a].direct);
            return true;
        }
    return false;
}

static enum snug_status choose_transport(const struct rank_gpu *all,
                                         struct device_assignment *device_assignment,
                                         struct snug_error *err)
{
    char why[TRANSPORT_TEXT_MAX] = "";
    device_assignment->is_direct = !find_obstacle(all, device_assignment->n_ranks, why);
    if (device_assignment->is_direct) {
        snprintf(device_assignment->transport, sizeof device_assignment->transport, "%s",
                 all[0].direct);
        return SNUG_OK;
    }
    if (collectives_are_forced())
        return snug_fail(
            err, SNUG_UNSUPPORTED,
            "SNUG_NCCL=force, but NCCL cannot be used: %s; unset SNUG_NCCL to communicate "
            "through the host",
            why);
    snprintf(device_assignment->transport, sizeof device_assignment->transport,
             "MPI through host memory: %.180s", why);
    return SNUG_OK;
}

enum snug_status device_assignment_agree(struct comm *comm, const struct device_hooks *hooks,
                                         struct device *device, struct device_assignment **out,
                                         struct snug_error *err)
{
    struct rank_gpu *all = calloc((size_t)comm->n_ranks, sizeof *all), own = gpu_of_host();
    struct device_assignment *device_assignment = *out = calloc(1, sizeof *device_assignment);
    char name[DEVICE_TEXT_MAX];
    if (device_assignment != NULL)
        device_assignment->gpu = calloc((size_t)comm->n_ranks, sizeof *device_assignment->gpu);
    if (all == NULL || device_assignment == NULL || device_assignment->gpu == NULL) {
        free(all);
        return no_memory(err);
    }
    device_assignment->n_ranks = comm->n_ranks;
    own.gpu = hooks->number(device);
    hooks->identify(device, name, own.place);
    own.has_direct = hooks->direct->find(own.direct);
    enum snug_status status = share_with_all(comm, &own, all, err);
    for (int rank = 0; rank < comm->n_ranks; rank++)
        device_assignment->gpu[rank] = all[rank].gpu;
    if (status == SNUG_OK)
        status = choose_transport(all, device_assignment, err);
    free(all);
    return status;
}
