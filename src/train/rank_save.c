/*
 * rank_save.c -- saving what lies on several ranks as if it lay on one; see rank_save.h.
 *
 * A checkpoint holds whole tensors, whatever the number of ranks and however they were sharded: so any
 * number of ranks can go on with it, and other programs read it as ever.  Rank 0 writes, and asks the
 * others for what it does not have, a piece of 64 KiB at a time: no rank ever holds more than it plans to.
 */
#include "train/rank_save.h"

#include <stdlib.h>

enum { PIECE_BYTES = 1 << 16 };
static const int64_t is_done = -1;

struct request { /* of rank 0: bytes of what the other has of a tensor */
    int64_t id, at_bytes, n_bytes;
};

struct rank_parts {
    struct snug_trainer *trainer;
    tensor_id *ids; /* of the tensors, in the order of their entries */
    int n;
    struct cut_range *ranges; /* of each, and of each rank: elements */
};

/* Tensors that some rank has: the pass shard has added none of these roles, so ids agree. */
static bool may_be_saved(const struct program *prog, tensor_id id, unsigned roles)
{
    const struct tensor *t = &prog->tensors[id];
    enum role role = t->role == ROLE_buffer ? ROLE_parameter : t->role;
    return (roles >> role & 1) != 0 && t->base == TENSOR_NONE && !t->frozen;
}

static struct cut_range range_here(const struct snug_trainer *t, tensor_id id)
{
    const struct tensor *tensor = &t->session.prog.tensors[id];
    bool is_here = tensor->persistent && exec_holds(t->exec, id);
    return (struct cut_range){tensor->whole_from, is_here ? shape_elems(&tensor->shape) : 0};
}

static enum snug_status find_ranges(struct rank_parts *p, unsigned roles, struct snug_error *err)
{
    struct snug_trainer *t = p->trainer;
    const struct program *prog = &t->session.prog;
    size_t n_most = (size_t)prog->n_tensors + 1;
    struct cut_range *own = calloc(n_most, sizeof *own);
    p->ids = calloc(n_most, sizeof *p->ids);
    if (own == NULL || p->ids == NULL) {
        free(own);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    }
    for (int id = 0; id < prog->n_tensors; id++)
        if (may_be_saved(prog, id, roles)) {
            own[p->n] = range_here(t, id);
            p->ids[p->n++] = id;
        }
    p->ranges = calloc((size_t)t->comm->n_ranks * (size_t)p->n + 1, sizeof *p->ranges);
    enum snug_status status =
        p->ranges == NULL
            ? snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving")
            : comm_gather(t->comm, 0, own, p->n * (int64_t)sizeof *own, p->ranges, err);
    free(own);
    return status;
}

static const struct cut_range *range_of(const struct rank_parts *p, int rank, int index)
{
    return &p->ranges[(size_t)rank * (size_t)p->n + (size_t)index];
}

/* Bytes of one rank's part, from wherever it is. */
static enum snug_status get_bytes(const struct rank_parts *p, int rank, struct request request,
                                  char *to, struct snug_error *err)
{
    struct snug_trainer *t = p->trainer;
    if (rank == 0)
        return exec_read(t->exec, (tensor_id)request.id, request.at_bytes, request.n_bytes, to,
                         err);
    struct request rest = request;
    while (rest.n_bytes > 0) {
        struct request piece = rest;
        piece.n_bytes = rest.n_bytes < PIECE_BYTES ? rest.n_bytes : PIECE_BYTES;
        TRY(comm_send(t->comm, rank, &piece, sizeof piece, err));
        TRY(comm_recv(t->comm, rank, to, piece.n_bytes, err));
        to += piece.n_bytes;
        rest.at_bytes += piece.n_bytes;
        rest.n_bytes -= piece.n_bytes;
    }
    return SNUG_OK;
}

static enum snug_status read_parts(const void *owner, int index, int64_t at_bytes, int64_t n_bytes,
                                   void *to, struct snug_error *err)
{
    const struct rank_parts *p = owner;
    const struct tensor *t = &p->trainer->session.prog.tensors[p->ids[index]];
    int64_t size = (int64_t)dtype_bytes(t->dtype), done = 0;
    for (int rank = 0; rank < p->trainer->comm->n_ranks && done < n_bytes; rank++) {
        const struct cut_range *r = range_of(p, rank, index);
        int64_t begin = at_bytes + done - r->from * size, end = r->count * size;
        if (begin < 0 || begin >= end)
            continue;
        int64_t n = end - begin < n_bytes - done ? end - begin : n_bytes - done;
        struct request request = {.id = p->ids[index], .at_bytes = begin, .n_bytes = n};
        TRY(get_bytes(p, rank, request, (char *)to + done, err));
        done += n;
    }
    return done == n_bytes ? SNUG_OK
                           : snug_fail(err, SNUG_BAD_PROGRAM, "no rank has all of \"%s\"", t->name);
}

static bool is_anywhere(const struct rank_parts *p, int index)
{
    for (int rank = 0; rank < p->trainer->comm->n_ranks; rank++)
        if (range_of(p, rank, index)->count > 0)
            return true;
    return false;
}

/* What rank 0 has whole is written from where it lies, as ever. */
static struct st_entry entry_of(struct rank_parts *p, int index)
{
    const struct snug_trainer *t = p->trainer;
    const struct tensor *tensor = &t->session.prog.tensors[p->ids[index]];
    struct shape whole = tensor->whole.n_dims > 0 ? tensor->whole : tensor->shape;
    bool is_here = range_of(p, 0, index)->count == shape_elems(&whole);
    void *data = is_here ? exec_data(t->exec, p->ids[index]) : NULL;
    return (struct st_entry){.name = tensor->name,
                             .dtype = tensor->dtype,
                             .shape = whole,
                             .data = data,
                             .read = data == NULL ? read_parts : NULL,
                             .owner = p,
                             .id = index};
}

enum snug_status rank_save_entries(struct snug_trainer *t, unsigned roles,
                                   struct st_entry **entries, int *n, struct rank_parts **parts,
                                   struct snug_error *err)
{
    struct rank_parts *p = calloc(1, sizeof *p);
    *n = 0;
    *parts = p;
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    p->trainer = t;
    TRY(find_ranges(p, roles, err));
    *entries = calloc((size_t)p->n + 1, sizeof **entries);
    if (*entries == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    for (int i = 0; i < p->n && t->comm->rank == 0; i++)
        if (is_anywhere(p, i))
            (*entries)[(*n)++] = entry_of(p, i);
    return SNUG_OK;
}

void rank_parts_free(struct rank_parts *p)
{
    if (p == NULL)
        return;
    free(p->ids);
    free(p->ranges);
    free(p);
}

enum snug_status rank_save_serve(struct snug_trainer *t, struct snug_error *err)
{
    char piece[PIECE_BYTES];
    for (;;) {
        struct request request;
        TRY(comm_recv(t->comm, 0, &request, sizeof request, err));
        if (request.id == is_done)
            return SNUG_OK;
        TRY(exec_read(t->exec, (tensor_id)request.id, request.at_bytes, request.n_bytes, piece,
                      err));
        TRY(comm_send(t->comm, 0, piece, request.n_bytes, err));
    }
}

enum snug_status rank_save_done(struct snug_trainer *t, struct snug_error *err)
{
    struct request request = {.id = is_done};
    for (int rank = 1; rank < t->comm->n_ranks; rank++)
        TRY(comm_send(t->comm, rank, &request, sizeof request, err));
    return SNUG_OK;
}
