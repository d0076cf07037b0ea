/*
 * trainer.c -- the training loop: feed a batch, run the compiled step, check, log, evaluate, save.
 */
#include "base/process_memory.h"
#include "train/trainer.h"

#include "base/clock.h"
#include "checkpoint/adapter.h"
#include "train/agree.h"
#include "compile/budget.h"
#include "train/default_memory.h"
#include "checkpoint/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_STEPS = 100 };
static const double most_steps = 1e15;

/* ---- opening
 * -------------------------------------------------------------------------------------- */

static enum snug_status count_steps(struct snug_trainer *t, struct snug_error *err)
{
    const struct snug_train_options *o = &t->options;
    t->n_steps = o->steps > 0 ? o->steps : DEFAULT_STEPS;
    if (o->steps <= 0 && o->epochs > 0) {
        if (t->data == NULL)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "--epochs needs a data set: use --steps instead");
        double samples = o->epochs * (double)data_n_samples(t->data, DATA_TRAIN);
        double steps = ceil(samples / (double)t->compiled.batch);
        if (steps > most_steps)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "--epochs %g is more than %g steps: choose fewer epochs", o->epochs,
                             most_steps);
        t->n_steps = (int64_t)steps;
    }
    if (t->data != NULL && data_n_samples(t->data, DATA_TRAIN) < t->compiled.batch &&
        t->input_spec.target != DATA_TARGET_TOKENS)
        return snug_fail(
            err, SNUG_NO_DATA,
            "the data set has %lld samples, fewer than one batch of %lld: choose a smaller --batch",
            (long long)data_n_samples(t->data, DATA_TRAIN), (long long)t->compiled.batch);
    return SNUG_OK;
}

static enum snug_status open_data(struct snug_trainer *t, struct snug_error *err)
{
    if (t->data_spec != NULL && strcmp(t->data_spec, "none") == 0)
        return SNUG_OK;
    struct input_source source = {.spec = t->data_spec, .model_folder = t->model->folder};
    return input_spec_open_data(&t->compiled, &t->input_spec, &source, &t->recipe, &t->data, err);
}

/* Reports the current activity to the watcher.  True if it asks to stop. */
static bool report_activity(struct snug_trainer *t, enum snug_activity activity, int64_t done,
                            int64_t total)
{
    struct snug_doing doing = {.activity = activity,
                               .step = t->step + (activity == SNUG_STEP),
                               .n_steps = t->n_steps,
                               .saved_step = t->saved_step,
                               .done = done,
                               .total = total};
    return t->watch != NULL && t->watch(&doing, t->watch_user) != 0;
}

static bool stop_evaluation(void *user, int64_t done, int64_t total)
{
    return report_activity(user, SNUG_EVALUATION, done, total);
}

static enum snug_status make_evaluator(struct snug_trainer *t, struct snug_error *err)
{
    if (t->data == NULL || t->options.eval_every < 0 || data_n_samples(t->data, DATA_HELD_OUT) < 1)
        return SNUG_OK;
    struct compile_request q = {.model = t->model,
                                .recipe = &t->recipe,
                                .micro_batch = t->compiled.micro_batch,
                                .over = &t->compiled};
    int64_t max_samples = t->options.eval_batches * t->compiled.batch;
    TRY(evaluator_make(&t->evaluator, &q, t->exec, t->data, max_samples,
                       t->compiled.plan.arena_bytes, t->comm, err));
    t->evaluator.stop = stop_evaluation;
    t->evaluator.stop_user = t;
    t->can_evaluate = true;
    return SNUG_OK;
}

enum snug_status trainer_fit_model(struct snug_trainer *t, struct snug_error *err)
{
    struct data_image image;
    if (t->model->family != MODEL_vision || t->model->vision.given || t->data_spec == NULL ||
        strcmp(t->data_spec, "none") == 0)
        return SNUG_OK;
    TRY(data_find_image(t->data_spec, &image, err));
    if (image.channels == 0)
        return SNUG_OK;
    t->fitted = *t->model;
    t->fitted.vision = (struct vision_shape){t->model->vision.net, image.channels,  image.height,
                                             image.width,          image.n_classes, true};
    t->model = &t->fitted;
    return vision_check(&t->model->vision, err);
}

