/*
 * amx_rates.c -- measures linear ops and attention on AMX against the CPU's peak.
 *
 *   amx_rates [-e] [-r ROWS] [-n REPEATS] [THREADS]
 *
 * The shapes are those of GPT-2 124M.  Attention runs on sequences of 1024 rows (or all rows, if there
 * are fewer), and its flops count only what the causal mask leaves.  Each op runs as in a training step,
 * once at level amx (-e: amx-emulated, to try the program on any machine) and once at level v4 (operands
 * converted to fp32).  A difference of the results beyond rounding is an error.  The peak is measured
 * with a loop of tile multiplications that accesses no memory, on the same number of threads.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu/cpu_isa.h"
#include "support/oprun.h"

enum { SEED = 20240303 };

#if defined(SNUG_AMX)
static double peak_flops(int threads)
{
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double begin = clock_seconds();
        double flops = tile_flops_amx(threads, 1000000);
        best = fmax(best, flops / (clock_seconds() - begin));
    }
    return best;
}
#else
static double peak_flops(int threads)
{
    (void)threads;
    return NAN;
}
#endif

static const char *const ops_text[] = {"in x float N,I",
                                       "in w float O,I scale=0.1",
                                       "in b float O",
                                       "in dy float N,O",
                                       "y = linear x w b",
                                       "dx = linear_grad_x dy w",
                                       "dw = linear_grad_w x dy",
                                       "dw32:f32 = linear_grad_w x dy"};
static const struct {
    const char *name;
    int in, out;
} layers[] = {{"qkv", 768, 2304}, {"proj", 768, 768}, {"fc", 768, 3072}, {"fcproj", 3072, 768}};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

struct totals {
    double flops, seconds[2];
    int n_wrong;
};

/* Runs one op at both levels.  The fp32 gradient accumulates, as in a second micro-batch. */
static enum snug_status compare(const struct opcase *c, int op_index, int threads, int n_repeat,
                                const char *const levels[2], struct totals *totals,
                                struct snug_error *err)
{
    const struct op *op = &c->prog.ops[op_index];
    const struct tensor *out = program_tensor(&c->prog, op->out[0]);
    struct row_result result[2] = {{{0}}, {{0}}};
    double seconds[2] = {0, 0}, flops = op_flops(&c->prog, op);
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < 2 && status == SNUG_OK; i++) {
        struct row_run run = {.facts = {.threads = threads, .isa = backend_cpu_isa()},
                              .inplace = -1,
                              .n_repeat = n_repeat};
        run.add = op->kind == OP_linear_grad_w && out->dtype == DTYPE_f32;
        setenv("SNUG_CPU_LEVEL", levels[i], 1);
        run.row = backend_choose(backend_cpu(), &c->prog, op, &run.facts);
        struct run_modes modes = backend_cpu()->run_begin(&run.facts);
        status = oprun(c, op_index, &run, &result[i], err);
        backend_cpu()->run_end(&run.facts, &modes);
        seconds[i] = run.best_seconds;
        totals->seconds[i] += run.best_seconds;
    }
    totals->flops += flops;
    if (status == SNUG_OK) {
        bool is_linear = op->kind != OP_attention && op->kind != OP_attention_grad;
        double allowed = !is_linear                ? oprun_tolerance(c, op, 0, DTYPE_bf16)
                         : out->dtype == DTYPE_f32 ? 1e-5
                                                   : 1.0 / 128;
        double error = oprun_error(out, result[0].out[0], result[1].out[0]);
        totals->n_wrong += !(error <= allowed);
        printf("  %-14s %-4s%s %8.2f ms %6.3f TFLOP/s %8.2f ms %6.3f TFLOP/s   %.1e%s\n",
               op_infos[op->kind].name, dtype_name(out->dtype),
               op->kind == OP_linear_grad_w && out->dtype == DTYPE_f32 ? " +=" : "   ",
               1e3 * seconds[0], 1e-12 * flops / seconds[0], 1e3 * seconds[1],
               1e-12 * flops / seconds[1], error, error <= allowed ? "" : "  WRONG");
        fflush(stdout);
    }
    row_result_free(&result[0]);
    row_result_free(&result[1]);
    return status;
}

