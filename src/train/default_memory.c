/*
 * default_memory.c -- the default budget of --checkpoint auto: the memory of the device.
 *
 *     --target a100           the memory of that GPU
 *     --device cuda           the memory of the smallest GPU, divided by the ranks that share it
 *     --device cpu            15/16 of the machine's memory (1/16 is for the rest of the system),
 *                             or the memory limit of this process's cgroup if it is lower
 */
#include "train/default_memory.h"

#include "base/process_memory.h"
#include "exec/plugin.h"
#include "exec/device_assignment.h"
#include "compile/device_rates.h"

#include <stdio.h>
#include <stdlib.h>

enum { SYSTEM_SHARE = 16 };

static void shared_by(int n, char out[32])
{
    out[0] = '\0';
    if (n > 1)
        snprintf(out, 32, ", shared by %d ranks", n);
}

static void set_from_machine(struct snug_recipe *recipe, int n_ranks_here)
{
    char size[TEXT_SIZE_MAX], sharing[32];
    int64_t limit = control_group_limit("/sys/fs/cgroup", "/proc/self/cgroup");
    int64_t bytes = machine_bytes();
    bool is_limit = bytes == limit;
    shared_by(n_ranks_here, sharing);
    snprintf(recipe->memory_origin, sizeof recipe->memory_origin,
             is_limit ? "the memory limit of this process, %s%s" : "15/16 of this machine's %s%s",
             text_size(bytes, size), sharing);
    recipe->memory = (is_limit ? bytes : bytes - bytes / SYSTEM_SHARE) / n_ranks_here;
}

/* The memory of this machine's smallest GPU; 0 if there is no GPU or no CUDA plugin. */
static int64_t memory_of_gpus(int *n_gpus)
{
    const struct backend *backend;
    int64_t least = INT64_MAX;
    *n_gpus = 0;
    if (plugin_backend(backend_cuda_table(), &backend, NULL) == SNUG_OK)
        *n_gpus = backend->hooks->count();
    for (int i = 0; i < *n_gpus; i++) {
        int64_t bytes = backend->hooks->memory_bytes(i);
        least = bytes < least ? bytes : least;
    }
    return *n_gpus > 0 ? least : 0;
}

static enum snug_status set_from_gpu(struct snug_recipe *recipe, int n_ranks_here,
                                     struct snug_error *err)
{
    char size[TEXT_SIZE_MAX], sharing[32];
    int n_gpus;
    int64_t bytes = memory_of_gpus(&n_gpus);
    if (bytes <= 0)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--checkpoint auto needs a memory budget, and this machine has no GPU to take it from: "
            "add --memory 24G or --target a100");
    int n_sharing = (n_ranks_here + n_gpus - 1) / n_gpus;
    shared_by(n_sharing, sharing);
    snprintf(recipe->memory_origin, sizeof recipe->memory_origin, "the %s of this GPU%s",
             text_size(bytes, size), sharing);
    recipe->memory = bytes / n_sharing;
    return SNUG_OK;
}

enum snug_status default_memory_set(struct snug_recipe *recipe, int n_ranks_here,
                                    struct snug_error *err)
{
    const char *card;
    if (recipe->checkpoint != CHECKPOINT_auto || recipe->memory > 0)
        return SNUG_OK;
    int64_t of_card = rates_card_memory((enum target)recipe->target, &card);
    if (of_card > 0) {
        snprintf(recipe->memory_origin, sizeof recipe->memory_origin, "the memory of one %s", card);
        recipe->memory = of_card;
        return SNUG_OK;
    }
    if (recipe->device == DEVICE_cuda)
        return set_from_gpu(recipe, n_ranks_here, err);
    set_from_machine(recipe, n_ranks_here);
    return SNUG_OK;
}

enum snug_status default_memory_agree(struct snug_trainer *t, struct snug_error *err)
{
    struct snug_recipe *r = &t->recipe;
    int n_ranks = t->comm->n_ranks, n_here = 1;
    if (n_ranks == 1)
        return default_memory_set(r, 1, err);
    TRY(device_assignment_ranks_here(t->comm, &n_here, err));
    TRY(default_memory_set(r, n_here, err));
    bool is_default = r->memory_origin[0] != '\0';
    int64_t least = is_default ? r->memory : INT64_MAX;
    int64_t *all = calloc((size_t)n_ranks, sizeof *all);
    if (all == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = comm_gather(t->comm, 0, &least, sizeof least, all, err);
    for (int i = 0; i < n_ranks && t->comm->rank == 0; i++)
        least = all[i] < least ? all[i] : least;
    free(all);
    if (status == SNUG_OK)
        status = comm_broadcast(t->comm, 0, &least, sizeof least, err);
    if (status == SNUG_OK && is_default && least < r->memory) {
        r->memory = least;
        snprintf(r->memory_origin, sizeof r->memory_origin, "the smallest memory of any rank");
    }
    return status;
}
