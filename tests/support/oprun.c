/*
 * oprun.c -- runs one op of a case with one kernel.  See oprun.h.
 */
#include "support/oprun.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/cpu_isa.h"

/* ---- levels --------------------------------------------------------------------------------- */

const char *const oprun_levels[N_OPRUN_LEVELS] = {"base", "v3", "v4", "amx", "amx-emulated"};

bool oprun_set_level(const char *level)
{
    static bool said = false;
    if (level == NULL) {
        unsetenv("SNUG_CPU_LEVEL");
        return true;
    }
    setenv("SNUG_CPU_LEVEL", level, 1);
    bool is_there = strncmp(level, "amx", 3) != 0 || cpu_isa_find()->gemm_bf16 != NULL;
    if (!is_there && !said) {
        printf("level %s is skipped: this CPU, system or build has no AMX\n", level);
        said = true;
    }
    return is_there;
}

/* ---- buffers with guards -------------------------------------------------------------------- */

/* The back guard is wide: a kernel that books too little workspace must not reach the heap. */
enum { GUARD_BEFORE_BYTES = 64, GUARD_AFTER_BYTES = 4096, GUARD = 0xa5 };

struct buffer {
    unsigned char *block, *data; /* data is 64-byte aligned, as the arena's tensors are */
    size_t bytes, whole_bytes;
    unsigned char *on_device; /* a copy of block there, or NULL */
};

static bool buffer_make(struct buffer *buffer, size_t bytes)
{
    size_t whole = (GUARD_BEFORE_BYTES + bytes + GUARD_AFTER_BYTES + 63) / 64 * 64;
    buffer->block = aligned_alloc(64, whole);
    if (buffer->block == NULL)
        return false;
    memset(buffer->block, GUARD, whole);
    buffer->data = buffer->block + GUARD_BEFORE_BYTES;
    buffer->bytes = bytes;
    buffer->whole_bytes = whole;
    memset(buffer->data, 0xff, bytes); /* NaN in every float type */
    return true;
}

static bool buffer_intact(const struct buffer *buffer)
{
    if (buffer->block == NULL)
        return true;
    for (int i = 0; i < GUARD_BEFORE_BYTES; i++)
        if (buffer->block[i] != GUARD)
            return false;
    for (size_t i = 0; i < GUARD_AFTER_BYTES; i++)
        if (buffer->data[buffer->bytes + i] != GUARD)
            return false;
    return true;
}

/* ---- operands on a device ------------------------------------------------------------------- */

static bool buffer_to_device(struct buffer *buffer, const struct row_run *run,
                             struct snug_error *err)
{
    const struct backend *backend = run->device_of;
    if (backend == NULL || buffer->block == NULL)
        return true;
    if (buffer->on_device == NULL)
        buffer->on_device = backend->alloc(buffer->whole_bytes);
    return buffer->on_device != NULL &&
           backend->hooks->write(run->facts.device, buffer->on_device, buffer->block,
                                 (int64_t)buffer->whole_bytes, err) == SNUG_OK;
}

static bool buffer_from_device(struct buffer *buffer, const struct row_run *run,
                               struct snug_error *err)
{
    return run->device_of == NULL || buffer->block == NULL ||
           run->device_of->hooks->read(run->facts.device, buffer->on_device, buffer->block,
                                       (int64_t)buffer->whole_bytes, err) == SNUG_OK;
}

static void *buffer_pointer(const struct buffer *buffer)
{
    return buffer->on_device != NULL ? buffer->on_device + GUARD_BEFORE_BYTES : buffer->data;
}

static void buffer_free(struct buffer *buffer, const struct row_run *run)
{
    if (buffer->on_device != NULL)
        run->device_of->release(buffer->on_device, buffer->whole_bytes);
    free(buffer->block);
}

/* ---- one run -------------------------------------------------------------------------------- */

struct bench { /* the op and its operands, set up for one run */
    const struct opcase *c;
    struct op op;
    struct buffer in[MAX_INPUTS], out[MAX_OUTPUTS], work;
    int out_on_input[MAX_OUTPUTS]; /* the input whose buffer this output shares, or -1 */
    struct kernel_call call;
};

static void bench_free(struct bench *bench, const struct row_run *run)
{
    for (int k = 0; k < MAX_INPUTS; k++)
        buffer_free(&bench->in[k], run);
    for (int k = 0; k < MAX_OUTPUTS; k++)
        buffer_free(&bench->out[k], run);
    buffer_free(&bench->work, run);
}

typedef bool buffer_move(struct buffer *buffer, const struct row_run *run, struct snug_error *err);

/* Copies all operands to the device or back. */
static enum snug_status move_operands(struct bench *bench, const struct row_run *run,
                                      buffer_move *move, struct snug_error *err)
{
    bool ok = move(&bench->work, run, err);
    for (int k = 0; k < MAX_INPUTS; k++)
        ok = ok && move(&bench->in[k], run, err);
    for (int k = 0; k < MAX_OUTPUTS; k++)
        ok = ok && move(&bench->out[k], run, err);
    return ok ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "operands do not get to the device");
}

