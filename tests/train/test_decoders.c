/*
 * test_decoders.c -- Llama, Mistral, Qwen2 and Qwen3 against transformers: loss, every gradient, ten
 * AdamW steps, bf16, and runs that are saved and loaded.
 *
 * The oracle is fixtures/decoders, made by fixtures/decoders.py, which describes the files: tiny
 * models whose weights transformers wrote and whose steps it computed in fp64.  In fp32:
 *
 *   gradients    the largest difference of a tensor, relative to its largest element, is below 1e-5
 *   losses       relative to the oracle below 1e-5, in all ten steps; so are the gradient norms
 *   weights      after ten steps, |ours - oracle| is at most twice what transformers itself is off
 *                in fp32, per tensor, in the Euclidean norm
 *
 * In bf16, which has 8 significant bits, errors of the gradients depend on how often a value is
 * rounded on its way.  They may be twice as large as those of transformers in bf16, per tensor, in
 * the Euclidean norm.  The loss is a mean over 87 positions, in which most of the roundings average
 * out: it must be within 2^-8, the relative distance of neighbors in bf16, of the oracle.
 *
 * Fixtures are read from tests/train/fixtures, or from the folder in SNUG_FIXTURES.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/size.h"
#include "support/training.h"
#include "train/trainer.h"

enum { N_STEPS = 10, BATCH = 3, LENGTH = 29, MAX_TENSORS = 64, MAX_ELEMS = 8192, MAX_CASES = 32 };
enum { N_TOKENS = BATCH * LENGTH };
static const double limit = 1e-5, spacing_16 = 1.0 / 256;
static const char recipe_text[] = "lr=1e-3 opt=beta1=0.9,beta2=0.95,eps=1e-8 weight-decay=0.1 "
                                  "clip=3.0 schedule=constant seq=29 batch=3";

/* ---- fixtures --------------------------------------------------------------------------------- */

struct fixture {
    char name[256], folder[FILES_PATH_MAX];
    struct safetensors *model; /* its tensors in file order are those of the arrays below */
    int n;
    int64_t first[MAX_TENSORS + 1]; /* of each tensor, in the arrays of all elements */
    float *gradients, *moved;
    double losses[N_STEPS], norms[N_STEPS];
    double drift[MAX_TENSORS], gradient_error_16[MAX_TENSORS];
    int32_t tokens[N_STEPS][N_TOKENS], targets[N_STEPS][N_TOKENS];
};

static void open_fixture(const char *folder, const char *name, struct fixture *f)
{
    struct snug_error err;
    struct safetensors *truth;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->folder, sizeof f->folder, "%s", files_path(folder, name));
    must(safetensors_open(files_path(f->folder, "model.safetensors"), &f->model, &err), &err);
    must(safetensors_open(files_path(f->folder, "truth.safetensors"), &truth, &err), &err);
    f->n = safetensors_count(f->model);
    assert_in_range(f->n, 20, MAX_TENSORS);
    for (int k = 0; k < f->n; k++) {
        int64_t n = shape_elems(&safetensors_entry(f->model, k)->shape);
        assert_in_range(n, 1, MAX_ELEMS);
        f->first[k + 1] = f->first[k] + n;
    }
    size_t all = (size_t)f->first[f->n] * sizeof(float);
    f->gradients = malloc(all);
    f->moved = malloc(all);
    assert_true(f->gradients != NULL && f->moved != NULL);
    read_raw(truth, "gradients", f->gradients, all);
    read_raw(truth, "moved", f->moved, all);
    read_raw(truth, "losses", f->losses, sizeof f->losses);
    read_raw(truth, "norms", f->norms, sizeof f->norms);
    read_raw(truth, "drift", f->drift, (size_t)f->n * sizeof *f->drift);
    read_raw(truth, "gradient_error_16", f->gradient_error_16, (size_t)f->n * sizeof *f->drift);
    read_raw(truth, "tokens", f->tokens, sizeof f->tokens);
    read_raw(truth, "targets", f->targets, sizeof f->targets);
    safetensors_close(truth);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct fixture *)a)->name, ((const struct fixture *)b)->name);
}

struct fixtures {
    int n;
    struct fixture all[MAX_CASES];
};

