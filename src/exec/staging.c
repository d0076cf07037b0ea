/*
 * staging.c -- pinned host buffers for the inputs of a device run and for the results the host
 * reads.
 *
 * Every input has two buffers: while the device copies a micro-batch from one, the host fills the
 * other.  The scalar table has one, which a second program in the same arena shares, as it shares
 * the table itself.
 */
#include "exec/local.h"

#include <stdlib.h>

enum { N_PLACES = 2 };

struct staged_input {
    tensor_id id;
    int64_t limit; /* ids must be below it */
    unsigned char *place[N_PLACES];
};

struct staging {
    struct staged_input *inputs;
    int n_inputs;
    int now;               /* the buffer that the host fills, or filled last */
    bool is_fed_ahead;     /* the other buffer holds the first micro-batch of the next run */
    void *taken[N_PLACES]; /* events: the device has copied the buffer */
    double *scalars;       /* NULL if the program has none */
    bool owns_scalars;
    unsigned char *loss;
    void **views; /* per tensor: a host copy, or NULL */
};

static void *place_on_device(const struct exec *exec, tensor_id id)
{
    return exec->arena + exec->plan->offset[id];
}

static bool is_staged_input(const struct exec *exec, tensor_id id)
{
    return exec->prog->tensors[id].role == ROLE_input && exec->plan->offset[id] >= 0 &&
           exec->prog->tensors[id].base == TENSOR_NONE;
}

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of host memory for the staging buffers");
}

static enum snug_status make_inputs(struct exec *exec, struct snug_error *err)
{
    struct staging *s = exec->staging;
    for (int id = 0; id < exec->prog->n_tensors; id++) {
        if (!is_staged_input(exec, id))
            continue;
        struct staged_input *input = &s->inputs[s->n_inputs++];
        input->id = id;
        input->limit =
            exec->prog->tensors[id].dtype == DTYPE_i32 ? ids_limit(exec->prog, id) : INT64_MAX;
        for (int i = 0; i < N_PLACES; i++) {
            input->place[i] = exec->hooks->alloc_host((size_t)tensor_bytes(exec->prog, id));
            if (input->place[i] == NULL)
                return no_memory(err);
        }
    }
    for (int i = 0; i < N_PLACES; i++)
        TRY(exec->hooks->event_make(&s->taken[i], err));
    return SNUG_OK;
}

static enum snug_status make_scalars(struct exec *exec, const struct exec *shared,
                                     struct snug_error *err)
{
    struct staging *s = exec->staging;
    tensor_id id = exec->prog->scalars;
    if (id == TENSOR_NONE || exec->plan->offset[id] < 0)
        return SNUG_OK;
    bool same = shared != NULL && shared->staging->scalars != NULL &&
                shared->plan->offset[shared->prog->scalars] == exec->plan->offset[id];
    s->owns_scalars = !same;
    size_t bytes = (size_t)tensor_bytes(exec->prog, id);
    s->scalars = same ? shared->staging->scalars : exec->hooks->alloc_host(bytes);
    if (s->scalars == NULL)
        return no_memory(err);
    for (size_t i = 0; !same && i < bytes / sizeof *s->scalars; i++)
        s->scalars[i] = 0;
    return SNUG_OK;
}

enum snug_status staging_make(struct exec *exec, const struct exec *shared, struct snug_error *err)
{
    struct staging *s = exec->staging = calloc(1, sizeof *s);
    const struct program *prog = exec->prog;
    if (s == NULL)
        return no_memory(err);
    s->inputs = calloc((size_t)prog->n_tensors + 1, sizeof *s->inputs);
    s->views = calloc((size_t)prog->n_tensors + 1, sizeof *s->views);
    if (s->inputs == NULL || s->views == NULL)
        return no_memory(err);
    TRY(make_inputs(exec, err));
    TRY(make_scalars(exec, shared, err));
    if (prog->loss != TENSOR_NONE && exec->plan->offset[prog->loss] >= 0) {
        s->loss = exec->hooks->alloc_host((size_t)tensor_bytes(prog, prog->loss));
        if (s->loss == NULL)
            return no_memory(err);
    }
    return SNUG_OK;
}

void staging_free(struct exec *exec)
{
    struct staging *s = exec->staging;
    if (s == NULL)
        return;
    for (int i = 0; s->inputs != NULL && i < s->n_inputs; i++)
        for (int k = 0; k < N_PLACES; k++)
            exec->hooks->release_host(s->inputs[i].place[k]);
    for (int i = 0; i < N_PLACES; i++)
        exec->hooks->event_free(s->taken[i]);
    for (int id = 0; s->views != NULL && id < exec->prog->n_tensors; id++)
        exec->hooks->release_host(s->views[id]);
    if (s->owns_scalars)
        exec->hooks->release_host(s->scalars);
    exec->hooks->release_host(s->loss);
    free(s->inputs);
    free(s->views);
    free(s);
    exec->staging = NULL;
}