/* Compiles the program that computes the averages, inside the arena of the run. */
static enum snug_status make_averages(struct snug_trainer *t, struct snug_error *err)
{
    if (t->out == NULL || t->recipe.optimizer->average == AVERAGE_none)
        return SNUG_OK;
    struct compile_request q = {.model = t->model,
                                .recipe = &t->recipe,
                                .micro_batch = t->compiled.micro_batch,
                                .batch = t->compiled.micro_batch,
                                .over = &t->compiled,
                                .averages_only = true};
    TRY(compile_step(&q, &t->averages, err));
    return exec_create(&t->averages.prog, &t->averages.plan, t->averages.backend,
                       &t->averages.facts, t->exec, &t->averages_exec, err);
}

/* The offload pool is a file in the run's folder, if there is one. */
static enum snug_status make_exec(struct snug_trainer *t, struct snug_error *err)
{
    bool has_pool = t->compiled.plan.pool_bytes > 0;
    if (has_pool && t->out != NULL)
        TRY(checkpoint_make_dir(t->out, err));
    t->compiled.facts.pool_folder = t->out;
    bool collectives = t->comm->n_ranks > 1 || t->compiled.collectives_alone;
    t->compiled.facts.comm = collectives ? t->comm : NULL;
    t->compiled.facts.groups = t->compiled.n_stages > 1 ? t->groups : NULL;
    t->compiled.facts.first_micro = t->compiled.rank * t->compiled.n_micro;
    return exec_create(&t->compiled.prog, &t->compiled.plan, t->compiled.backend,
                       &t->compiled.facts, NULL, &t->exec, err);
}

/* Random weights first, then those from files.  A resumed run with adapters also loads the base
 * model that it started from. */
static enum snug_status start_weights(struct snug_trainer *t, struct snug_error *err)
{
    bool has_base = !t->options.resume || t->recipe.lora > 0;
    TRY(weights_init(&t->compiled, t->exec, (uint64_t)t->recipe.seed, err));
    if (has_base && t->model->weights_folder != NULL)
        TRY(weights_load_folder(&t->compiled, t->exec, t->model->weights_folder, err));
    if (t->options.resume)
        return trainer_resume(t, err);
    return t->recipe.lora_from[0] == '\0'
               ? SNUG_OK
               : adapter_load(&t->compiled, t->exec, t->recipe.lora_from, err);
}

static enum snug_status open_ranks(struct snug_trainer *t, struct snug_error *err)
{
    TRY(comm_open(t->recipe.ranks, &t->comm, err));
    if (t->recipe.ranks > 0 && t->recipe.ranks != t->comm->n_ranks)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--ranks %lld, but mpirun started %d: leave --ranks out",
                         (long long)t->recipe.ranks, t->comm->n_ranks);
    t->recipe.ranks = t->comm->n_ranks > 1 ? t->comm->n_ranks : 0;
    return SNUG_OK;
}

/* The default rate depends on the largest update, which not every rank has. */
static enum snug_status use_usual_lr(struct snug_trainer *t, struct snug_error *err)
{
    double own = t->recipe.optimizer->usual_lr(&t->compiled.prog, (double)t->n_steps,
                                               (double)t->recipe.warmup);
    TRY(comm_max(t->comm, &own, err));
    t->recipe.lr = own;
    return SNUG_OK;
}

/* state.json must be UTF-8.  Check now, not when the first checkpoint is due. */
static enum snug_status check_names(const struct snug_trainer *t, struct snug_error *err)
{
    const char *const names[] = {t->data_spec, t->recipe.lora_from, t->model->weights_folder};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] != NULL && !text_is_utf8(names[i]))
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "%s: this name is not UTF-8, so state.json cannot hold it: rename it",
                             names[i]);
    return SNUG_OK;
}

