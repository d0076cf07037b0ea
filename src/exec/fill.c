/*
 * fill.c -- large pieces of tensors, made by the host.
 *
 * Where the host can point to a tensor, a piece is made in its place.  Else it is made in a room, memory of
 * the host, and goes from there: on a device by a copy that the host does not wait for, so that the next
 * piece is made in the next room meanwhile.  Rooms are taken in turns, and one is free again when its
 * copy is done.  They are made when they are first needed, and live until the last piece has arrived: a
 * run has none.
 */
#include "exec/local.h"

#include <stdlib.h>
#include <string.h>

/* Three may be open at a time: quantized elements, scales and a master.  Those of the piece before are on their way. */
enum { N_OPEN = 3, N_ROOMS = 2 * N_OPEN };

struct fill_rooms {
    void *block[N_ROOMS];
    void *sent[N_ROOMS]; /* events of a device: the copy from there is done */
    int next;
};

static enum snug_status make_room(const struct exec *exec, struct fill_rooms *rooms, int i,
                                  struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    rooms->block[i] = hooks != NULL ? hooks->alloc_host(EXEC_FILL_BYTES) : malloc(EXEC_FILL_BYTES);
    if (rooms->block[i] == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory for what goes to tensors");
    return hooks == NULL ? SNUG_OK : hooks->event_make(&rooms->sent[i], err);
}

static enum snug_status take_room(struct exec *exec, struct exec_fill *fill, struct snug_error *err)
{
    if (exec->fill_rooms == NULL)
        exec->fill_rooms = calloc(1, sizeof *exec->fill_rooms);
    struct fill_rooms *rooms = exec->fill_rooms;
    if (rooms == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    int i = rooms->next;
    if (rooms->block[i] == NULL)
        TRY(make_room(exec, rooms, i, err));
    else if (exec->hooks != NULL)
        TRY(exec->hooks->event_finish(rooms->sent[i], err));
    rooms->next =
        (i + 1) % (exec->hooks != NULL ? N_ROOMS : N_OPEN); /* a write returns when done */
    fill->room = i;
    fill->to = rooms->block[i];
    return SNUG_OK;
}

enum snug_status exec_fill_begin(struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                                 struct exec_fill *fill, struct snug_error *err)
{
    unsigned char *data = exec_data(exec, id);
    *fill = (struct exec_fill){.id = id, .at_bytes = at_bytes, .n_bytes = n_bytes, .room = -1};
    if (data == NULL)
        return take_room(exec, fill, err);
    fill->to = data + at_bytes;
    return SNUG_OK;
}

enum snug_status exec_fill_end(struct exec *exec, const struct exec_fill *fill,
                               struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    int64_t offset = exec->plan->offset[fill->id];
    if (fill->room < 0)
        return SNUG_OK;
    if (offset < 0)
        return exec_write(exec, fill->id, fill->at_bytes, fill->n_bytes, fill->to, err);
    TRY(hooks->push(exec->facts.device, exec->arena + offset + fill->at_bytes, fill->to,
                    fill->n_bytes, err));
    return hooks->event_record(exec->fill_rooms->sent[fill->room],
                               hooks->stream(exec->facts.device), err);
}

enum snug_status exec_fill_finish(struct exec *exec, struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    struct fill_rooms *rooms = exec->fill_rooms;
    enum snug_status status = /* zeros are on their way without a room */
        hooks == NULL || exec->facts.device == NULL ? SNUG_OK
                                                    : hooks->synchronize(exec->facts.device, err);
    for (int i = 0; rooms != NULL && i < N_ROOMS; i++) {
        if (hooks == NULL) {
            free(rooms->block[i]);
        } else {
            hooks->release_host(rooms->block[i]);
            hooks->event_free(rooms->sent[i]);
        }
    }
    free(rooms);
    exec->fill_rooms = NULL;
    return status;
}

/* Pages of the host are first touched by the threads that share the work on them. */
static void clear_memory(int threads, unsigned char *data, int64_t n_bytes)
{
    enum { PIECE = 1 << 16 };
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < n_bytes; at += PIECE)
        memset(data + at, 0, (size_t)(n_bytes - at < PIECE ? n_bytes - at : PIECE));
}

enum snug_status exec_clear(struct exec *exec, tensor_id id, struct snug_error *err)
{
    int64_t offset = exec->plan->offset[id], n_bytes = tensor_bytes(exec->prog, id);
    if (offset >= 0 && exec->hooks != NULL)
        return exec->hooks->clear(exec->facts.device, exec->arena + offset, n_bytes, err);
    if (exec_data(exec, id) != NULL) {
        clear_memory(exec->facts.threads, exec_data(exec, id), n_bytes);
        return SNUG_OK;
    }
    for (int64_t at = 0; at < n_bytes; at += EXEC_FILL_BYTES) {
        struct exec_fill fill;
        int64_t n = n_bytes - at < EXEC_FILL_BYTES ? n_bytes - at : EXEC_FILL_BYTES;
        TRY(exec_fill_begin(exec, id, at, n, &fill, err));
        memset(fill.to, 0, (size_t)n);
        TRY(exec_fill_end(exec, &fill, err));
    }
    return SNUG_OK;
}
