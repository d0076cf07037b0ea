/*
 * recompute.h -- connects the chain of blocks with the program: what each block saves, and the walk
 * that recomputes the rest where it is read.
 */
#ifndef SNUG_PASS_RECOMPUTE_H
#define SNUG_PASS_RECOMPUTE_H

#include "pass/blocks.h"
#include "pass/chain.h"
#include "pass/pass.h"

/* What the files of the checkpoint pass know about the program before it is rewritten. */
struct halves {
    struct program *prog;
    struct pass_env *env;
    int n_forward;
    struct blocks blocks;
    int *writer; /* per tensor: the forward op that can recompute it, -1: it is never dropped */
    bool *saved; /* per tensor: does the backward half read it? */
    int *last_reader; /* per tensor: the last op that reads it */
    int n_tensors;    /* before the rewrite */
};

enum snug_status halves_find(struct program *prog, struct pass_env *env, struct halves *halves);
/* The backward ops of a block are [begin, end). */
int halves_backward_begin(const struct halves *halves, int block);
int halves_backward_end(const struct halves *halves, int block);
/* The input of the next block, or TENSOR_NONE for the last block. */
tensor_id halves_result(const struct halves *halves, int block);

/* Walks the backward half and recomputes missing forward tensors.  What a run of an op means is up
 * to the callbacks: recompute.c rewrites the program, selective.c estimates a cost. */
struct recomputer {
    const struct halves *halves;
    bool *valid;  /* per tensor: is it available? */
    bool *wanted; /* per forward op; scratch */
    /* Called to recompute a forward op, and for each backward op in order. */
    enum snug_status (*run)(struct recomputer *recomputer, int op);
    enum snug_status (*backward)(struct recomputer *recomputer, int op);
    void *user;
};
enum snug_status recomputer_init(struct recomputer *recomputer, const struct halves *halves);
/* Runs, in order, the forward ops needed to make these tensors valid. */
enum snug_status recomputer_provide(struct recomputer *recomputer, int n, const tensor_id *ids);
/* Reaches all backward ops of a block, each after the forward tensors that it reads are valid. */
enum snug_status recomputer_backward(struct recomputer *recomputer, int block);

/* Does a block save this tensor for its backward?  keeps: per op of the block, are its results
 * saved; NULL: none are. */
bool halves_keeps(const struct halves *halves, int block, const bool *keeps, tensor_id id);

/* A struct chain_step with `keeps` (as above) in place of an option. */
struct step {
    bool backward;
    int block;
    const bool *keeps;
    bool keeps_input;
};
/* Rewrites the backward half so that it follows the steps; the forward half is unchanged. */
enum snug_status recompute(const struct halves *halves, const struct step *steps, int n_steps);

/* selective.c: the bytes and work of each block.  An option is a subset of the block's ops whose
 * results are saved; option 0 saves all.  Its `what` is the `keeps` array. */
enum snug_status selective_chain(const struct halves *halves, struct chain *chain);
/* The `keeps` that saves everything except what is cheap to recompute. */
enum snug_status selective_cheap(const struct halves *halves, int block, const bool **keeps);

#endif