static enum snug_status open_all(struct snug_trainer *t, struct snug_error *err)
{
    TRY(open_ranks(t, err));
    if (t->out != NULL) {
        TRY(check_names(t, err));
        TRY(trainer_claim_out(t, err));
    }
    if (t->options.resume)
        TRY(trainer_inherit(t, err));
    else
        TRY(adapter_read_recipe(&t->recipe, err));
    TRY(default_memory_agree(t, err));
    TRY(trainer_fit_model(t, err));
    struct compile_request q = {
        .model = t->model, .recipe = &t->recipe, .train = true, .rank = &t->comm->rank};
    TRY(compile_step(&q, &t->compiled, err));
    process_give_back(); /* --checkpoint auto compiles many plans */
    TRY(input_spec_of(compiled_step_forward(&t->compiled), &t->input_spec, err));
    TRY(budget_check_run(t->model, &t->recipe, &t->compiled, err));
    TRY(open_data(t, err));
    TRY(count_steps(t, err));
    if (t->comm->n_ranks > 1)
        TRY(trainer_agree(t, err)); /* before the collective calls below */
    TRY(trainer_find_fullest(t, err));
    if (recipe_lr(&t->recipe) <= 0 && t->recipe.optimizer->usual_lr != NULL)
        TRY(use_usual_lr(t, err));
    if (t->out != NULL)
        TRY(trainer_take_out(t, err));
    TRY(trainer_open_groups(t, err));
    TRY(make_exec(t, err));
    TRY(start_weights(t, err));
    t->first_step = t->step;
    TRY(recipe_check_steps(&t->recipe, t->n_steps, err));
    TRY(make_evaluator(t, err));
    TRY(make_averages(t, err));
    if (t->out == NULL)
        return SNUG_OK;
    TRY(trainer_begin_run(t, err));
    /* a run that was killed right after its last save has no --keep copy of it yet */
    return t->options.resume ? trainer_keep(t, err) : SNUG_OK;
}

/* If several ranks fail, one reports the reason; the others get SNUG_PEER_FAILED. */
static enum snug_status finish_call(struct snug_trainer *t, enum snug_status status,
                                    const struct snug_error *why, struct snug_error *err)
{
    struct snug_error claimed = *why;
    if (status == SNUG_OK || status == SNUG_INTERRUPTED) {
        if (status != SNUG_OK)
            snug_fail(err, status, "%s", why->message);
        return status;
    }
    t->failed = true;
    claimed.status = status;
    comm_claim(t->comm, &claimed);
    return snug_fail(err, claimed.status, "%s", claimed.message);
}

/* Copies the options of a caller whose struct may be shorter or longer than ours: see snug.h. */
static enum snug_status take_options(const struct snug_train_options *given, size_t given_bytes,
                                     struct snug_train_options *options, struct snug_error *err)
{
    size_t common = given_bytes < sizeof *options ? given_bytes : sizeof *options;
    *options = (struct snug_train_options){0};
    memcpy(options, given, common);
    for (size_t i = common; i < given_bytes; i++)
        if (((const unsigned char *)given)[i] != 0)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "snug_train_options has a field that snug %s does not know: leave it "
                             "0, or use a newer libsnug",
                             SNUG_VERSION_STRING);
    return SNUG_OK;
}

enum snug_status snug_trainer_open_sized(const snug_model *model, const snug_recipe *recipe,
                                         const struct snug_train_options *given, size_t given_bytes,
                                         snug_trainer **out, struct snug_error *err)
{
    struct snug_train_options own, *options = &own;
    *out = NULL;
    TRY(take_options(given, given_bytes, options, err)); /* the same on every rank */
    struct snug_trainer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        comm_abandon();
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    t->model = model;
    t->recipe = *recipe;
    t->options = own;
    t->saved_step = -1;
    t->loss = NAN;
    t->data_spec = options->data == NULL ? NULL : strdup(options->data);
    t->out = options->out == NULL ? NULL : strdup(options->out);
    enum snug_status status;
    struct snug_error why = {0};
    if ((options->data != NULL && t->data_spec == NULL) ||
        (options->out != NULL && t->out == NULL)) {
        comm_abandon();
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    } else if (options->resume && t->out == NULL)
        status = snug_fail(err, SNUG_BAD_ARGUMENT, "--resume needs --out DIR, the run to resume");
    else
        status = finish_call(t, open_all(t, &why), &why, err);
    if (status != SNUG_OK) {
        snug_trainer_free(t);
        return status;
    }
    *out = t;
    return SNUG_OK;
}

void snug_trainer_abandon(snug_trainer *t)
{
    t->failed = true;
}