void *staging_input(const struct exec *exec, tensor_id id)
{
    const struct staging *s = exec->staging;
    for (int i = 0; i < s->n_inputs; i++)
        if (s->inputs[i].id == id)
            return s->inputs[i].place[s->now];
    return NULL;
}

double *staging_scalars(const struct exec *exec)
{
    return exec->staging->scalars;
}

enum snug_status staging_push_scalars(struct exec *exec, struct snug_error *err)
{
    tensor_id id = exec->prog->scalars;
    if (exec->staging->scalars == NULL)
        return SNUG_OK;
    return exec->hooks->push(exec->facts.device, place_on_device(exec, id), exec->staging->scalars,
                             tensor_bytes(exec->prog, id), err);
}

static int other_place(const struct staging *s)
{
    return (s->now + 1) % N_PLACES;
}

/* Fills the other buffer with the next micro-batch and makes it the current one. */
static enum snug_status fill_other(struct exec *exec, exec_feed *feed, void *user, int micro,
                                   struct snug_error *err)
{
    struct staging *s = exec->staging;
    TRY(device_finish_event(exec, s->taken[other_place(s)], err));
    s->now = other_place(s);
    return feed(user, micro, err);
}

/* A failure is ignored: the next run feeds again, and reports it then. */
void staging_feed_ahead(struct exec *exec, exec_feed *feed, void *user)
{
    struct staging *s = exec->staging;
    int now = s->now;
    s->is_fed_ahead = fill_other(exec, feed, user, exec->prog->n_repeat, NULL) == SNUG_OK;
    s->now = now; /* the inputs of this run can still be read */
}

void staging_forget_ahead(struct exec *exec)
{
    exec->staging->is_fed_ahead = false;
}

/* Without a feed, the inputs were filled before the run and stay for all micro-batches. */
enum snug_status staging_feed(struct exec *exec, exec_feed *feed, void *user, int micro,
                              struct snug_error *err)
{
    struct staging *s = exec->staging;
    const struct device_hooks *hooks = exec->hooks;
    if (feed != NULL && micro == 0 && s->is_fed_ahead)
        s->now = other_place(s);
    else if (feed != NULL)
        TRY(fill_other(exec, feed, user, micro, err));
    s->is_fed_ahead = false;
    for (int i = 0; i < s->n_inputs && (feed != NULL || micro == 0); i++) {
        const struct staged_input *input = &s->inputs[i];
        TRY(ids_check(&exec->prog->tensors[input->id], input->limit,
                      (const int32_t *)(const void *)input->place[s->now], err));
        TRY(hooks->push(exec->facts.device, place_on_device(exec, input->id), input->place[s->now],
                        tensor_bytes(exec->prog, input->id), err));
    }
    TRY(hooks->event_record(s->taken[s->now], hooks->stream(exec->facts.device), err));
    if (s->scalars == NULL)
        return SNUG_OK;
    double *table = place_on_device(exec, exec->prog->scalars);
    return hooks->set_scalar(exec->facts.device, &table[SCALAR_micro],
                             exec_micro_number(exec, micro), err);
}

enum snug_status staging_pull(struct exec *exec, struct snug_error *err)
{
    const struct staging *s = exec->staging;
    const struct program *prog = exec->prog;
    if (s->scalars != NULL)
        TRY(exec->hooks->pull(exec->facts.device, s->scalars, place_on_device(exec, prog->scalars),
                              tensor_bytes(prog, prog->scalars), err));
    if (s->loss != NULL)
        TRY(exec->hooks->pull(exec->facts.device, s->loss, place_on_device(exec, prog->loss),
                              tensor_bytes(prog, prog->loss), err));
    return device_finish(exec, err);
}

enum snug_status staging_view(struct exec *exec, tensor_id id, const void **data,
                              struct snug_error *err)
{
    struct staging *s = exec->staging;
    int64_t bytes = tensor_bytes(exec->prog, id);
    if (id == exec->prog->loss && s->loss != NULL) {
        *data = s->loss;
        return SNUG_OK;
    }
    if (is_staged_input(exec, id)) {
        *data = staging_input(exec, id);
        return SNUG_OK;
    }
    if (s->views[id] == NULL)
        s->views[id] = exec->hooks->alloc_host((size_t)bytes);
    *data = s->views[id];
    return *data == NULL ? no_memory(err) : exec_read(exec, id, 0, bytes, s->views[id], err);
}