static void fill_operands(struct bench *bench, const struct row_run *run)
{
    const struct opcase *c = bench->c;
    for (int k = 0; k < bench->op.n_in; k++)
        if (bench->in[k].block != NULL)
            memcpy(bench->in[k].data, c->data[bench->op.in[k]], bench->in[k].bytes);
    for (int k = 0; k < bench->op.n_out; k++) {
        if (bench->out[k].block == NULL)
            continue;
        if (run->add && (op_infos[bench->op.kind].accumulates >> k & 1))
            opcase_fill(c, bench->op.out[k], bench->out[k].data, 1);
        else
            memset(bench->out[k].data, 0xff, bench->out[k].bytes);
    }
}

static struct operand operand(const struct bench *bench, tensor_id id, const struct buffer *buffer)
{
    return (struct operand){.data = buffer_pointer(buffer),
                            .tensor = program_tensor(&bench->c->prog, id)};
}

static enum snug_status lay_out(struct bench *bench, const struct row_run *run,
                                struct snug_error *err)
{
    const struct program *prog = &bench->c->prog;
    struct op *op = &bench->op;
    bool ok = true;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE) {
            ok = ok && buffer_make(&bench->in[k], (size_t)tensor_bytes(prog, op->in[k])) &&
                 buffer_to_device(&bench->in[k], run, err);
            bench->call.in[k] = operand(bench, op->in[k], &bench->in[k]);
        }
    for (int k = 0; k < op->n_out; k++) {
        bench->out_on_input[k] = k == 0 ? run->inplace : -1;
        for (int j = 0; j < op->n_in; j++)
            if (op->out[k] != TENSOR_NONE && op->out[k] == op->in[j])
                bench->out_on_input[k] = j;
        if (op->out[k] == TENSOR_NONE)
            continue;
        int shared = bench->out_on_input[k];
        if (shared < 0)
            ok = ok && buffer_make(&bench->out[k], (size_t)tensor_bytes(prog, op->out[k])) &&
                 buffer_to_device(&bench->out[k], run, err);
        bench->call.out[k] =
            operand(bench, op->out[k], shared < 0 ? &bench->out[k] : &bench->in[shared]);
    }
    size_t work_bytes =
        run->row->workspace_bytes == NULL ? 0 : run->row->workspace_bytes(prog, op, &run->facts);
    if (work_bytes > 0)
        ok =
            ok && buffer_make(&bench->work, work_bytes) && buffer_to_device(&bench->work, run, err);
    bench->call.work = buffer_pointer(&bench->work);
    return ok ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

static bool is_shared(const struct bench *bench, int input)
{
    for (int k = 0; k < bench->op.n_out; k++)
        if (bench->out_on_input[k] == input)
            return true;
    return false;
}

/* Nothing around the buffers and none of the inputs may have changed. */
static enum snug_status inspect(const struct bench *bench, struct snug_error *err)
{
    const struct program *prog = &bench->c->prog;
    for (int k = 0; k < bench->op.n_in; k++) {
        if (bench->in[k].block == NULL)
            continue;
        const char *name = program_tensor(prog, bench->op.in[k])->name;
        if (!buffer_intact(&bench->in[k]))
            return snug_fail(err, SNUG_MISMATCH, "wrote outside input %s", name);
        if (!is_shared(bench, k) &&
            memcmp(bench->in[k].data, bench->c->data[bench->op.in[k]], bench->in[k].bytes) != 0)
            return snug_fail(err, SNUG_MISMATCH, "changed its input %s", name);
    }
    for (int k = 0; k < bench->op.n_out; k++)
        if (!buffer_intact(&bench->out[k]))
            return snug_fail(err, SNUG_MISMATCH, "wrote outside output %s",
                             program_tensor(prog, bench->op.out[k])->name);
    if (!buffer_intact(&bench->work))
        return snug_fail(err, SNUG_MISMATCH, "wrote outside the %zu bytes of workspace it booked",
                         bench->work.bytes);
    return SNUG_OK;
}

static enum snug_status take_results(const struct bench *bench, struct row_result *result,
                                     struct snug_error *err)
{
    for (int k = 0; k < bench->op.n_out; k++) {
        if (bench->op.out[k] == TENSOR_NONE)
            continue;
        size_t bytes = (size_t)tensor_bytes(&bench->c->prog, bench->op.out[k]);
        result->out[k] = malloc(bytes);
        if (result->out[k] == NULL)
            return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
        int shared = bench->out_on_input[k];
        memcpy(result->out[k], (shared < 0 ? &bench->out[k] : &bench->in[shared])->data, bytes);
    }
    return SNUG_OK;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum snug_status oprun(const struct opcase *c, int op_index, struct row_run *run,
                       struct row_result *result, struct snug_error *err)
{
    struct bench bench = {.c = c, .op = c->prog.ops[op_index]};
    enum snug_status status;
    bool prepared = false;
    *result = (struct row_result){0};
    bench.op.attrs.accumulate = run->add ? ACC_yes : ACC_no;
    bench.call.op = &bench.op;
    bench.call.facts = &run->facts;
    bench.call.add = run->add;
    if (run->device_of != NULL)
        bench.call.stream = run->device_of->hooks->stream(run->facts.device);
    run->best_seconds = INFINITY;

