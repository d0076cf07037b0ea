/*
 * rank_parts.c -- which rank holds which part of the tensors to save; see rank_parts.h.
 */
#include "checkpoint/rank_parts.h"

#include <stdlib.h>
#include <string.h>

struct part { /* a rank's part of a tensor, as sent to rank 0; the tensor's name follows */
    int64_t name_bytes;
    enum dtype dtype;
    struct shape whole;
    struct rank_piece piece;
};

static bool is_saved(const struct rank_state *t, tensor_id id, unsigned roles)
{
    const struct tensor *tensor = &t->prog->tensors[id];
    enum role role = tensor->role == ROLE_buffer ? ROLE_parameter : tensor->role;
    return (roles >> role & 1) != 0 && tensor->base == TENSOR_NONE && !tensor->frozen &&
           tensor->persistent && exec_holds(t->exec, id);
}

static struct part part_here(const struct rank_state *t, tensor_id id)
{
    const struct tensor *tensor = &t->prog->tensors[id];
    return (struct part){.name_bytes = (int64_t)strlen(tensor->name),
                         .dtype = tensor->dtype,
                         .whole = tensor->whole.n_dims > 0 ? tensor->whole : tensor->shape,
                         .piece = {.rank = t->comm->rank,
                                   .id = id,
                                   .range = {tensor->whole_from, shape_elems(&tensor->shape)},
                                   .is_own = tensor->role == ROLE_buffer,
                                   .next = -1}};
}

/* Ranks list their tensors in the same order but may lack some: the search starts at `from`. */
static int find_tensor(const struct rank_parts *p, const char *name, int from)
{
    for (int i = 0; i < p->n; i++) {
        int at = (from + i) % p->n;
        if (strcmp(p->tensors[at].name, name) == 0)
            return at;
    }
    return -1;
}

static enum snug_status add_tensor(struct rank_parts *p, const struct part *part, const char *name,
                                   int *at, struct snug_error *err)
{
    void *grown = p->tensors;
    char *own = strdup(name);
    if (own == NULL || !array_grow(&grown, &p->capacity, p->n + 1, sizeof *p->tensors)) {
        free(own);
        return rank_save_no_memory(err);
    }
    p->tensors = grown;
    *at = p->n++;
    p->tensors[*at] = (struct rank_tensor){
        .name = own, .dtype = part->dtype, .shape = part->whole, .first = -1, .last = -1};
    return SNUG_OK;
}

static enum snug_status add_piece(struct rank_parts *p, const struct part *part, const char *name,
                                  int *place, struct snug_error *err)
{
    void *grown = p->pieces;
    int at = find_tensor(p, name, *place);
    if (at < 0)
        TRY(add_tensor(p, part, name, &at, err));
    if (!array_grow(&grown, &p->piece_capacity, p->n_pieces + 1, sizeof *p->pieces))
        return rank_save_no_memory(err);
    p->pieces = grown;
    struct rank_tensor *tensor = &p->tensors[at];
    p->pieces[p->n_pieces] = part->piece;
    if (tensor->first < 0)
        tensor->first = p->n_pieces;
    else
        p->pieces[tensor->last].next = p->n_pieces;
    tensor->last = p->n_pieces++;
    *place = at + 1;
    return SNUG_OK;
}

/* Sends this rank's list to rank 0: parts, each followed by its zero-terminated name. */
static enum snug_status send_list(const struct rank_state *t, const struct text *list,
                                  struct snug_error *err)
{
    int64_t n_bytes = (int64_t)list->length;
    TRY(comm_send(t->comm, 0, &n_bytes, sizeof n_bytes, err));
    return comm_send(t->comm, 0, list->data, n_bytes, err);
}

static enum snug_status add_list(struct rank_parts *p, const char *list, int64_t n_bytes,
                                 struct snug_error *err)
{
    int place = 0;
    for (const char *at = list; at < list + n_bytes;) {
        struct part part;
        memcpy(&part, at, sizeof part);
        TRY(add_piece(p, &part, at + sizeof part, &place, err));
        at += (int64_t)sizeof part + part.name_bytes + 1;
    }
    return SNUG_OK;
}

static enum snug_status recv_list(struct rank_parts *p, int rank, struct snug_error *err)
{
    int64_t n_bytes;
    TRY(comm_recv(p->state->comm, rank, &n_bytes, sizeof n_bytes, err));
    char *list = malloc((size_t)n_bytes + 1);
    if (list == NULL)
        return rank_save_no_memory(err);
    enum snug_status status = comm_recv(p->state->comm, rank, list, n_bytes, err);
    if (status == SNUG_OK)
        status = add_list(p, list, n_bytes, err);
    free(list);
    return status;
}

static void list_own(const struct rank_state *t, unsigned roles, struct text *list)
{
    for (int id = 0; id < t->prog->n_tensors; id++)
        if (is_saved(t, id, roles)) {
            struct part part = part_here(t, id);
            text_add_bytes(list, (const char *)&part, sizeof part);
            text_add_bytes(list, t->prog->tensors[id].name, (size_t)part.name_bytes + 1);
        }
}

enum snug_status rank_parts_make(const struct rank_state *t, unsigned roles,
                                 struct rank_parts **parts, struct snug_error *err)
{
    struct text own = {0};
    struct rank_parts *p = *parts = calloc(1, sizeof *p);
    list_own(t, roles, &own);
    enum snug_status status = p == NULL || own.failed ? rank_save_no_memory(err) : SNUG_OK;
    if (status == SNUG_OK) {
        p->state = t;
        status = t->comm->rank > 0 ? send_list(t, &own, err)
                                   : add_list(p, own.data, (int64_t)own.length, err);
    }
    for (int rank = 1; rank < t->comm->n_ranks && t->comm->rank == 0 && status == SNUG_OK; rank++)
        status = recv_list(p, rank, err);
    text_free(&own);
    return status;
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

enum snug_status rank_parts_find(const struct rank_parts *p, int tensor, int64_t at_bytes,
                                 int64_t n_bytes, int *piece, struct rank_run *run,
                                 struct snug_error *err)
{
    const struct rank_tensor *t = &p->tensors[tensor];
    int64_t size = (int64_t)dtype_bytes(t->dtype);
    for (int i = *piece < 0 ? t->first : *piece; i >= 0; i = p->pieces[i].next) {
        const struct rank_piece *found = &p->pieces[i];
        int64_t begin = at_bytes - found->range.from * size, end = found->range.count * size;
        if (begin < 0 || begin >= end)
            continue;
        int64_t n = end - begin < n_bytes ? end - begin : n_bytes;
        *piece = i;
        *run = (struct rank_run){found->rank, found->id, begin, n};
        return SNUG_OK;
    }
    return snug_fail(err, SNUG_BAD_PROGRAM, "the ranks do not hold all of \"%s\"", t->name);
}

bool rank_parts_is_copy(const struct rank_parts *p, int tensor, const struct rank_piece *piece)
{
    const struct rank_tensor *t = &p->tensors[tensor];
    int n_in_stage = p->state->n_in_stage;
    return piece->range.count == shape_elems(&t->shape) && !piece->is_own &&
           piece->rank / n_in_stage == p->pieces[t->first].rank / n_in_stage;
}
