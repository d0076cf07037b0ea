/*
 * test_cuda_attention_reads.c -- our attention reads only the tiles that it needs: rows that the causal
 * order, the window, the documents or the lengths exclude may hold NaN, and no bit of the other
 * results changes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cuda/cuda.h"
#include "cuda/attention/attention.h"
#include "cuda/device_block.h"
#include "support/training.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { HEADS = 2, DEPTH = 16, PLACE_BYTES = 1 << 16, TILE = 64 };
enum { Q, K, V, DY, STARTS, LENGTHS, Y, DQ, DK, DV, LSE, DELTA, N_PLACES };

struct range {
    int begin, end;
};

/* One sequence, HEADS heads of q and one of k and v.  Queries of the document have its start. */
struct form {
    const char *name;
    int n_queries, n_keys, window, filled;
    struct range document;
    struct range bad_queries, bad_keys; /* rows of q and dy, of k and v that are NaN */
    struct range y, dkv;                /* rows of y and dq, of dk and dv that must not change */
};

static const struct form forms[] = {
    {.name = "keys before the window",
     .n_queries = TILE,
     .n_keys = 5 * TILE,
     .window = 10,
     .bad_keys = {0, 4 * TILE - 9},
     .y = {0, TILE},
     .dkv = {4 * TILE - 9, 5 * TILE}},
    {.name = "queries beyond the window",
     .n_queries = 5 * TILE,
     .n_keys = 5 * TILE,
     .window = 10,
     .bad_queries = {2 * TILE, 5 * TILE},
     .y = {0, 2 * TILE},
     .dkv = {0, TILE}},
    {.name = "keys of another document",
     .n_queries = 4 * TILE,
     .n_keys = 4 * TILE,
     .document = {2 * TILE, 4 * TILE},
     .bad_keys = {0, 2 * TILE},
     .y = {2 * TILE, 4 * TILE},
     .dkv = {2 * TILE, 4 * TILE}},
    {.name = "queries of another document",
     .n_queries = 4 * TILE,
     .n_keys = 4 * TILE,
     .document = {2 * TILE, 4 * TILE},
     .bad_queries = {2 * TILE, 4 * TILE},
     .y = {0, 2 * TILE},
     .dkv = {0, 2 * TILE}},
    {.name = "keys that are not filled",
     .n_queries = 40,
     .n_keys = 200,
     .filled = 100,
     .bad_keys = {100, 200},
     .y = {0, 40},
     .dkv = {0, 200}},
    {.name = "earlier queries",
     .n_queries = 3 * TILE,
     .n_keys = 3 * TILE,
     .bad_queries = {0, TILE},
     .y = {TILE, 3 * TILE},
     .dkv = {TILE, 3 * TILE}},
    {.name = "later keys",
     .n_queries = 3 * TILE,
     .n_keys = 3 * TILE,
     .bad_keys = {2 * TILE, 3 * TILE},
     .y = {0, 2 * TILE}}, /* later queries see them, and all keys before */
};

static bool is_in(const struct range *range, int64_t i)
{
    return i >= range->begin && i < range->end;
}

static char *place(const struct device_block *on, int i)
{
    return on->bytes + (size_t)i * PLACE_BYTES;
}

static int width_of(int place)
{
    return place == K || place == V || place == DK || place == DV ? DEPTH : HEADS * DEPTH;
}

static void write_place(const struct device_block *on, int to, const void *host, int64_t bytes)
{
    struct snug_error err = {0};
    assert_true(bytes <= PLACE_BYTES);
    must(on->backend->hooks->write(on->device, place(on, to), host, bytes, &err), &err);
}

