/*
 * blocks.h -- a forward program as a chain of blocks.
 */
#ifndef SNUG_PASS_BLOCKS_H
#define SNUG_PASS_BLOCKS_H

#include "ir/program.h"

struct forward_block {
    int begin, end; /* ops */
    tensor_id
        input; /* the one activation that crosses into it; TENSOR_NONE: the program's inputs */
};

/*     [what comes before the layers]  layer  layer ... layer  [what comes after, with the loss]
 *
 * The first part may be missing, the last never is. */
struct blocks {
    struct forward_block *list;
    int n, n_layers;
    int first_layer; /* 0 or 1 */
};

/* NULL scratch memory: SNUG_NO_MEMORY.  The ops [0, n_forward) are the forward half. */
enum snug_status blocks_find(const struct program *prog, int n_forward, struct arena *scratch,
                             struct blocks *blocks, struct snug_error *err);

/* An activation that an op of the forward half may make a second time. */
bool blocks_may_drop(const struct program *prog, tensor_id id);

#endif
