/*
 * lower.c -- lower a model and a recipe to the program of one rank.
 *
 *     set_sizes        batch, micro-batch and sequence length, from the request, recipe or defaults
 *     build_forward    the forward program of one micro-batch
 *     fill_config      what the recipe asks of the passes
 *     pass_run         the pass pipeline turns it into a training step (pass/pipeline.c)
 *     take_results     what the passes report back
 *     check_kernels    every op must have a kernel on the device
 *
 * compile_rank.c plans the result.
 */
#include "compile/lower.h"

#include "compile/compile_target.h"
#include "exec/collective_plan.h"
#include "ir/collective_options.h"

#include <stdlib.h>
#include <string.h>

static const int64_t default_batch_language = 8, default_batch_other = 128;

static struct kernel_choice choose_kernel(const void *device, const struct program *prog,
                                          const struct op *op)
{
    const struct compiled_step *s = device;
    struct kernel_choice choice = backend_choice(s->backend, prog, op, &s->facts);
    if (op_has(op, TRAIT_collective)) /* its workspace is the bucket, on every backend */
        choice = (struct kernel_choice){.kernel = choice.kernel,
                                        .workspace_bytes = (size_t)collective_work_bytes(prog, op)};
    return choice;
}

static bool sums_columns(const void *device, const struct program *prog, const struct op *op)
{
    const struct compiled_step *s = device;
    const struct kernel *kernel = backend_choose(s->backend, prog, op, &s->facts);
    return kernel != NULL && kernel->sums_columns != NULL && kernel->sums_columns(prog, op);
}

/* A pipeline with fewer micro-batches than stages has stages that never work at the same time. */
static enum snug_status check_micro_batches(const struct snug_recipe *r,
                                            const struct compiled_step *s, struct snug_error *err)
{
    int64_t n_micro = s->batch / s->micro_batch / s->n_ranks;
    if (s->n_stages == 1 || r->pipeline == PIPELINE_naive || n_micro >= s->n_stages)
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "--pipeline %s with %d stages needs at least as many micro-batches, but there "
                     "%s %lld: choose a smaller --micro-batch",
                     recipe_pipeline_name(r), s->n_stages, n_micro == 1 ? "is" : "are",
                     (long long)n_micro);
}

/* The model's default, rounded up to a multiple of the ranks when training. */
static int64_t default_batch(const struct compile_request *q, struct compiled_step *s,
                             bool language)
{
    int64_t usual = language ? default_batch_language : default_batch_other;
    if (!q->train || usual % s->n_ranks == 0)
        return usual;
    s->usual_batch = usual;
    return (usual + s->n_ranks - 1) / s->n_ranks * s->n_ranks;
}

static enum snug_status set_sizes(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    const struct snug_recipe *r = q->recipe;
    bool language = model_is_language(q->model);
    s->n_stages = recipe_stages(r);
    s->n_ranks = (r->ranks > 1 ? (int)r->ranks : 1) / s->n_stages;
    s->batch = q->batch > 0 ? q->batch : r->batch > 0 ? r->batch : default_batch(q, s, language);
    int64_t own_batch = q->train ? s->batch / s->n_ranks : s->batch;
    if (q->model->family == MODEL_psi &&
        s->n_ranks * s->n_stages > 1) { /* model states only: there is no batch to share */
        s->batch = s->n_ranks;
        s->micro_batch = 1;
        return SNUG_OK;
    }
    if (q->train && s->batch % s->n_ranks != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--batch %lld is not divisible by the %d ranks that share it: choose a "
                         "multiple",
                         (long long)s->batch, s->n_ranks);
    s->micro_batch = q->micro_batch > 0   ? q->micro_batch
                     : r->micro_batch > 0 ? r->micro_batch
                                          : own_batch;
    if (q->train && s->n_ranks * s->n_stages > 1 && !recipe_is_given(r, "micro-batch"))
        while (own_batch % s->micro_batch != 0) /* a run saved with another number of ranks */
            s->micro_batch--;
    s->seq = q->seq > 0 ? q->seq : r->seq;
    if (language && s->seq == 0) {
        const struct decoder_shape *d = &q->model->decoder;
        s->seq = decoder_default_seq(d);
        s->longest_seq = d->n_positions > s->seq ? d->n_positions : 0;
    }
    if (s->n_ranks > 1 && q->train && own_batch % s->micro_batch != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "each rank's %lld of --batch %lld are not divisible by --micro-batch "
                         "%lld: choose a divisor",
                         (long long)own_batch, (long long)s->batch, (long long)s->micro_batch);
    if (s->micro_batch > s->batch || s->batch % s->micro_batch != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--batch %lld is not divisible by --micro-batch %lld: choose a divisor",
                         (long long)s->batch, (long long)s->micro_batch);
    if (s->batch / s->micro_batch > 1 << 20)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--batch %lld with --micro-batch %lld makes more than a million "
                         "micro-batches per step: choose a larger --micro-batch",
                         (long long)s->batch, (long long)s->micro_batch);
    return q->train ? check_micro_batches(r, s, err) : SNUG_OK;
}

