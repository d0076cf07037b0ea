/*
 * spirals.c -- builds and trains your own network in thirty lines: a residual block that tells two
 * spirals apart.
 *
 *     cc examples/spirals.c $(pkg-config --cflags --libs snug) -lm -o spirals && ./spirals
 */
#include <math.h>
#include <snug.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 256, STEPS = 400 };

/* Random points on two spirals, and the spiral of each point. */
static void sample_batch(float *xy, int32_t *label)
{
    for (int i = 0; i < BATCH; i++) {
        double t = 0.3 + 3 * (double)rand() / RAND_MAX, spiral = rand() % 2;
        xy[2 * i] = (float)(t * cos(3 * t + spiral * 3.14159265));
        xy[2 * i + 1] = (float)(t * sin(3 * t + spiral * 3.14159265));
        label[i] = (int32_t)spiral;
    }
}

int main(void)
{
    struct snug_error err = {0};
    struct snug_metrics m = {0};
    snug_trainer *trainer = NULL;
    snug_recipe *recipe = snug_recipe_new();

    snug_model *net = snug_model_new("spirals");
    snug_tensor x = snug_input(net, "xy", SNUG_TYPE_F32, 1, (int64_t[]){2});
    snug_tensor h = snug_activate(net, snug_linear(net, x, "in", 64), SNUG_GELU);
    snug_tensor branch = snug_linear(net, snug_layernorm(net, h, "norm"), "up", 128);
    branch = snug_linear(net, snug_activate(net, branch, SNUG_GELU), "down", 64);
    snug_cross_entropy(net, snug_linear(net, snug_add(net, h, branch), "out", 2));

    if (snug_model_finish(net, &err) != SNUG_OK ||
        snug_recipe_set(recipe, "batch", "256", &err) != SNUG_OK ||
        snug_recipe_set(recipe, "lr", "3e-3", &err) != SNUG_OK ||
        snug_trainer_open(net, recipe, &(struct snug_train_options){.data = "none", .steps = STEPS},
                          &trainer, &err) != SNUG_OK)
        goto done;
    for (int step = 0; step < STEPS; step++) {
        float xy[2 * BATCH];
        int32_t label[BATCH];
        sample_batch(xy, label);
        if (snug_trainer_step(trainer, (const void *[]){xy, label}, &m, &err) != SNUG_OK)
            goto done;
    }
    struct snug_summary s;
    snug_trainer_summary(trainer, &s);
    printf("loss %.4f after %d steps: %lld bytes planned, %lld allocated\n", m.loss, STEPS,
           (long long)s.planned_bytes, (long long)s.allocated_bytes);
done:
    if (err.status != SNUG_OK)
        fprintf(stderr, "spirals: %s\n", err.message);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(net);
    return err.status == SNUG_OK && m.loss < 0.2 ? 0 : 1;
}