void snug_trainer_free(snug_trainer *t)
{
    if (t == NULL)
        return;
    if (t->can_evaluate)
        evaluator_free(&t->evaluator);
    exec_free(t->averages_exec);
    compiled_step_free(&t->averages);
    metrics_close(t->metrics);
    data_close(t->data);
    exec_free(t->exec);
    compiled_step_free(&t->compiled);
    trainer_leave_out(t);
    trainer_close_groups(t);
    comm_close(t->comm, !t->failed);
    free(t->accounts);
    free(t->data_spec);
    free(t->out);
    free(t);
}

/* ---- one step
 * ---------------------------------------------------------------------------------------- */

static enum snug_status diverged(struct snug_trainer *t, const char *what, struct snug_error *err)
{
    const char *name = NULL;
    struct snug_error inner = {0};
    char first[320] = "";
    /* all ranks search together, but PipeDream's stages do not see each other's norms */
    if (t->recipe.pipeline != PIPELINE_pipedream &&
        exec_find_nonfinite(t->exec, trainer_feed, t, &name, &inner) == SNUG_OK && name != NULL)
        snprintf(first, sizeof first, "; first non-finite tensor: \"%.256s\"", name);
    return snug_fail(err, SNUG_DIVERGED, "step %lld: the %s is not finite%s; %s%s; %s",
                     (long long)(t->step + 1), what, first,
                     t->saved_step >= 0 ? "the last good checkpoint is in " : "nothing was saved",
                     t->saved_step >= 0 ? t->out : "",
                     t->step > t->first_step
                         ? "try a lower --lr"
                         : "it is the first step: check the weights, the data and --precision");
}

/* Memory in use outside the arena, on the device or in this process. */
static int64_t runtime_bytes(const struct exec *exec)
{
    int64_t on_device = exec_device_runtime_bytes(exec);
    return on_device >= 0 ? on_device : process_resident_bytes() - exec_resident_bytes(exec);
}

static enum snug_status one_step(struct snug_trainer *t, struct snug_metrics *m,
                                 struct snug_error *err)
{
    const struct program *prog = &t->compiled.prog;
    double *scalars = exec_scalars(t->exec);
    double lr = recipe_lr_at(&t->recipe, t->compiled.batch, t->step, t->n_steps,
                             scalars[SCALAR_update_count] + 1);
    double begin = clock_seconds();
    bool scale_is_least = scalars[SCALAR_loss_scale] <= 1;
    scalars[SCALAR_lr] = lr;
    scalars[SCALAR_n_steps] = (double)t->n_steps;
    scalars[SCALAR_seed] = (double)t->recipe.seed;
    scalars[SCALAR_step] = (double)t->step;
    TRY(exec_run(t->exec, trainer_feed, t, err));
    double seconds = clock_seconds() - begin;
    const void *at_loss;
    TRY(exec_view(t->exec, prog->loss, &at_loss, err));
    double loss = dtype_load(prog->tensors[prog->loss].dtype, at_loss, 0);
    bool skipped = scalars[SCALAR_skip] != 0;
    if (!isfinite(loss))
        return diverged(t, "loss", err);
    if (skipped && scale_is_least) /* nothing left to scale down: the gradients overflow */
        return diverged(t, "gradient", err);
    t->step++;
    t->loss = loss;
    t->seconds += seconds;
    if (t->step == t->first_step + 1)
        t->runtime_bytes = runtime_bytes(t->exec);
    int64_t per_sample = t->compiled.seq > 0 ? t->compiled.seq : 1;
    *m = (struct snug_metrics){.step = t->step,
                               .n_steps = t->n_steps,
                               .tokens = t->compiled.batch * per_sample,
                               .loss = loss,
                               .lr = lr,
                               .grad_norm = scalars[SCALAR_grad_norm],
                               .ms = seconds * 1e3,
                               .skipped = skipped};
    m->per_second = (double)m->tokens / seconds;
    return SNUG_OK;
}

/* write is metrics_append or metrics_hold.  Allocates nothing, so a finished step is always
 * logged. */