/* Without a backward half the predictions, which the loss reads, are outputs as well. */
static void keep_outputs(struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_loss))
            prog->tensors[prog->ops[i].in[0]].is_output = true;
}

static int64_t count_trained(const struct program *prog)
{
    int64_t n = 0;
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_parameter && !prog->tensors[i].frozen &&
            prog->tensors[i].base == TENSOR_NONE)
            n += prog->tensors[i].whole.n_dims > 0 ? shape_elems(&prog->tensors[i].whole)
                                                   : tensor_elems(prog, i);
    return n;
}

/* An op without a kernel cannot run, so it is not planned either.  Only GPUs lack kernels. */
static enum snug_status check_kernels(const struct compiled_step *s, struct snug_error *err)
{
    for (int i = 0; i < s->prog.n_ops; i++) {
        const struct op *op = &s->prog.ops[i];
        if (op->kernel == 0)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "op %d (%s): --device %s has no kernel for it; use --device cpu", i,
                             op_infos[op->kind].name, s->backend->name);
    }
    return SNUG_OK;
}

static struct rank_place rank_place_of(const struct compile_request *q,
                                       const struct compiled_step *s)
{
    const struct snug_recipe *r = q->recipe;
    int rank = q->rank != NULL ? *q->rank % s->n_ranks : q->over != NULL ? q->over->rank : -1;
    int stage = q->rank != NULL    ? *q->rank / s->n_ranks
                : q->stage != NULL ? *q->stage
                : q->over != NULL  ? q->over->stage
                                   : 0;
    bool shards = s->n_ranks > 1 || s->n_stages == 1;
    return (struct rank_place){.n_ranks = s->n_ranks,
                               .rank = s->n_ranks > 1 ? rank : 0,
                               .parallel = (enum parallel)r->parallel,
                               .zero = shards || r->zero > 1 ? r->zero : 0,
                               .n_stages = s->n_stages,
                               .stage = stage,
                               .collectives_alone = s->collectives_alone};
}

/* All ranks must cut the pipeline at the same ops, so measured rates are not used here. */
static double seconds_anywhere(const void *device, const struct program *prog, const struct op *op)
{
    struct device_rates rates = rates_generic_cpu(1);
    (void)device;
    return op_seconds(prog, op, &rates);
}

/* Allocates the stage boundaries: the stage pass fills them, or they are those of the run
 * `over`. */
static enum snug_status make_cut(const struct compile_request *q, struct compiled_step *s,
                                 struct snug_error *err)
{
    if (s->n_stages == 1)
        return SNUG_OK;
    s->cut = calloc(1, sizeof *s->cut);
    if (s->cut == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (q->over != NULL)
        *s->cut = *q->over->cut;
    return SNUG_OK;
}

static enum snug_status find_dropout(const struct compile_request *q, struct dropout_rates *rates,
                                     struct snug_error *err)
{
    bool from_config = q->recipe->dropout == DROPOUT_FROM_CONFIG;
    *rates = from_config ? q->model->config_dropout : dropout_everywhere(q->recipe->dropout);
    if (q->train && from_config && !q->model->has_config_dropout)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--dropout config: %s has no config.json with embd_pdrop, attn_pdrop or "
                         "resid_pdrop; give a number",
                         q->model->name);
    return SNUG_OK;
}

/* The forward program of one micro-batch, with the loss of the recipe. */
static enum snug_status build_forward(const struct compile_request *q, struct compiled_step *s,
                                      struct snug_error *err)
{
    const struct snug_recipe *r = q->recipe;
    int64_t seq = model_is_language(q->model) ? s->seq : r->seq;
    TRY(model_forward(q->model, q->purpose, s->micro_batch, seq, &s->prog, err));
    if (r->loss != RECIPE_LOSS_model)
        TRY(model_set_loss(&s->prog, r->loss == RECIPE_LOSS_mse ? LOSS_mse : LOSS_cross_entropy,
                           err));
    if (!q->train)
        keep_outputs(&s->prog);
    s->n_parameters = model_count_parameters(&s->prog);
    s->n_micro = (int)(s->batch / s->micro_batch / (q->train ? s->n_ranks : 1));
    return make_cut(q, s, err);
}

static struct checkpointing checkpointing_of(const struct compile_request *q)
{
    return (struct checkpointing){.how = (enum checkpoint_how)q->recipe->checkpoint,
                                  .every = q->recipe->checkpoint_every,
                                  .room_bytes = q->room_bytes > 0 ? q->room_bytes : INT64_MAX};
}

