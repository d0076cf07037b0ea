/*
 * rank_parts.h -- who of the ranks has what of the tensors that are saved.
 *
 * A checkpoint holds whole tensors, whatever the number of ranks and however they were sharded.  Ranks of
 * other stages have tensors that rank 0 knows nothing of: so each tells it the names of what it has.
 */
#ifndef SNUG_CHECKPOINT_RANK_PARTS_H
#define SNUG_CHECKPOINT_RANK_PARTS_H

#include "base/cut.h"
#include "base/text.h"
#include "comm/comm.h"
#include "exec/exec.h"

enum { RANK_PIECE_BYTES = 1 << 16 }; /* that go between ranks, or to a file, at a time */

/* What this rank has of a run: its program and its tensors, and the other ranks. */
struct rank_state {
    const struct program *prog;
    struct exec *exec;
    struct comm *comm;
    int n_in_stage; /* ranks that share a stage of a pipeline; all of them where there is none */
};

struct rank_piece { /* what a rank has of a tensor */
    int rank;
    tensor_id id; /* in its program */
    struct cut_range range;
    bool is_own; /* other ranks may have other numbers in it: statistics of what each has seen */
    int next;    /* of the same tensor; -1: none */
};

struct rank_tensor {
    char *name;
    enum dtype dtype;
    struct shape shape;
    int first, last; /* pieces, by rank */
};

struct rank_parts { /* on rank 0; elsewhere nothing is in it */
    const struct rank_state *state;
    struct rank_tensor *tensors; /* that some rank has, in the order in which they were met */
    struct rank_piece *pieces;
    int n, capacity, n_pieces, piece_capacity;
};

/* All ranks come to it: the tensors of some roles (bit ROLE_...; buffers go with parameters). */
enum snug_status rank_parts_make(const struct rank_state *state, unsigned roles,
                                 struct rank_parts **parts, struct snug_error *err);
void rank_parts_free(struct rank_parts *parts);

static inline enum snug_status rank_save_no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
}

/* Bytes of a tensor that one rank has, and where they lie in what it has of it. */
struct rank_run {
    int rank;
    tensor_id id;
    int64_t at_bytes, n_bytes;
};
/* The run that begins at a byte of the tensor, at most n_bytes long.  Runs that follow each other are asked
 * for with the same *piece, which is -1 at first. */
enum snug_status rank_parts_find(const struct rank_parts *parts, int tensor, int64_t at_bytes,
                                 int64_t n_bytes, int *piece, struct rank_run *run,
                                 struct snug_error *err);

/* Does a piece have the same numbers of the whole tensor as its first has?  Then they can divide the work. */
bool rank_parts_is_copy(const struct rank_parts *parts, int tensor, const struct rank_piece *piece);

#endif