static enum snug_status time_layer(int layer, int n_rows, int threads, int n_repeat,
                                   const char *const levels[2], struct totals *totals,
                                   struct snug_error *err)
{
    char sizes[80];
    struct case_text text = {.name = layers[layer].name, .n_lines = COUNT(ops_text)};
    struct opcase c;
    snprintf(sizes, sizeof sizes, " N=%d I=%d O=%d", n_rows, layers[layer].in, layers[layer].out);
    memcpy(text.line, ops_text, sizeof ops_text);
    text.use[CASE_time][text.n_uses[CASE_time]++] = sizes;
    enum snug_status status = opcase_build(&text, CASE_time, 0, DTYPE_bf16, SEED, &c, err);
    if (status == SNUG_OK)
        printf("%s: %d rows, %d to %d\n", layers[layer].name, n_rows, layers[layer].in,
               layers[layer].out);
    for (int i = 0; i < c.prog.n_ops && status == SNUG_OK; i++)
        status = compare(&c, i, threads, n_repeat, levels, totals, err);
    opcase_free(&c);
    return status;
}

/* The gradient reads the outputs of the forward op. */
static enum snug_status time_attention(int n_rows, int threads, int n_repeat,
                                       const char *const levels[2], struct totals *totals,
                                       struct snug_error *err)
{
    static const char *const attention_text[] = {"in qkv float B,T,2304", "in dy float B,T,768",
                                                 "y lse = attention qkv heads=12",
                                                 "dqkv = attention_grad dy qkv y lse heads=12"};
    char sizes[80];
    struct case_text text = {.name = "attention", .n_lines = COUNT(attention_text)};
    struct opcase c;
    int n_time = n_rows < 1024 ? n_rows : 1024;
    snprintf(sizes, sizeof sizes, " B=%d T=%d", n_rows / n_time, n_time);
    memcpy(text.line, attention_text, sizeof attention_text);
    text.use[CASE_time][text.n_uses[CASE_time]++] = sizes;
    enum snug_status status = opcase_build(&text, CASE_time, 0, DTYPE_bf16, SEED, &c, err);
    if (status == SNUG_OK)
        printf("attention: %d of %d rows, 12 heads of 64\n", n_rows / n_time, n_time);
    for (int i = 0; i < c.prog.n_ops && status == SNUG_OK; i++) {
        const struct device_facts one_thread = {.threads = 1, .isa = backend_cpu_isa()};
        status = compare(&c, i, threads, n_repeat, levels, totals, err);
        if (status == SNUG_OK && i + 1 < c.prog.n_ops)
            status = oprun_step(
                &c, i, backend_choose(backend_cpu(), &c.prog, &c.prog.ops[i], &one_thread), err);
    }
    opcase_free(&c);
    return status;
}

static void print_totals(const char *what, const struct totals *totals, double peak,
                         const char *const levels[2])
{
    printf("%s together: %.3f TFLOP/s at %s (%.0f%% of the peak), %.3f at %s; %s\n", what,
           1e-12 * totals->flops / totals->seconds[0], levels[0],
           100 * totals->flops / totals->seconds[0] / peak,
           1e-12 * totals->flops / totals->seconds[1], levels[1],
           totals->n_wrong == 0 ? "all results agree" : "SOME RESULTS ARE WRONG");
}

int main(int argc, char **argv)
{
    const char *levels[2] = {"amx", "v4"};
    int threads = 1, n_rows = 4096, n_repeat = 7;
    struct totals linear = {0}, attention = {0};
    struct snug_error err = {0};
    enum snug_status status = SNUG_OK;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-e") == 0)
            levels[0] = "amx-emulated";
        else if (strcmp(argv[i], "-r") == 0 && i + 1 < argc)
            n_rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
            n_repeat = atoi(argv[++i]);
        else
            threads = atoi(argv[i]);
    }
    if (threads < 1 || n_rows < 1 || n_repeat < 1)
        return fprintf(stderr, "usage: %s [-e] [-r ROWS] [-n REPEATS] [THREADS]\n", argv[0]), 2;
    setenv("SNUG_CPU_LEVEL", levels[0], 1);
    if (cpu_isa_find()->gemm_bf16 == NULL)
        return fprintf(stderr, "this CPU, system or build has no AMX; -e emulates it\n"), 1;
    double peak = strcmp(levels[0], "amx") == 0 ? peak_flops(threads) : NAN;
    printf("%d thread%s, peak of tile multiplications: %.3f TFLOP/s\n", threads,
           threads == 1 ? "" : "s", 1e-12 * peak);
    printf("  %-22s %-26s %-26s   difference\n", "", levels[0], levels[1]);
    for (int i = 0; i < COUNT(layers) && status == SNUG_OK; i++)
        status = time_layer(i, n_rows, threads, n_repeat, levels, &linear, &err);
    if (status == SNUG_OK)
        print_totals("linear", &linear, peak, levels);
    if (status == SNUG_OK)
        status = time_attention(n_rows, threads, n_repeat, levels, &attention, &err);
    if (status != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    print_totals("attention", &attention, peak, levels);
    return linear.n_wrong + attention.n_wrong == 0 ? 0 : 1;
}
