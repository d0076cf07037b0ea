/*
 * test_resnet.c -- a small residual network against PyTorch: three steps of SGD, running
 * statistics, and an evaluation with them; and a run on images of another size, stopped and
 * resumed.
 *
 * The oracle is fixtures/resnet-tiny, computed in float64 by fixtures/make_resnet.py; each tensor
 * must be within 1e-5 of it.  The network is built from the layers of src/model, so that it stays
 * small.  Fixtures are read from tests/train/fixtures, or from the folder in SNUG_FIXTURES.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/safetensors.h"
#include "model/model.h"
#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"
#include "checkpoint/weights.h"

enum { N_STEPS = 3, BATCH = 8, IMAGE = 3 * 9 * 8, CLASSES = 5, MAX_ELEMS = 4096 };
static const double max_error = 1e-5;

struct way {
    const char *kernels, *micro, *oracle;
    int threads;
};
static const struct way ways[] = {{"fast", "8", "whole.safetensors", 1},
                                  {"fast", "8", "whole.safetensors", 2},
                                  {"fast", "4", "micro.safetensors", 2},
                                  {"reference", "8", "whole.safetensors", 1},
                                  {"reference", "4", "micro.safetensors", 1}};

static struct safetensors *fixture(const char *name)
{
    struct snug_error err;
    struct safetensors *st = NULL;
    const char *folder = getenv("SNUG_FIXTURES");
    char own[300];
    snprintf(own, sizeof own, "%s/resnet-tiny/%s", folder == NULL ? "tests/train/fixtures" : folder,
             name);
    must(safetensors_open(own, &st, &err), &err);
    return st;
}

/* ---- the network ------------------------------------------------------------------------------- */

static tensor_id unit(struct program *prog, tensor_id x, const char *conv, const char *norm,
                      int64_t n_out, int64_t kernel, int64_t stride, enum act act, tensor_id r)
{
    struct snug_error err;
    tensor_id y;
    struct conv_spec spec = {.name = conv,
                             .n_out = n_out,
                             .kernel_h = kernel,
                             .kernel_w = kernel,
                             .stride = stride,
                             .pad = kernel / 2,
                             .init = INIT_normal,
                             .init_scale = 0.1};
    must(build_conv(prog, x, &spec, &y, &err), &err);
    must(build_batchnorm(prog, y, norm, act, r, &y, &err), &err);
    return y;
}

static snug_model *resnet_tiny(void)
{
    struct snug_error err;
    snug_model *m = snug_model_new("resnet-tiny");
    struct program *prog = &m->built;
    tensor_id x = snug_input(m, "x", SNUG_TYPE_F32, 3, (int64_t[]){3, 9, 8}), pooled[2];
    struct attrs pool = ATTRS(image, .kernel_h = 3, .kernel_w = 3, .stride = 2, .pad = 1);
    must(program_emit(prog, OP_channels_last, NULL, 1, &x, "image", 1, &x, &err), &err);
    x = unit(prog, x, "conv1", "bn1", 8, 3, 1, ACT_relu, TENSOR_NONE);
    must(program_emit(prog, OP_maxpool, &pool, 1, &x, "pool", 2, pooled, &err), &err);
    x = pooled[0];
    tensor_id r = unit(prog, x, "block0.downsample.0", "block0.downsample.1", 16, 1, 2, ACT_none,
                       TENSOR_NONE);
    x = unit(prog, x, "block0.conv1", "block0.bn1", 16, 3, 2, ACT_relu, TENSOR_NONE);
    x = unit(prog, x, "block0.conv2", "block0.bn2", 16, 3, 1, ACT_relu, r);
    r = x;
    x = unit(prog, x, "block1.conv1", "block1.bn1", 16, 3, 1, ACT_relu, TENSOR_NONE);
    x = unit(prog, x, "block1.conv2", "block1.bn2", 16, 3, 1, ACT_relu, r);
    must(program_emit(prog, OP_meanpool, NULL, 1, &x, "mean", 1, &x, &err), &err);
    x = snug_linear(m, x, "fc", CLASSES);
    snug_cross_entropy(m, x);
    must(snug_model_finish(m, &err), &err);
    return m;
}

/* ---- training ---------------------------------------------------------------------------------- */

struct batches {
    float x[N_STEPS][BATCH * IMAGE];
    int32_t targets[N_STEPS][BATCH];
};

static void judge(const struct way *way, const char *what, double error, double *worst)
{
    *worst = error > *worst ? error : *worst;
    if (!(error < max_error))
        fail_msg("%s kernels, %d threads, micro-batch %s: %s: relative error %.3g, limit %.0e",
                 way->kernels, way->threads, way->micro, what, error, max_error);
}

