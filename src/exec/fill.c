/*
 * fill.c -- fill large pieces of tensors from the host.
 *
 * A tensor in host memory is filled in place.  Otherwise the host fills a buffer, which is copied
 * to the tensor.  Copies to a device are asynchronous, so the host fills the next buffer meanwhile.
 * Buffers are used in rotation; one is free again when its copy is done.  They are allocated when
 * first needed and freed by exec_fill_finish, so none exists during a run.
 */
#include "exec/local.h"

#include <stdlib.h>
#include <string.h>

/* Three pieces may be open: quantized elements, scales and a master.  Twice as many buffers,
 * because the previous pieces may still be in flight. */
enum { N_OPEN = 3, N_BUFFERS = 2 * N_OPEN };

struct fill_buffers {
    void *block[N_BUFFERS];
    void *sent[N_BUFFERS]; /* device events: the copy from the buffer is done */
    int next;
};

static enum snug_status alloc_buffer(const struct exec *exec, struct fill_buffers *buffers, int i,
                                     struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    buffers->block[i] =
        hooks != NULL ? hooks->alloc_host(EXEC_FILL_BYTES) : malloc(EXEC_FILL_BYTES);
    if (buffers->block[i] == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory for a fill buffer of %d bytes",
                         (int)EXEC_FILL_BYTES);
    return hooks == NULL ? SNUG_OK : hooks->event_make(&buffers->sent[i], err);
}

static enum snug_status take_buffer(struct exec *exec, struct exec_fill *fill,
                                    struct snug_error *err)
{
    if (exec->fill_buffers == NULL)
        exec->fill_buffers = calloc(1, sizeof *exec->fill_buffers);
    struct fill_buffers *buffers = exec->fill_buffers;
    if (buffers == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    int i = buffers->next;
    if (buffers->block[i] == NULL)
        TRY(alloc_buffer(exec, buffers, i, err));
    else if (exec->hooks != NULL)
        TRY(exec->hooks->event_finish(buffers->sent[i], err));
    buffers->next =
        (i + 1) % (exec->hooks != NULL ? N_BUFFERS : N_OPEN); /* a write returns when done */
    fill->buffer = i;
    fill->to = buffers->block[i];
    return SNUG_OK;
}

enum snug_status exec_fill_begin(struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                                 struct exec_fill *fill, struct snug_error *err)
{
    unsigned char *data = exec_data(exec, id);
    *fill = (struct exec_fill){.id = id, .at_bytes = at_bytes, .n_bytes = n_bytes, .buffer = -1};
    if (data == NULL)
        return take_buffer(exec, fill, err);
    fill->to = data + at_bytes;
    return SNUG_OK;
}

enum snug_status exec_fill_end(struct exec *exec, const struct exec_fill *fill,
                               struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    int64_t offset = exec->plan->offset[fill->id];
    if (fill->buffer < 0)
        return SNUG_OK;
    if (offset < 0)
        return exec_write(exec, fill->id, fill->at_bytes, fill->n_bytes, fill->to, err);
    TRY(hooks->push(exec->facts.device, exec->arena + offset + fill->at_bytes, fill->to,
                    fill->n_bytes, err));
    return hooks->event_record(exec->fill_buffers->sent[fill->buffer],
                               hooks->stream(exec->facts.device), err);
}

enum snug_status exec_fill_finish(struct exec *exec, struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    struct fill_buffers *buffers = exec->fill_buffers;
    enum snug_status status = /* exec_clear works without a buffer */
        hooks == NULL || exec->facts.device == NULL ? SNUG_OK
                                                    : hooks->synchronize(exec->facts.device, err);
    for (int i = 0; buffers != NULL && i < N_BUFFERS; i++) {
        if (hooks == NULL) {
            free(buffers->block[i]);
        } else {
            hooks->release_host(buffers->block[i]);
            hooks->event_free(buffers->sent[i]);
        }
    }
    free(buffers);
    exec->fill_buffers = NULL;
    return status;
}

/* In parallel, so that the threads that work on the pages touch them first. */
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
