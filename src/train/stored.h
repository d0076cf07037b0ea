/*
 * stored.h -- how the numbers of a parameter lie in the arena: as they are, or, of a frozen matrix, in
 * fewer bits.
 */
#ifndef SNUG_TRAIN_STORED_H
#define SNUG_TRAIN_STORED_H

#include "base/code_map.h"
#include "exec/exec.h"

struct stored {
    enum dtype dtype; /* of the parameter as the model knows it; its shape */
    struct shape shape;
    enum dtype kept; /* as it lies; u8 with scales: codes */
    void *data;
    float *scales; /* NULL: numbers */
    struct code_map map;
};

struct stored stored_of(const struct program *prog, const struct exec *exec, tensor_id parameter);
/* Are these the scales of codes?  They go with the codes. */
bool stored_is_scales(const struct program *prog, tensor_id id);

/* Elements at .. at + n; codes: from the begin of a block on, and whole blocks but at the end. */
void stored_put(const struct stored *stored, int64_t at, int64_t n, const float *values);
void stored_get(const struct stored *stored, int64_t at, int64_t n, float *values);
/* So many elements are whole blocks of codes, whatever their bits. */
enum { STORED_PIECE = 8192 };

#endif
