/*
 * rank_groups.c -- the process groups of a pipeline: the ranks of the same stage, which share the
 * batch, and the first and last stage of one pipeline, which share the token embedding.
 */
#include "train/trainer.h"

#include <stdlib.h>

enum snug_status trainer_open_groups(struct snug_trainer *t, struct snug_error *err)
{
    const struct compiled_step *s = &t->compiled;
    int last = (s->n_stages - 1) * s->n_ranks, ends[2] = {s->rank, last + s->rank};
    if (s->n_stages < 2)
        return SNUG_OK;
    int *stage = calloc((size_t)s->n_ranks, sizeof *stage);
    if (stage == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    for (int i = 0; i < s->n_ranks; i++)
        stage[i] = s->stage * s->n_ranks + i;
    enum snug_status status =
        comm_open_group(t->comm, stage, s->n_ranks, &t->groups[GROUP_STAGE], err);
    free(stage);
    TRY(status);
    return s->stage == 0 || s->stage == s->n_stages - 1
               ? comm_open_group(t->comm, ends, 2, &t->groups[GROUP_ENDS], err)
               : SNUG_OK;
}

void trainer_close_groups(struct snug_trainer *t)
{
    for (int i = 0; i < COLLECTIVE_GROUPS; i++)
        comm_close(t->groups[i], !t->failed);
}
