/*
 * lr_schedule.c -- the learning rate of every step.
 *
 * Every schedule begins with a linear warmup over --warmup steps.  Then, as a fraction of --lr:
 *
 *     constant         1
 *     linear, cosine   falls to --lr-end at the last step
 *     wsd              warmup, stable, decay: 1 until --decay-from, then linear to --lr-end
 *     cyclic           --cycles equal parts, each a warmup and a cosine
 *
 * --scale-lr multiplies --lr by batch / --base-batch, or by its square root.
 */
#include "recipe/recipe.h"

#include <math.h>

bool recipe_lr_is_relative(const struct snug_recipe *recipe)
{
    return recipe->optimizer->relative_lr != NULL && recipe_lr(recipe) <= 0;
}

double recipe_scaled_lr(const struct snug_recipe *recipe, int64_t batch, double update)
{
    double lr =
        recipe_lr_is_relative(recipe) ? recipe->optimizer->relative_lr(update) : recipe_lr(recipe);
    double ratio = recipe->base_batch > 0 ? (double)batch / (double)recipe->base_batch : 1.0;
    switch ((enum lr_scaling)recipe->scale_lr) {
    case SCALE_LR_none:
        break;
    case SCALE_LR_linear:
        return lr * ratio;
    case SCALE_LR_sqrt:
        return lr * sqrt(ratio);
    }
    return lr;
}

/* A range of steps with one warmup: the whole run, or one cycle. */
struct stretch {
    int64_t at, length; /* steps done, steps in all */
};

/* Progress after the warmup: 0 at its first step, 1 at the last step of the range. */
static double share_done(struct stretch s, int64_t warmup)
{
    int64_t left = s.length - warmup;
    double done = left <= 1 ? 0 : (double)(s.at - warmup) / (double)(left - 1);
    return done > 1 ? 1 : done;
}

static double cosine(double done, double end)
{
    return end + (1 - end) * 0.5 * (1 + cos(acos(-1) * done));
}

/* First step of cycle k.  Cycle lengths differ by at most one step. */
static int64_t cycle_begin(int64_t n_steps, int64_t n_cycles, int64_t k)
{
    return n_steps / n_cycles * k + n_steps % n_cycles * k / n_cycles;
}

static struct stretch cycle_of(int64_t step, int64_t n_steps, int64_t n_cycles)
{
    int64_t k = (int64_t)((double)step / (double)n_steps * (double)n_cycles);
    while (k > 0 && cycle_begin(n_steps, n_cycles, k) > step)
        k--;
    while (k < n_cycles - 1 && cycle_begin(n_steps, n_cycles, k + 1) <= step)
        k++;
    int64_t begin = cycle_begin(n_steps, n_cycles, k);
    return (struct stretch){step - begin, cycle_begin(n_steps, n_cycles, k + 1) - begin};
}

double recipe_lr_at(const struct snug_recipe *recipe, int64_t batch, int64_t step, int64_t n_steps,
                    double update)
{
    double lr = recipe_scaled_lr(recipe, batch, update), end = recipe->lr_end;
    double options[MAX_OPTIONS];
    if (recipe->optimizer->lr_at != NULL && recipe_options(recipe, options, NULL) == SNUG_OK) {
        struct optim_rate rate = {lr, (double)(step + 1), (double)n_steps, (double)recipe->warmup};
        return recipe->optimizer->lr_at(&rate, options);
    }
    struct stretch all = {step, n_steps};
    if (recipe->schedule == SCHEDULE_cyclic)
        all = cycle_of(step, n_steps, recipe->cycles);
    if (all.at < recipe->warmup)
        return lr * (double)(all.at + 1) / (double)recipe->warmup;
    double done = share_done(all, recipe->warmup);
    switch ((enum schedule)recipe->schedule) {
    case SCHEDULE_constant:
        return lr;
    case SCHEDULE_linear:
        return lr * (1 - (1 - end) * done);
    case SCHEDULE_cosine:
    case SCHEDULE_cyclic:
        return lr * cosine(done, end);
    case SCHEDULE_wsd: {
        int64_t begin = (int64_t)floor(recipe->decay_from * (double)n_steps);
        if (step < begin)
            return lr;
        done = fmin(1, (double)(step - begin + 1) / (double)(n_steps - begin));
        return lr * (1 - (1 - end) * done);
    }
    }
    return lr;
}