static enum snug_status log_step(struct snug_trainer *t, const struct snug_metrics *m,
                                 enum snug_status (*write)(struct metrics *, const char *,
                                                           struct file_faults *,
                                                           struct snug_error *),
                                 struct snug_error *err)
{
    char line[1024], norm[64] = "null, \"skipped\": true", loss[64] = "", accuracy[64] = "";
    if (t->metrics == NULL)
        return SNUG_OK;
    if (isfinite(m->grad_norm))
        snprintf(norm, sizeof norm, "%.9g", m->grad_norm);
    if (m->has_validation)
        snprintf(loss, sizeof loss, ", \"val_loss\": %.9g", m->val_loss);
    if (m->has_accuracy)
        snprintf(accuracy, sizeof accuracy, ", \"val_accuracy\": %.6f", m->val_accuracy);
    snprintf(line, sizeof line,
             "{\"step\": %lld, \"loss\": %.9g, \"lr\": %.9g, \"grad_norm\": %s, \"tokens\": %lld, "
             "\"ms\": %.3f, \"tokens_per_s\": %.1f%s%s}",
             (long long)m->step, m->loss, m->lr, norm, (long long)m->tokens, m->ms, m->per_second,
             loss, accuracy);
    return write(t->metrics, line, NULL, err);
}

static enum snug_status evaluate(struct snug_trainer *t, struct snug_metrics *m,
                                 struct snug_error *err)
{
    struct snug_eval_result result;
    struct snug_error why = {0};
    enum snug_status status = evaluator_run(&t->evaluator, &result, &why);
    if (status == SNUG_DIVERGED)
        return snug_fail(err, status, "step %lld: %s; try a lower --lr", (long long)t->step,
                         why.message);
    if (status != SNUG_OK)
        return snug_fail(err, status, "%s", why.message);
    m->has_validation = 1;
    m->val_loss = result.loss;
    m->has_accuracy = result.has_accuracy;
    m->val_accuracy = result.accuracy;
    return SNUG_OK;
}

static enum snug_status save_now(struct snug_trainer *t, struct snug_error *err)
{
    (void)report_activity(t, SNUG_SAVE, 0, 0);
    return trainer_save(t, err);
}

static bool is_due(int64_t step, int64_t every, int64_t n_steps)
{
    return step == n_steps || (every > 0 && step % every == 0);
}

/* Logs, saves and evaluates if due.  *stop is set if the evaluation was interrupted.  The save
 * comes first: an evaluation may take long, and the training so far must not be lost during it.
 * The log line waits for the result of the evaluation, in a file of its own. */
static enum snug_status finish_step(struct snug_trainer *t, struct snug_metrics *m, bool *stop,
                                    struct snug_error *err)
{
    bool evaluates = t->can_evaluate && is_due(t->step, t->options.eval_every, t->n_steps);
    bool saves = t->out != NULL && is_due(t->step, t->options.save_every, t->n_steps);
    if (!evaluates)
        TRY(log_step(t, m, metrics_append, err));
    else if (saves)
        TRY(log_step(t, m, metrics_hold, err));
    if (saves)
        TRY(save_now(t, err));
    m->saved = saves;
    if (!evaluates)
        return SNUG_OK;
    enum snug_status status = evaluate(t, m, err);
    if (status != SNUG_OK && status != SNUG_INTERRUPTED)
        return status;
    *stop = status == SNUG_INTERRUPTED;
    return log_step(t, m, metrics_append, err);
}

static enum snug_status end_at_bad_data(snug_trainer *t, const struct snug_error *why,
                                        struct snug_error *err)
{
    if (t->out != NULL && t->saved_step != t->step && t->step > t->first_step)
        TRY(save_now(t, err));
    if (why->status == SNUG_OK)
        return snug_fail(err, SNUG_PEER_FAILED, "another rank could not read its data");
    if (t->saved_step < 0)
        return snug_fail(err, why->status, "step %lld: %s", (long long)(t->step + 1), why->message);
    return snug_fail(err, why->status, "step %lld: %s; %s holds step %lld: continue with --resume",
                     (long long)(t->step + 1), why->message, t->out, (long long)t->saved_step);
}

