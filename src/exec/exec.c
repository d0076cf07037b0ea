/*
 * exec.c -- the executor: sets up the kernel call of every op once; a run is a loop over the calls.
 *
 * Copies run in a thread of their own.  An op that depends on a copy waits for it; the dependencies
 * are computed before the first run (ir/program_waits.h).
 */
#include "exec/local.h"

#include "base/clock.h"
#include "exec/collective.h"
#include "exec/plugin.h"
#include "ir/program_waits.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *exec_place_of(const struct exec *exec, tensor_id id)
{
    return exec->plan->offset[id] < 0 ? NULL : exec->arena + exec->plan->offset[id];
}

static struct operand operand_of(const struct exec *exec, tensor_id id)
{
    if (id == TENSOR_NONE)
        return (struct operand){0};
    const struct program *prog = exec->prog;
    tensor_id own = exec->fetched[id] != TENSOR_NONE ? exec->fetched[id] : id;
    return (struct operand){.data = exec_place_of(exec, id),
                            .tensor = &prog->tensors[id],
                            .pool_offset = exec->plan->pool_offset[id],
                            .whole_name = prog->tensors[tensor_root(prog, own)].name,
                            .whole_from = prog->tensors[own].offset_elems +
                                          prog->tensors[tensor_root(prog, own)].whole_from};
}

static enum snug_status prepare(struct exec *exec, int i, struct snug_error *err)
{
    const struct op *op = &exec->prog->ops[i];
    struct kernel_call *call = &exec->calls[i];
    const struct kernel *kernel = exec->backend->kernel(op->kernel);
    if (kernel == NULL || kernel->kind != op->kind)
        return snug_fail(err, SNUG_MISMATCH,
                         "op %d (%s): no kernel of the %s backend was chosen; compile the step for "
                         "this backend",
                         i, op_infos[op->kind].name, exec->backend->name);
    *call = (struct kernel_call){.op = op, .facts = &exec->facts, .pool = exec->pool};
    if (exec->hooks != NULL)
        call->stream = device_stream_of(exec, op);
    if (exec->facts.comm != NULL)
        call->collective_runner = &exec->collective_runner.collective_runner;
    for (int k = 0; k < op->n_in; k++)
        call->in[k] = operand_of(exec, op->in[k]);
    for (int k = 0; k < op->n_out; k++)
        call->out[k] = operand_of(exec, op->out[k]);
    if (op->work != TENSOR_NONE)
        call->work = exec_place_of(exec, op->work);
    size_t wanted =
        kernel->workspace_bytes == NULL ? 0 : kernel->workspace_bytes(exec->prog, op, &exec->facts);
    if (wanted > (op->work == TENSOR_NONE ? 0 : (size_t)tensor_bytes(exec->prog, op->work)))
        return snug_fail(err, SNUG_MISMATCH,
                         "op %d (%s) needs %zu bytes of workspace, more than planned: it was "
                         "planned for another machine or thread count",
                         i, op_infos[op->kind].name, wanted);
    if (kernel->no_alias != NULL && kernel->no_alias(exec->prog, op) && !op->no_alias)
        return snug_fail(err, SNUG_MISMATCH,
                         "op %d (%s) was planned for another backend: here its output must not "
                         "alias an input",
                         i, op_infos[op->kind].name);
    exec->kernels[i] = kernel;
    if (kernel->prepare != NULL)
        TRY(kernel->prepare(exec->prog, op, &exec->facts, &call->prepared, err));
    return SNUG_OK;
}

/* Finds the copy that each op waits for, in the last micro-batch and in those before it, and the
 * tensors that prefetches copy. */
static enum snug_status find_waits(struct exec *exec, struct snug_error *err)
{
    const struct program *prog = exec->prog;
    int *scratch = malloc(2 * ((size_t)prog->n_tensors + 1) * sizeof *scratch);
    bool is_whole = scratch != NULL;
    for (int round = prog->n_repeat > 1 ? 0 : 1; round < 2 && is_whole; round++) {
        exec->waits_in[round] = malloc(((size_t)prog->n_ops + 1) * sizeof(int));
        is_whole = exec->waits_in[round] != NULL;
        if (is_whole)
            program_find_waits(prog, round == 1, exec->waits_in[round], scratch);
    }
    free(scratch);
    if (!is_whole)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    exec->waits_for = exec->waits_in[1];
    for (int t = 0; t < prog->n_tensors; t++)
        exec->fetched[t] = TENSOR_NONE;
    for (int i = 0; i < prog->n_ops; i++) {
        exec->number[i] = -1;
        if (op_infos[prog->ops[i].kind].reads_pool != 0)
            exec->fetched[prog->ops[i].out[0]] = prog->ops[i].in[0];
    }
    return SNUG_OK;
}

