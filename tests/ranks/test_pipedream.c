/*
 * test_pipedream.c -- `--pipeline pipedream` against a simulation of its staleness in one process.
 *
 * The simulation has its own GPT-2, in double precision and plain loops, and no pipeline.  It runs
 * the micro-batches of a step one after the other.  For micro-batch j, it reads the weights of
 * stage s of p after max(0, j + 1 - (p - s)) updates of this step, and makes one AdamW update with
 * each gradient, clipped by the norm of the stage.  It shares with snug the initial weights (read
 * from a run that learns nothing), the samples, and the assignment of weights to stages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "data/data.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/training.h"

enum { LAYERS = 4, HEADS = 2, WIDTH = 16, LENGTH = 6, VOCAB = 40, MICRO = 6, STEPS = 20 };
enum { N_WEIGHTS = 2 + 12 * LAYERS + 2, LONGEST = 4 * WIDTH, COMMAND_MAX = 2048 };

static const double rate = 1e-3, decay = 0.1, beta1 = 0.9, beta2 = 0.95, tiny = 1e-8, clip = 1;

/* ---- weights, as many versions of them as a step makes ------------------------------------------ */

struct weight {
    char name[64];
    int rows, columns; /* rows 1: a vector */
    int stage;
    double *at[MICRO + 1]; /* after so many updates of this step */
    double *grad, *m, *v;
};

static struct weight weights[N_WEIGHTS];
enum { WTE, WPE, LAYER, FINAL = 2 + 12 * LAYERS };
enum { LN1_G, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_G, LN2_B, FC_W, FC_B, OUT_W, OUT_B };

static void name_weight(int i, const char *name, int rows, int columns)
{
    struct weight *w = &weights[i];
    size_t n = (size_t)rows * (size_t)columns;
    *w = (struct weight){.rows = rows, .columns = columns};
    snprintf(w->name, sizeof w->name, "%s", name);
    for (int k = 0; k <= MICRO; k++)
        w->at[k] = calloc(n, sizeof(double));
    w->grad = calloc(n, sizeof(double));
    w->m = calloc(n, sizeof(double));
    w->v = calloc(n, sizeof(double));
}

static void make_weights(void)
{
    static const struct {
        const char *name;
        int rows, columns;
    } of_layer[12] = {{"ln_1.weight", 1, WIDTH},
                      {"ln_1.bias", 1, WIDTH},
                      {"attn.c_attn.weight", WIDTH, 3 * WIDTH},
                      {"attn.c_attn.bias", 1, 3 * WIDTH},
                      {"attn.c_proj.weight", WIDTH, WIDTH},
                      {"attn.c_proj.bias", 1, WIDTH},
                      {"ln_2.weight", 1, WIDTH},
                      {"ln_2.bias", 1, WIDTH},
                      {"mlp.c_fc.weight", WIDTH, 4 * WIDTH},
                      {"mlp.c_fc.bias", 1, 4 * WIDTH},
                      {"mlp.c_proj.weight", 4 * WIDTH, WIDTH},
                      {"mlp.c_proj.bias", 1, WIDTH}};
    char name[64];
    name_weight(WTE, "wte.weight", VOCAB, WIDTH);
    name_weight(WPE, "wpe.weight", LENGTH, WIDTH);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < 12; k++) {
            snprintf(name, sizeof name, "h.%d.%s", layer, of_layer[k].name);
            name_weight(LAYER + 12 * layer + k, name, of_layer[k].rows, of_layer[k].columns);
        }
    name_weight(FINAL, "ln_f.weight", 1, WIDTH);
    name_weight(FINAL + 1, "ln_f.bias", 1, WIDTH);
}

static void free_weights(void)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        for (int k = 0; k <= MICRO; k++)
            free(weights[i].at[k]);
        free(weights[i].grad);
        free(weights[i].m);
        free(weights[i].v);
    }
}

static int n_of(const struct weight *w)
{
    return w->rows * w->columns;
}

/* ---- the network ---------------------------------------------------------------------------------- */

static int version[N_WEIGHTS]; /* of each weight, for the present micro-batch */

static const double *read_weight(int i)
{
    return weights[i].at[version[i]];
}

struct norm {
    double x[LENGTH][WIDTH], mean[LENGTH], scale[LENGTH], y[LENGTH][WIDTH];
};

struct layer {
    struct norm ln1, ln2;
    double qkv[LENGTH][3 * WIDTH], share[HEADS][LENGTH][LENGTH], mixed[LENGTH][WIDTH];
    double fc[LENGTH][LONGEST], act[LENGTH][LONGEST];
};

