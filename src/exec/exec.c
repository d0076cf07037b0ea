/*
 * exec.c -- the executor: calls are laid out once, then a run is a loop over them.
 *
 * Copies are handed to a thread of their own; an op that has to come after one waits for it, as
 * program_section_last says.  What waits for what is known before the first run.
 */
#include "exec/exec.h"

#include "base/clock.h"
#include "exec/copies.h"
#include "exec/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct exec {
    const struct program *prog;
    const struct plan *plan;
    const struct backend *backend;
    struct device_facts facts;
    unsigned char *arena;
    int64_t arena_bytes;
    bool owns_arena;
    struct kernel_call *calls; /* per op */
    const struct kernel **kernels;
    double *op_seconds; /* NULL: nobody asks how long ops take */
    struct store *store;
    struct rank_exchanger exchanger;
    struct copies *copies; /* NULL: the program has none */
    tensor_id *fetched;    /* per tensor: of which it is a copy in staging, or TENSOR_NONE */
    int *waits_for;        /* per op: the copy that must be done before it, or -1 */
    int64_t *number;       /* per copy: the one that it was given when last issued */
};

static struct operand operand_of(const struct exec *exec, tensor_id id)
{
    if (id == TENSOR_NONE)
        return (struct operand){0};
    const struct program *prog = exec->prog;
    tensor_id own = exec->fetched[id] != TENSOR_NONE ? exec->fetched[id] : id;
    return (struct operand){.data = exec_data(exec, id),
                            .tensor = &prog->tensors[id],
                            .stored_at = exec->plan->stored_at[id],
                            .whole_name = prog->tensors[tensor_root(prog, own)].name,
                            .whole_from = prog->tensors[own].offset_elems +
                                          prog->tensors[tensor_root(prog, own)].whole_from};
}

static enum snug_status prepare(struct exec *exec, int i, struct snug_error *err)
{
    const struct op *op = &exec->prog->ops[i];
    struct kernel_call *call = &exec->calls[i];
    const struct kernel *kernel = exec->backend->choose(exec->prog, op, &exec->facts);
    if (kernel == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "op %d (%s): the %s backend has no kernel for it",
                         i, op_infos[op->kind].name, exec->backend->name);
    *call = (struct kernel_call){.op = op, .facts = &exec->facts, .store = exec->store};
    if (exec->facts.comm != NULL)
        call->exchanger = &exec->exchanger.exchanger;
    for (int k = 0; k < op->n_in; k++)
        call->in[k] = operand_of(exec, op->in[k]);
    for (int k = 0; k < op->n_out; k++)
        call->out[k] = operand_of(exec, op->out[k]);
    if (op->work != TENSOR_NONE)
        call->work = exec_data(exec, op->work);
    size_t wanted =
        kernel->workspace_bytes == NULL ? 0 : kernel->workspace_bytes(exec->prog, op, &exec->facts);
    if (wanted > (op->work == TENSOR_NONE ? 0 : (size_t)tensor_bytes(exec->prog, op->work)))
        return snug_fail(err, SNUG_MISMATCH,
                         "op %d (%s) wants %zu bytes of workspace but was planned for another "
                         "machine or thread count",
                         i, op_infos[op->kind].name, wanted);
    exec->kernels[i] = kernel;
    if (kernel->prepare != NULL)
        TRY(kernel->prepare(exec->prog, op, &exec->facts, &call->prepared, err));
    return SNUG_OK;
}

/* One number for each op: which copy it waits for.  copied_by is for a number each tensor. */
static void find_waits(struct exec *exec, int *copied_by)
{
    const struct program *prog = exec->prog;
    for (int t = 0; t < prog->n_tensors; t++) {
        copied_by[t] = -1;
        exec->fetched[t] = TENSOR_NONE;
    }
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        exec->waits_for[i] = -1;
        for (int k = 0; k < op->n_in && !op_is_copy(&prog->ops[i]); k++)
            if (op->in[k] != TENSOR_NONE &&
                copied_by[tensor_root(prog, op->in[k])] > exec->waits_for[i])
                exec->waits_for[i] = copied_by[tensor_root(prog, op->in[k])];
        for (int k = 0; k < op->n_out && op_is_copy(op); k++)
            if (op->out[k] != TENSOR_NONE)
                copied_by[tensor_root(prog, op->out[k])] = i;
        if (op->kind == OP_fetch)
            exec->fetched[op->out[0]] = op->in[0];
    }
}

