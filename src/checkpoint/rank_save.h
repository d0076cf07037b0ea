/*
 * rank_save.h -- saving what lies on several ranks as if it lay on one.
 *
 * Rank 0 creates the files, decides who writes which bytes of them and, when all of that is on the disk,
 * puts the new checkpoint in its place (io/checkpoint.h).  The others do as they are asked:
 *
 *     rank_parts.c   who has what
 *     rank_write.c   each rank writes the ranges that it has into the file; only checksums go to rank 0
 *     rank_save.c    where a rank does not see rank 0's folder: the numbers go to rank 0, piece by piece
 */
#ifndef SNUG_CHECKPOINT_RANK_SAVE_H
#define SNUG_CHECKPOINT_RANK_SAVE_H

#include "io/safetensors.h"
#include "checkpoint/rank_parts.h"

/* What rank 0 asks for; ASK_write: struct write_order's and what else rank_write.c says follow. */
enum rank_ask { ASK_read, ASK_write, ASK_no_more };
struct rank_request {
    int64_t ask;
    int64_t id, at_bytes, n_bytes; /* ASK_read: bytes of what the other has of a tensor */
};

/* All ranks come to it.  On rank 0, entries of all tensors of some roles (bit ROLE_...), wherever they
 * lie; both are the caller's.  Elsewhere none. */
enum snug_status rank_save_entries(const struct rank_state *state, unsigned roles,
                                   struct st_entry **entries, int *n, struct rank_parts **parts,
                                   struct snug_error *err);

/* While rank 0 saves, the others do what it asks for, until it says that it is done. */
enum snug_status rank_save_serve(const struct rank_state *state, struct snug_error *err);
enum snug_status rank_save_done(const struct rank_state *state, struct snug_error *err);

/* rank_write.c: on rank 0, all ranks as those who write a file; and what another of them does on ASK_write. */
struct rank_crew {
    struct st_crew crew; /* first: the two are cast into each other */
    const struct rank_state *state;
    int fd;
    const char *path;
    struct write_job *jobs; /* in the order of the file */
    int n_jobs, capacity;
    int *first_of; /* of each rank, its first job */
};
void rank_crew_make(struct rank_crew *crew, const struct rank_state *state);
void rank_crew_free(struct rank_crew *crew);
enum snug_status rank_write_help(const struct rank_state *state, struct snug_error *err);

#endif
