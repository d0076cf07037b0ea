/*
 * attention_bench.h -- for test_cuda_attention.c: the operands of attention on a device, and its
 * results in double.
 */
#ifndef TESTS_CUDA_ATTENTION_BENCH_H
#define TESTS_CUDA_ATTENTION_BENCH_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "cuda/dispatch/attention_parts.h"

/* IN: q, k and v; GRADS: their gradients.  Packed side by side in rows, or one after the other. */
enum operand_name { IN, DY, Y, LSE, GRADS, WORK, N_OPERANDS };
enum { PART_q, PART_k, PART_v, N_PARTS };
enum { GUARD_BYTES = 256, GUARD = 0x5a, MOST_DEPTH = 128 };

struct attention_case {
    int64_t n_batch, n_heads, n_kv_heads, n_time, depth, window;
    enum dtype type;
    bool causal, packed;
};

struct bench {
    const struct backend *backend;
    struct device *device;
    const struct attention_case *test;
    struct cuda_attention_shape shape;
    bool samples; /* check some rows only, and print failures */
    int n_failed;
    bool is_quiet; /* one failure of this run was printed */
    int64_t at[N_PARTS], n[N_OPERANDS];
    void *on_device[N_OPERANDS], *raw[N_OPERANDS];
    float *host[N_OPERANDS];
};

static const char *text_of(const struct bench *t)
{
    static char text[200];
    const struct cuda_attention_shape *s = &t->shape;
    snprintf(text, sizeof text, "%lldx%lld/%lldx%lldx%lld%s%lld %s%s%s%s%s", (long long)s->n_batch,
             (long long)s->n_heads, (long long)s->n_kv_heads, (long long)s->n_time,
             (long long)s->depth, s->window > 0 ? " window " : " w", (long long)s->window,
             dtype_name(s->type), t->test->packed ? " packed" : "", s->causal ? "" : " all keys",
             s->own_sums ? ", own sums" : "", s->nondeterministic ? ", nondeterministic" : "");
    return text;
}

static void fail_or_print(struct bench *t, const char *format, ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!t->samples)
        fail_msg("%s: %s", text_of(t), text);
    if (!t->is_quiet)
        print_message("FAILED %s: %s\n", text_of(t), text);
    t->is_quiet = true;
    t->n_failed++;
}

/* ---- operands ------------------------------------------------------------------------------- */

static enum dtype type_of(const struct bench *t, int k)
{
    return k == WORK ? DTYPE_u8 : k == LSE ? DTYPE_f32 : t->shape.type;
}

static size_t bytes_of(const struct bench *t, int k)
{
    return (size_t)t->n[k] * dtype_bytes(type_of(t, k)) + (k == WORK ? GUARD_BYTES : 0);
}

static void set_shape(struct bench *t, const struct attention_case *test)
{
    int64_t q = test->n_heads * test->depth, kv = test->n_kv_heads * test->depth;
    int64_t n_rows = test->n_batch * test->n_time, row = q + 2 * kv;
    t->test = test;
    t->shape = (struct cuda_attention_shape){.n_batch = test->n_batch,
                                             .n_heads = test->n_heads,
                                             .n_kv_heads = test->n_kv_heads,
                                             .n_time = test->n_time,
                                             .depth = test->depth,
                                             .q_row = test->packed ? row : q,
                                             .kv_row = test->packed ? row : kv,
                                             .window = test->window,
                                             .type = test->type,
                                             .causal = test->causal};
    t->at[PART_k] = test->packed ? q : n_rows * q;
    t->at[PART_v] = t->at[PART_k] + (test->packed ? kv : n_rows * kv);
    t->n[IN] = t->n[GRADS] = n_rows * row;
    t->n[DY] = t->n[Y] = n_rows * q;
    t->n[LSE] = n_rows * test->n_heads;
}

static void write_raw(struct bench *t, int k)
{
    struct snug_error err = {0};
    if (t->backend->hooks->write(t->device, t->on_device[k], t->raw[k], (int64_t)bytes_of(t, k),
                                 &err) != SNUG_OK)
        fail_msg("%s: %s", text_of(t), err.message);
}

static void read_back(struct bench *t, int k)
{
    struct snug_error err = {0};
    if (t->backend->hooks->read(t->device, t->on_device[k], t->raw[k], (int64_t)bytes_of(t, k),
                                &err) != SNUG_OK)
        fail_msg("%s: %s", text_of(t), err.message);
    for (int64_t i = 0; i < t->n[k] && k != WORK; i++)
        t->host[k][i] = (float)dtype_load(type_of(t, k), t->raw[k], i);
}