static struct layer layers[LAYERS];
static struct norm last;

static void norm_forward(struct norm *n, int gamma)
{
    const double *g = read_weight(gamma), *b = read_weight(gamma + 1);
    for (int t = 0; t < LENGTH; t++) {
        double mean = 0, square = 0;
        for (int i = 0; i < WIDTH; i++)
            mean += n->x[t][i] / WIDTH;
        for (int i = 0; i < WIDTH; i++)
            square += (n->x[t][i] - mean) * (n->x[t][i] - mean) / WIDTH;
        n->mean[t] = mean;
        n->scale[t] = 1 / sqrt(square + 1e-5);
        for (int i = 0; i < WIDTH; i++)
            n->y[t][i] = (n->x[t][i] - mean) * n->scale[t] * g[i] + b[i];
    }
}

/* dx += */
static void norm_backward(const struct norm *n, int gamma, double dy[][WIDTH], double dx[][WIDTH])
{
    const double *g = read_weight(gamma);
    for (int t = 0; t < LENGTH; t++) {
        double sum = 0, dot = 0;
        for (int i = 0; i < WIDTH; i++) {
            double unit = (n->x[t][i] - n->mean[t]) * n->scale[t];
            weights[gamma].grad[i] += dy[t][i] * unit;
            weights[gamma + 1].grad[i] += dy[t][i];
            sum += dy[t][i] * g[i] / WIDTH;
            dot += dy[t][i] * g[i] * unit / WIDTH;
        }
        for (int i = 0; i < WIDTH; i++) {
            double unit = (n->x[t][i] - n->mean[t]) * n->scale[t];
            dx[t][i] += n->scale[t] * (dy[t][i] * g[i] - sum - unit * dot);
        }
    }
}

/* y = x W + b, for one position; then the other way round, where dx is written. */
static void linear(int w, const double *x, double *y)
{
    int n_in = weights[w].rows, n_out = weights[w].columns;
    const double *matrix = read_weight(w), *bias = read_weight(w + 1);
    for (int o = 0; o < n_out; o++) {
        y[o] = bias[o];
        for (int i = 0; i < n_in; i++)
            y[o] += x[i] * matrix[i * n_out + o];
    }
}

static void linear_backward(int w, const double *x, const double *dy, double *dx)
{
    int n_in = weights[w].rows, n_out = weights[w].columns;
    const double *matrix = read_weight(w);
    for (int o = 0; o < n_out; o++)
        weights[w + 1].grad[o] += dy[o];
    for (int i = 0; i < n_in; i++) {
        dx[i] = 0;
        for (int o = 0; o < n_out; o++) {
            weights[w].grad[i * n_out + o] += x[i] * dy[o];
            dx[i] += matrix[i * n_out + o] * dy[o];
        }
    }
}

static void attention_forward(struct layer *l)
{
    enum { SIZE = WIDTH / HEADS };
    memset(l->mixed, 0, sizeof l->mixed);
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < LENGTH; t++) {
            double sum = 0, *share = l->share[h][t];
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int i = h * SIZE; i < (h + 1) * SIZE; i++)
                    dot += l->qkv[t][i] * l->qkv[s][WIDTH + i];
                share[s] = exp(dot / sqrt(SIZE));
                sum += share[s];
            }
            for (int s = 0; s <= t; s++) {
                share[s] /= sum;
                for (int i = h * SIZE; i < (h + 1) * SIZE; i++)
                    l->mixed[t][i] += share[s] * l->qkv[s][2 * WIDTH + i];
            }
        }
}

static void attention_backward(const struct layer *l, double dmixed[][WIDTH],
                               double dqkv[][3 * WIDTH])
{
    enum { SIZE = WIDTH / HEADS };
    memset(dqkv, 0, sizeof(double[LENGTH][3 * WIDTH]));
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < LENGTH; t++) {
            double dshare[LENGTH] = {0}, dot = 0;
            for (int s = 0; s <= t; s++) {
                for (int i = h * SIZE; i < (h + 1) * SIZE; i++) {
                    dshare[s] += dmixed[t][i] * l->qkv[s][2 * WIDTH + i];
                    dqkv[s][2 * WIDTH + i] += l->share[h][t][s] * dmixed[t][i];
                }
                dot += dshare[s] * l->share[h][t][s];
            }
            for (int s = 0; s <= t; s++) {
                double d = l->share[h][t][s] * (dshare[s] - dot) / sqrt(SIZE);
                for (int i = h * SIZE; i < (h + 1) * SIZE; i++) {
                    dqkv[t][i] += d * l->qkv[s][WIDTH + i];
                    dqkv[s][WIDTH + i] += d * l->qkv[t][i];
                }
            }
        }
}

