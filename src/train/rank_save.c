/*
 * rank_save.c -- saving what lies on several ranks as if it lay on one; see rank_save.h.
 *
 * A checkpoint holds whole tensors, whatever the number of ranks and however they were sharded: so any
 * number of ranks can go on with it, and other programs read it as ever.  Rank 0 writes, and asks the
 * others for what it does not have, a piece of 64 KiB at a time: no rank ever holds more than it plans to.
 * Ranks of other stages have tensors that rank 0 knows nothing of: so each tells it the names of what it has.
 */
#include "train/rank_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 16 };
static const int64_t is_done = -1;

struct request { /* of rank 0: bytes of what the other has of a tensor */
    int64_t id, at_bytes, n_bytes;
};

enum { NAME_BYTES = 512 };
struct part { /* what a rank has of a tensor, as it says to rank 0 */
    char name[NAME_BYTES];
    enum dtype dtype;
    struct shape whole;
    tensor_id id; /* in its program */
    struct cut_range range;
};

struct piece { /* the same, on rank 0 */
    int rank;
    tensor_id id;
    struct cut_range range;
    int next; /* of the same tensor; -1: none */
};

struct whole_tensor {
    char *name;
    enum dtype dtype;
    struct shape shape;
    int first, last; /* pieces, by rank */
};

struct rank_parts {
    struct snug_trainer *trainer;
    struct whole_tensor *tensors; /* that some rank has, in the order in which they were met */
    struct piece *pieces;
    int n, capacity, n_pieces, piece_capacity;
};

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
}

/* ---- who has what ---------------------------------------------------------------------------- */

static bool is_saved(const struct snug_trainer *t, tensor_id id, unsigned roles)
{
    const struct tensor *tensor = &t->session.prog.tensors[id];
    enum role role = tensor->role == ROLE_buffer ? ROLE_parameter : tensor->role;
    return (roles >> role & 1) != 0 && tensor->base == TENSOR_NONE && !tensor->frozen &&
           tensor->persistent && exec_holds(t->exec, id);
}

static struct part part_here(const struct snug_trainer *t, tensor_id id)
{
    const struct tensor *tensor = &t->session.prog.tensors[id];
    struct part part = {.dtype = tensor->dtype,
                        .whole = tensor->whole.n_dims > 0 ? tensor->whole : tensor->shape,
                        .id = id,
                        .range = {tensor->whole_from, shape_elems(&tensor->shape)}};
    snprintf(part.name, sizeof part.name, "%s", tensor->name);
    return part;
}

static int count_here(const struct snug_trainer *t, unsigned roles)
{
    int n = 0;
    for (int id = 0; id < t->session.prog.n_tensors; id++)
        n += is_saved(t, id, roles);
    return n;
}

/* Ranks name their tensors in the same order, but for those that they do not have: look from `from` on. */
static int find_tensor(const struct rank_parts *p, const char *name, int from)
{
    for (int i = 0; i < p->n; i++) {
        int at = (from + i) % p->n;
        if (strcmp(p->tensors[at].name, name) == 0)
            return at;
    }
    return -1;
}

static enum snug_status add_tensor(struct rank_parts *p, const struct part *part, int *at,
                                   struct snug_error *err)
{
    void *grown = p->tensors;
    char *name = strdup(part->name);
    if (name == NULL || !array_grow(&grown, &p->capacity, p->n + 1, sizeof *p->tensors)) {
        free(name);
        return no_memory(err);
    }
    p->tensors = grown;
    *at = p->n++;
    p->tensors[*at] = (struct whole_tensor){
        .name = name, .dtype = part->dtype, .shape = part->whole, .first = -1, .last = -1};
    return SNUG_OK;
}