/* Random inputs; everything else begins as NaN. */
static void make_operands(struct bench *t, size_t work_bytes)
{
    unsigned state = 7;
    t->n[WORK] = (int64_t)work_bytes;
    for (int k = 0; k < N_OPERANDS; k++) {
        t->raw[k] = malloc(bytes_of(t, k));
        t->host[k] = malloc(k == WORK ? 1 : (size_t)t->n[k] * sizeof(float));
        t->on_device[k] = t->backend->alloc(bytes_of(t, k));
        assert_non_null(t->raw[k]);
        assert_non_null(t->host[k]);
        assert_non_null(t->on_device[k]);
        memset(t->raw[k], k == WORK ? GUARD : 0xff, bytes_of(t, k));
        for (int64_t i = 0; i < t->n[k] && k <= DY; i++) {
            state = state * 1664525u + 1013904223u;
            dtype_store(type_of(t, k), t->raw[k], i,
                        2.0 * ((double)(state >> 8) / (1 << 23) - 1.0));
        }
        write_raw(t, k);
        if (k <= DY)
            read_back(t, k);
    }
}

static void free_operands(struct bench *t)
{
    for (int k = 0; k < N_OPERANDS; k++) {
        t->backend->release(t->on_device[k], bytes_of(t, k));
        free(t->raw[k]);
        free(t->host[k]);
    }
}

/* ---- the reference -------------------------------------------------------------------------- */

struct sum { /* of many terms */
    double value, squares;
};

static void add(struct sum *sum, double term)
{
    sum->value += term;
    sum->squares += term * term;
}

/* Each term may have been rounded to 16 bits, and the result twice.  A missing term of usual size is
 * found. */
static void check(struct bench *t, const char *of, const int64_t at[4], double got,
                  const struct sum *want)
{
    double unit = t->shape.type == DTYPE_bf16 ? 1.0 / 256 : 1.0 / 2048;
    double allowed = unit * (1.5 * fabs(want->value) + 2.0 * sqrt(want->squares)) + 1e-6;
    if (!(fabs(got - want->value) <= allowed))
        fail_or_print(t,
                      "%s of sequence %lld, head %lld, row %lld, element %lld: %g, not %g (%g "
                      "allowed)",
                      of, (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3],
                      got, want->value, allowed);
}

static int64_t group_of(const struct bench *t)
{
    return t->shape.n_heads / t->shape.n_kv_heads;
}

/* Where a head's row begins, in IN or GRADS; h is a head of q, or of k and v. */
static int64_t in_at(const struct bench *t, int part, int64_t b, int64_t h, int64_t row)
{
    const struct cuda_attention_shape *s = &t->shape;
    int64_t stride = part == PART_q ? s->q_row : s->kv_row;
    return t->at[part] + (b * s->n_time + row) * stride + h * s->depth;
}

static int64_t y_at(const struct bench *t, int64_t b, int64_t h, int64_t row)
{
    return ((b * t->shape.n_time + row) * t->shape.n_heads + h) * t->shape.depth;
}

