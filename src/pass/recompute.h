/*
 * recompute.h -- between the chain of blocks and the program: what each block keeps, and the walk
 * that makes the rest again where it is read.
 */
#ifndef SNUG_PASS_RECOMPUTE_H
#define SNUG_PASS_RECOMPUTE_H

#include "pass/blocks.h"
#include "pass/chain.h"
#include "pass/pass.h"

/* What the passes around checkpointing know of the program; nothing in it changes. */
struct halves {
    struct program *prog;
    struct pass_env *env;
    int n_forward;
    struct blocks blocks;
    int *writer; /* per tensor: the forward op that can make it again; -1: always there */
    bool *saved; /* per tensor: the backward half reads it */
    int *last_reader;
    int n_tensors; /* of the program as it was */
};

enum snug_status halves_find(struct program *prog, struct pass_env *env, struct halves *halves);
/* The backward of block b is the ops [begin, end). */
int halves_backward_begin(const struct halves *halves, int block);
int halves_backward_end(const struct halves *halves, int block);
/* The input of block b + 1, or TENSOR_NONE. */
tensor_id halves_result(const struct halves *halves, int block);

/* Makes what is missing.  valid: per tensor.  run: forward op `op` runs (again). */
struct maker {
    const struct halves *halves;
    bool *valid;
    bool *wanted; /* per forward op; all false between two calls */
    enum snug_status (*run)(struct maker *maker, int op);
    enum snug_status (*backward)(struct maker *maker, int op); /* a backward op as it is reached */
    void *user;
};
enum snug_status maker_init(struct maker *maker, const struct halves *halves);
/* Runs, in their order, the forward ops that the tensors want which are not valid. */
enum snug_status maker_provide(struct maker *maker, int n, const tensor_id *ids);
/* All backward ops of a block, each after what it reads of the forward half is there. */
enum snug_status maker_backward(struct maker *maker, int block);

/* Is the tensor, made by op `writer` of a block that keeps `keeps` (per op of the block; NULL:
 * nothing), there until the block's backward? */
bool halves_keeps(const struct halves *halves, int block, const bool *keeps, tensor_id id);

/* A step of a chain, with `keeps` (as above) for its option. */
struct step {
    bool backward;
    int block;
    const bool *keeps;
    bool keeps_input;
};
/* Rewrites the backward half so that it follows the steps; the forward half stays. */
enum snug_status recompute(const struct halves *halves, const struct step *steps, int n_steps);

/* selective.c: the chain in numbers.  Options of a block are the subsets of its ops whose results are
 * kept, option 0 all; `what` of each is its `keeps`. */
enum snug_status selective_chain(const struct halves *halves, struct chain *chain);
/* The ops of a block without those that are cheap to do again. */
enum snug_status selective_cheap(const struct halves *halves, int block, const bool **keeps);

#endif