static int open_fixtures(void **state)
{
    const char *root = getenv("SNUG_FIXTURES");
    char folder[FILES_PATH_MAX];
    struct fixtures *f = calloc(1, sizeof *f);
    snprintf(folder, sizeof folder, "%s/decoders", root == NULL ? "tests/train/fixtures" : root);
    DIR *dir = opendir(folder);
    assert_true(f != NULL && dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.') {
            assert_true(f->n < MAX_CASES);
            open_fixture(folder, entry->d_name, &f->all[f->n++]);
        }
    closedir(dir);
    assert_true(f->n >= 10);
    qsort(f->all, (size_t)f->n, sizeof *f->all, by_name);
    *state = f;
    return 0;
}

static int close_fixtures(void **state)
{
    struct fixtures *f = *state;
    for (int i = 0; i < f->n; i++) {
        safetensors_close(f->all[i].model);
        free(f->all[i].gradients);
        free(f->all[i].moved);
    }
    free(f);
    return 0;
}

/* ---- the ways to run it ------------------------------------------------------------------------- */

static const char *const ways[] = {"kernels=fast threads=1", "kernels=reference threads=1",
                                   "kernels=fast threads=2 micro-batch=1"};
#define FAST ways[0]

static int n_ways(void)
{
    return sized(2, 3);
}

static snug_recipe *recipe_for(const char *way, const char *precision)
{
    char text[400];
    snprintf(text, sizeof text, "%s precision=%s %s", recipe_text, precision, way);
    return recipe_of(text);
}

/* The largest error, as a part of its limit, and where it is; fails the test if it is above 1. */
struct worst {
    double part;
    char where[500];
};

static void judge(struct worst *worst, const struct fixture *f, const char *way, const char *what,
                  double error, double most)
{
    double part = error == 0 ? 0 : error / most;
    if (!(part <= worst->part)) {
        worst->part = part;
        snprintf(worst->where, sizeof worst->where, "%s, %s (%s)", f->name, what, way);
    }
    if (!(part <= 1))
        fail_msg("%s, %s: %s is off by %.3g, the limit is %.3g", f->name, way, what, error, most);
}

static void tell(const char *title, const struct worst *worst)
{
    print_message("# %s: at most %.2f of the limit, at %s\n", title, worst->part, worst->where);
}

static double relative(double found, double truth)
{
    return fabs(found / truth - 1);
}

/* ---- gradients ---------------------------------------------------------------------------------- */

struct first_batch {
    const struct compiled_step *compiled;
    struct exec *exec;
    const struct fixture *fixture;
};

static enum snug_status feed_first(void *user, int micro, struct snug_error *err)
{
    (void)err;
    struct first_batch *f = user;
    int64_t n = f->compiled->micro_batch * LENGTH;
    const struct program *prog = &f->compiled->prog;
    memcpy(exec_data(f->exec, program_find(prog, "tokens")), f->fixture->tokens[0] + micro * n,
           (size_t)n * sizeof(int32_t));
    memcpy(exec_data(f->exec, program_find(prog, "target")), f->fixture->targets[0] + micro * n,
           (size_t)n * sizeof(int32_t));
    return SNUG_OK;
}

/* Largest difference / largest element. */
static double error_of_largest(const double *found, const float *truth, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference = fmax(difference, fabs(found[i] - (double)truth[i]));
        size = fmax(size, fabs((double)truth[i]));
        if (isnan(found[i]))
            return INFINITY;
    }
    return difference / size;
}

static double error_of_norm(const double *found, const float *truth, int64_t n)
{
    double wide[MAX_ELEMS];
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)truth[i];
    return relative_error(found, wide, n);
}

static void compare_gradients(const struct compiled_step *s, struct exec *exec,
                              const struct fixture *f, const char *way, bool is_16,
                              struct worst *worst)
{
    double found[MAX_ELEMS];
    for (int k = 0; k < f->n; k++) {
        char name[100];
        const struct st_entry *entry = safetensors_entry(f->model, k);
        int64_t n = f->first[k + 1] - f->first[k];
        const float *truth = f->gradients + f->first[k];
        snprintf(name, sizeof name, "d.%s", entry->name);
        tensor_id id = program_find(&s->prog, name);
        if (id == TENSOR_NONE)
            fail_msg("%s, %s: no gradient %s", f->name, way, name);
        assert_true(shape_equal(&s->prog.tensors[id].shape, &entry->shape));
        for (int64_t i = 0; i < n; i++)
            found[i] = dtype_load(s->prog.tensors[id].dtype, exec_data(exec, id), i);
        if (is_16)
            judge(worst, f, way, name, error_of_norm(found, truth, n), 2 * f->gradient_error_16[k]);
        else
            judge(worst, f, way, name, error_of_largest(found, truth, n), limit);
    }
}

