/*
 * rank_save.h -- save tensors that are spread over several ranks as one checkpoint.
 *
 * Rank 0 creates the files and decides which rank writes which bytes.  When everything is on disk,
 * it commits the new checkpoint (checkpoint/checkpoint.h).  The other ranks serve its requests:
 *
 *     rank_parts.c   which rank holds what
 *     rank_write.c   every rank writes its ranges into the file; only checksums go to rank 0
 *     rank_save.c    if a rank does not see rank 0's folder: it sends its bytes to rank 0
 */
#ifndef SNUG_CHECKPOINT_RANK_SAVE_H
#define SNUG_CHECKPOINT_RANK_SAVE_H

#include "io/safetensors.h"
#include "checkpoint/rank_parts.h"

/* Requests of rank 0.  After ASK_write the messages of rank_write.c follow. */
enum rank_ask { ASK_read, ASK_write, ASK_no_more };
struct rank_request {
    int64_t ask;
    int64_t id, at_bytes, n_bytes; /* ASK_read: bytes of the receiver's part of a tensor */
};

/* On rank 0: entries of all tensors of some roles (bit ROLE_...), whichever rank holds them.  The
 * caller frees entries and parts.  Other ranks get none.  Collective. */
enum snug_status rank_save_entries(const struct rank_state *state, unsigned roles,
                                   struct st_entry **entries, int *n, struct rank_parts **parts,
                                   struct snug_error *err);

/* While rank 0 saves, the other ranks serve its requests until it calls rank_save_done. */
enum snug_status rank_save_serve(const struct rank_state *state, struct snug_error *err);
enum snug_status rank_save_done(const struct rank_state *state, struct snug_error *err);

/* rank_write.c: the ranks that write a file together, as rank 0 sees them.  rank_write_help serves
 * ASK_write on the other ranks. */
struct rank_crew {
    struct st_crew crew; /* first member: the two are cast into each other */
    const struct rank_state *state;
    int fd;
    const char *path;
    struct write_job *jobs; /* in the order of the file */
    int n_jobs, capacity;
    int *first_of; /* the first job of each rank */
};
void rank_crew_make(struct rank_crew *crew, const struct rank_state *state);
void rank_crew_free(struct rank_crew *crew);
enum snug_status rank_write_help(const struct rank_state *state, struct snug_error *err);

#endif