    if ((status = lay_out(&bench, run, err)) != SNUG_OK)
        goto done;
    if (run->row->prepare != NULL) {
        status = run->row->prepare(&c->prog, &bench.op, &run->facts, &bench.call.prepared, err);
        if (status != SNUG_OK)
            goto done;
        prepared = true;
    }
    for (int i = 0; status == SNUG_OK && i < (run->n_repeat > 0 ? run->n_repeat : 1); i++) {
        fill_operands(&bench, run);
        if ((status = move_operands(&bench, run, buffer_to_device, err)) != SNUG_OK)
            break;
        double begin = now_seconds();
        status = run->row->run(&bench.call, err);
        run->best_seconds = fmin(run->best_seconds, now_seconds() - begin);
    }
    if (status == SNUG_OK)
        status = move_operands(&bench, run, buffer_from_device, err);
    if (status == SNUG_OK)
        status = inspect(&bench, err);
    if (status == SNUG_OK)
        status = take_results(&bench, result, err);
done:
    if (prepared && run->row->release != NULL)
        run->row->release(bench.call.prepared);
    bench_free(&bench, run);
    return status;
}

void row_result_free(struct row_result *result)
{
    for (int k = 0; k < MAX_OUTPUTS; k++)
        free(result->out[k]);
    *result = (struct row_result){0};
}

enum snug_status oprun_step(struct opcase *c, int op_index, const struct kernel *row,
                            struct snug_error *err)
{
    const struct op *op = &c->prog.ops[op_index];
    struct row_run run = {
        .row = row, .facts = {.threads = 1, .isa = backend_cpu_isa()}, .inplace = -1};
    struct row_result result;
    enum snug_status status = oprun(c, op_index, &run, &result, err);
    for (int k = 0; status == SNUG_OK && k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            memcpy(c->data[op->out[k]], result.out[k], (size_t)tensor_bytes(&c->prog, op->out[k]));
    row_result_free(&result);
    return status;
}

/* ---- how near is near enough ---------------------------------------------------------------- */

double oprun_error(const struct tensor *tensor, const void *a, const void *b)
{
    double worst = 0.0, largest = 0.0;
    for (int64_t i = 0, n = shape_elems(&tensor->shape); i < n; i++) {
        double value = dtype_load(tensor->dtype, a, i), right = dtype_load(tensor->dtype, b, i);
        if (value == right || (isnan(value) && isnan(right)))
            worst = fmax(worst, 0.0);
        else if (!isfinite(value) || !isfinite(right))
            return INFINITY;
        else
            worst = fmax(worst, fabs(value - right));
        if (isfinite(right))
            largest = fmax(largest, fabs(right));
    }
    return worst / (largest + 1e-30);
}

/*
 * The reference rounds once, at the end.  A fast kernel computes in f32 and may, in the 16-bit dtypes,
 * round one or two intermediates (probabilities, gradients of scores) to the dtype under test.
 *
 *   f32            a sum of K terms in f32 is off by about 2^-24 sqrt(K) of its size; 1e-5 covers
 *                  K up to a thousand, and approximations of exp and tanh
 *   bf16, f16      the last rounding may go the other way: 1 unit (2^-8, 2^-11); two rounded
 *                  intermediates and their sum: 4 units of bf16 (2^-6), 4 of f16 (2^-9)
 *   f32 output of  only an intermediate is rounded, and that averages out: one unit of the dtype
 *   a 16-bit case
 */
double oprun_tolerance(const struct opcase *c, const struct op *op, int output, enum dtype dtype)
{
    static const double unit[DTYPE_COUNT] = {[DTYPE_bf16] = 0x1p-8, [DTYPE_f16] = 0x1p-11};
    int64_t longest = 1;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE) {
            const struct shape *shape = &program_tensor(&c->prog, op->in[k])->shape;
            int64_t n =
                shape_rows(shape) > shape_last(shape) ? shape_rows(shape) : shape_last(shape);
            longest = n > longest ? n : longest;
        }
    double f32_tolerance = 1e-5 * fmax(1.0, sqrt((double)longest / 1024.0));
    enum dtype own = program_tensor(&c->prog, op->out[output])->dtype;
    return fmax(f32_tolerance, fmax(4.0 * unit[own], unit[dtype]));
}