static double gelu(double x, double *slope)
{
    double c = sqrt(2 / M_PI), inner = tanh(c * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * c * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + inner);
}

/* x becomes the result. */
static void layer_forward(int at, double x[][WIDTH])
{
    struct layer *l = &layers[at];
    int w = LAYER + 12 * at;
    double y[WIDTH], slope;
    memcpy(l->ln1.x, x, sizeof l->ln1.x);
    norm_forward(&l->ln1, w + LN1_G);
    for (int t = 0; t < LENGTH; t++)
        linear(w + QKV_W, l->ln1.y[t], l->qkv[t]);
    attention_forward(l);
    for (int t = 0; t < LENGTH; t++) {
        linear(w + PROJ_W, l->mixed[t], y);
        for (int i = 0; i < WIDTH; i++)
            x[t][i] += y[i];
    }
    memcpy(l->ln2.x, x, sizeof l->ln2.x);
    norm_forward(&l->ln2, w + LN2_G);
    for (int t = 0; t < LENGTH; t++) {
        linear(w + FC_W, l->ln2.y[t], l->fc[t]);
        for (int i = 0; i < LONGEST; i++)
            l->act[t][i] = gelu(l->fc[t][i], &slope);
        linear(w + OUT_W, l->act[t], y);
        for (int i = 0; i < WIDTH; i++)
            x[t][i] += y[i];
    }
}

/* dx, of the result, becomes that of the input. */
static void layer_backward(int at, double dx[][WIDTH])
{
    struct layer *l = &layers[at];
    int w = LAYER + 12 * at;
    double dact[LONGEST], dy[LENGTH][WIDTH], dmixed[LENGTH][WIDTH], dqkv[LENGTH][3 * WIDTH], slope;
    for (int t = 0; t < LENGTH; t++) {
        linear_backward(w + OUT_W, l->act[t], dx[t], dact);
        for (int i = 0; i < LONGEST; i++) {
            gelu(l->fc[t][i], &slope);
            dact[i] *= slope;
        }
        linear_backward(w + FC_W, l->ln2.y[t], dact, dy[t]);
    }
    norm_backward(&l->ln2, w + LN2_G, dy, dx);
    for (int t = 0; t < LENGTH; t++)
        linear_backward(w + PROJ_W, l->mixed[t], dx[t], dmixed[t]);
    attention_backward(l, dmixed, dqkv);
    for (int t = 0; t < LENGTH; t++)
        linear_backward(w + QKV_W, l->ln1.y[t], dqkv[t], dy[t]);
    norm_backward(&l->ln1, w + LN1_G, dy, dx);
}

/* The head and its gradient: dy of the last norm. */
static double head(const int32_t *targets, double dy[][WIDTH])
{
    const double *table = read_weight(WTE);
    double loss = 0;
    memset(dy, 0, sizeof(double[LENGTH][WIDTH]));
    for (int t = 0; t < LENGTH; t++) {
        double chance[VOCAB], sum = 0;
        for (int v = 0; v < VOCAB; v++) {
            double dot = 0;
            for (int i = 0; i < WIDTH; i++)
                dot += last.y[t][i] * table[v * WIDTH + i];
            chance[v] = exp(dot);
            sum += chance[v];
        }
        loss -= log(chance[targets[t]] / sum) / LENGTH;
        for (int v = 0; v < VOCAB; v++) {
            double d = (chance[v] / sum - (v == targets[t])) / LENGTH;
            for (int i = 0; i < WIDTH; i++) {
                dy[t][i] += d * table[v * WIDTH + i];
                weights[WTE].grad[v * WIDTH + i] += d * last.y[t][i];
            }
        }
    }
    return loss;
}