/* What the request and its recipe ask of the passes.  Points to *options. */
static enum snug_status fill_config(const struct compile_request *q, const struct compiled_step *s,
                                    double options[MAX_OPTIONS], struct pass_config *config,
                                    struct snug_error *err)
{
    const struct snug_recipe *r = q->recipe;
    *config =
        (struct pass_config){.train = q->train,
                             .compute = recipe_dtype(r),
                             .master = !r->no_master,
                             .n_micro = s->n_micro,
                             .label_smoothing = r->label_smoothing,
                             .checkpoint = checkpointing_of(q),
                             .lora_rank = (int)r->lora,
                             .lora_on = r->lora_on,
                             .lora_scale = r->lora > 0 ? recipe_lora_alpha(r) / (double)r->lora : 0,
                             .base_bits = r->lora_base,
                             .optimizer = r->optimizer,
                             .options = options,
                             .state_bits = recipe_state_bits(r),
                             .lr = recipe_lr(r),
                             .weight_decay = recipe_weight_decay(r),
                             .max_norm = r->clip,
                             .in_backward = r->in_backward != 0,
                             .offload = (unsigned)r->offload,
                             .ranks = rank_place_of(q, s),
                             .pipeline = (enum pipeline)r->pipeline,
                             .run = q->over != NULL ? &q->over->prog : NULL,
                             .averages_only = q->averages_only};
    TRY(recipe_options(r, options, err));
    return find_dropout(q, &config->dropout, err);
}

static void take_results(const struct pass_env *env, struct compiled_step *s)
{
    s->update_place = env->results.update_place;
    s->repeated_flops = env->results.repeated_flops;
    s->forward_flops = env->results.forward_flops * s->n_micro;
    s->rank = env->results.rank > 0 ? env->results.rank : 0;
    s->stage = env->config.ranks.stage;
    s->n_rank_kinds = env->results.n_rank_kinds;
    memcpy(s->rank_kinds, env->results.rank_kinds, sizeof s->rank_kinds);
    s->checkpoint = env->config.checkpoint;
    s->checkpoint_bounds = env->results.checkpoint;
    s->n_trained = count_trained(&s->prog);
}

/* The backend and its facts, before anything is built. */
static struct compiled_step begin_step(const struct compile_request *q)
{
    bool on_gpu = q->recipe->device == DEVICE_cuda;
    return (struct compiled_step){.backend = on_gpu ? backend_cuda_table() : backend_cpu(),
                                  .facts = {.threads = q->target->threads,
                                            .reference_only = q->recipe->kernels != 0,
                                            .isa = q->target->isa,
                                            .least_workspace = q->least_workspace,
                                            .nondeterministic = q->recipe->nondeterministic != 0}};
}

static enum snug_status run_passes(const struct compile_request *q, struct compiled_step *s,
                                   struct arena *scratch, struct snug_error *err)
{
    double options[MAX_OPTIONS];
    bool unrolls = s->n_stages > 1 || q->recipe->pipeline == PIPELINE_pipedream;
    struct pass_env env = {.scratch = scratch,
                           .err = err,
                           .device.handle = s,
                           .device.op_seconds = seconds_anywhere,
                           .device.choose_kernel = choose_kernel,
                           .device.sums_columns = sums_columns,
                           .results.cut = s->cut,
                           .results.whole = unrolls ? &s->whole : NULL};
    TRY(fill_config(q, s, options, &env.config, err));
    TRY(pass_run(&s->prog, &env, q->last_pass));
    take_results(&env, s);
    return q->last_pass == NULL ? check_kernels(s, err) : SNUG_OK;
}

enum snug_status lower_program(const struct compile_request *q, struct compiled_step *s,
                               struct snug_error *err)
{
    struct arena scratch = {0};
    *s = begin_step(q);
    TRY(recipe_check(q->recipe, err));
    TRY(set_sizes(q, s, err));
    s->collectives_alone =
        q->target->nccl_is_forced && s->n_ranks == 1 && compiled_step_is_on_gpu(s);
    enum snug_status status = build_forward(q, s, err);
    if (status == SNUG_OK)
        status = run_passes(q, s, &scratch, err);
    arena_free(&scratch);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

enum snug_status lower_finished(const struct compile_request *q, struct compiled_step *s,
                                struct snug_error *err)
{
    struct arena scratch = {0};
    *s = (struct compiled_step){
        .prog = *q->program, .backend = q->like->backend, .facts = q->like->facts};
    *q->program = (struct program){0};
    struct pass_env env = {
        .scratch = &scratch, .err = err, .device.choose_kernel = choose_kernel, .device.handle = s};
    enum snug_status status = pass_book(&s->prog, &env);
    arena_free(&scratch);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}