static snug_recipe *recipe_for(const struct way *way)
{
    char text[200];
    snprintf(text, sizeof text,
             "optimizer=sgd lr=0.1 weight-decay=0.01 clip=0 batch=%d micro-batch=%s kernels=%s "
             "threads=%d",
             BATCH, way->micro, way->kernels, way->threads);
    return recipe_of(text);
}

/* Every float32 tensor of the oracle: weights and running statistics. */
static int compare_states(snug_trainer *trainer, struct safetensors *oracle, const struct way *way,
                          double *worst)
{
    struct snug_error err;
    int n_compared = 0;
    for (int k = 0; k < safetensors_count(oracle); k++) {
        const struct st_entry *entry = safetensors_entry(oracle, k);
        float values[MAX_ELEMS], truth_f32[MAX_ELEMS];
        double found[MAX_ELEMS], truth[MAX_ELEMS];
        int64_t n = shape_elems(&entry->shape);
        if (entry->dtype != DTYPE_f32)
            continue;
        assert_in_range(n, 1, MAX_ELEMS);
        read_raw(oracle, entry->name, truth_f32, (size_t)n * sizeof(float));
        must(snug_trainer_read(trainer, entry->name, values, n, &err), &err);
        for (int64_t i = 0; i < n; i++) {
            found[i] = (double)values[i];
            truth[i] = (double)truth_f32[i];
        }
        judge(way, entry->name, relative_error(found, truth, n), worst);
        n_compared++;
    }
    return n_compared;
}

/* ---- evaluation -------------------------------------------------------------------------------- */

struct feed {
    struct compiled_step *compiled;
    struct exec *exec;
    const struct batches *batches;
};

static enum snug_status feed_first(void *user, int micro, struct snug_error *err)
{
    (void)micro, (void)err;
    const struct feed *f = user;
    const struct program *prog = &f->compiled->prog;
    memcpy(exec_data(f->exec, program_find(prog, "x")), f->batches->x[0], sizeof f->batches->x[0]);
    memcpy(exec_data(f->exec, program_find(prog, "target")), f->batches->targets[0],
           sizeof f->batches->targets[0]);
    return SNUG_OK;
}

/* The loss of the first batch by the trainer's weights, in the arena of its step. */
static double evaluate(snug_trainer *t, const struct batches *batches)
{
    struct snug_error err;
    struct compiled_step s;
    struct exec *exec = NULL;
    struct compile_request q = {.model = t->model,
                                .recipe = &t->recipe,
                                .batch = BATCH,
                                .micro_batch = BATCH,
                                .over = &t->compiled};
    must(compile_step(&q, &s, &err), &err);
    for (int i = 0; i < s.prog.n_ops; i++) {
        assert_true(s.prog.ops[i].kind != OP_batchnorm);
        assert_true(s.prog.ops[i].kind != OP_batchnorm_update);
    }
    bool fits = s.plan.arena_bytes <= t->compiled.plan.arena_bytes;
    if (!fits) { /* micro-batches of half the size: in an arena of its own */
        compiled_step_free(&s);
        q.over = NULL;
        must(compile_step(&q, &s, &err), &err);
    }
    must(exec_create(&s.prog, &s.plan, s.backend, &s.facts, fits ? t->exec : NULL, &exec, &err),
         &err);
    for (int id = 0; !fits && id < s.prog.n_tensors; id++) {
        tensor_id from = program_find(&t->compiled.prog, s.prog.tensors[id].name);
        if (s.prog.tensors[id].persistent && from != TENSOR_NONE)
            memcpy(exec_data(exec, id), exec_data(t->exec, from),
                   (size_t)tensor_bytes(&s.prog, id));
    }
    struct feed feed = {&s, exec, batches};
    must(exec_run(exec, feed_first, &feed, &err), &err);
    double loss = dtype_load(s.prog.tensors[s.prog.loss].dtype, exec_data(exec, s.prog.loss), 0);
    exec_free(exec);
    compiled_step_free(&s);
    return loss;
}