/* Gradients of one sequence, and its loss. */
static double forward_and_backward(const int32_t *tokens, const int32_t *targets)
{
    double x[LENGTH][WIDTH], dx[LENGTH][WIDTH] = {{0}}, dy[LENGTH][WIDTH];
    for (int t = 0; t < LENGTH; t++)
        for (int i = 0; i < WIDTH; i++)
            x[t][i] = read_weight(WTE)[tokens[t] * WIDTH + i] + read_weight(WPE)[t * WIDTH + i];
    for (int layer = 0; layer < LAYERS; layer++)
        layer_forward(layer, x);
    memcpy(last.x, x, sizeof last.x);
    norm_forward(&last, FINAL);
    double loss = head(targets, dy);
    norm_backward(&last, FINAL, dy, dx);
    for (int layer = LAYERS - 1; layer >= 0; layer--)
        layer_backward(layer, dx);
    for (int t = 0; t < LENGTH; t++)
        for (int i = 0; i < WIDTH; i++) {
            weights[WTE].grad[tokens[t] * WIDTH + i] += dx[t][i];
            weights[WPE].grad[t * WIDTH + i] += dx[t][i];
        }
    return loss;
}

/* ---- PipeDream, one micro-batch after the other ----------------------------------------------------- */

static double norm_of_stage(int stage)
{
    double sum = 0;
    for (int i = 0; i < N_WEIGHTS; i++)
        for (int k = 0; weights[i].stage == stage && k < n_of(&weights[i]); k++)
            sum += weights[i].grad[k] * weights[i].grad[k];
    return sqrt(sum);
}

static void update(struct weight *w, int micro, int count)
{
    double norm = norm_of_stage(w->stage), factor = norm > clip ? clip / norm : 1;
    double part = rate * (w->rows > 1 ? decay : 0);
    for (int k = 0; k < n_of(w); k++) {
        double g = w->grad[k] * factor;
        w->m[k] = beta1 * w->m[k] + (1 - beta1) * g;
        w->v[k] = beta2 * w->v[k] + (1 - beta2) * g * g;
        double step =
            w->m[k] / (1 - pow(beta1, count)) / (sqrt(w->v[k] / (1 - pow(beta2, count))) + tiny);
        w->at[micro + 1][k] = w->at[micro][k] - part * w->at[micro][k] - rate * step;
    }
}

static double simulate_step(int n_stages, const int32_t *tokens, const int32_t *targets,
                            int n_before)
{
    double loss = 0;
    for (int micro = 0; micro < MICRO; micro++) {
        for (int i = 0; i < N_WEIGHTS; i++) {
            int late = micro + 1 - (n_stages - weights[i].stage);
            version[i] = late > 0 ? late : 0;
            memset(weights[i].grad, 0, (size_t)n_of(&weights[i]) * sizeof(double));
        }
        loss += forward_and_backward(tokens + micro * LENGTH, targets + micro * LENGTH) / MICRO;
        for (int i = 0; i < N_WEIGHTS; i++)
            update(&weights[i], micro, n_before + micro + 1);
    }
    for (int i = 0; i < N_WEIGHTS; i++)
        memcpy(weights[i].at[0], weights[i].at[MICRO], (size_t)n_of(&weights[i]) * sizeof(double));
    return loss;
}

/* ---- snug -------------------------------------------------------------------------------------------- */

static char work[FILES_PATH_MAX];

static const char *snug(void)
{
    return getenv("SNUG") != NULL ? getenv("SNUG") : "./snug";
}

/* Runs a command line in the folder; what it says goes to a file there. */
static void run(const char *launcher, const char *flags, const char *out)
{
    char command[COMMAND_MAX];
    snprintf(command, sizeof command,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "OMPI_MCA_rmaps_base_oversubscribe=1 LSAN_OPTIONS=detect_leaks=0 "
             "timeout 100 %s %s %s >%s/%s 2>%s/err || { cat %s/err; false; }",
             launcher, snug(), flags, work, out, work, work);
    assert_int_equal(system(command), 0);
}