static void write_inputs(const struct device_block *on, const struct form *f, enum dtype dtype,
                         float bad)
{
    static char host[PLACE_BYTES];
    static int32_t starts[PLACE_BYTES / 4];
    for (int k = Q; k <= DY; k++) {
        bool is_key = k == K || k == V;
        int64_t n = (int64_t)(is_key ? f->n_keys : f->n_queries) * width_of(k);
        for (int64_t i = 0; i < n; i++)
            dtype_store(dtype, host, i,
                        is_in(is_key ? &f->bad_keys : &f->bad_queries, i / width_of(k))
                            ? bad
                            : rng_normal(7, (uint64_t)k, (uint64_t)i));
        write_place(on, k, host, n * (int64_t)dtype_bytes(dtype));
    }
    for (int t = 0; t < f->n_queries; t++)
        starts[t] = is_in(&f->document, t) ? f->document.begin : 0;
    write_place(on, STARTS, starts, f->n_queries * 4);
    write_place(on, LENGTHS, &(int32_t){f->filled}, 4);
}

/* The bad rows have the value `bad`. */
static void run_once(const struct device_block *on, const struct form *f, enum dtype dtype,
                     float bad, char result[N_PLACES][PLACE_BYTES])
{
    const struct device_hooks *hooks = on->backend->hooks;
    struct snug_error err = {0};
    struct cuda_attention a = {.n_batch = 1,
                               .n_queries = f->n_queries,
                               .n_keys = f->n_keys,
                               .n_heads = HEADS,
                               .n_kv_heads = 1,
                               .depth = DEPTH,
                               .group = HEADS,
                               .window = f->window > 0 ? f->window : f->n_keys,
                               .causal = true,
                               .dtype = dtype,
                               .q = place(on, Q),
                               .k = place(on, K),
                               .v = place(on, V),
                               .q_row = HEADS * DEPTH,
                               .kv_row = DEPTH,
                               .y = place(on, Y),
                               .lse = (float *)place(on, LSE),
                               .dropout = {.scale = 1.0f},
                               .dy = place(on, DY),
                               .dq = place(on, DQ),
                               .dk = place(on, DK),
                               .dv = place(on, DV),
                               .delta = (float *)place(on, DELTA)};
    if (f->document.end > 0)
        a.starts = (const int32_t *)place(on, STARTS);
    if (f->filled > 0)
        a.lengths = (const int32_t *)place(on, LENGTHS);
    write_inputs(on, f, dtype, bad);
    assert_int_equal(cuda_attention(&a, hooks->stream(on->device)), 0);
    assert_int_equal(cuda_attention_grad(&a, hooks->stream(on->device)), 0);
    must(hooks->synchronize(on->device, &err), &err);
    for (int k = Y; k <= DV; k++)
        must(hooks->read(on->device, place(on, k), result[k], PLACE_BYTES, &err), &err);
}

static void test_excluded_rows_are_not_read(void **state)
{
    static const enum dtype types[] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};
    static const char *const names[N_PLACES] = {[Y] = "y", [DQ] = "dq", [DK] = "dk", [DV] = "dv"};
    static char right[N_PLACES][PLACE_BYTES], got[N_PLACES][PLACE_BYTES];
    for (int i = 0; i < LENGTH(forms) * LENGTH(types); i++) {
        const struct form *f = &forms[i / LENGTH(types)];
        enum dtype dtype = types[i % LENGTH(types)];
        run_once(*state, f, dtype, 0.0f, right);
        run_once(*state, f, dtype, NAN, got);
        for (int k = Y; k <= DV; k++) {
            const struct range *rows = k == Y || k == DQ ? &f->y : &f->dkv;
            size_t row = (size_t)width_of(k) * dtype_bytes(dtype);
            for (int t = rows->begin; t < rows->end; t++)
                if (memcmp(right[k] + (size_t)t * row, got[k] + (size_t)t * row, row) != 0)
                    fail_msg("%s, %s: row %d of %s has changed", f->name, dtype_name(dtype), t,
                             names[k]);
        }
    }
}

int main(void)
{
    struct device_block block;
    if (!device_block_open(&block, snug_cuda_backend(), (size_t)N_PLACES * PLACE_BYTES))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_excluded_rows_are_not_read, &block),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_block_close(&block);
    return n_failed;
}