static void run_one_way(const struct way *way, double *worst)
{
    struct snug_error err;
    static struct batches batches;
    double losses[N_STEPS], eval_loss;
    snug_model *model = resnet_tiny();
    snug_recipe *recipe = recipe_for(way);
    snug_trainer *trainer = NULL;
    struct snug_train_options options = {.data = "none", .steps = N_STEPS};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    struct safetensors *start = fixture("start.safetensors"),
                       *data = fixture("batches.safetensors"), *oracle = fixture(way->oracle);
    must(weights_load(&trainer->compiled, trainer->exec, start, &err), &err);
    read_raw(data, "x", batches.x, sizeof batches.x);
    read_raw(data, "targets", batches.targets, sizeof batches.targets);
    read_raw(oracle, "losses", losses, sizeof losses);
    read_raw(oracle, "eval_loss", &eval_loss, sizeof eval_loss);
    for (int i = 0; i < N_STEPS; i++) {
        struct snug_metrics m;
        const void *inputs[] = {batches.x[i], batches.targets[i]};
        must(snug_trainer_step(trainer, inputs, &m, &err), &err);
        judge(way, "loss", relative_error(&m.loss, &losses[i], 1), worst);
    }
    /* 6 convolutions, as many norms with four tensors, a linear layer with two */
    assert_int_equal(compare_states(trainer, oracle, way, worst), 6 + 6 * 4 + 2);
    double found = evaluate(trainer, &batches);
    judge(way, "evaluation", relative_error(&found, &eval_loss, 1), worst);
    assert_int_equal(compare_states(trainer, oracle, way, worst), 32); /* it moved nothing */
    struct snug_summary summary;
    snug_trainer_summary(trainer, &summary);
    assert_int_equal(summary.planned_bytes, summary.allocated_bytes);
    safetensors_close(start);
    safetensors_close(data);
    safetensors_close(oracle);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_three_steps(void **state)
{
    (void)state;
    double worst = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        run_one_way(&ways[i], &worst);
    print_message("# three steps: largest relative error %.2e\n", worst);
}

/* ---- a run ------------------------------------------------------------------------------------- */

enum { SIDE_H = 11, SIDE_W = 9, N_IMAGES = 40, N_LABELS = 6 };

/* Images of 11 x 9 in 6 classes, as MNIST has them. */
static void write_images(const char *dir)
{
    static const char *const names[2][2] = {{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
                                            {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}};
    unsigned char images[16 + N_IMAGES * SIDE_H * SIDE_W] = {0, 0, 8, 3,      0, 0, 0, N_IMAGES,
                                                             0, 0, 0, SIDE_H, 0, 0, 0, SIDE_W};
    unsigned char labels[8 + N_IMAGES] = {0, 0, 8, 1, 0, 0, 0, N_IMAGES};
    for (size_t i = 16; i < sizeof images; i++)
        images[i] = (unsigned char)(i * i % 251);
    for (size_t i = 8; i < sizeof labels; i++)
        labels[i] = (unsigned char)(i % N_LABELS);
    for (int split = 0; split < 2; split++) {
        files_write(dir, names[split][0], images, sizeof images);
        files_write(dir, names[split][1], labels, sizeof labels);
    }
}

/* Steps up to `steps`, saved in `out`. */
static void run_to(const char *data, const char *out, int steps, bool resume)
{
    struct snug_error err;
    snug_model *model = model_of("cnn");
    snug_recipe *recipe = recipe_of("batch=8 threads=2");
    snug_trainer *trainer = NULL;
    struct snug_train_options options = {
        .data = resume ? NULL : data, .out = out, .steps = steps, .resume = resume};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    assert_int_equal(trainer->model->vision.channels, 1);
    assert_int_equal(trainer->model->vision.height, SIDE_H);
    assert_int_equal(trainer->model->vision.width, SIDE_W);
    assert_int_equal(trainer->model->vision.n_classes, N_LABELS);
    must(snug_trainer_run(trainer, NULL, NULL, &err), &err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_run_is_resumed(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    size_t n_whole, n_resumed;
    files_make_dir(dir);
    write_images(dir);
    char whole[FILES_PATH_MAX + 8], resumed[FILES_PATH_MAX + 8];
    snprintf(whole, sizeof whole, "%s/a", dir);
    snprintf(resumed, sizeof resumed, "%s/b", dir);
    run_to(dir, whole, 4, false);
    run_to(dir, resumed, 2, false);
    run_to(dir, resumed, 4, true);
    char *a = files_read(files_path(whole, "model.safetensors"), &n_whole);
    char *b = files_read(files_path(resumed, "model.safetensors"), &n_resumed);
    assert_int_equal(n_whole, n_resumed);
    assert_memory_equal(a, b, n_whole); /* running averages are in it */
    assert_non_null(strstr(a + 8, "bn1.running_var"));
    free(a);
    free(b);
    snug_model *model = model_of(whole); /* by its config.json */
    assert_int_equal(model->vision.height, SIDE_H);
    assert_int_equal(model->vision.n_classes, N_LABELS);
    snug_model_free(model);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_three_steps),
                                       cmocka_unit_test(test_run_is_resumed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
