/*
 * pipedream.h -- what PipeDream adds to the schedule of unroll.c.
 */
#ifndef SNUG_PASS_PIPEDREAM_H
#define SNUG_PASS_PIPEDREAM_H

#include "pass/unroll.h"

struct pipedream {
    bool *is_stashed;    /* per old tensor: a weight that B reads after updates have changed it */
    tensor_id *versions; /* per count of updates and old tensor: the copy, or TENSOR_NONE */
    tensor_id loss_sum;  /* over the micro-batches, on the last stage */
};

/* After u->split and u->n_ahead are known.  Free `p` with pipedream_free, also after a failure. */
enum snug_status pipedream_init(struct unrolling *u, struct pipedream *p);
void pipedream_free(struct pipedream *p);

/* Around the ops of a half: tables of the first stage go to the last one, gradients come back, and
 * after a backward half the weights are updated (old ops from the end of the body up to n_ops). */
enum snug_status pipedream_begin_half(struct unrolling *u, bool backward, int micro);
enum snug_status pipedream_end_half(struct unrolling *u, bool backward, int micro, int n_ops);
/* The version of a weight that a half of a micro-batch reads, or TENSOR_NONE: the current
 * tensor. */
tensor_id pipedream_version(const struct unrolling *u, bool backward, int micro, tensor_id id);
/* After the last half: waits for the gradients that are still being sent. */
enum snug_status pipedream_wait_sends(struct unrolling *u);
/* The mean of the losses becomes the loss of the step; last stage only. */
enum snug_status pipedream_average_loss(struct unrolling *u);

#endif
