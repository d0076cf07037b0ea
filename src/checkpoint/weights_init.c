/*
 * weights_init.c -- the initial values of a run: random weights, zeros, copies of weights.
 *
 * A tensor is filled span by span; a span is what the executor accepts at once.  The recipe's
 * threads fill the pieces of a span in parallel.  A value depends only on its position in the whole
 * tensor, so the bits do not depend on spans, pieces or threads.
 */
#include "checkpoint/weights.h"

#include "base/rng.h"
#include "checkpoint/weight_form.h"

#include <string.h>

enum { SPAN_ELEMS = EXEC_FILL_BYTES / sizeof(double) }; /* enough for the widest type */
_Static_assert(SPAN_ELEMS % WEIGHT_PIECE == 0, "spans are whole pieces");

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- weights -------------------------------------------------------------------------------- */

static double start_value(const struct tensor *t, uint64_t seed, uint64_t stream, int64_t i)
{
    switch (t->init) {
    case INIT_ones:
        return 1;
    case INIT_normal:
        return t->init_scale * rng_normal(seed, stream, (uint64_t)i);
    case INIT_uniform:
        return t->init_scale * (2 * rng_uniform(seed, stream, (uint64_t)i) - 1);
    case INIT_none:
    case INIT_zeros:
    case INIT_weight:
        break;
    }
    return 0;
}

struct start { /* a weight in its stored form, and its master */
    const struct program *prog;
    struct exec *exec;
    int threads;
    const struct tensor *weight;
    tensor_id master;
    uint64_t seed, stream;
    struct weight_form form;
};

struct span {
    int64_t at, n; /* elements of the weight */
    /* The part of them that this rank's master covers, in elements of the whole tensor. */
    int64_t master_begin, master_end;
    struct exec_fill stored, scales, master;
};

static void make_piece(const struct start *s, const struct span *span, int64_t at, int64_t n)
{
    float wide[WEIGHT_PIECE];
    int64_t whole_at = s->weight->whole_from + at;
    for (int64_t i = 0; i < n; i++)
        wide[i] = (float)start_value(s->weight, s->seed, s->stream, whole_at + i);
    struct weight_extent extent = weight_form_extent(&s->form, at - span->at, n);
    unsigned char *scales =
        s->form.scales == TENSOR_NONE ? NULL : span->scales.to + extent.scales_at_bytes;
    weight_form_quantize(&s->form, n, wide, span->stored.to + extent.at_bytes,
                         (float *)(void *)scales);
    int64_t begin = whole_at > span->master_begin ? whole_at : span->master_begin;
    int64_t end = least(whole_at + n, span->master_end);
    if (begin < end)
        memcpy(span->master.to + (begin - span->master_begin) * (int64_t)sizeof *wide,
               wide + (begin - whole_at), (size_t)(end - begin) * sizeof *wide);
}

static void find_master(const struct start *s, struct span *span)
{
    if (s->master == TENSOR_NONE || !exec_holds(s->exec, s->master))
        return;
    int64_t first = s->prog->tensors[s->master].whole_from;
    int64_t whole_at = s->weight->whole_from + span->at;
    span->master_begin = whole_at > first ? whole_at : first;
    span->master_end = least(whole_at + span->n, first + tensor_elems(s->prog, s->master));
}

static enum snug_status make_span(const struct start *s, struct span *span, struct snug_error *err)
{
    struct weight_extent extent = weight_form_extent(&s->form, span->at, span->n);
    bool has_scales = s->form.scales != TENSOR_NONE;
    find_master(s, span);
    bool has_master = span->master_begin < span->master_end;
    TRY(exec_fill_begin(s->exec, s->form.id, extent.at_bytes, extent.n_bytes, &span->stored, err));
    if (has_scales)
        TRY(exec_fill_begin(s->exec, s->form.scales, extent.scales_at_bytes, extent.scales_bytes,
                            &span->scales, err));
    if (has_master) {
        int64_t first = s->prog->tensors[s->master].whole_from, size = sizeof(float);
        TRY(exec_fill_begin(s->exec, s->master, (span->master_begin - first) * size,
                            (span->master_end - span->master_begin) * size, &span->master, err));
    }
#pragma omp parallel for schedule(static) num_threads(s->threads)
    for (int64_t at = span->at; at < span->at + span->n; at += WEIGHT_PIECE)
        make_piece(s, span, at, least(span->at + span->n - at, WEIGHT_PIECE));
    TRY(exec_fill_end(s->exec, &span->stored, err));
    if (has_scales)
        TRY(exec_fill_end(s->exec, &span->scales, err));
    return has_master ? exec_fill_end(s->exec, &span->master, err) : SNUG_OK;
}

static enum snug_status make_weight(const struct compiled_step *compiled, struct exec *exec,
                                    tensor_id id, uint64_t seed, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    struct start start = {.prog = prog,
                          .exec = exec,
                          .threads = compiled->facts.threads,
                          .weight = &prog->tensors[id],
                          .master = weights_master_of(prog, id),
                          .seed = seed,
                          .stream = rng_hash_string(prog->tensors[id].name),
                          .form = weight_form_of(prog, exec, id)};
    int64_t n = shape_elems(&start.form.shape);
    for (int64_t at = 0; at < n; at += SPAN_ELEMS) {
        struct span span = {.at = at, .n = least(n - at, SPAN_ELEMS)};
        TRY(make_span(&start, &span, err));
    }
    return SNUG_OK;
}

