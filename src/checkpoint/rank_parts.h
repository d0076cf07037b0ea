/*
 * rank_parts.h -- which rank holds which part of the tensors to save.
 *
 * A checkpoint holds whole tensors, whatever the number of ranks and however they are sharded.
 * Rank 0 does not know the tensors of other stages, so every rank sends it the list of what it
 * holds.
 */
#ifndef SNUG_CHECKPOINT_RANK_PARTS_H
#define SNUG_CHECKPOINT_RANK_PARTS_H

#include "base/cut.h"
#include "base/text.h"
#include "comm/comm.h"
#include "exec/exec.h"

enum { RANK_PIECE_BYTES = 1 << 16 }; /* sent to a rank, or written to a file, at a time */

/* This rank's program and tensors, and its connection to the other ranks. */
struct rank_state {
    const struct program *prog;
    struct exec *exec;
    struct comm *comm;
    int n_in_stage; /* ranks per pipeline stage; all ranks without a pipeline */
};

struct rank_piece { /* the part of a tensor that one rank holds */
    int rank;
    tensor_id id; /* in that rank's program */
    struct cut_range range;
    bool is_own; /* values may differ between ranks: running statistics of their own samples */
    int next;    /* next piece of the same tensor, or -1 */
};

struct rank_tensor {
    char *name;
    enum dtype dtype;
    struct shape shape;
    int first, last; /* pieces, by rank */
};

struct rank_parts { /* filled on rank 0 only */
    const struct rank_state *state;
    struct rank_tensor *tensors; /* all tensors that any rank holds, in the order of the lists */
    struct rank_piece *pieces;
    int n, capacity, n_pieces, piece_capacity;
};

/* Collects the tensors of some roles (bit ROLE_...; buffers go with parameters).  Collective. */
enum snug_status rank_parts_make(const struct rank_state *state, unsigned roles,
                                 struct rank_parts **parts, struct snug_error *err);
void rank_parts_free(struct rank_parts *parts);

static inline enum snug_status rank_save_no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
}

/* A run of bytes of a tensor that one rank holds; at_bytes is the offset in that rank's part. */
struct rank_run {
    int rank;
    tensor_id id;
    int64_t at_bytes, n_bytes;
};
/* Finds the run that begins at a byte of the tensor, at most n_bytes long.  *piece is -1 before the
 * first call; pass it on for the runs that follow. */
enum snug_status rank_parts_find(const struct rank_parts *parts, int tensor, int64_t at_bytes,
                                 int64_t n_bytes, int *piece, struct rank_run *run,
                                 struct snug_error *err);

/* Is a piece a full copy of the tensor, equal to the first piece?  Then their ranks share the
 * writing. */
bool rank_parts_is_copy(const struct rank_parts *parts, int tensor, const struct rank_piece *piece);

#endif