static double dot(const struct bench *t, const float *x, const float *y)
{
    double sum = 0.0;
    for (int64_t d = 0; d < t->shape.depth; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

static bool sees(const struct bench *t, int64_t query, int64_t key)
{
    const struct cuda_attention_shape *s = &t->shape;
    return !s->causal || (key <= query && (s->window == 0 || query - key < s->window));
}

static double score(const struct bench *t, int64_t b, int64_t h, int64_t query, int64_t key)
{
    const float *in = t->host[IN];
    return dot(t, in + in_at(t, PART_q, b, h, query),
               in + in_at(t, PART_k, b, h / group_of(t), key)) /
           sqrt((double)t->shape.depth);
}

static void check_y(struct bench *t, int64_t b, int64_t h, int64_t row)
{
    double *p = calloc((size_t)t->shape.n_time, sizeof *p), most = -INFINITY, total = 0.0;
    assert_non_null(p);
    for (int64_t j = 0; j < t->shape.n_time; j++) {
        p[j] = sees(t, row, j) ? score(t, b, h, row, j) : -INFINITY;
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < t->shape.n_time; j++)
        total += p[j] = exp(p[j] - most);
    for (int64_t d = 0; d < t->shape.depth; d++) {
        struct sum y = {0};
        for (int64_t j = 0; j < t->shape.n_time; j++)
            add(&y,
                p[j] / total * (double)t->host[IN][in_at(t, PART_v, b, h / group_of(t), j) + d]);
        check(t, "y", (int64_t[]){b, h, row, d}, (double)t->host[Y][y_at(t, b, h, row) + d], &y);
    }
    double lse = (double)t->host[LSE][(b * t->shape.n_heads + h) * t->shape.n_time + row];
    if (!(fabs(lse - most - log(total)) <= 2e-4 * (1.0 + fabs(lse))))
        fail_or_print(t, "lse of row %lld: %g, not %g", (long long)row, lse, most + log(total));
    free(p);
}

/* p and ds, from the y and lse that were computed. */
static double slope(const struct bench *t, int64_t b, int64_t h, int64_t query, int64_t key,
                    double *p)
{
    const float *dy = t->host[DY] + y_at(t, b, h, query);
    double lse = (double)t->host[LSE][(b * t->shape.n_heads + h) * t->shape.n_time + query];
    double delta = dot(t, dy, t->host[Y] + y_at(t, b, h, query));
    double dp = dot(t, dy, t->host[IN] + in_at(t, PART_v, b, h / group_of(t), key));
    *p = exp(score(t, b, h, query, key) - lse);
    return *p * (dp - delta) / sqrt((double)t->shape.depth);
}

static void check_row(struct bench *t, int part, int64_t b, int64_t h, int64_t row,
                      const struct sum *sums)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const float *got = t->host[GRADS] + in_at(t, part, b, h, row);
    for (int64_t d = 0; d < t->shape.depth; d++)
        check(t, names[part], (int64_t[]){b, h, row, d}, (double)got[d], &sums[d]);
}

static void check_dq(struct bench *t, int64_t b, int64_t h, int64_t row)
{
    struct sum dq[MOST_DEPTH] = {{0}};
    for (int64_t j = 0; j < t->shape.n_time; j++) {
        double p, ds = sees(t, row, j) ? slope(t, b, h, row, j, &p) : 0.0;
        for (int64_t d = 0; d < t->shape.depth; d++)
            add(&dq[d], ds * (double)t->host[IN][in_at(t, PART_k, b, h / group_of(t), j) + d]);
    }
    check_row(t, PART_q, b, h, row, dq);
}

/* Adds the sums of a head, each rounded to 16 bits. */
static void add_head(const struct bench *t, struct sum *sums, const struct sum *head)
{
    for (int64_t d = 0; d < t->shape.depth; d++) {
        add(&sums[d], head[d].value);
        sums[d].squares += head[d].squares;
    }
}

static void check_dkv(struct bench *t, int64_t b, int64_t g, int64_t row)
{
    struct sum dk[MOST_DEPTH] = {{0}}, dv[MOST_DEPTH] = {{0}};
    for (int64_t h = g * group_of(t); h < (g + 1) * group_of(t); h++) {
        struct sum head_dk[MOST_DEPTH] = {{0}}, head_dv[MOST_DEPTH] = {{0}};
        for (int64_t i = 0; i < t->shape.n_time; i++) {
            if (!sees(t, i, row))
                continue;
            double p, ds = slope(t, b, h, i, row, &p);
            for (int64_t d = 0; d < t->shape.depth; d++) {
                add(&head_dk[d], ds * (double)t->host[IN][in_at(t, PART_q, b, h, i) + d]);
                add(&head_dv[d], p * (double)t->host[DY][y_at(t, b, h, i) + d]);
            }
        }
        add_head(t, dk, head_dk);
        add_head(t, dv, head_dv);
    }
    check_row(t, PART_k, b, g, row, dk);
    check_row(t, PART_v, b, g, row, dv);
}

/* Is index i of n checked?  Samples are at both ends, and around a window and a block. */
static bool is_checked(const struct bench *t, int64_t i, int64_t n)
{
    int64_t window = t->shape.window;
    return !t->samples || i < 2 || i == n - 1 || i == n / 2 || i == 127 || i == 128 ||
           (window > 0 && i >= window - 1 && i <= window + 1);
}

static void check_all(struct bench *t, bool is_grad)
{
    const struct cuda_attention_shape *s = &t->shape;
    for (int64_t b = 0; b < s->n_batch; b += t->samples && s->n_batch > 1 ? s->n_batch - 1 : 1)
        for (int64_t row = 0; row < s->n_time; row++)
            for (int64_t h = 0; h < s->n_heads && is_checked(t, row, s->n_time); h++) {
                if (t->samples && h > 1 && h < s->n_heads - 1)
                    continue;
                if (!is_grad)
                    check_y(t, b, h, row);
                if (is_grad)
                    check_dq(t, b, h, row);
                if (is_grad && h < s->n_kv_heads)
                    check_dkv(t, b, h, row);
            }
}

#endif
