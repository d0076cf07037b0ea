/*
 * p2p_buffers.c -- room in the host's memory for messages of a device's tensors.
 *
 * What is sent lies there from `send` to `sent`, while the device goes on; what is received while it is on its
 * way to the device.  The program says what is under way at once, so every message has its place
 * before the first step: the lowest that is free.  A tensor that is sent several times before it is
 * settled is brought there once.
 */
#include "exec/collective.h"

#include "base/arena.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct posted { /* a tensor that was sent and is not settled */
    tensor_id id;
    int64_t from, to;
};

struct rooms {
    const struct program *prog;
    struct message_room *room;
    struct posted *posted; /* by place */
    int n_posted, capacity;
};

static int find_posted(const struct rooms *r, tensor_id id)
{
    for (int i = 0; i < r->n_posted; i++)
        if (r->posted[i].id == id)
            return i;
    return -1;
}

/* The lowest gap that takes so many bytes; *before: how many of the posted lie below it. */
static int64_t find_gap(const struct rooms *r, int64_t n_bytes, int *before)
{
    int64_t at = 0;
    int i = 0;
    for (; i < r->n_posted && r->posted[i].from - at < n_bytes; i++)
        at = r->posted[i].to;
    *before = i;
    return at;
}

static int64_t padded_bytes(const struct program *prog, tensor_id id)
{
    return (tensor_bytes(prog, id) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void give_place(struct rooms *r, int i, int64_t at, int64_t n_bytes)
{
    r->room->places[i].at = at;
    if (at + n_bytes > r->room->n_bytes)
        r->room->n_bytes = at + n_bytes;
}

static enum snug_status post(struct rooms *r, int i, tensor_id id, struct snug_error *err)
{
    int64_t n_bytes = padded_bytes(r->prog, id);
    int known = find_posted(r, id), before;
    if (known >= 0) {
        r->room->places[i] = (struct message_place){r->posted[known].from, .is_there = true};
        return SNUG_OK;
    }
    void *grown = r->posted;
    if (!array_grow(&grown, &r->capacity, r->n_posted + 1, sizeof *r->posted))
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    r->posted = grown;
    int64_t at = find_gap(r, n_bytes, &before);
    for (int k = r->n_posted++; k > before; k--)
        r->posted[k] = r->posted[k - 1];
    r->posted[before] = (struct posted){.id = id, .from = at, .to = at + n_bytes};
    give_place(r, i, at, n_bytes);
    return SNUG_OK;
}

static enum snug_status settle(struct rooms *r, int i, tensor_id id, struct snug_error *err)
{
    int known = find_posted(r, id);
    if (known < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "op %d waits for a message that was not sent", i);
    r->room->places[i].at = r->posted[known].from;
    for (int k = known + 1; k < r->n_posted; k++)
        r->posted[k - 1] = r->posted[k];
    r->n_posted--;
    return SNUG_OK;
}

/* What is received is on the device when the op is done: its place is free for the next message. */
static void receive(struct rooms *r, int i, tensor_id id)
{
    int before;
    int64_t n_bytes = padded_bytes(r->prog, id);
    give_place(r, i, find_gap(r, n_bytes, &before), n_bytes);
}

static enum snug_status find_places(struct rooms *r, struct snug_error *err)
{
    for (int i = 0; i < r->prog->n_ops; i++) {
        const struct op *op = &r->prog->ops[i];
        if (op->kind == OP_send)
            TRY(post(r, i, op->in[0], err));
        else if (op->kind == OP_sent)
            TRY(settle(r, i, op->in[0], err));
        else if (op->kind == OP_recv)
            receive(r, i, op->out[0]);
    }
    return SNUG_OK;
}

enum snug_status message_room_open(struct message_room *room, const struct program *prog,
                                   const struct device_hooks *hooks, struct snug_error *err)
{
    struct rooms r = {.prog = prog, .room = room};
    *room = (struct message_room){.ops = prog->ops};
    room->places = calloc((size_t)prog->n_ops + 1, sizeof *room->places);
    if (room->places == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = find_places(&r, err);
    free(r.posted);
    TRY(status);
    room->block = room->n_bytes == 0 ? NULL : hooks->alloc_host((size_t)room->n_bytes);
    return room->n_bytes == 0 || room->block != NULL
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY,
                           "the host does not give %lld bytes of pinned memory for messages "
                           "between ranks",
                           (long long)room->n_bytes);
}

void message_room_close(struct message_room *room, const struct device_hooks *hooks)
{
    if (room->block != NULL)
        hooks->release_host(room->block);
    free(room->places);
    *room = (struct message_room){0};
}
