/*
 * p2p_buffers.c -- pinned host buffers for the send and recv of device tensors.
 *
 * A sent tensor stays in its buffer from `send` to `sent`, while the device goes on.  A received
 * tensor is there until it is copied to the device.  The program determines which transfers
 * overlap, so every op gets its offset before the first step: the lowest gap that fits.  A tensor
 * that is sent several times before its `sent` is copied to the host once.
 */
#include "exec/collective.h"

#include "base/arena.h"

#include <stdlib.h>

enum { ALIGNMENT = 64 };

struct posted { /* a tensor between `send` and `sent` */
    tensor_id id;
    int64_t from, to;
};

struct allocator {
    const struct program *prog;
    struct p2p_buffers *p2p;
    struct posted *posted; /* ordered by offset */
    int n_posted, capacity;
};

static int find_posted(const struct allocator *r, tensor_id id)
{
    for (int i = 0; i < r->n_posted; i++)
        if (r->posted[i].id == id)
            return i;
    return -1;
}

/* The lowest gap of n_bytes; *before is the number of posted tensors below it. */
static int64_t find_gap(const struct allocator *r, int64_t n_bytes, int *before)
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

static void set_offset(struct allocator *r, int i, int64_t at, int64_t n_bytes)
{
    r->p2p->buffers[i].at = at;
    if (at + n_bytes > r->p2p->n_bytes)
        r->p2p->n_bytes = at + n_bytes;
}

static enum snug_status post(struct allocator *r, int i, tensor_id id, struct snug_error *err)
{
    int64_t n_bytes = padded_bytes(r->prog, id);
    int known = find_posted(r, id), before;
    if (known >= 0) {
        r->p2p->buffers[i] = (struct p2p_buffer){r->posted[known].from, .is_filled = true};
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
    set_offset(r, i, at, n_bytes);
    return SNUG_OK;
}

static enum snug_status release(struct allocator *r, int i, tensor_id id, struct snug_error *err)
{
    int known = find_posted(r, id);
    if (known < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "op %d waits for a send that was never issued", i);
    r->p2p->buffers[i].at = r->posted[known].from;
    for (int k = known + 1; k < r->n_posted; k++)
        r->posted[k - 1] = r->posted[k];
    r->n_posted--;
    return SNUG_OK;
}

/* A received tensor is on the device when the op is done, so its buffer is free for the next op. */
static void receive(struct allocator *r, int i, tensor_id id)
{
    int before;
    int64_t n_bytes = padded_bytes(r->prog, id);
    set_offset(r, i, find_gap(r, n_bytes, &before), n_bytes);
}

static enum snug_status assign_offsets(struct allocator *r, struct snug_error *err)
{
    for (int i = 0; i < r->prog->n_ops; i++) {
        const struct op *op = &r->prog->ops[i];
        switch (op->kind) {
        case OP_send:
            TRY(post(r, i, op->in[0], err));
            break;
        case OP_sent:
            TRY(release(r, i, op->in[0], err));
            break;
        case OP_recv:
            receive(r, i, op->out[0]);
            break;
        default:
            break;
        }
    }
    return SNUG_OK;
}

enum snug_status p2p_buffers_open(struct p2p_buffers *p2p, const struct program *prog,
                                  const struct device_hooks *hooks, struct snug_error *err)
{
    struct allocator r = {.prog = prog, .p2p = p2p};
    *p2p = (struct p2p_buffers){.ops = prog->ops};
    p2p->buffers = calloc((size_t)prog->n_ops + 1, sizeof *p2p->buffers);
    if (p2p->buffers == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = assign_offsets(&r, err);
    free(r.posted);
    TRY(status);
    p2p->block = p2p->n_bytes == 0 ? NULL : hooks->alloc_host((size_t)p2p->n_bytes);
    return p2p->n_bytes == 0 || p2p->block != NULL
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY,
                           "cannot allocate %lld bytes of pinned host memory for send and recv "
                           "between ranks",
                           (long long)p2p->n_bytes);
}

void p2p_buffers_close(struct p2p_buffers *p2p, const struct device_hooks *hooks)
{
    if (p2p->block != NULL)
        hooks->release_host(p2p->block);
    free(p2p->buffers);
    *p2p = (struct p2p_buffers){0};
}
