/*
 * compile.c -- model -> passes -> plan, for every purpose.
 */
#include "compile/compile.h"

#include "exec/collective.h"
#include "exec/device_assignment.h"
#include "ir/collective_options.h"
#include "compile/device_rates.h"

#include <stdlib.h>
#include <string.h>

static const int64_t default_batch_language = 8, default_batch_other = 128;

static size_t workspace_of(const void *device, const struct program *prog, const struct op *op)
{
    const struct compiled *s = device;
    if (op_is_collective(op->kind))
        return (size_t)collective_work_bytes(prog, op);
    const struct kernel *kernel = s->backend->choose(prog, op, &s->facts);
    return kernel == NULL || kernel->workspace_bytes == NULL
               ? 0
               : kernel->workspace_bytes(prog, op, &s->facts);
}

static bool wants_no_alias(const void *device, const struct program *prog, const struct op *op)
{
    const struct compiled *s = device;
    const struct kernel *kernel = s->backend->choose(prog, op, &s->facts);
    return kernel != NULL && kernel->no_alias != NULL && kernel->no_alias(prog, op);
}

static bool sums_columns(const void *device, const struct program *prog, const struct op *op)
{
    const struct compiled *s = device;
    const struct kernel *kernel = s->backend->choose(prog, op, &s->facts);
    return kernel != NULL && kernel->sums_columns != NULL && kernel->sums_columns(prog, op);
}

/* A pipeline with fewer micro-batches than stages has stages that never work at the same time. */
static enum snug_status check_micro_batches(const struct snug_recipe *r, const struct compiled *s,
                                            struct snug_error *err)
{
    int64_t n_micro = s->batch / s->micro_batch / s->n_ranks;
    if (s->n_stages == 1 || r->pipeline == PIPELINE_naive || n_micro >= s->n_stages)
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "--pipeline %s with %d stages needs at least as many micro-batches, and there "
                     "%s %lld: choose a smaller --micro-batch",
                     recipe_pipeline_name(r), s->n_stages, n_micro == 1 ? "is" : "are",
                     (long long)n_micro);
}

static enum snug_status set_sizes(const struct compile_request *q, struct compiled *s,
                                  struct snug_error *err)
{
    const struct snug_recipe *r = q->recipe;
    bool language = model_is_language(q->model);
    s->batch = q->batch > 0   ? q->batch
               : r->batch > 0 ? r->batch
               : language     ? default_batch_language
                              : default_batch_other;
    s->n_stages = recipe_stages(r);
    s->n_ranks = (r->ranks > 1 ? (int)r->ranks : 1) / s->n_stages;
    int64_t own_batch = q->train ? s->batch / s->n_ranks : s->batch;
    if (q->model->family == MODEL_psi &&
        s->n_ranks * s->n_stages > 1) { /* nothing runs, nothing is shared */
        s->batch = s->n_ranks;
        s->micro_batch = 1;
        return SNUG_OK;
    }
    if (q->train && s->batch % s->n_ranks != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--batch %lld cannot be shared equally by %d ranks: choose a multiple",
                         (long long)s->batch, s->n_ranks);
    s->micro_batch = q->micro_batch > 0   ? q->micro_batch
                     : r->micro_batch > 0 ? r->micro_batch
                                          : own_batch;
    if (q->train && s->n_ranks * s->n_stages > 1 && !recipe_is_given(r, "micro-batch"))
        while (own_batch % s->micro_batch != 0) /* of a run that was saved by other ranks */
            s->micro_batch--;
    s->seq = q->seq > 0 ? q->seq : r->seq;
    if (language && s->seq == 0)
        s->seq = q->model->gpt2.n_positions;
    if (s->n_ranks > 1 && q->train && own_batch % s->micro_batch != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "the share of a rank, %lld of --batch %lld, is not divisible by "
                         "--micro-batch %lld: choose a divisor",
                         (long long)own_batch, (long long)s->batch, (long long)s->micro_batch);
    if (s->micro_batch > s->batch || s->batch % s->micro_batch != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--batch %lld is not divisible by --micro-batch %lld: choose a divisor",
                         (long long)s->batch, (long long)s->micro_batch);
    if (s->batch / s->micro_batch > 1 << 20)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "more than a million micro-batches per step");
    return q->train ? check_micro_batches(r, s, err) : SNUG_OK;
}

