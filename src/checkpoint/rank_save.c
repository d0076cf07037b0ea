/*
 * rank_save.c -- save tensors of several ranks through rank 0; see rank_save.h.
 *
 * This works without a shared file system: rank 0 writes the files and requests what it does not
 * hold from the other ranks, 64 KiB at a time.  No rank needs more memory than planned, but all
 * bytes go through rank 0.
 */
#include "checkpoint/rank_save.h"

#include <stdlib.h>

/* Reads bytes of one rank's part, here or from that rank. */
static enum snug_status get_bytes(const struct rank_parts *p, const struct rank_run *run, char *to,
                                  struct snug_error *err)
{
    const struct rank_state *t = p->state;
    if (run->rank == 0)
        return exec_read(t->exec, run->id, run->at_bytes, run->n_bytes, to, err);
    for (int64_t at = 0; at < run->n_bytes; at += RANK_PIECE_BYTES) {
        int64_t left = run->n_bytes - at, n = left < RANK_PIECE_BYTES ? left : RANK_PIECE_BYTES;
        struct rank_request request = {ASK_read, run->id, run->at_bytes + at, n};
        TRY(comm_send(t->comm, run->rank, &request, sizeof request, err));
        TRY(comm_recv(t->comm, run->rank, to + at, n, err));
    }
    return SNUG_OK;
}

static enum snug_status read_parts(const void *owner, int index, int64_t at_bytes, int64_t n_bytes,
                                   void *to, struct snug_error *err)
{
    const struct rank_parts *p = owner;
    struct rank_run run;
    int piece = -1;
    for (int64_t done = 0; done < n_bytes; done += run.n_bytes) {
        TRY(rank_parts_find(p, index, at_bytes + done, n_bytes - done, &piece, &run, err));
        TRY(get_bytes(p, &run, (char *)to + done, err));
    }
    return SNUG_OK;
}

/* A tensor that rank 0 holds whole is read in place. */
static struct st_entry entry_of(struct rank_parts *p, int index)
{
    const struct rank_tensor *t = &p->tensors[index];
    const struct rank_piece *first = &p->pieces[t->first];
    bool is_here = first->rank == 0 && first->range.count == shape_elems(&t->shape);
    void *data = is_here ? exec_data(p->state->exec, first->id) : NULL;
    return (struct st_entry){.name = t->name,
                             .dtype = t->dtype,
                             .shape = t->shape,
                             .data = data,
                             .read = data == NULL ? read_parts : NULL,
                             .owner = p,
                             .id = index,
                             .shared = true};
}

enum snug_status rank_save_entries(const struct rank_state *t, unsigned roles,
                                   struct st_entry **entries, int *n, struct rank_parts **parts,
                                   struct snug_error *err)
{
    *n = 0;
    TRY(rank_parts_make(t, roles, parts, err));
    *entries = calloc((size_t)(*parts)->n + 1, sizeof **entries);
    if (*entries == NULL)
        return rank_save_no_memory(err);
    for (; *n < (*parts)->n; ++*n)
        (*entries)[*n] = entry_of(*parts, *n);
    return SNUG_OK;
}

static enum snug_status give_bytes(const struct rank_state *t, const struct rank_request *request,
                                   struct snug_error *err)
{
    char piece[RANK_PIECE_BYTES];
    TRY(exec_read(t->exec, (tensor_id)request->id, request->at_bytes, request->n_bytes, piece,
                  err));
    return comm_send(t->comm, 0, piece, request->n_bytes, err);
}

enum snug_status rank_save_serve(const struct rank_state *t, struct snug_error *err)
{
    struct rank_request request;
    for (;;) {
        TRY(comm_recv(t->comm, 0, &request, sizeof request, err));
        if (request.ask == ASK_no_more)
            return SNUG_OK;
        TRY(request.ask == ASK_write ? rank_write_help(t, err) : give_bytes(t, &request, err));
    }
}

enum snug_status rank_save_done(const struct rank_state *t, struct snug_error *err)
{
    struct rank_request request = {.ask = ASK_no_more};
    for (int rank = 1; rank < t->comm->n_ranks; rank++)
        TRY(comm_send(t->comm, rank, &request, sizeof request, err));
    return SNUG_OK;
}
