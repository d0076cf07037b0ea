/*
 * exec_device.c -- runs on a device: enqueue work on its streams, record it once (a CUDA graph),
 * then replay the recording.
 *
 * The first run of an exec launches every kernel one by one, because libraries load their code
 * then.  After it, each section is recorded: the same calls again, captured instead of run.
 * Everything that changes from step to step is read from the scalar table, so recordings stay
 * valid.  Micro-batches differ in which outputs accumulate and in ops that only run in the last
 * one, so a run has several parts with a recording each.  A section that cannot be recorded is
 * launched kernel by kernel in every run.
 *
 * Copies use two more streams, one per direction; sends past a neighbouring stage use another.  If
 * ranks communicate through the host, a host thread runs the copies, as on the CPU: it waits for
 * the kernels before a copy, and ops that depend on the copy are enqueued when it is done.
 */
#include "exec/local.h"

#include <stdlib.h>
#include <string.h>

/* ---- the copy lane --------------------------------------------------------------------------- */

/* Creates an event per op, or only per copy: an unrolled program has many other ops. */
static enum snug_status make_events(void ***events, const struct exec *exec, bool of_copies,
                                    struct snug_error *err)
{
    int n = exec->prog->n_ops + 1;
    *events = calloc((size_t)n, sizeof **events);
    if (*events == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    for (int i = 0; i < n; i++)
        if (!of_copies || (i < n - 1 && op_has(&exec->prog->ops[i], TRAIT_copy)))
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
        if (op_has(&prog->ops[i], TRAIT_collective) && prog->ops[i].work != TENSOR_NONE &&
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

/* In the copy thread: waits for the kernels before the copy, then runs it. */
enum snug_status device_run_copy(struct exec *exec, int i, struct snug_error *err)
{
    exec->hooks->use(exec->facts.device);
    TRY(exec->hooks->event_finish(exec->copied[i], err));
    TRY(exec->kernels[i]->run(&exec->calls[i], err));
    return exec->hooks->finish_copies(exec->facts.device, err);
}

void *device_stream_of(const struct exec *exec, const struct op *op)
{
    const struct device_hooks *hooks = exec->hooks;
    struct device *device = exec->facts.device;
    bool is_far =
        op->kind == OP_send && exec->facts.comm != NULL && p2p_is_far(&exec->collective_runner, op);
    return !op_has(op, TRAIT_copy)    ? hooks->stream(device)
           : is_far                   ? hooks->far_stream(device)
           : op_has(op, TRAIT_leaves) ? hooks->evict_stream(device)
                                      : hooks->copy_stream(device);
}

/* A device-to-device send is in flight between `send` and `sent`; `sent` waits for its arrival. */
static enum snug_status wait_for_send(struct exec *exec, int i, struct snug_error *err)
{
    bool waits = exec->prog->ops[i].kind == OP_sent && exec->copies == NULL;
    return waits && exec->waits_for[i] >= 0
               ? exec->hooks->event_wait(exec->calls[i].stream, exec->copied[exec->waits_for[i]],
                                         err)
               : SNUG_OK;
}

/* Was the copy issued in this section, after the last wait for all copies? */
static bool is_in_flight(const struct exec *exec, int copy)
{
    return copy >= 0 && exec->number[copy] >= exec->n_joined;
}

static void forget_copies(struct exec *exec)
{
    exec->newest_fetch = exec->newest_eviction = -1;
    exec->n_joined = exec->n_issued;
}

/* Enqueues a copy after the kernels before it; it overlaps with those that follow.
 *
 * Evictions and sends have a stream of their own, so that the bus is used in both directions at
 * once.  Plans assume that copies run in order: a prefetch may reuse the bytes of an earlier
 * eviction, so it waits for all of them.  A sent tensor is in use until `sent`, and nothing else
 * waits for it: the send may complete only after this rank has received something.  An eviction or
 * send waits for the copy that produced its operand, if any, and for no later one: states of the
 * next parameters are prefetched while those of the last are evicted. */
enum snug_status device_issue_copy(struct exec *exec, int i, struct snug_error *err)
{
    const struct device_hooks *hooks = exec->hooks;
    struct device *device = exec->facts.device;
    if (exec->copies != NULL) {
        TRY(hooks->event_record(exec->copied[i], hooks->stream(device), err));
        exec->number[i] = copies_issue(exec->copies, i);
        return SNUG_OK;
    }
    const struct op *op = &exec->prog->ops[i];
    bool leaves = op_has(op, TRAIT_leaves), evicts = op_infos[op->kind].writes_pool != 0;
    void *stream = exec->calls[i].stream;
    TRY(hooks->event_record(exec->forked, hooks->stream(device), err));
    TRY(hooks->event_wait(stream, exec->forked, err));
    if (!leaves && exec->newest_eviction >= 0)
        TRY(hooks->event_wait(stream, exec->copied[exec->newest_eviction], err));
    if (leaves && is_in_flight(exec, exec->waits_for[i]))
        TRY(hooks->event_wait(stream, exec->copied[exec->waits_for[i]], err));
    TRY(wait_for_send(exec, i, err));
    exec->number[i] = exec->n_issued++;
    exec->newest_eviction = evicts ? i : leaves ? exec->newest_eviction : -1;
    exec->newest_fetch = leaves ? exec->newest_fetch : i;
    TRY(exec->kernels[i]->run(&exec->calls[i], err));
    return hooks->event_record(exec->copied[i], stream, err);
}

enum snug_status device_wait_for_copy(struct exec *exec, int copy, struct snug_error *err)
{
    if (exec->copies != NULL)
        return copies_wait(exec->copies, exec->number[copy], err);
    void *kernels = exec->hooks->stream(exec->facts.device);
    if (op_has(&exec->prog->ops[copy], TRAIT_leaves) && exec->newest_fetch >= 0)
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
    void *end = op_has(op, TRAIT_copy) ? exec->copied[i] : exec->forked;
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

/* Runs a section and times its ops: each from the end of the op before to its own end. */
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
        if (!op_runs_in(prog, &prog->ops[i], micro) || op_has(&prog->ops[i], TRAIT_copy))
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
    case PART_first:
        return (struct part_range){0, body_end, 0};
    case PART_middle:
        return (struct part_range){0, prog->n_repeat > 2 ? body_end : 0, 1};
    case PART_last:
        return (struct part_range){0, prog->n_repeat > 1 ? body_end : 0, prog->n_repeat - 1};
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

/* Collectives through the host are not device work.  Sends and recvs wait for other ranks while
 * other copies overtake them; that needs separate streams, which a recording does not guarantee. */
static bool needs_host(const struct exec *exec, const struct part_range *range)
{
    for (int i = range->begin; i < range->end; i++) {
        const struct op *op = &exec->prog->ops[i];
        if (op_has(op, TRAIT_copy) && op_runs_in(exec->prog, op, range->micro) &&
            (exec->copies != NULL || op_has(op, TRAIT_p2p)))
            return true;
    }
    return false;
}

static enum snug_status record(struct exec *exec, enum part part, struct snug_error *err)
{
    struct part_range range = range_of(exec->prog, part);
    if (range.begin >= range.end || needs_host(exec, &range))
        return SNUG_OK;
    forget_copies(exec); /* left by a recording that failed */
    TRY(exec->hooks->record_begin(exec->facts.device, err));
    enum snug_status status = exec_run_section(exec, range.begin, range.end, range.micro, err);
    enum snug_status at_end =
        exec->hooks->record_end(exec->facts.device, &exec->recordings[part], err);
    return status != SNUG_OK ? status : at_end;
}

/* A part that cannot be recorded (an op needs the host) runs kernel by kernel, as in the first
 * run. */
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
