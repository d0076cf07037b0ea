/*
 * exec_device.c -- runs on a device: work is put on its streams, and what was put there once is recorded
 * and put there again by a single call.
 *
 * The first run of an exec starts every kernel by itself (libraries load their code then).  After it, the
 * sections are recorded: the same calls once more, kept instead of done.  Nothing that changes from step
 * to step is part of a recording, since kernels read it from the scalar table.  Between two micro-batches
 * the calls differ in what accumulates and in what runs in the last one only: hence the parts of a run.
 * If the device cannot record something, every run starts its kernels by itself.
 *
 * Copies are work on two more streams, one each way; messages past a stage have another.  Where ranks
 * exchange through the host, a thread of the host makes them, as on the CPU: it waits for the kernels
 * before, and ops that need a copy are put on their stream when it is done.
 */
#include "exec/local.h"

#include <stdlib.h>
#include <string.h>

/* ---- the lane of copies ---------------------------------------------------------------------- */

/* One for each op, or for each copy: an unrolled program has many others. */
static enum snug_status make_events(void ***events, const struct exec *exec, bool of_copies,
                                    struct snug_error *err)
{
    int n = exec->prog->n_ops + 1;
    *events = calloc((size_t)n, sizeof **events);
    if (*events == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    for (int i = 0; i < n; i++)
        if (!of_copies || (i < n - 1 && op_is_copy(&exec->prog->ops[i])))
            TRY(exec->hooks->event_make(&(*events)[i], err));
    return SNUG_OK;
}

static void free_events(void **events, int n, const struct device_hooks *hooks)
{
    for (int i = 0; events != NULL && i < n; i++)
        hooks->event_free(events[i]);
    free(events);
}

static int64_t bucket_bytes(const struct program *prog)
{
    int64_t most = 0;
    for (int i = 0; i < prog->n_ops; i++)
        if (op_is_collective(prog->ops[i].kind) && prog->ops[i].work != TENSOR_NONE &&
            tensor_bytes(prog, prog->ops[i].work) > most)
            most = tensor_bytes(prog, prog->ops[i].work);
    return most;
}

enum snug_status device_open_lane(struct exec *exec, struct snug_error *err)
{
    exec->collective_runner.work_bytes = exec->facts.comm == NULL ? 0 : bucket_bytes(exec->prog);
    if (exec->facts.comm != NULL && !directs_are_open(&exec->collective_runner))
        TRY(rank_collectives_stage(&exec->collective_runner, exec->prog, err));
    TRY(exec->hooks->event_make(&exec->forked, err));
    return make_events(&exec->copied, exec, true, err);
}

void device_close(struct exec *exec)
{
    const struct device_hooks *hooks = exec->hooks;
    if (hooks == NULL)
        return;
    if (exec->facts.device != NULL)
        (void)hooks->synchronize(exec->facts.device, NULL);
    for (int i = 0; i < N_PARTS; i++)
        if (exec->recordings[i] != NULL)
            hooks->recording_free(exec->recordings[i]);
    free_events(exec->copied, exec->prog->n_ops + 1, hooks);
    free_events(exec->timed, exec->prog->n_ops + 1, hooks);
    hooks->event_free(exec->forked);
    staging_free(exec);
    rank_collectives_close(&exec->collective_runner);
    if (exec->owns_arena && directs_are_open(&exec->collective_runner)) {
        if (comm_check(exec->facts.comm, NULL) != SNUG_OK)
            directs_abort(&exec->collective_runner);
        directs_close(&exec->collective_runner);
    }
}

/* By the thread of copies: when the kernels before it are done. */
enum snug_status device_run_copy(struct exec *exec, int i, struct snug_error *err)
{
    exec->hooks->use(exec->facts.device);
    TRY(exec->hooks->event_finish(exec->copied[i], err));
    TRY(exec->kernels[i]->run(&exec->calls[i], err));
    return exec->hooks->finish_copies(exec->facts.device, err);
}

static bool leaves(enum op_kind kind)
{
    return kind_has(kind, TRAIT_leaves);
}

void *device_stream_of(const struct exec *exec, const struct op *op)
{
    const struct device_hooks *hooks = exec->hooks;
    struct device *device = exec->facts.device;
    bool is_far = op->kind == OP_send && exec->facts.comm != NULL &&
                  message_is_far(&exec->collective_runner, op);
    return !op_is_copy(op)    ? hooks->stream(device)
           : is_far           ? hooks->far_stream(device)
           : leaves(op->kind) ? hooks->evict_stream(device)
                              : hooks->copy_stream(device);
}

/* A message of device to device is on its way from `send` to `sent`, which is done when it has arrived. */
static enum snug_status wait_for_send(struct exec *exec, int i, struct snug_error *err)
{
    bool waits = exec->prog->ops[i].kind == OP_sent && exec->copies == NULL;
    return waits && exec->waits_for[i] >= 0
               ? exec->hooks->event_wait(exec->calls[i].stream, exec->copied[exec->waits_for[i]],
                                         err)
               : SNUG_OK;
}

/* Of this section: nothing has waited for all copies since. */
static bool is_under_way(const struct exec *exec, int copy)
{
    return copy >= 0 && exec->number[copy] >= exec->n_joined;
}

static void forget_copies(struct exec *exec)
{
    exec->newest_fetch = exec->newest_eviction = -1;
    exec->n_joined = exec->n_issued;
}

/* After the kernels before it, beside those that follow.  What leaves has a stream of its own, so that a
 * bus is used both ways at once.  Plans count on copies being done one after the other: a prefetch may have
 * the bytes of a evict before it, so it waits for them all.  What is sent is in use until `sent`, and nothing
 * else waits for it: it may leave only when this rank has received something.  What leaves waits for the
 * copy that has made its operand, if one has, and for no later one: states of the next parameters are prefetched
 * while those of the last are evicted. */
enum snug_status device_issue_copy(struct exec *exec, int i, struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    struct device *device = exec->facts.device;
    if (exec->copies != NULL) {
        TRY(hooks->event_record(exec->copied[i], hooks->stream(device), err));
        exec->number[i] = copies_issue(exec->copies, i);
        return SNUG_OK;
    }
    enum op_kind kind = exec->prog->ops[i].kind;
    void *stream = exec->calls[i].stream;
    TRY(hooks->event_record(exec->forked, hooks->stream(device), err));
    TRY(hooks->event_wait(stream, exec->forked, err));
    if (!leaves(kind) && exec->newest_eviction >= 0)
        TRY(hooks->event_wait(stream, exec->copied[exec->newest_eviction], err));
    if (leaves(kind) && is_under_way(exec, exec->waits_for[i]))
        TRY(hooks->event_wait(stream, exec->copied[exec->waits_for[i]], err));
    TRY(wait_for_send(exec, i, err));
    exec->number[i] = exec->n_issued++;
    exec->newest_eviction = kind == OP_evict ? i : leaves(kind) ? exec->newest_eviction : -1;
    exec->newest_fetch = leaves(kind) ? exec->newest_fetch : i;
    TRY(exec->kernels[i]->run(&exec->calls[i], err));
    return hooks->event_record(exec->copied[i], stream, err);
}

enum snug_status device_wait_for_copy(struct exec *exec, int copy, struct snug_error *err)
{
    if (exec->copies != NULL)
        return copies_wait(exec->copies, exec->number[copy], err);
    void *kernels = exec->hooks->stream(exec->facts.device);
    if (leaves(exec->prog->ops[copy].kind) && exec->newest_fetch >= 0)
        TRY(exec->hooks->event_wait(kernels, exec->copied[exec->newest_fetch], err));
    return exec->hooks->event_wait(kernels, exec->copied[copy], err);
}

enum snug_status device_join_copies(struct exec *exec, int newest, struct snug_error *err)
{
    if (newest >= 0)
        TRY(device_wait_for_copy(exec, newest, err));
    forget_copies(exec);
    return SNUG_OK;
}

enum snug_status device_run_alone(struct exec *exec, int i, int micro, struct snug_error *err)
{
    const struct op *op = &exec->prog->ops[i];
    void *end = op_is_copy(op) ? exec->copied[i] : exec->forked;
    TRY(wait_for_send(exec, i, err));
    TRY(exec_run_op(exec, i, micro, err));
    TRY(exec->hooks->event_record(end, exec->calls[i].stream, err));
    return op->kind == OP_send ? SNUG_OK : device_finish_event(exec, end, err);
}

/* ---- time of ops ----------------------------------------------------------------------------- */

enum snug_status device_mark_op(struct exec *exec, int i, struct snug_error *err)
{
    return exec->hooks->event_record(exec->timed[i], exec->hooks->stream(exec->facts.device), err);
}

/* A section, and how long each of its ops took: from the end of the one before to its own. */
static enum snug_status time_section(struct exec *exec, int begin, int end, int micro,
                                     struct snug_error *err)
{
    const struct program *prog = exec->prog;
    if (exec->timed == NULL)
        TRY(make_events(&exec->timed, exec, false, err));
    TRY(device_mark_op(exec, prog->n_ops, err));
    TRY(exec_run_section(exec, begin, end, micro, err));
    TRY(device_finish(exec, err));
    void *before = exec->timed[prog->n_ops];
    for (int i = begin; i < end; i++) {
        if (!op_runs_in(prog, &prog->ops[i], micro) || op_is_copy(&prog->ops[i]))
            continue;
        exec->op_seconds[i] += exec->hooks->event_seconds(before, exec->timed[i]);
        before = exec->timed[i];
    }
    return SNUG_OK;
}

/* ---- parts of a run -------------------------------------------------------------------------- */

struct part_range {
    int begin, end, micro;
};

static struct part_range range_of(const struct program *prog, enum part part)
{
    int body_end = program_body_end(prog);
    switch (part) {
    case PART_prologue:
        return (struct part_range){0, prog->body_begin, 0};
    case PART_first:
        return (struct part_range){prog->body_begin, body_end, 0};
    case PART_middle:
        return (struct part_range){prog->body_begin, prog->n_repeat > 2 ? body_end : 0, 1};
    case PART_last:
        return (struct part_range){prog->body_begin, prog->n_repeat > 1 ? body_end : 0,
                                   prog->n_repeat - 1};
    default:
        return (struct part_range){body_end, prog->n_ops, 0};
    }
}

static enum part part_of(const struct program *prog, int micro)
{
    return micro == 0 ? PART_first : micro == prog->n_repeat - 1 ? PART_last : PART_middle;
}

static enum snug_status run_part(struct exec *exec, enum part part, int micro,
                                 struct snug_error *err)
{
    struct part_range range = range_of(exec->prog, part);
    if (range.begin >= range.end)
        return SNUG_OK;
    if (exec->op_seconds != NULL)
        return time_section(exec, range.begin, range.end, micro, err);
    return exec->recordings[part] != NULL
               ? exec->hooks->replay(exec->facts.device, exec->recordings[part], err)
               : exec_run_section(exec, range.begin, range.end, micro, err);
}

/* Collectives through the host are not the device's work.  Messages wait for other ranks while others go by:
 * that takes streams of their own, which a recording does not promise. */
static bool needs_host(const struct exec *exec, const struct part_range *range)
{
    for (int i = range->begin; i < range->end; i++) {
        const struct op *op = &exec->prog->ops[i];
        if (op_is_copy(op) && op_runs_in(exec->prog, op, range->micro) &&
            (exec->copies != NULL || op_is_message(op->kind)))
            return true;
    }
    return false;
}

static enum snug_status record(struct exec *exec, enum part part, struct snug_error *err)
{
    struct part_range range = range_of(exec->prog, part);
    if (range.begin >= range.end || needs_host(exec, &range))
        return SNUG_OK;
    forget_copies(exec); /* of a recording that failed before */
    TRY(exec->hooks->record_begin(exec->facts.device, err));
    enum snug_status status = exec_run_section(exec, range.begin, range.end, range.micro, err);
    enum snug_status at_end =
        exec->hooks->record_end(exec->facts.device, &exec->recordings[part], err);
    return status != SNUG_OK ? status : at_end;
}

/* What cannot be recorded (an op of it needs the host) runs kernel by kernel, as in the first run. */
static void record_parts(struct exec *exec)
{
    exec->has_recorded = true;
    for (int part = 0; part < N_PARTS; part++) {
        if (record(exec, (enum part)part, NULL) == SNUG_OK)
            continue;
        if (exec->recordings[part] != NULL)
            exec->hooks->recording_free(exec->recordings[part]);
        exec->recordings[part] = NULL;
    }
}

enum snug_status device_run_all(struct exec *exec, exec_feed *feed, void *user,
                                struct snug_error *err)
{
    const struct program *prog = exec->prog;
    forget_copies(exec);
    TRY(staging_push_scalars(exec, err));
    TRY(run_part(exec, PART_prologue, 0, err));
    for (int micro = 0; micro < prog->n_repeat; micro++) {
        TRY(staging_feed(exec, feed, user, micro, err));
        TRY(run_part(exec, part_of(prog, micro), micro, err));
    }
    TRY(run_part(exec, PART_epilogue, 0, err));
    if (exec->feeds_ahead && feed != NULL)
        staging_feed_ahead(exec, feed, user);
    TRY(staging_pull(exec, err));
    if (!exec->has_recorded && exec->op_seconds == NULL && exec->hooks->record_begin != NULL)
        record_parts(exec);
    return SNUG_OK;
}