static int count_gradients(const struct program *prog)
{
    int n = 0;
    for (int i = 0; i < prog->n_tensors; i++)
        n += prog->tensors[i].role == ROLE_gradient;
    return n;
}

static void gradients_one_way(const struct fixture *f, const char *way, const char *precision,
                              struct worst *worst)
{
    struct snug_error err;
    struct compiled_step s;
    struct exec *exec = NULL;
    bool is_16 = strcmp(precision, "fp32") != 0;
    snug_model *model = model_of(f->folder);
    snug_recipe *recipe = recipe_for(way, precision);
    compile_keeping_gradients(model, recipe, &s);
    assert_int_equal(count_gradients(&s.prog), f->n);
    must(exec_create(&s.prog, &s.plan, s.backend, &s.facts, NULL, &exec, &err), &err);
    must(weights_init(&s, exec, 1, &err), &err);
    must(weights_load(&s, exec, f->model, &err), &err);

    struct first_batch first = {&s, exec, f};
    must(exec_run(exec, feed_first, &first, &err), &err);
    double loss = dtype_load(s.prog.tensors[s.prog.loss].dtype, exec_data(exec, s.prog.loss), 0);
    judge(worst, f, way, "loss", relative(loss, f->losses[0]), is_16 ? spacing_16 : limit);
    if (!is_16)
        judge(worst, f, way, "gradient norm",
              relative(exec_scalars(exec)[SCALAR_grad_norm], f->norms[0]), limit);
    compare_gradients(&s, exec, f, way, is_16, worst);
    exec_free(exec);
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_gradients(void **state)
{
    const struct fixtures *f = *state;
    struct worst worst = {0};
    for (int i = 0; i < f->n; i++)
        for (int w = 0; w < n_ways(); w++)
            gradients_one_way(&f->all[i], ways[w], "fp32", &worst);
    tell("gradients", &worst);
}

/* ---- ten steps ---------------------------------------------------------------------------------- */

struct run {
    snug_model *model;
    snug_trainer *trainer;
};

static struct run open_run(const char *model_spec, const char *way, const char *precision,
                           const char *out)
{
    struct snug_error err;
    struct run run = {.model = model_of(model_spec)};
    snug_recipe *recipe = recipe_for(way, precision);
    struct snug_train_options options = {.data = "none", .out = out, .steps = N_STEPS};
    must(snug_trainer_open(run.model, recipe, &options, &run.trainer, &err), &err);
    snug_recipe_free(recipe);
    return run;
}

static struct snug_metrics step(const struct run *run, const struct fixture *f, int number)
{
    struct snug_error err;
    struct snug_metrics m = {0};
    const void *inputs[] = {f->tokens[number], f->targets[number]};
    must(snug_trainer_step(run->trainer, inputs, &m, &err), &err);
    return m;
}

static void close_run(struct run *run)
{
    snug_trainer_free(run->trainer);
    snug_model_free(run->model);
}

static void compare_weights(snug_trainer *trainer, const struct fixture *f, const char *way,
                            struct worst *worst)
{
    struct snug_error err;
    float values[MAX_ELEMS];
    double start[MAX_ELEMS];
    for (int k = 0; k < f->n; k++) {
        const struct st_entry *entry = safetensors_entry(f->model, k);
        int64_t n = f->first[k + 1] - f->first[k];
        double sum = 0;
        must(safetensors_read(f->model, entry, start, &err), &err);
        must(snug_trainer_read(trainer, entry->name, values, n, &err), &err);
        for (int64_t i = 0; i < n; i++) {
            double truth = dtype_load(entry->dtype, start, i) + (double)f->moved[f->first[k] + i];
            sum += ((double)values[i] - truth) * ((double)values[i] - truth);
        }
        judge(worst, f, way, entry->name, sqrt(sum), 2 * f->drift[k]);
    }
}

static void test_ten_steps(void **state)
{
    const struct fixtures *all = *state;
    struct worst worst = {0};
    for (int i = 0; i < all->n; i++)
        for (int w = 0; w < n_ways(); w++) {
            const struct fixture *f = &all->all[i];
            struct run run = open_run(f->folder, ways[w], "fp32", NULL);
            for (int k = 0; k < N_STEPS; k++) {
                struct snug_metrics m = step(&run, f, k);
                judge(&worst, f, ways[w], "loss", relative(m.loss, f->losses[k]), limit);
                judge(&worst, f, ways[w], "norm", relative(m.grad_norm, f->norms[k]), limit);
            }
            compare_weights(run.trainer, f, ways[w], &worst);
            close_run(&run);
        }
    tell("ten steps", &worst);
}

/* ---- bf16 --------------------------------------------------------------------------------------- */

static void test_bf16(void **state)
{
    const struct fixtures *all = *state;
    struct worst worst = {0};
    for (int i = 0; i < all->n; i++) {
        const struct fixture *f = &all->all[i];
        for (int w = 0; w < n_ways(); w++)
            gradients_one_way(f, ways[w], "bf16", &worst);
        struct run run = open_run(f->folder, FAST, "bf16", NULL);
        for (int k = 0; k < N_STEPS; k++) {
            double loss = step(&run, f, k).loss;
            judge(&worst, f, FAST, "loss", relative(loss, f->losses[k]), spacing_16);
        }
        close_run(&run);
    }
    tell("bf16", &worst);
}

/* ---- saved runs --------------------------------------------------------------------------------- */

/* The tensors of a run are those of the file that transformers wrote, no more and no fewer. */
static void check_names(const char *run, const struct fixture *f)
{
    struct snug_error err;
    struct safetensors *st;
    must(safetensors_open(files_path(run, "model.safetensors"), &st, &err), &err);
    for (int k = 0; k < f->n; k++) {
        const struct st_entry *entry = safetensors_entry(f->model, k);
        const struct st_entry *saved = safetensors_find(st, entry->name);
        if (saved == NULL || !shape_equal(&saved->shape, &entry->shape))
            fail_msg("%s: the run lacks %s, or has another shape", f->name, entry->name);
    }
    assert_int_equal(safetensors_count(st), f->n);
    assert_string_equal(safetensors_metadata(st, "format"), "pt");
    safetensors_close(st);
}

static void test_saved(void **state)
{
    const struct fixtures *all = *state;
    static const char *const precisions[] = {"fp32", "bf16", "bf16 master=none"};
    struct snug_error err;
    for (int i = 0; i < all->n; i++)
        for (int p = 0; p < 3; p++) {
            const struct fixture *f = &all->all[i];
            char dir[FILES_PATH_MAX];
            files_make_dir(dir);
            struct run run = open_run(f->folder, FAST, precisions[p], dir);
            double before = step(&run, f, 0).loss;
            must(snug_trainer_save(run.trainer, &err), &err);
            double next = step(&run, f, 1).loss;
            close_run(&run);
            check_names(dir, f);
            run = open_run(dir, FAST, precisions[p], NULL);
            double loaded = step(&run, f, 1).loss;
            close_run(&run);
            if (loaded != next || loaded == before)
                fail_msg("%s, %s: the next loss is %.17g, of the saved run %.17g", f->name,
                         precisions[p], next, loaded);
            files_remove_dir(dir);
        }
}

/* ---- shards ------------------------------------------------------------------------------------- */

/* The folder in shards of at most 8 KB, in the types of its file, as another program would have it.
 * Returns their number. */
static int write_shards(const char *dir, const struct fixture *f)
{
    enum { SHARD_BYTES = 8192, FILE_BYTES = 1 << 17 };
    struct snug_error err;
    struct st_entry entries[MAX_TENSORS];
    size_t n_bytes;
    char *config = files_read(files_path(f->folder, "config.json"), &n_bytes);
    char *data = malloc(FILE_BYTES), *at = data;
    struct safetensors *st;
    files_write_text(dir, "config.json", config);
    free(config);
    assert_non_null(data);
    for (int k = 0; k < f->n; k++) {
        const struct st_entry *entry = safetensors_entry(f->model, k);
        assert_true(at + entry->n_bytes <= data + FILE_BYTES);
        must(safetensors_read(f->model, entry, at, &err), &err);
        entries[k] = (struct st_entry){
            .name = entry->name, .dtype = entry->dtype, .shape = entry->shape, .data = at};
        at += (entry->n_bytes + 7) / 8 * 8;
    }
    const struct checkpoint_file file = {"model.safetensors", entries, f->n};
    must(checkpoint_save_sharded(dir, &file, 1, SHARD_BYTES, "{}", NULL, NULL, &err), &err);
    free(data);
    assert_int_equal(remove(files_path(dir, "state.json")), 0); /* else it is a run */
    must(safetensors_open_folder(dir, &st, &err), &err);
    assert_non_null(strstr(safetensors_path(st), SAFETENSORS_INDEX));
    int n_files = 0;
    for (int k = 0; k < safetensors_count(st); k++)
        if (safetensors_entry(st, k)->file >= n_files)
            n_files = safetensors_entry(st, k)->file + 1;
    safetensors_close(st);
    return n_files;
}

static void test_sharded(void **state)
{
    const struct fixtures *all = *state;
    for (int i = 0; i < all->n; i++) {
        const struct fixture *f = &all->all[i];
        char dir[FILES_PATH_MAX];
        files_make_dir(dir);
        assert_in_range(write_shards(dir, f), 4, 20);
        struct run whole = open_run(f->folder, FAST, "fp32", NULL);
        struct run sharded = open_run(dir, FAST, "fp32", NULL);
        for (int k = 0; k < 2; k++) {
            struct snug_metrics a = step(&whole, f, k), b = step(&sharded, f, k);
            if (a.loss != b.loss || a.grad_norm != b.grad_norm)
                fail_msg("%s: loss %.17g, in shards %.17g", f->name, a.loss, b.loss);
        }
        close_run(&whole);
        close_run(&sharded);
        files_remove_dir(dir);
    }
}

/* ---- random weights ----------------------------------------------------------------------------- */

/* As transformers starts them: norms 1, biases 0, everything else normal with initializer_range;
 * GPT-2's projections that end a residual branch with that / sqrt(2 x layers).  A sum of n squares
 * of normal values is off by sqrt(2 n) in the mean. */
static void check_start(const char *folder, const char *name, const float *values, int64_t n,
                        double std)
{
    double sum = 0, squares = 0;
    bool is_bias = strstr(name, "bias") != NULL;
    bool is_norm = !is_bias && (strstr(name, "norm") != NULL || strstr(name, "ln_") != NULL);
    for (int64_t i = 0; i < n; i++) {
        sum += (double)values[i] / std;
        squares += (double)values[i] * (double)values[i] / (std * std);
        if ((is_norm || is_bias) && values[i] != (is_norm ? 1.0F : 0.0F))
            fail_msg("%s: %s starts with %g", folder, name, (double)values[i]);
    }
    if (!is_norm && !is_bias &&
        (fabs(sum) > 4.5 * sqrt((double)n) ||
         fabs(squares - (double)n) > 4.5 * sqrt(2.0 * (double)n)))
        fail_msg("%s: %s starts with mean %g, deviation %g, not 0 and %g", folder, name,
                 sum / (double)n * std, sqrt(squares / (double)n) * std, std);
}

static void random_start(const char *folder)
{
    struct snug_error err;
    char dir[FILES_PATH_MAX];
    float values[4 * MAX_ELEMS];
    size_t n_bytes;
    char *config = files_read(files_path(folder, "config.json"), &n_bytes);
    files_make_dir(dir);
    files_write_text(dir, "config.json", config);
    const char *range = strstr(config, "\"initializer_range\": ");
    double usual = range == NULL ? 0.02 : strtod(strchr(range, ':') + 1, NULL);
    free(config);
    struct run run = open_run(dir, FAST, "fp32", NULL);
    const struct program *prog = &run.trainer->compiled.prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (t->role != ROLE_parameter)
            continue;
        bool is_scaled = strstr(t->name, "c_proj") != NULL;
        double std = usual / (is_scaled ? sqrt(2.0 * (double)run.model->decoder.n_layer) : 1);
        int64_t n = tensor_elems(prog, id);
        assert_in_range(n, 1, 4 * MAX_ELEMS);
        must(snug_trainer_read(run.trainer, t->name, values, n, &err), &err);
        check_start(folder, t->name, values, n, std);
    }
    close_run(&run);
    files_remove_dir(dir);
}

static void test_random_start(void **state)
{
    const struct fixtures *all = *state;
    const char *root = getenv("SNUG_FIXTURES");
    for (int i = 0; i < all->n; i++)
        random_start(all->all[i].folder);
    random_start(files_path(root == NULL ? "tests/train/fixtures" : root, "gpt2-tiny"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_ten_steps),
        cmocka_unit_test(test_bf16),      cmocka_unit_test(test_saved),
        cmocka_unit_test(test_sharded),   cmocka_unit_test(test_random_start),
    };
    return cmocka_run_group_tests_name("decoders", tests, open_fixtures, close_fixtures);
}
