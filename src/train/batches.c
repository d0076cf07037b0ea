/*
 * batches.c -- the batches of a run: checked before a step, and fed to it.
 */
#include "train/trainer.h"

#include <string.h>

/* The first sample of this rank's share of a step. */
static int64_t first_sample(const struct snug_trainer *t, int64_t step)
{
    return step * t->compiled.batch + t->compiled.batch / t->compiled.n_ranks * t->compiled.rank;
}

enum snug_status trainer_agree_to_go_on(struct snug_trainer *t, bool *stop, bool *is_bad,
                                        struct snug_error *why, struct snug_error *err)
{
    *is_bad =
        t->step < t->n_steps && data_check(t->data, DATA_TRAIN, first_sample(t, t->step),
                                           t->compiled.batch / t->compiled.n_ranks, why) != SNUG_OK;
    double most = *is_bad ? 2 : *stop ? 1 : 0;
    TRY(comm_max(t->comm, &most, err));
    *is_bad = most == 2;
    *stop = most > 0;
    return SNUG_OK;
}

enum snug_status trainer_feed(void *user, int micro, struct snug_error *err)
{
    struct snug_trainer *t = user;
    const struct program *prog = &t->compiled.prog;
    if (t->given != NULL) { /* the caller's batch: the micro-batch is a slice of it */
        int at = 0;
        micro += t->compiled.rank * prog->n_repeat;
        for (int id = 0; id < prog->n_tensors; id++)
            if (prog->tensors[id].role == ROLE_input && prog->tensors[id].base == TENSOR_NONE) {
                size_t bytes = (size_t)tensor_bytes(prog, id);
                memcpy(exec_input(t->exec, id),
                       (const char *)t->given[at++] + (size_t)micro * bytes, bytes);
            }
        return SNUG_OK;
    }
    int64_t step = t->step + micro / prog->n_repeat; /* fed ahead: the next step */
    /* an unrolled body takes all micro-batches at once */
    int64_t n = t->compiled.micro_batch * (t->compiled.n_micro / prog->n_repeat);
    int64_t first = first_sample(t, step) + micro % prog->n_repeat * n;
    return data_fill(t->data, DATA_TRAIN, first, n, exec_input(t->exec, t->input_spec.input),
                     exec_input(t->exec, t->input_spec.target_input), err);
}
