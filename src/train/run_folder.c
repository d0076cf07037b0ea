/*
 * run_folder.c -- the lock of a run folder, and the checkpoints that --keep keeps in it.
 *
 * Rank 0 holds the lock (checkpoint/run_lock.h) from before the first byte is written until the
 * trainer is freed.  A locked folder is refused before anything else is checked: another process is
 * writing to it, so any other message would describe an intermediate state.
 */
#include "base/fd.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/retained.h"
#include "checkpoint/adapter.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <unistd.h>

static enum snug_status lock_it(struct snug_trainer *t, struct snug_error *err)
{
    if (t->lock != NULL)
        return SNUG_OK;
    t->made_out = access(t->out, F_OK) != 0;
    TRY(checkpoint_make_dir(t->out, err));
    return run_lock_take(t->out, true, &t->lock, NULL, err);
}

/* --keep deletes old checkpoints, so a run must not be resumed inside one. */
static enum snug_status check_not_kept(const struct snug_trainer *t, struct snug_error *err)
{
    bool is_kept;
    TRY(retained_is_one(t->out, &is_kept, err));
    return !is_kept
               ? SNUG_OK
               : snug_fail(err, SNUG_BAD_ARGUMENT,
                           "%s is a checkpoint that --keep created and will delete: copy it and "
                           "pass the copy as --out",
                           t->out);
}

enum snug_status trainer_claim_out(struct snug_trainer *t, struct snug_error *err)
{
    bool is_first = t->comm->rank == 0;
    if (is_first || t->options.resume)
        TRY(check_not_kept(t, err));
    if (is_first)
        TRY(run_lock_take(t->out, false, &t->lock, NULL, err));
    if (is_first || t->options.resume) /* only rank 0 writes; all ranks read to resume */
        TRY(trainer_check_out(t, err));
    if (is_first && t->options.keep > 0)
        TRY(retained_check_home(t->out, err));
    return is_first && t->options.resume ? lock_it(t, err) : SNUG_OK;
}

enum snug_status trainer_take_out(struct snug_trainer *t, struct snug_error *err)
{
    if (t->comm->rank == 0 && t->lock == NULL) {
        TRY(lock_it(t, err));
        TRY(trainer_check_out(t, err)); /* another run may have used the folder since */
    }
    return t->comm->n_ranks > 1 ? comm_barrier(t->comm, err) : SNUG_OK;
}

void trainer_leave_out(struct snug_trainer *t)
{
    run_lock_give_back(t->lock);
    if (t->made_out)
        (void)rmdir(t->out); /* fails unless it is empty, that is, the run has not begun */
    t->lock = NULL;
}

/* Adds step N to the retained checkpoints: the files that state.json lists, and the small ones. */
static enum snug_status keep_step(struct snug_trainer *t, struct snug_error *err)
{
    static const char *const small[] = {"config.json", "plan.json", "state.json", SAFETENSORS_INDEX,
                                        ADAPTER_FOLDER "/" PEFT_CONFIG_NAME};
    enum { N_SMALL = sizeof small / sizeof *small };
    struct checkpoint *checkpoint;
    int n = 0;
    TRY(checkpoint_open(t->out, &checkpoint, err));
    int n_files = checkpoint_count(checkpoint);
    const char **names = calloc((size_t)n_files + N_SMALL, sizeof *names);
    enum snug_status status =
        names != NULL ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    for (int i = 0; i < N_SMALL && status == SNUG_OK; i++) {
        bool found;
        status = path_find(t->out, small[i], &found, err);
        if (status == SNUG_OK && found)
            names[n++] = small[i];
    }
    for (int i = 0; i < n_files && status == SNUG_OK; i++)
        names[n++] = checkpoint_name(checkpoint, i);
    if (status == SNUG_OK)
        status = retained_add(t->out, t->step, names, n, NULL, err);
    free(names);
    checkpoint_close(checkpoint);
    return status;
}

enum snug_status trainer_keep(struct snug_trainer *t, struct snug_error *err)
{
    if (t->options.keep <= 0 || t->comm->rank > 0)
        return SNUG_OK;
    bool is_fresh = t->step > t->first_step;
    if (is_fresh || !retained_has(t->out, t->step)) {
        TRY(checkpoint_settle(t->out, NULL, err));
        TRY(keep_step(t, err));
    }
    return retained_trim(t->out, t->step, t->options.keep, NULL, err);
}
