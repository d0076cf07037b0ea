/*
 * unroll.h -- what the schedules of unroll.c share with pipedream.c: the state of one unrolling.
 */
#ifndef SNUG_PASS_UNROLL_H
#define SNUG_PASS_UNROLL_H

#include "pass/pass.h"
#include "pass/rewriter.h"

struct pipedream;

struct unrolling {
    struct program *prog;
    struct pass_env *env;
    int n_tensors;          /* in the program before the pass */
    int n_micro;            /* micro-batches of a step */
    int n_ahead;            /* forward halves that run before the first backward half */
    int split, body_end;    /* old ops: where the backward half begins, and where it ends */
    tensor_id *own;         /* per micro-batch and old tensor: its copy, or TENSOR_NONE so far */
    tensor_id in_flight[2]; /* per direction: the tensor of the last send, until a wait follows */
    int micro;              /* the micro-batch that new ops belong to */
    struct rewriter rw;
    struct pipedream *pipedream; /* NULL for the synchronous schedules */
};

int unroll_n_stages(const struct unrolling *u);
bool unroll_is_first_stage(const struct unrolling *u);
bool unroll_is_last_stage(const struct unrolling *u);

enum snug_status unroll_no_memory(const struct unrolling *u);

/* Appends an op of one input and one output; either may be TENSOR_NONE. */
enum snug_status unroll_append(struct unrolling *u, enum op_kind kind, struct attrs attrs,
                               tensor_id in, tensor_id out);
/* Appends old op i for a micro-batch, with that micro-batch's tensors as operands. */
enum snug_status unroll_append_op(struct unrolling *u, int i, int micro);

/* Adds `copy` as a tensor named `format` applied to (name of id, number). */
enum snug_status unroll_add_copy(struct unrolling *u, tensor_id id, struct tensor *copy, int number,
                                 const char *format, tensor_id *added);
/* The tensor that stands for old tensor `id` in a micro-batch; added at its first use. */
enum snug_status unroll_own_tensor(struct unrolling *u, int micro, tensor_id id, tensor_id *own);
/* Where u->own records that tensor. */
tensor_id *unroll_own_slot(const struct unrolling *u, int micro, tensor_id id);

#endif
