/*
 * blocks.h -- split a forward program into a chain of blocks.
 */
#ifndef SNUG_PASS_BLOCKS_H
#define SNUG_PASS_BLOCKS_H

#include "ir/program.h"

struct forward_block {
    int begin, end;  /* ops [begin, end) */
    tensor_id input; /* the one activation that it reads; TENSOR_NONE: the program's inputs */
};

/*     [embedding etc.]  layer  layer ... layer  [head and loss]
 *
 * The block before the layers may be missing.  The one after them may be part of the last layer. */
struct blocks {
    struct forward_block *list;
    int n, n_layers;
    int first_layer; /* index of the first layer's block: 0 or 1 */
};

/* Splits the ops [0, n_forward), the forward half.  The list is allocated in `scratch`. */
enum snug_status blocks_find(const struct program *prog, int n_forward, struct arena *scratch,
                             struct blocks *blocks, struct snug_error *err);

/* Is it an activation that can be dropped and recomputed by its forward op? */
bool blocks_may_drop(const struct program *prog, tensor_id id);

#endif