/* "": there is no MPI that snug was built with. */
static const char *launcher(void)
{
    static const struct {
        const char *command, *plugin;
    } known[] = {{"mpirun.openmpi", "libsnug_openmpi.so"}, {"mpiexec.hydra", "libsnug_mpich.so"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char command[COMMAND_MAX];
        snprintf(command, sizeof command,
                 "command -v %s >/dev/null && test -f \"$(dirname \"$(realpath %s)\")\"/%s",
                 known[i].command, snug(), known[i].plugin);
        if (system(command) == 0)
            return known[i].command;
    }
    return "";
}

static const char model_text[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_head\": 2, \"n_embd\": 16, "
    "\"n_positions\": 6, \"vocab_size\": 40, \"layer_norm_epsilon\": 1e-5, "
    "\"activation_function\": \"gelu_new\"}";

static void read_start(void)
{
    struct snug_error err = {0};
    struct safetensors *st;
    must(safetensors_open(files_path(work, "start/model.safetensors"), &st, &err), &err);
    for (int i = 0; i < N_WEIGHTS; i++) {
        float values[4 * WIDTH * WIDTH];
        int n = n_of(&weights[i]);
        read_raw(st, weights[i].name, values, (size_t)n * sizeof *values);
        for (int k = 0; k < n; k++) {
            weights[i].at[0][k] = (double)values[k];
            weights[i].m[k] = weights[i].v[k] = 0;
        }
    }
    safetensors_close(st);
}

static int find_weight(const char *name, size_t length)
{
    for (int i = 0; i < N_WEIGHTS; i++)
        if (strlen(weights[i].name) == length && strncmp(weights[i].name, name, length) == 0)
            return i;
    fail_msg("there is no weight %.*s", (int)length, name);
    return 0;
}

/* From `snug plan --each --json`: "stage": 0, "first": "wte.weight", "last": "h.1..." */
static void read_stages(int n_stages)
{
    size_t n_bytes;
    char *text = files_read(files_path(work, "each"), &n_bytes);
    const char *at = text;
    for (int stage = 0; stage < n_stages; stage++) {
        const char *first = strstr(at, "\"first\": \"");
        assert_non_null(first);
        const char *end = strstr(first, "\"last\": \"");
        assert_non_null(end);
        int from = find_weight(first + 10, strcspn(first + 10, "\""));
        int to = find_weight(end + 9, strcspn(end + 9, "\""));
        for (int i = from; i <= to; i++)
            weights[i].stage = stage;
        at = end + 9;
    }
    free(text);
}

/* Every loss of the run within 1e-5 of the simulation's. */
static void compare(int n_stages)
{
    struct snug_error err = {0};
    struct data_request request = {.target = DATA_TARGET_TOKENS,
                                   .sample_elems = LENGTH,
                                   .target_elems = LENGTH,
                                   .n_classes = VOCAB,
                                   .seed = 1};
    struct data *data;
    int32_t tokens[MICRO * LENGTH], targets[MICRO * LENGTH];
    size_t n_bytes;
    char *text = files_read(files_path(work, "run/metrics.jsonl"), &n_bytes);
    const char *at = text;
    must(data_open(&request, &data, &err), &err);
    for (int step = 0; step < STEPS; step++) {
        must(data_fill(data, DATA_TRAIN, step * MICRO, MICRO, tokens, targets, &err), &err);
        double expected = simulate_step(n_stages, tokens, targets, step * MICRO);
        at = strstr(at, "\"loss\": ");
        assert_non_null(at);
        at += 8;
        double found = strtod(at, NULL);
        if (!(fabs(found - expected) <= 1e-5 * expected))
            fail_msg("step %d of %d stages: %.9g, not %.9g", step + 1, n_stages, found, expected);
    }
    data_close(data);
    free(text);
}

static void test_stages(void **state)
{
    int n_stages = *(const int *)*state;
    char flags[COMMAND_MAX], mpi[64];
    if (launcher()[0] == '\0') {
        print_message("skip: no MPI is here that snug was built with\n");
        skip();
    }
    files_make_dir(work);
    files_write_text(work, "config.json", model_text);
    make_weights();
    snprintf(flags, sizeof flags,
             "train %s/config.json --steps 1 --lr 0 --batch 1 --threads 1 --eval-every -1 --quiet "
             "--out %s/start",
             work, work);
    run("", flags, "log");
    snprintf(flags, sizeof flags,
             "plan %s/config.json --ranks %d --pipeline pipedream --batch %d --micro-batch 1 "
             "--each --json",
             work, n_stages, MICRO);
    run("", flags, "each");
    snprintf(flags, sizeof flags,
             "train %s/config.json --pipeline pipedream --batch %d --micro-batch 1 --steps %d "
             "--lr 1e-3 --threads 1 --eval-every -1 --quiet --out %s/run",
             work, MICRO, STEPS, work);
    snprintf(mpi, sizeof mpi, "%s -n %d", launcher(), n_stages);
    run(n_stages > 1 ? mpi : "", flags, "log");
    read_start();
    if (n_stages > 1)
        read_stages(n_stages);
    compare(n_stages);
    free_weights();
    files_remove_dir(work);
}

int main(void)
{
    static int stages[] = {1, 2, 3, 4};
    const struct CMUnitTest tests[] = {
        {"one stage: every micro-batch an update", test_stages, NULL, NULL, &stages[0]},
        {"two stages", test_stages, NULL, NULL, &stages[1]},
        {"three stages", test_stages, NULL, NULL, &stages[2]},
        {"four stages", test_stages, NULL, NULL, &stages[3]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