static enum snug_status run_call(struct exec *exec, int i, struct snug_error *err);

static enum snug_status run_copy(void *user, int i, struct snug_error *err)
{
    return run_call(user, i, err);
}

/* The lane of copies, and a store unless it is another's. */
static enum snug_status open_lane(struct exec *exec, struct exec *shared, struct snug_error *err)
{
    const struct program *prog = exec->prog;
    int n_copies = 0;
    size_t n = (size_t)(prog->n_ops > prog->n_tensors ? prog->n_ops : prog->n_tensors) + 1;
    int *copied_by = malloc(n * sizeof *copied_by);
    exec->fetched = malloc(n * sizeof *exec->fetched);
    exec->waits_for = malloc(n * sizeof *exec->waits_for);
    exec->number = malloc(n * sizeof *exec->number);
    if (copied_by == NULL || exec->fetched == NULL || exec->waits_for == NULL ||
        exec->number == NULL) {
        free(copied_by);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    find_waits(exec, copied_by);
    free(copied_by);
    for (int i = 0; i < prog->n_ops; i++)
        n_copies += op_is_copy(&prog->ops[i]);
    if (shared != NULL)
        exec->store = shared->store;
    else if (exec->plan->store_bytes > 0)
        TRY(exec->backend->open_store(&exec->facts, exec->plan->store_bytes, &exec->store, err));
    return n_copies == 0 ? SNUG_OK : copies_create(n_copies, run_copy, exec, &exec->copies, err);
}

enum snug_status exec_create(const struct program *prog, const struct plan *plan,
                             const struct backend *backend, const struct device_facts *facts,
                             struct exec *shared, struct exec **out, struct snug_error *err)
{
    struct exec *exec = calloc(1, sizeof *exec);
    enum snug_status status = SNUG_OK;
    *out = NULL;
    if (exec == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    exec->prog = prog;
    exec->plan = plan;
    exec->backend = backend;
    exec->facts = *facts;
    if (shared != NULL)
        exec->facts.comm = shared->facts.comm;
    exec->exchanger = exchanger_over(exec->facts.comm);
    exec->arena_bytes = plan->arena_bytes;
    exec->owns_arena = shared == NULL;
    exec->calls = calloc((size_t)prog->n_ops + 1, sizeof *exec->calls);
    exec->kernels = calloc((size_t)prog->n_ops + 1, sizeof(struct kernel *));
    if (exec->calls == NULL || exec->kernels == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    } else if (shared != NULL) {
        exec->arena = shared->arena;
        if (plan->arena_bytes > shared->arena_bytes)
            status = snug_fail(err, SNUG_MISMATCH, "%s does not fit the arena it is to share",
                               prog->name);
    } else {
        exec->arena = backend->alloc((size_t)plan->arena_bytes);
        if (exec->arena == NULL)
            status = snug_fail(err, SNUG_NO_MEMORY,
                               "the machine does not give the planned %lld bytes; plan a smaller "
                               "--micro-batch or set --memory",
                               (long long)plan->arena_bytes);
    }
    if (status == SNUG_OK)
        status = open_lane(exec, shared, err);
    for (int i = 0; i < prog->n_ops && status == SNUG_OK; i++)
        status = prepare(exec, i, err);
    if (status != SNUG_OK) {
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
    if (exec->owns_arena && exec->store != NULL)
        exec->store->close(exec->store);
    for (int i = 0; exec->kernels != NULL && exec->calls != NULL && i < exec->prog->n_ops; i++)
        if (exec->kernels[i] != NULL && exec->kernels[i]->release != NULL &&
            exec->calls[i].prepared != NULL)
            exec->kernels[i]->release(exec->calls[i].prepared);
    if (exec->owns_arena && exec->arena != NULL)
        exec->backend->release(exec->arena, (size_t)exec->arena_bytes);
    free(exec->calls);
    free(exec->kernels);
    free(exec->fetched);
    free(exec->waits_for);
    free(exec->number);
    free(exec);
}

int64_t exec_allocated_bytes(const struct exec *exec)
{
    return exec->arena_bytes;
}

void *exec_data(const struct exec *exec, tensor_id id)
{
    return exec->plan->offset[id] < 0 ? NULL : exec->arena + exec->plan->offset[id];
}

bool exec_holds(const struct exec *exec, tensor_id id)
{
    return exec->plan->offset[id] >= 0 || exec->plan->stored_at[id] >= 0;
}

enum snug_status exec_read(const struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                           void *to, struct snug_error *err)
{
    const unsigned char *data = exec_data(exec, id);
    if (data == NULL)
        return exec->store->read(exec->store, exec->plan->stored_at[id] + at_bytes, to, n_bytes,
                                 err);
    memcpy(to, data + at_bytes, (size_t)n_bytes);
    return SNUG_OK;
}

enum snug_status exec_write(const struct exec *exec, tensor_id id, int64_t at_bytes,
                            int64_t n_bytes, const void *from, struct snug_error *err)
{
    unsigned char *data = exec_data(exec, id);
    if (data == NULL)
        return exec->store->write(exec->store, exec->plan->stored_at[id] + at_bytes, from, n_bytes,
                                  err);
    memcpy(data + at_bytes, from, (size_t)n_bytes);
    return SNUG_OK;
}

double *exec_scalars(const struct exec *exec)
{
    return exec->prog->scalars == TENSOR_NONE ? NULL : exec_data(exec, exec->prog->scalars);
}

/* A single thread is timed by its own clock: it stands still while others have the core. */
static double op_clock(const struct device_facts *facts)
{
    return facts->threads == 1 ? clock_thread_seconds() : clock_seconds();
}

/* Micro-batches are counted over all ranks: what is random in them does not depend on who has them. */
static void set_micro(struct exec *exec, int i, int micro)
{
    struct kernel_call *call = &exec->calls[i];
    enum accumulate mode = call->op->attrs.accumulate;
    int rank = exec->facts.comm == NULL ? 0 : exec->facts.comm->rank;
    call->add = mode == ACC_yes || (mode == ACC_after_first && micro > 0);
    call->micro = rank * exec->prog->n_repeat + micro;
}

static enum snug_status run_call(struct exec *exec, int i, struct snug_error *err)
{
    const struct kernel_call *call = &exec->calls[i];
    if (exec->op_seconds == NULL)
        return exec->kernels[i]->run(call, err);
    double begin = op_clock(call->facts);
    enum snug_status status = exec->kernels[i]->run(call, err);
    exec->op_seconds[i] += op_clock(call->facts) - begin;
    return status;
}

static enum snug_status run_op(struct exec *exec, int i, int micro, struct snug_error *err)
{
    set_micro(exec, i, micro);
    return run_call(exec, i, err);
}

void exec_time_ops(struct exec *exec, double *op_seconds)
{
    exec->op_seconds = op_seconds;
}

static enum snug_status finish_copies(struct exec *exec, struct snug_error *err)
{
    return exec->copies == NULL ? SNUG_OK : copies_finish(exec->copies, err);
}

/* Waiting counts as time of the op that waits. */
static enum snug_status wait_for_copy(struct exec *exec, int i, int64_t number,
                                      struct snug_error *err)
{
    double begin = clock_seconds();
    TRY(copies_wait(exec->copies, number, err));
    if (exec->op_seconds != NULL)
        exec->op_seconds[i] += clock_seconds() - begin;
    return SNUG_OK;
}

/* Ops [begin, end), a whole section; its last op waits for all copies of it. */
static enum snug_status run_section(struct exec *exec, int begin, int end, int micro,
                                    struct snug_error *err)
{
    int64_t newest = -1; /* of the copies that were issued */
    for (int i = begin; i < end; i++) {
        if (!op_runs_in(exec->prog, &exec->prog->ops[i], micro))
            continue;
        TRY(comm_check(exec->facts.comm, err));
        if (op_is_copy(&exec->prog->ops[i])) {
            set_micro(exec, i, micro); /* no copy of an op is under way twice */
            newest = exec->number[i] = copies_issue(exec->copies, i);
            continue;
        }
        if (i == end - 1 && newest >= 0)
            TRY(wait_for_copy(exec, i, newest, err));
        else if (exec->waits_for[i] >= begin)
            TRY(wait_for_copy(exec, i, exec->number[exec->waits_for[i]], err));
        TRY(run_op(exec, i, micro, err));
    }
    return finish_copies(exec, err);
}

static enum snug_status run_all(struct exec *exec, exec_feed *feed, void *user,
                                struct snug_error *err)
{
    const struct program *prog = exec->prog;
    int body_end = program_body_end(prog);
    TRY(run_section(exec, 0, prog->body_begin, 0, err));
    for (int micro = 0; micro < prog->n_repeat; micro++) {
        if (feed != NULL)
            TRY(feed(user, micro, err));
        TRY(run_section(exec, prog->body_begin, body_end, micro, err));
    }
    return run_section(exec, body_end, prog->n_ops, 0, err);
}

enum snug_status exec_run(struct exec *exec, exec_feed *feed, void *user, struct snug_error *err)
{
    struct run_modes modes = exec->backend->run_begin(&exec->facts);
    enum snug_status status = run_all(exec, feed, user, err);
    (void)finish_copies(exec, NULL); /* after a failure some may be under way */
    exec->backend->run_end(&exec->facts, &modes);
    return status;
}

static bool all_finite(const struct operand *operand)
{
    const struct tensor *t = operand->tensor;
    if (t == NULL || operand->data == NULL || !dtype_is_float(t->dtype))
        return true;
    int64_t n = shape_elems(&t->shape);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(dtype_load(t->dtype, operand->data, i)))
            return false;
    return true;
}

/* Updates can stand in the body too: to look must not change the run. */
static bool changes_run(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++) {
        const struct tensor *t = op->out[k] == TENSOR_NONE ? NULL : &prog->tensors[op->out[k]];
        if (t != NULL && t->persistent && t->role != ROLE_buffer)
            return true;
    }
    return false;
}

static enum snug_status find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                       const char **name, struct snug_error *err)
{
    const struct program *prog = exec->prog;
    bool alone = exec->facts.comm == NULL; /* else all ranks go through to the end, together */
    *name = NULL;
    for (int i = 0; i < prog->n_tensors && *name == NULL; i++) {
        struct operand parameter = {.data = exec_data(exec, i), .tensor = &prog->tensors[i]};
        if (prog->tensors[i].role == ROLE_parameter && !all_finite(&parameter))
            *name = prog->tensors[i].name;
    }
    if (alone && *name != NULL)
        return SNUG_OK;
    for (int micro = 0; micro < prog->n_repeat; micro++) {
        if (feed != NULL)
            TRY(feed(user, micro, err));
        for (int i = prog->body_begin; i < program_body_end(prog); i++) {
            if (!op_runs_in(prog, &prog->ops[i], micro) || changes_run(prog, &prog->ops[i]))
                continue;
            TRY(run_op(exec, i, micro, err));
            for (int k = 0; k < prog->ops[i].n_out && *name == NULL; k++)
                if (!all_finite(&exec->calls[i].out[k]))
                    *name = exec->calls[i].out[k].tensor->name;
            if (alone && *name != NULL)
                return SNUG_OK;
        }
    }
    return SNUG_OK;
}

enum snug_status exec_find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                     const char **name, struct snug_error *err)
{
    struct run_modes modes = exec->backend->run_begin(&exec->facts);
    enum snug_status status = find_nonfinite(exec, feed, user, name, err);
    exec->backend->run_end(&exec->facts, &modes);
    return status;
}

int64_t exec_resident_bytes(const struct exec *exec)
{
    enum { PAGES_AT_ONCE = 4096 };
    unsigned char present[PAGES_AT_ONCE];
    int64_t page = sysconf(_SC_PAGESIZE), resident = 0;
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