/* Without a backward half, what the loss reads is of interest too: predictions. */
static void keep_outputs(struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->ops[i].kind == OP_cross_entropy || prog->ops[i].kind == OP_mse)
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

/* What cannot run is not planned either.  The CPU has a kernel for every op. */
static enum snug_status check_kernels(const struct compiled *s, struct snug_error *err)
{
    for (int i = 0; compiled_step_is_on_gpu(s) && i < s->prog.n_ops; i++) {
        const struct op *op = &s->prog.ops[i];
        if (s->backend->choose(&s->prog, op, &s->facts) == NULL)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "op %d (%s): --device %s has no kernel for it; use --device cpu", i,
                             op_infos[op->kind].name, s->backend->name);
    }
    return SNUG_OK;
}

static struct rank_place rank_place_of(const struct compile_request *q, const struct compiled *s)
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
                               .collectives_alone = compiled_step_runs_collectives_alone(s)};
}

/* All ranks have to cut alike, whatever was measured where they run. */
static double seconds_anywhere(const void *device, const struct program *prog, const struct op *op)
{
    struct device_rates rates = rates_generic_cpu(1);
    (void)device;
    return op_seconds(prog, op, &rates);
}

/* Where stages begin: to be found, or as in the run beside which this is. */
static enum snug_status make_cut(const struct compile_request *q, struct compiled *s,
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

enum snug_status compile_program(const struct compile_request *q, const char *last_pass,
                                 struct compiled *s, struct snug_error *err)
{
    const struct snug_recipe *r = q->recipe;
    struct arena scratch = {0};
    double options[MAX_OPTIONS];
    *s = (struct compiled){.backend =
                               r->device == DEVICE_cuda ? backend_cuda_table() : backend_cpu(),
                           .facts = {.threads = recipe_threads(r),
                                     .reference_only = r->kernels != 0,
                                     .least_workspace = q->least_workspace,
                                     .nondeterministic = r->nondeterministic != 0}};
    TRY(recipe_check(r, err));
    TRY(set_sizes(q, s, err));
    TRY(recipe_options(r, options, err));
    struct dropout_rates dropout;
    TRY(find_dropout(q, &dropout, err));
    int64_t seq = model_is_language(q->model) ? s->seq : r->seq;
    enum snug_status status =
        model_forward(q->model, q->purpose, s->micro_batch, seq, &s->prog, err);
    if (status == SNUG_OK && r->loss != RECIPE_LOSS_model)
        status = model_set_loss(&s->prog,
                                r->loss == RECIPE_LOSS_mse ? LOSS_mse : LOSS_cross_entropy, err);
    if (status == SNUG_OK && !q->train)
        keep_outputs(&s->prog);
    if (status == SNUG_OK)
        status = make_cut(q, s, err);
    if (status == SNUG_OK) {
        struct checkpointing checkpoint = {.how = (enum checkpoint_how)r->checkpoint,
                                           .every = r->checkpoint_every,
                                           .room_bytes =
                                               q->room_bytes > 0 ? q->room_bytes : INT64_MAX};
        s->n_parameters = model_count_parameters(&s->prog);
        s->n_micro = (int)(s->batch / s->micro_batch / (q->train ? s->n_ranks : 1));
        struct pass_env env = {
            .scratch = &scratch,
            .err = err,
            .train = q->train,
            .compute = recipe_dtype(r),
            .master = !r->no_master,
            .n_micro = s->n_micro,
            .ranks = rank_place_of(q, s),
            .pipeline = (enum pipeline)r->pipeline,
            .cut = s->cut,
            .whole = s->n_stages > 1 || r->pipeline == PIPELINE_pipedream ? &s->whole : NULL,
            .op_seconds = seconds_anywhere,
            .dropout = dropout,
            .label_smoothing = r->label_smoothing,
            .checkpoint = checkpoint,
            .lora_rank = (int)r->lora,
            .lora_on = (enum lora_on)r->lora_on,
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
            .run = q->over != NULL ? &q->over->prog : NULL,
            .averages_only = q->averages_only,
            .workspace_bytes = workspace_of,
            .no_alias = wants_no_alias,
            .sums_columns = sums_columns,
            .device = s};
        status = pass_run(&s->prog, &env, last_pass);
        s->update_place = env.update_place;
        s->repeated_flops = env.repeated_flops;
        s->forward_flops = env.forward_flops * s->n_micro;
        s->rank = env.ranks.rank > 0 ? env.ranks.rank : 0;
        s->stage = env.ranks.stage;
        s->n_rank_kinds = env.n_rank_kinds;
        memcpy(s->rank_kinds, env.rank_kinds, sizeof s->rank_kinds);
        s->checkpoint = env.checkpoint;
        s->n_trained = count_trained(&s->prog);
    }
    if (status == SNUG_OK && last_pass == NULL)
        status = check_kernels(s, err);
    arena_free(&scratch);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

enum snug_status compile_plan(struct compiled *s, struct snug_error *err)
{
    struct arena scratch = {0};
    struct device_rates rates = rates_generic_cpu(s->facts.threads);
    struct pass_env env = {.scratch = &scratch,
                           .err = err,
                           .workspace_bytes = workspace_of,
                           .no_alias = wants_no_alias,
                           .device = s};
    enum snug_status status = pass_book(&s->prog, &env);
    arena_free(&scratch);
    return status != SNUG_OK ? status
                             : plan_make(&s->prog, s->backend->alignment, &rates, &s->plan, err);
}

static enum snug_status plan_step(const struct compile_request *q, struct compiled *s,
                                  struct snug_error *err)
{
    struct machine_rates own;
    if (q->over != NULL)
        return plan_make_over(&s->prog, &q->over->prog, &q->over->plan, s->backend->alignment,
                              &s->plan, err);
    if (q->rates == NULL) {
        TRY(rates_of_recipe(q->recipe, &own, err));
        memcpy(s->rates_origin, own.origin, sizeof s->rates_origin);
    }
    const struct device_rates *rates = q->rates != NULL ? q->rates : &own.rates;
    TRY(q->estimate ? plan_estimate(&s->prog, rates, &s->plan, err)
                    : plan_make(&s->prog, s->backend->alignment, rates, &s->plan, err));
    double idle = compiled_step_bubble(s, q->recipe);
    double slowest = s->cut != NULL && s->cut->n_stages > 0 ? s->cut->slowest : 1;
    s->plan.step_seconds += s->plan.body_seconds * (slowest / (1 - idle) - 1);
    return SNUG_OK;
}

/* Evaluating at averages of the weights, a sample at a time, and saving them take place in the arena of
 * the run: it is made so large.  Mostly it is already, by the gradients. */
static enum snug_status make_room_for_averages(const struct compile_request *q, struct compiled *s,
                                               struct snug_error *err)
{
    for (int only = 0; only < 2; only++) { /* evaluating, saving */
        struct compiled beside;
        struct compile_request request = {.model = q->model,
                                          .recipe = q->recipe,
                                          .batch = 1,
                                          .micro_batch = 1,
                                          .seq = s->seq,
                                          .over = s,
                                          .averages_only = only};
        TRY(compile_step(&request, &beside, err));
        int64_t more = beside.plan.arena_bytes - s->plan.arena_bytes;
        compiled_step_free(&beside);
        if (more > 0) {
            s->plan.arena_bytes += more;
            s->plan.lower_bound += more;
            s->plan.at_peak[ROLE_temporary] += more;
        }
    }
    return SNUG_OK;
}

/* Makes the compiled step of a rank if it has more bytes than *s, in its place; else *s stays.  There are no
 * averages to make room for: the pass shard refuses them. */
static enum snug_status make_if_fuller(const struct compile_request *q, struct compiled *s,
                                       struct snug_error *err)
{
    struct compiled other;
    bool is_smaller = false;
    TRY(compile_program(q, NULL, &other, err));
    enum snug_status status = plan_is_within(&other.prog, other.backend->alignment,
                                             s->plan.arena_bytes, &is_smaller, err);
    if (status == SNUG_OK && !is_smaller)
        status = plan_step(q, &other, err);
    if (status == SNUG_OK && !is_smaller && other.plan.arena_bytes > s->plan.arena_bytes) {
        struct compiled smaller = *s;
        *s = other;
        other = smaller;
    }
    compiled_step_free(&other);
    return status;
}

enum snug_status compile_fullest(const struct compile_request *q, struct compiled *s,
                                 struct snug_error *err)
{
    TRY(compile_once(q, s, err));
    int n_kinds = q->estimate ? 0 : s->n_rank_kinds, made = s->rank;
    int kinds[RANK_KINDS_MAX];
    memcpy(kinds, s->rank_kinds, sizeof kinds);
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < n_kinds && status == SNUG_OK; i++) {
        int rank = s->stage * s->n_ranks + kinds[i];
        struct compile_request one = *q;
        one.rank = &rank;
        if (kinds[i] != made)
            status = make_if_fuller(&one, s, err);
    }
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

static enum snug_status make_of_stage(const struct compile_request *q, struct compiled *s,
                                      struct snug_error *err)
{
    bool fits_itself = q->train && q->recipe->checkpoint == CHECKPOINT_auto;
    return fits_itself ? compile_fitting(q, s, err) : compile_fullest(q, s, err);
}

/* Of the stage whose ranks hold most. */
static enum snug_status make_of_fullest_stage(const struct compile_request *q, struct compiled *s,
                                              struct snug_error *err)
{
    *s = (struct compiled){0};
    TRY(recipe_check(q->recipe, err));
    for (int stage = 0; stage < recipe_stages(q->recipe); stage++) {
        struct compiled other;
        struct compile_request one = *q;
        one.stage = &stage;
        enum snug_status status = make_of_stage(&one, &other, err);
        if (status == SNUG_OK && stage > 0 && other.plan.arena_bytes <= s->plan.arena_bytes) {
            compiled_step_free(&other);
            continue;
        }
        compiled_step_free(s);
        if (status != SNUG_OK)
            return status;
        *s = other;
    }
    return SNUG_OK;
}

enum snug_status compile_step(const struct compile_request *q, struct compiled *s,
                              struct snug_error *err)
{
    bool is_any = q->rank == NULL && q->stage == NULL && q->over == NULL;
    bool any_stage = q->train && is_any && recipe_stages(q->recipe) > 1;
    return any_stage ? make_of_fullest_stage(q, s, err) : make_of_stage(q, s, err);
}

enum snug_status compile_once(const struct compile_request *q, struct compiled *s,
                              struct snug_error *err)
{
    TRY(compile_program(q, NULL, s, err));
    enum snug_status status = plan_step(q, s, err);
    bool averages = q->train && !q->estimate && q->recipe->optimizer->average != AVERAGE_none;
    if (status == SNUG_OK && averages && s->prog.loss != TENSOR_NONE)
        status = make_room_for_averages(q, s, err);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

void compiled_step_free(struct compiled *s)
{
    program_free(&s->prog);
    program_free(&s->whole);
    plan_free(&s->plan);
    free(s->cut);
    s->cut = NULL;
}

const struct program *compiled_step_forward(const struct compiled *s)
{
    return s->whole.n_tensors > 0 ? &s->whole : &s->prog;
}

bool compiled_step_is_at_ends(const struct compiled *s, tensor_id weight)
{
    bool read[2] = {false, false}; /* before the last stage, in it */
    int last_begin = s->cut->last_begin;
    for (int i = 0; i < s->whole.n_ops; i++)
        for (int k = 0; k < s->whole.ops[i].n_in; k++)
            read[i >= last_begin] |= s->whole.ops[i].in[k] == weight;
    return read[0] && read[1];
}

double compiled_step_bubble(const struct compiled *s, const struct snug_recipe *recipe)
{
    int n_stages = s->n_stages > 1 ? s->n_stages : 1;
    bool one_at_a_time = recipe->pipeline == PIPELINE_naive;
    return (n_stages - 1.0) / ((one_at_a_time ? 1 : s->n_micro) + n_stages - 1.0);
}

bool compiled_step_runs_collectives_alone(const struct compiled *s)
{
    return s->n_ranks == 1 && compiled_step_is_on_gpu(s) && device_assignment_is_forced();
}

bool compiled_step_is_on_gpu(const struct compiled *s)
{
    return s->backend == backend_cuda_table();
}

static int64_t whole(double flops)
{
    return flops < 9.2e18 ? (int64_t)flops : INT64_MAX;
}

void compiled_step_ledger(const struct compiled *s, const struct snug_recipe *recipe,
                          struct snug_ledger *ledger)
{
    const struct plan *p = &s->plan;
    *ledger = (struct snug_ledger){
        .parameters = p->at_peak[ROLE_parameter] + p->at_peak[ROLE_buffer],
        .gradients = p->at_peak[ROLE_gradient],
        .optimizer = p->at_peak[ROLE_optimizer],
        .activations = p->at_peak[ROLE_activation] + p->at_peak[ROLE_input],
        .temporary = p->at_peak[ROLE_temporary],
        .fragmentation = p->fragmentation,
        .total = p->arena_bytes,
        .n_parameters = s->n_parameters,
        .n_trained = s->n_trained,
        .lower_bound = p->lower_bound,
        .forward_flops = whole(s->forward_flops),
        .step_flops = whole(p->step_flops),
        .recompute_flops = whole(p->recompute_flops),
        .step_seconds = p->step_seconds,
        .peak_op = p->peak_op,
        .n_ops = s->prog.n_ops,
        .budget = recipe->memory,
        .offloaded = p->pool_bytes,
    };
}

void compiled_step_describe(const struct compiled *s, const struct snug_recipe *recipe,
                            struct text *out)
{
    text_add(out, "batch %lld", (long long)s->batch);
    if (s->seq > 0)
        text_add(out, " x %lld", (long long)s->seq);
    int n_ranks = s->n_ranks * s->n_stages;
    if (n_ranks > 1)
        text_add(out, " on %d ranks", n_ranks);
    if (s->n_stages > 1)
        text_add(out, ", %s with %d stages", recipe_pipeline_name(recipe), s->n_stages);
    if (s->n_ranks > 1) {
        text_add(out, ", %s", recipe->parallel == PARALLEL_ps ? "parameter server" : "ddp");
        if (recipe->zero > 0)
            text_add(out, " with zero %d", recipe->zero);
    }
    if (s->micro_batch * s->n_ranks != s->batch)
        text_add(out, "%s in %lld micro-batches", s->n_ranks > 1 ? ", each" : "",
                 (long long)(s->batch / s->micro_batch / s->n_ranks));
    text_add(out, ", %s, %s", recipe_precision_name(recipe), recipe->optimizer->name);
    if (recipe->state_bits != 0 && recipe->state_bits != 32)
        text_add(out, " with states of %d bits", recipe->state_bits);
    if (recipe->no_master && recipe->precision != DTYPE_f32)
        text_add(out, ", no master");
    if (recipe->in_backward)
        text_add(out, ", update in backward");
    if (recipe->checkpoint != CHECKPOINT_none) {
        text_add(out, ", checkpoint ");
        recipe_checkpoint_name(recipe, out);
    }
    if (recipe->lora > 0)
        text_add(out, ", lora %lld on %s", (long long)recipe->lora, recipe_lora_on_name(recipe));
    if (recipe->lora_base != 0)
        text_add(out, " beside %d bits", recipe->lora_base);
    if (recipe->dropout == DROPOUT_FROM_CONFIG)
        text_add(out, ", dropout of config.json");
    else if (recipe->dropout > 0)
        text_add(out, ", dropout %g", recipe->dropout);
    if (recipe->label_smoothing > 0)
        text_add(out, ", label smoothing %g", recipe->label_smoothing);
    if (s->facts.nondeterministic && compiled_step_is_on_gpu(s))
        text_add(out, ", nondeterministic sums");
    if (recipe->offload != OFFLOAD_none)
        text_add(out, ", %s offloaded", recipe_offload_name(recipe));
}