static enum snug_status run_steps(snug_trainer *t, snug_progress_fn *progress, void *user,
                                  struct snug_error *err)
{
    if (t->data == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "no data: feed steps with snug_trainer_step");
    bool stop = false, unevaluated = false, is_bad;
    struct snug_error why = {0};
    exec_feed_ahead(t->exec, true);
    TRY(trainer_agree_to_go_on(t, &stop, &is_bad, &why, err));
    while (t->step < t->n_steps && !stop) {
        struct snug_metrics m;
        (void)report_activity(t, SNUG_STEP, 0, 0);
        TRY(one_step(t, &m, err));
        TRY(finish_step(t, &m, &unevaluated, err));
        stop = progress != NULL && progress(&m, user) != 0;
        stop |= unevaluated;
        TRY(trainer_agree_to_go_on(t, &stop, &is_bad, &why, err));
    }
    if (is_bad)
        return end_at_bad_data(t, &why, err);
    if (stop && t->out != NULL && t->saved_step != t->step)
        TRY(save_now(t, err));
    const char *broken = NULL;
    if (t->out == NULL)
        TRY(weights_find_nonfinite(&t->compiled, t->exec, &broken, err));
    if (broken != NULL)
        return snug_fail(err, SNUG_DIVERGED,
                         "step %lld: \"%s\" is no longer finite; try a lower --lr",
                         (long long)t->step, broken);
    int64_t beside = runtime_bytes(t->exec);
    t->runtime_bytes = beside > t->runtime_bytes ? beside : t->runtime_bytes;
    TRY(trainer_gather_accounts(t, err));
    return unevaluated || (stop && t->step < t->n_steps)
               ? snug_fail(err, SNUG_INTERRUPTED, "stopped at step %lld", (long long)t->step)
               : SNUG_OK;
}

void snug_trainer_watch(snug_trainer *t, snug_watch_fn *watch, void *user)
{
    t->watch = watch;
    t->watch_user = user;
}

enum snug_status snug_trainer_run(snug_trainer *t, snug_progress_fn *progress, void *user,
                                  struct snug_error *err)
{
    struct snug_error why = {0};
    return finish_call(t, run_steps(t, progress, user, &why), &why, err);
}

static enum snug_status step_with(struct snug_trainer *t, const void *const *inputs,
                                  struct snug_metrics *m, struct snug_error *err)
{
    const struct program *prog = &t->compiled.prog;
    for (int id = 0, at = 0; id < prog->n_tensors; id++)
        if (prog->tensors[id].role == ROLE_input && prog->tensors[id].base == TENSOR_NONE &&
            (inputs == NULL || inputs[at++] == NULL))
            return snug_fail(err, SNUG_BAD_ARGUMENT, "no data for the input \"%s\"",
                             prog->tensors[id].name);
    t->given = inputs;
    exec_feed_ahead(t->exec, false);
    enum snug_status status = one_step(t, m, err);
    t->given = NULL;
    return status == SNUG_OK ? log_step(t, m, metrics_append, err) : status;
}

enum snug_status snug_trainer_step(snug_trainer *t, const void *const *inputs,
                                   struct snug_metrics *metrics, struct snug_error *err)
{
    struct snug_metrics m;
    struct snug_error why = {0};
    enum snug_status status = finish_call(t, step_with(t, inputs, &m, &why), &why, err);
    if (status == SNUG_OK && metrics != NULL)
        *metrics = m;
    return status;
}

enum snug_status snug_trainer_save(snug_trainer *t, struct snug_error *err)
{
    if (t->out == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "the trainer was opened without an output folder to save to");
    struct snug_error why = {0};
    return finish_call(t, trainer_save(t, &why), &why, err);
}

enum snug_status snug_trainer_read(snug_trainer *t, const char *tensor, float *values,
                                   int64_t n_values, struct snug_error *err)
{
    const struct program *prog = &t->compiled.prog;
    tensor_id id = program_find(prog, tensor);
    if (id == TENSOR_NONE || !exec_holds(t->exec, id))
        return snug_fail(err, SNUG_BAD_ARGUMENT, "the program has no tensor \"%s\"", tensor);
    if (!prog->tensors[id].persistent && !prog->tensors[id].is_output)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "\"%s\" exists only within a step; weights, states and outputs can be read", tensor);
    if (tensor_elems(prog, id) != n_values)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "\"%s\" has %lld elements, not %lld", tensor,
                         (long long)tensor_elems(prog, id), (long long)n_values);
    return weights_read(&t->compiled, t->exec, id, values, err);
}
