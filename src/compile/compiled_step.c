/*
 * compiled_step.c -- accessors of a compiled step: ledger, kernel list, one-line description.
 */
#include "compile/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

void compiled_step_free(struct compiled_step *s)
{
    program_free(&s->prog);
    program_free(&s->whole);
    plan_free(&s->plan);
    free(s->cut);
    s->cut = NULL;
}

const struct program *compiled_step_forward(const struct compiled_step *s)
{
    return s->whole.n_tensors > 0 ? &s->whole : &s->prog;
}

bool compiled_step_is_at_ends(const struct compiled_step *s, tensor_id weight)
{
    bool read[2] = {false, false}; /* before the last stage, in it */
    int last_begin = s->cut->last_begin;
    for (int i = 0; i < s->whole.n_ops; i++)
        for (int k = 0; k < s->whole.ops[i].n_in; k++)
            read[i >= last_begin] |= s->whole.ops[i].in[k] == weight;
    return read[0] && read[1];
}

double compiled_step_bubble(const struct compiled_step *s, const struct snug_recipe *recipe)
{
    int n_stages = s->n_stages > 1 ? s->n_stages : 1;
    bool one_at_a_time = recipe->pipeline == PIPELINE_naive;
    return (n_stages - 1.0) / ((one_at_a_time ? 1 : s->n_micro) + n_stages - 1.0);
}

bool compiled_step_is_on_gpu(const struct compiled_step *s)
{
    return s->backend == backend_cuda_table();
}

static int64_t whole(double flops)
{
    return flops < 9.2e18 ? (int64_t)flops : INT64_MAX;
}

void compiled_step_ledger(const struct compiled_step *s, const struct snug_recipe *recipe,
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
        .idle_share = compiled_step_bubble(s, recipe),
    };
}

static int wider(int width, const char *word)
{
    int n = (int)strlen(word);
    return n > width ? n : width;
}

static const char *result_of(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            return prog->tensors[op->out[k]].name;
    return "-";
}

static int64_t workspace_of(const struct program *prog, const struct op *op)
{
    return op->work == TENSOR_NONE ? 0 : tensor_bytes(prog, op->work);
}

static int wider_number(int width, int64_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)number);
    return wider(width, digits);
}

/* The result is the last column, so long names do not break the alignment. */
void compiled_step_kernels(const struct compiled_step *s, struct text *out)
{
    const struct program *prog = &s->prog;
    int index = wider_number(1, prog->n_ops), op = wider(0, "op"), kernel = wider(0, "kernel"),
        bytes = wider(0, "workspace");
    for (int i = 0; i < prog->n_ops; i++) {
        op = wider(op, op_infos[prog->ops[i].kind].name);
        kernel = wider(kernel, s->backend->kernel(prog->ops[i].kernel)->name);
        bytes = wider_number(bytes, workspace_of(prog, &prog->ops[i]));
    }
    text_add(out, "%*s  %-*s  %-*s  %*s  %s\n", index, "#", op, "op", kernel, "kernel", bytes,
             "workspace", "result");
    for (int i = 0; i < prog->n_ops; i++)
        text_add(out, "%*d  %-*s  %-*s  %*lld  %s\n", index, i, op,
                 op_infos[prog->ops[i].kind].name, kernel,
                 s->backend->kernel(prog->ops[i].kernel)->name, bytes,
                 (long long)workspace_of(prog, &prog->ops[i]), result_of(prog, &prog->ops[i]));
}

void compiled_step_describe(const struct compiled_step *s, const struct snug_recipe *recipe,
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
        text_add(out, " with %d-bit states", recipe->state_bits);
    if (recipe->no_master && recipe->precision != DTYPE_f32)
        text_add(out, ", no master");
    if (recipe->in_backward)
        text_add(out, ", update in backward");
    if (recipe->checkpoint != CHECKPOINT_none) {
        text_add(out, ", checkpoint ");
        recipe_checkpoint_name(recipe, out);
    }
    if (recipe->lora > 0)
        text_add(out, ", lora %lld on %s", (long long)recipe->lora, recipe->lora_on);
    if (recipe->lora_base != 0)
        text_add(out, " over %s %d-bit base", recipe->lora_base == 8 ? "an" : "a",
                 recipe->lora_base);
    if (recipe->dropout == DROPOUT_FROM_CONFIG)
        text_add(out, ", dropout from config.json");
    else if (recipe->dropout > 0)
        text_add(out, ", dropout %g", recipe->dropout);
    if (recipe->label_smoothing > 0)
        text_add(out, ", label smoothing %g", recipe->label_smoothing);
    if (s->facts.nondeterministic && compiled_step_is_on_gpu(s))
        text_add(out, ", nondeterministic sums");
    if (recipe->offload != OFFLOAD_none)
        text_add(out, ", %s offloaded", recipe_offload_name(recipe));
    if (compiled_step_has_thread_bytes(s))
        text_add(out, ", %d thread%s", s->facts.threads, s->facts.threads == 1 ? "" : "s");
}