/* ---- copies --------------------------------------------------------------------------------- */

struct copy { /* `to` may be a part of `from` and have another type */
    const struct program *prog;
    struct exec *exec;
    int threads;
    tensor_id from, to;
};

/* Copies n elements of `to` from `at` on; at most WEIGHT_PIECE if the types differ. */
static enum snug_status copy_piece(const struct copy *copy, int64_t at, int64_t n, void *to,
                                   struct snug_error *err)
{
    const struct tensor *of_from = &copy->prog->tensors[copy->from];
    const struct tensor *of_to = &copy->prog->tensors[copy->to];
    int64_t size = (int64_t)dtype_bytes(of_from->dtype);
    int64_t from_bytes = (at + of_to->whole_from - of_from->whole_from) * size;
    if (of_from->dtype == of_to->dtype)
        return exec_read(copy->exec, copy->from, from_bytes, n * size, to, err);
    double read[WEIGHT_PIECE]; /* large enough for the widest type */
    TRY(exec_read(copy->exec, copy->from, from_bytes, n * size, read, err));
    for (int64_t i = 0; i < n; i++)
        dtype_store(of_to->dtype, to, i, dtype_load(of_from->dtype, read, i));
    return SNUG_OK;
}

/* If several threads fail, one of the failures is reported. */
static enum snug_status copy_span(const struct copy *copy, int64_t at, int64_t n,
                                  struct snug_error *err)
{
    int64_t size = (int64_t)dtype_bytes(copy->prog->tensors[copy->to].dtype);
    bool is_device = exec_data(copy->exec, copy->from) == NULL;
    bool is_one =
        is_device && copy->prog->tensors[copy->from].dtype == copy->prog->tensors[copy->to].dtype;
    int64_t step = is_one ? n : WEIGHT_PIECE;
    enum snug_status status = SNUG_OK;
    struct exec_fill fill;
    TRY(exec_fill_begin(copy->exec, copy->to, at * size, n * size, &fill, err));
#pragma omp parallel for schedule(static) num_threads(copy->threads)
    for (int64_t i = 0; i < n; i += step) {
        struct snug_error error = {0};
        enum snug_status of_piece =
            copy_piece(copy, at + i, least(n - i, step), fill.to + i * size, &error);
        if (of_piece != SNUG_OK) {
#pragma omp critical
            status = snug_fail(err, of_piece, "%s", error.message);
        }
    }
    return status != SNUG_OK ? status : exec_fill_end(copy->exec, &fill, err);
}

/* Masters are already initialized, together with their weights. */
enum snug_status weights_start_copies(const struct compiled_step *compiled, struct exec *exec,
                                      struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (t->init != INIT_weight || t->of == TENSOR_NONE || !exec_holds(exec, id))
            continue;
        tensor_id weight = t->of, master = weights_master_of(prog, weight);
        struct copy copy = {.prog = prog,
                            .exec = exec,
                            .threads = compiled->facts.threads,
                            .from = master != TENSOR_NONE ? master : weight,
                            .to = id};
        int64_t n = copy.from == id ? 0 : tensor_elems(prog, id);
        for (int64_t at = 0; at < n; at += SPAN_ELEMS)
            TRY(copy_span(&copy, at, least(n - at, SPAN_ELEMS), err));
    }
    return exec_fill_finish(exec, err);
}

/* ---- everything ----------------------------------------------------------------------------- */

/* Does the op adjust the loss scale dynamically? */
static bool scales_loss(const struct op *op)
{
    return op->kind == OP_next_loss_scale ||
           (op->kind == OP_grad_norm && attrs_of(op, grad_norm)->dynamic_scale);
}

static void start_scalars(const struct program *prog, double *scalars)
{
    memset(scalars, 0, SCALAR_COUNT * sizeof *scalars); /* on a device, these are a host copy */
    scalars[SCALAR_clip] = 1;
    scalars[SCALAR_loss_scale] = 1;
    for (int i = 0; i < prog->n_ops; i++)
        if (scales_loss(&prog->ops[i]))
            scalars[SCALAR_loss_scale] = 65536;
}

enum snug_status weights_init(const struct compiled_step *compiled, struct exec *exec,
                              uint64_t seed, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (!t->persistent || !exec_holds(exec, id) || t->base != TENSOR_NONE ||
            weight_form_is_scales(prog, id)) /* set together with their quantized weight */
            continue;
        if (weights_is_of_model(t))
            TRY(make_weight(compiled, exec, id, seed, err));
        else if (t->init != INIT_weight)
            TRY(exec_clear(exec, id, err));
    }
    TRY(weights_start_copies(compiled, exec, err));
    if (exec_scalars(exec) != NULL)
        start_scalars(prog, exec_scalars(exec));
    return SNUG_OK;
}