static enum snug_status add_piece(struct rank_parts *p, int rank, const struct part *part,
                                  int *place, struct snug_error *err)
{
    void *grown = p->pieces;
    int at = find_tensor(p, part->name, *place);
    if (at < 0)
        TRY(add_tensor(p, part, &at, err));
    if (!array_grow(&grown, &p->piece_capacity, p->n_pieces + 1, sizeof *p->pieces))
        return no_memory(err);
    p->pieces = grown;
    struct whole_tensor *tensor = &p->tensors[at];
    p->pieces[p->n_pieces] =
        (struct piece){.rank = rank, .id = part->id, .range = part->range, .next = -1};
    if (tensor->first < 0)
        tensor->first = p->n_pieces;
    else
        p->pieces[tensor->last].next = p->n_pieces;
    tensor->last = p->n_pieces++;
    *place = at + 1;
    return SNUG_OK;
}

/* One rank after the other tells rank 0 what it has. */
static enum snug_status tell(const struct snug_trainer *t, unsigned roles, struct snug_error *err)
{
    int64_t n = count_here(t, roles);
    TRY(comm_send(t->comm, 0, &n, sizeof n, err));
    for (int id = 0; id < t->session.prog.n_tensors; id++)
        if (is_saved(t, id, roles)) {
            struct part part = part_here(t, id);
            TRY(comm_send(t->comm, 0, &part, sizeof part, err));
        }
    return SNUG_OK;
}

static enum snug_status hear(struct rank_parts *p, int rank, struct snug_error *err)
{
    int64_t n;
    int place = 0;
    TRY(comm_recv(p->trainer->comm, rank, &n, sizeof n, err));
    for (int64_t i = 0; i < n; i++) {
        struct part part;
        TRY(comm_recv(p->trainer->comm, rank, &part, sizeof part, err));
        TRY(add_piece(p, rank, &part, &place, err));
    }
    return SNUG_OK;
}

static enum snug_status find_pieces(struct rank_parts *p, unsigned roles, struct snug_error *err)
{
    const struct snug_trainer *t = p->trainer;
    int place = 0;
    if (t->comm->rank > 0)
        return tell(t, roles, err);
    for (int id = 0; id < t->session.prog.n_tensors; id++)
        if (is_saved(t, id, roles)) {
            struct part part = part_here(t, id);
            TRY(add_piece(p, 0, &part, &place, err));
        }
    for (int rank = 1; rank < t->comm->n_ranks; rank++)
        TRY(hear(p, rank, err));
    return SNUG_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

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
    const struct whole_tensor *t = &p->tensors[index];
    int64_t size = (int64_t)dtype_bytes(t->dtype), done = 0;
    for (int i = t->first; i >= 0 && done < n_bytes; i = p->pieces[i].next) {
        const struct piece *piece = &p->pieces[i];
        int64_t begin = at_bytes + done - piece->range.from * size;
        int64_t end = piece->range.count * size;
        if (begin < 0 || begin >= end)
            continue;
        int64_t n = end - begin < n_bytes - done ? end - begin : n_bytes - done;
        struct request request = {.id = piece->id, .at_bytes = begin, .n_bytes = n};
        TRY(get_bytes(p, piece->rank, request, (char *)to + done, err));
        done += n;
    }
    return done == n_bytes ? SNUG_OK
                           : snug_fail(err, SNUG_BAD_PROGRAM, "no rank has all of \"%s\"", t->name);
}

/* What rank 0 has whole is written from where it lies, as ever. */
static struct st_entry entry_of(struct rank_parts *p, int index)
{
    const struct whole_tensor *t = &p->tensors[index];
    const struct piece *first = &p->pieces[t->first];
    bool is_here = first->rank == 0 && first->range.count == shape_elems(&t->shape);
    void *data = is_here ? exec_data(p->trainer->exec, first->id) : NULL;
    return (struct st_entry){.name = t->name,
                             .dtype = t->dtype,
                             .shape = t->shape,
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
        return no_memory(err);
    p->trainer = t;
    TRY(find_pieces(p, roles, err));
    *entries = calloc((size_t)p->n + 1, sizeof **entries);
    if (*entries == NULL)
        return no_memory(err);
    for (; *n < p->n; ++*n)
        (*entries)[*n] = entry_of(p, *n);
    return SNUG_OK;
}

void rank_parts_free(struct rank_parts *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < p->n; i++)
        free(p->tensors[i].name);
    free(p->tensors);
    free(p->pieces);
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