static enum snug_status run_call(struct exec *exec, int i, struct snug_error *err);

static enum snug_status run_copy(void *user, int i, struct snug_error *err)
{
    struct exec *exec = user;
    return exec->hooks != NULL ? device_run_copy(exec, i, err) : run_call(exec, i, err);
}

static bool progress_posted(void *user)
{
    struct comm *comm = ((struct exec *)user)->facts.comm;
    return comm->table->progress(comm);
}

/* Opens the copy lane, and the offload pool unless it is shared. */
static enum snug_status open_lane(struct exec *exec, struct exec *shared, struct snug_error *err)
{
    const struct program *prog = exec->prog;
    int n_copies = 0;
    exec->fetched = malloc(((size_t)prog->n_tensors + 1) * sizeof *exec->fetched);
    exec->number = malloc(((size_t)prog->n_ops + 1) * sizeof *exec->number);
    if (exec->fetched == NULL || exec->number == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    TRY(find_waits(exec, err));
    for (int i = 0; i < prog->n_ops; i++)
        n_copies += op_has(&prog->ops[i], TRAIT_copy);
    if (shared != NULL)
        exec->pool = shared->pool;
    else if (exec->plan->pool_bytes > 0)
        TRY(exec->backend->open_pool(&exec->facts, exec->plan->pool_bytes, &exec->pool, err));
    if (exec->hooks != NULL)
        TRY(device_open_lane(exec, err));
    struct comm *comm = exec->facts.comm;
    bool by_thread =
        exec->hooks == NULL || rank_collectives_host_bytes(&exec->collective_runner) > 0;
    bool posts = comm != NULL && comm->table->progress != NULL;
    return n_copies == 0 || !by_thread
               ? SNUG_OK
               : copies_create(n_copies, run_copy, posts ? progress_posted : NULL, exec,
                               &exec->copies, err);
}

static enum snug_status open_device(struct exec *exec, struct snug_error *err)
{
    struct comm *comm = exec->facts.comm;
    TRY(device_assignment_take(comm, exec->hooks, &exec->facts.device, err));
    exec->collective_runner.device = exec->facts.device;
    if (comm == NULL)
        return SNUG_OK;
    TRY(device_assignment_agree(comm, exec->hooks, exec->facts.device, &exec->device_assignment,
                                err));
    return exec->device_assignment->is_direct
               ? directs_open(&exec->collective_runner, exec->prog, err)
               : SNUG_OK;
}

/* Opens the device and allocates the arena, or takes those of `shared`. */
static enum snug_status open_memory(struct exec *exec, const struct exec *shared,
                                    struct snug_error *err)
{
    exec->owns_arena = shared == NULL;
    if (shared != NULL) {
        exec->arena = shared->arena;
        exec->facts.device = shared->facts.device;
        exec->collective_runner.device = exec->facts.device;
        memcpy(exec->collective_runner.directs, shared->collective_runner.directs,
               sizeof exec->collective_runner.directs);
        if (exec->arena_bytes > shared->arena_bytes)
            return snug_fail(
                err, SNUG_MISMATCH,
                "%s needs an arena of %lld bytes, but shares one of %lld: this is a bug in "
                "snug, please report it",
                exec->prog->name, (long long)exec->arena_bytes, (long long)shared->arena_bytes);
    } else {
        if (exec->hooks != NULL)
            TRY(open_device(exec, err));
        exec->arena = exec->backend->alloc((size_t)exec->arena_bytes);
        if (exec->arena == NULL)
            return snug_fail(
                err, SNUG_NO_MEMORY,
                "the %s cannot allocate the planned %lld bytes: choose a smaller "
                "--micro-batch, or set --memory to the free memory to get a recipe that "
                "fits",
                exec->hooks == NULL ? "machine" : "GPU", (long long)exec->arena_bytes);
    }
    return exec->hooks == NULL ? SNUG_OK : staging_make(exec, shared, err);
}

enum snug_status exec_create(const struct program *prog, const struct plan *plan,
                             const struct backend *backend, const struct device_facts *facts,
                             struct exec *shared, struct exec **out, struct snug_error *err)
{
    *out = NULL;
    TRY(plugin_backend(backend, &backend, err));
    struct exec *exec = calloc(1, sizeof *exec);
    enum snug_status status = SNUG_OK;
    if (exec == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    exec->prog = prog;
    exec->plan = plan;
    exec->backend = backend;
    exec->hooks = backend->hooks;
    exec->facts = *facts;
    if (shared != NULL) {
        exec->facts.comm = shared->facts.comm;
        exec->facts.groups = shared->facts.groups;
    }
    exec->collective_runner = rank_collectives_over(exec->facts.comm, exec->facts.groups);
    exec->collective_runner.hooks = backend->hooks;
    exec->arena_bytes = plan->arena_bytes;
    exec->calls = calloc((size_t)prog->n_ops + 1, sizeof *exec->calls);
    exec->kernels = calloc((size_t)prog->n_ops + 1, sizeof(struct kernel *));
    if (exec->calls == NULL || exec->kernels == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK)
        status = open_memory(exec, shared, err);
    if (status == SNUG_OK)
        status = open_lane(exec, shared, err);
    for (int i = 0; i < prog->n_ops && status == SNUG_OK; i++)
        status = prepare(exec, i, err);
    if (status != SNUG_OK) {
        /* an orderly close would wait for the other ranks */
        if (exec->owns_arena)
            directs_abort(&exec->collective_runner);
        exec_free(exec);
        return status;
    }
    *out = exec;
    return SNUG_OK;
}

void exec_free(struct exec *exec)
{
    if (exec == NULL)
        return;
    copies_free(exec->copies);
    (void)exec_fill_finish(exec, NULL); /* pieces left by a failure */
    device_close(exec);
    if (exec->owns_arena && exec->pool != NULL)
        exec->pool->close(exec->pool);
    for (int i = 0; exec->kernels != NULL && exec->calls != NULL && i < exec->prog->n_ops; i++)
        if (exec->kernels[i] != NULL && exec->kernels[i]->release != NULL &&
            exec->calls[i].prepared != NULL)
            exec->kernels[i]->release(exec->calls[i].prepared);
    if (exec->owns_arena && exec->arena != NULL)
        exec->backend->release(exec->arena, (size_t)exec->arena_bytes);
    if (exec->owns_arena && exec->facts.device != NULL)
        exec->hooks->close(exec->facts.device);
    device_assignment_free(exec->device_assignment);
    free(exec->calls);
    free(exec->kernels);
    free(exec->fetched);
    free(exec->waits_in[0]);
    free(exec->waits_in[1]);
    free(exec->number);
    free(exec);
}

int64_t exec_allocated_bytes(const struct exec *exec)
{
    return exec->arena_bytes;
}

void *exec_data(const struct exec *exec, tensor_id id)
{
    return exec->hooks == NULL ? exec_place_of(exec, id) : NULL;
}

void *exec_input(const struct exec *exec, tensor_id id)
{
    return exec->hooks == NULL ? exec_place_of(exec, id) : staging_input(exec, id);
}

enum snug_status exec_view(struct exec *exec, tensor_id id, const void **data,
                           struct snug_error *err)
{
    if (exec->hooks != NULL)
        return staging_view(exec, id, data, err);
    *data = exec_place_of(exec, id);
    return SNUG_OK;
}

bool exec_holds(const struct exec *exec, tensor_id id)
{
    return exec->plan->offset[id] >= 0 || exec->plan->pool_offset[id] >= 0;
}

enum snug_status exec_read(const struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                           void *to, struct snug_error *err)
{
    const unsigned char *data = exec_place_of(exec, id);
    if (data == NULL)
        return exec->pool->read(exec->pool, exec->plan->pool_offset[id] + at_bytes, to, n_bytes,
                                err);
    if (exec->hooks != NULL)
        return exec->hooks->read(exec->facts.device, data + at_bytes, to, n_bytes, err);
    memcpy(to, data + at_bytes, (size_t)n_bytes);
    return SNUG_OK;
}

enum snug_status exec_write(const struct exec *exec, tensor_id id, int64_t at_bytes,
                            int64_t n_bytes, const void *from, struct snug_error *err)
{
    unsigned char *data = exec_place_of(exec, id);
    if (data == NULL)
        return exec->pool->write(exec->pool, exec->plan->pool_offset[id] + at_bytes, from, n_bytes,
                                 err);
    if (exec->hooks != NULL)
        return exec->hooks->write(exec->facts.device, data + at_bytes, from, n_bytes, err);
    memcpy(data + at_bytes, from, (size_t)n_bytes);
    return SNUG_OK;
}

double *exec_scalars(const struct exec *exec)
{
    if (exec->prog->scalars == TENSOR_NONE)
        return NULL;
    return exec->hooks == NULL ? exec_place_of(exec, exec->prog->scalars) : staging_scalars(exec);
}

/* A single thread is timed by its CPU clock, which stops while other processes use the core. */
static double op_clock(const struct device_facts *facts)
{
    return facts->threads == 1 ? clock_thread_seconds() : clock_seconds();
}

int exec_micro_number(const struct exec *exec, int micro)
{
    return exec->facts.first_micro + micro;
}

static void set_call(struct exec *exec, int i, int micro)
{
    struct kernel_call *call = &exec->calls[i];
    enum accumulate mode = call->op->attrs.accumulate;
    call->add = mode == ACC_yes || (mode == ACC_after_first && micro > 0);
    call->micro = exec_micro_number(exec, micro + call->op->micro);
}

static enum snug_status run_call(struct exec *exec, int i, struct snug_error *err)
{
    const struct kernel_call *call = &exec->calls[i];
    if (exec->op_seconds == NULL)
        return exec->kernels[i]->run(call, err);
    if (exec->hooks != NULL) {
        TRY(exec->kernels[i]->run(call, err));
        return device_mark_op(exec, i, err);
    }
    double begin = op_clock(call->facts);
    enum snug_status status = exec->kernels[i]->run(call, err);
    exec->op_seconds[i] += op_clock(call->facts) - begin;
    return status;
}

enum snug_status exec_run_op(struct exec *exec, int i, int micro, struct snug_error *err)
{
    set_call(exec, i, micro);
    return run_call(exec, i, err);
}

double exec_waited_seconds(const struct exec *exec)
{
    return exec->waited_seconds;
}

void exec_time_ops(struct exec *exec, double *op_seconds)
{
    exec->op_seconds = op_seconds;
}

void exec_watch(struct exec *exec, exec_stop *stop, void *user)
{
    exec->stop = stop;
    exec->stop_user = user;
}

static enum snug_status finish_copies(struct exec *exec, struct snug_error *err)
{
    return exec->copies == NULL ? SNUG_OK : copies_finish(exec->copies, err);
}

static enum snug_status issue_copy(struct exec *exec, int i, struct snug_error *err)
{
    if (exec->hooks != NULL)
        return device_issue_copy(exec, i, err);
    exec->number[i] = copies_issue(exec->copies, i);
    return SNUG_OK;
}

/* The wait counts as time of the op that waits. */
static enum snug_status wait_for_copy(struct exec *exec, int i, int copy, struct snug_error *err)
{
    if (exec->hooks != NULL) /* ops are timed by events there */
        return device_wait_for_copy(exec, copy, err);
    double begin = clock_seconds();
    TRY(copies_wait(exec->copies, exec->number[copy], err));
    double seconds = clock_seconds() - begin;
    exec->waited_seconds += seconds;
    if (exec->op_seconds != NULL)
        exec->op_seconds[i] += seconds;
    return SNUG_OK;
}

/* Runs op i, together with following ops of the same kernel if it can batch them and none of them
 * waits for a copy.  *next is the op after them. */
static enum snug_status run_some(struct exec *exec, int i, int end, int micro, int *next,
                                 struct snug_error *err)
{
    const struct kernel *kernel = exec->kernels[i];
    int n = 1, n_run = 1;
    if (kernel->run_several == NULL || exec->op_seconds != NULL) {
        *next = i + 1;
        return exec_run_op(exec, i, micro, err);
    }
    while (i + n < end && exec->kernels[i + n] == kernel && exec->waits_for[i + n] < 0 &&
           op_runs_in(exec->prog, &exec->prog->ops[i + n], micro))
        n++;
    for (int k = 0; k < n; k++)
        set_call(exec, i + k, micro);
    TRY(kernel->run_several(&exec->calls[i], n, &n_run, err));
    *next = i + n_run;
    return SNUG_OK;
}

enum snug_status exec_run_section(struct exec *exec, int begin, int end, int micro,
                                  struct snug_error *err)
{
    int newest = -1; /* the last copy that was issued */
    bool is_early = micro < exec->prog->n_repeat - 1 && exec->waits_in[0] != NULL;
    exec->waits_for = exec->waits_in[is_early ? 0 : 1];
    for (int i = begin, next; i < end; i = next) {
        next = i + 1;
        if (!op_runs_in(exec->prog, &exec->prog->ops[i], micro))
            continue;
        TRY(comm_check(exec->facts.comm, err));
        if (exec->stop != NULL && exec->hooks == NULL && exec->stop(exec->stop_user))
            return snug_fail(err, SNUG_INTERRUPTED, "stopped on request");
        if (op_has(&exec->prog->ops[i], TRAIT_copy)) {
            set_call(exec, i, micro); /* safe: an op's copy is never in flight twice */
            TRY(issue_copy(exec, i, err));
            newest = i;
            continue;
        }
        if (exec->waits_for[i] >= 0)
            TRY(wait_for_copy(exec, i, exec->waits_for[i], err));
        TRY(run_some(exec, i, end, micro, &next, err));
    }
    if (exec->hooks != NULL)
        TRY(device_join_copies(exec, newest, err));
    double finish_begin = clock_seconds();
    enum snug_status status = finish_copies(exec, err);
    exec->waited_seconds += clock_seconds() - finish_begin;
    return status;
}

static enum snug_status run_all(struct exec *exec, exec_feed *feed, void *user,
                                struct snug_error *err)
{
    const struct program *prog = exec->prog;
    int body_end = program_body_end(prog);
    for (int micro = 0; micro < prog->n_repeat; micro++) {
        if (feed != NULL)
            TRY(feed(user, micro, err));
        TRY(exec_run_section(exec, 0, body_end, micro, err));
    }
    return exec_run_section(exec, body_end, prog->n_ops, 0, err);
}

enum snug_status exec_run(struct exec *exec, exec_feed *feed, void *user, struct snug_error *err)
{
    struct run_modes modes = exec->backend->run_begin(&exec->facts);
    enum snug_status status = exec->hooks != NULL ? device_run_all(exec, feed, user, err)
                                                  : run_all(exec, feed, user, err);
    (void)finish_copies(exec, NULL); /* after a failure some may be in flight */
    if (exec->hooks != NULL && status != SNUG_OK)
        device_give_up(exec);
    exec->backend->run_end(&exec->facts, &modes);
    return status;
}

void exec_feed_ahead(struct exec *exec, bool ahead)
{
    exec->feeds_ahead = ahead;
    if (exec->hooks != NULL)
        staging_forget_ahead(exec);
}

int exec_rank_gpu(const struct exec *exec, int rank)
{
    return exec->device_assignment == NULL ? -1 : exec->device_assignment->gpu[rank];
}

const char *exec_transport(const struct exec *exec)
{
    return exec->device_assignment == NULL ? NULL : exec->device_assignment->transport;
}

int64_t exec_collective_host_bytes(const struct exec *exec)
{
    return rank_collectives_host_bytes(&exec->collective_runner);
}

int64_t exec_resident_bytes(const struct exec *exec)
{
    enum { PAGES_AT_ONCE = 4096 };
    unsigned char present[PAGES_AT_ONCE];
    int64_t page = sysconf(_SC_PAGESIZE), resident = 0;
    if (exec->hooks != NULL)
        return 0;
    for (int64_t at = 0; at < exec->arena_bytes; at += PAGES_AT_ONCE * page) {
        int64_t left = exec->arena_bytes - at;
        int64_t span = left < PAGES_AT_ONCE * page ? left : PAGES_AT_ONCE * page;
        if (mincore(exec->arena + at, (size_t)span, present) != 0)
            return exec->arena_bytes; /* not a mapping: count it as present */
        for (int64_t i = 0; i < (span + page - 1) / page; i++)
            resident += (present[i] & 1) ? page : 0;
    }
    return resident;
}

int64_t exec_device_runtime_bytes(const struct exec *exec)
{
    return exec->hooks == NULL ? -1 : exec->hooks->used_bytes() - exec->arena_bytes;
}
