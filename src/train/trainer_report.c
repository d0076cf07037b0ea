/*
 * trainer_report.c -- the header of a run, its summary, and the account of each rank.
 */
#include "base/process_memory.h"
#include "compile/explain.h"
#include "train/trainer.h"

#include "report/pieces.h"
#include "train/step_report.h"

#include <stdlib.h>

static struct rank_account own_account(const struct snug_trainer *t)
{
    int64_t allocated = exec_allocated_bytes(t->exec);
    return (struct rank_account){.planned_bytes = t->compiled.plan.arena_bytes,
                                 .allocated_bytes = allocated,
                                 .runtime_bytes = t->runtime_bytes,
                                 .peak_bytes = compiled_step_is_on_gpu(&t->compiled)
                                                   ? allocated + t->runtime_bytes
                                                   : process_peak_bytes(),
                                 .seconds = t->seconds,
                                 .waited_seconds = exec_waited_seconds(t->exec)};
}

enum snug_status trainer_gather_accounts(struct snug_trainer *t, struct snug_error *err)
{
    struct rank_account own = own_account(t);
    free(t->accounts);
    t->accounts = calloc((size_t)t->comm->n_ranks, sizeof own);
    return t->accounts == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory")
                               : comm_gather(t->comm, 0, &own, sizeof own, t->accounts, err);
}

enum snug_status trainer_find_fullest(struct snug_trainer *t, struct snug_error *err)
{
    double most = (double)t->compiled.plan.arena_bytes; /* exact: no arena has 2^53 bytes */
    TRY(comm_max(t->comm, &most, err));
    t->most_planned_bytes = (int64_t)most;
    return SNUG_OK;
}

char *trainer_plan_json(const struct snug_trainer *t)
{
    struct compiled_step fullest;
    struct compile_request q = {.model = t->model, .recipe = &t->recipe, .train = true};
    if (t->compiled.plan.arena_bytes == t->most_planned_bytes)
        return step_report_json(&t->compiled, &t->recipe, t->model->name);
    if (compile_step(&q, &fullest, NULL) != SNUG_OK)
        return NULL;
    char *json = step_report_json(&fullest, &t->recipe, t->model->name);
    compiled_step_free(&fullest);
    return json;
}

int snug_trainer_rank(const snug_trainer *t)
{
    return t->comm->rank;
}

int snug_trainer_ranks(const snug_trainer *t)
{
    return t->comm->n_ranks;
}

static const struct rank_account *account_of(const snug_trainer *t, int rank)
{
    bool has_account = t->accounts != NULL && t->comm->rank == 0 && rank >= 0;
    return has_account && rank < t->comm->n_ranks ? &t->accounts[rank] : NULL;
}

int snug_trainer_rank_bytes(const snug_trainer *t, int rank, int64_t *planned, int64_t *allocated)
{
    const struct rank_account *account = account_of(t, rank);
    if (account == NULL)
        return 0;
    *planned = account->planned_bytes;
    *allocated = account->allocated_bytes;
    return 1;
}

int snug_trainer_rank_measured(const snug_trainer *t, int rank, int64_t *runtime, int64_t *peak)
{
    const struct rank_account *account = account_of(t, rank);
    if (account == NULL)
        return 0;
    *runtime = account->runtime_bytes;
    *peak = account->peak_bytes;
    return 1;
}

int snug_trainer_rank_seconds(const snug_trainer *t, int rank, double *seconds, double *waited)
{
    const struct rank_account *account = account_of(t, rank);
    if (account == NULL)
        return 0;
    *seconds = account->seconds;
    *waited = account->waited_seconds;
    return 1;
}

int snug_trainer_rank_gpu(const snug_trainer *t, int rank)
{
    return rank < 0 || rank >= t->comm->n_ranks ? -1 : exec_rank_gpu(t->exec, rank);
}

const char *snug_trainer_transport(const snug_trainer *t)
{
    return exec_transport(t->exec);
}

static void describe_gpus(const struct snug_trainer *t, struct text *out)
{
    enum { NAMED = 8 };
    if (exec_transport(t->exec) == NULL)
        return;
    text_add(out, "ranks   ");
    for (int rank = 0; rank < t->comm->n_ranks && rank < NAMED; rank++)
        text_add(out, "%s%d on GPU %d", rank == 0 ? "" : ", ", rank, exec_rank_gpu(t->exec, rank));
    text_add(out, "%s; %s", t->comm->n_ranks > NAMED ? "..." : "", exec_transport(t->exec));
    if (exec_collective_host_bytes(t->exec) > 0)
        text_add(out, "; %s bytes pinned",
                 text_count(exec_collective_host_bytes(t->exec), (char[TEXT_SIZE_MAX + 8]){0}));
    text_add(out, "\n");
}

static void describe_data(const struct snug_trainer *t, struct text *out)
{
    char count[TEXT_SIZE_MAX + 8], held_out[TEXT_SIZE_MAX + 8];
    text_add(out, "data    ");
    text_add_shown(out, t->data_spec == NULL ? "random" : t->data_spec);
    text_add(out, ": %s, %s %s and %s held out\n", data_kind(t->data),
             text_count(data_n_samples(t->data, DATA_TRAIN), count),
             t->compiled.seq > 0 ? "sequences" : "samples",
             text_count(data_n_samples(t->data, DATA_HELD_OUT), held_out));
}

char *snug_trainer_describe(const snug_trainer *t)
{
    char count[TEXT_SIZE_MAX + 8], usual[TEXT_SIZE_MAX + 8], bytes[TEXT_SIZE_MAX];
    struct text out = {0};
    text_add(&out, "model   ");
    text_add_shown(&out, t->model->name);
    text_add(&out, ", %s parameters", text_count(t->compiled.n_parameters, count));
    if (t->recipe.lora > 0)
        text_add(&out, ", %s trained in adapters", text_count(t->compiled.n_trained, count));
    text_add(&out, "\nweights ");
    if (t->options.resume) {
        text_add_shown(&out, t->out);
        text_add(&out, ", step %lld of %lld\n", (long long)t->step, (long long)t->n_steps);
    } else if (t->model->weights_folder != NULL) {
        text_add_shown(&out, t->model->weights_folder);
        text_add(&out, "\n");
    } else {
        text_add(&out, "random, seed %lld\n", (long long)t->recipe.seed);
    }
    if (t->data != NULL)
        describe_data(t, &out);
    if (t->lock != NULL && !run_lock_is_held(t->lock)) {
        text_add(&out, "out     ");
        text_add_shown(&out, t->out);
        text_add(&out, ", not locked: the file system does not support locks\n");
    }
    struct text line = {0};
    text_add(&line, "recipe  ");
    compiled_step_describe(&t->compiled, &t->recipe, &line);
    text_add(&line, ", lr %g %s%s",
             recipe_scaled_lr(&t->recipe, t->compiled.batch, (double)(t->step + 1)),
             recipe_lr_is_relative(&t->recipe) ? "relative to the size of each weight, " : "",
             t->recipe.optimizer->lr_at != NULL ? "by the optimizer"
                                                : recipe_schedule_name(&t->recipe));
    if (t->recipe.warmup > 0)
        text_add(&line, ", warmup %lld", (long long)t->recipe.warmup);
    piece_wrapped(&out, text_part(&out, &line), 8);
    text_free(&line);
    if (t->compiled.longest_seq > 0) {
        text_add(&out, "seq     ");
        piece_default_seq(&out, t->compiled.seq, t->compiled.longest_seq);
    }
    if (t->compiled.usual_batch > 0)
        text_add(&out, "batch   %s, not the default %s, so that %d ranks get equal shares\n",
                 text_count(t->compiled.batch, count), text_count(t->compiled.usual_batch, usual),
                 t->compiled.n_ranks);
    text_add(&out, "plan    %s bytes (%s)%s\n", text_count(t->most_planned_bytes, count),
             text_size(t->most_planned_bytes, bytes),
             t->comm->n_ranks > 1 ? " on the rank with the highest peak" : "");
    if (t->recipe.memory_origin[0] != '\0')
        text_add(&out, "budget  %s: %s; set another with --memory\n",
                 text_size(t->recipe.memory, bytes), t->recipe.memory_origin);
    if (t->compiled.plan.pool_bytes > 0)
        text_add(&out, "offload %s bytes (%s) in %s\n",
                 text_count(t->compiled.plan.pool_bytes, count),
                 text_size(t->compiled.plan.pool_bytes, bytes), t->compiled.backend->pool_place);
    describe_gpus(t, &out);
    return text_take(&out);
}

/* The account of the rank that allocated most; ties go to the highest measured peak.  Before the
 * end of a run, this rank's account. */
static struct rank_account fullest_account(const snug_trainer *t)
{
    const struct rank_account *most = account_of(t, 0);
    for (int rank = 1; most != NULL && rank < t->comm->n_ranks; rank++) {
        const struct rank_account *other = account_of(t, rank);
        bool is_tie = other->allocated_bytes == most->allocated_bytes;
        if (is_tie ? other->peak_bytes > most->peak_bytes
                   : other->allocated_bytes > most->allocated_bytes)
            most = other;
    }
    return most != NULL ? *most : own_account(t);
}

char *snug_trainer_notes(const snug_trainer *t)
{
    const struct dropout_rates *rates = &t->model->config_dropout;
    struct text out = {0};
    text_add(&out, "%s", "");
    if (dropout_is_any(rates) && t->recipe.dropout == 0 &&
        !recipe_is_given(&t->recipe, "dropout")) {
        text_add(&out, "the dropout of ");
        text_add_shown(&out, t->model->name);
        text_add(&out,
                 " (embd_pdrop %g, attn_pdrop %g, resid_pdrop %g) is not applied; "
                 "--dropout config applies it, --dropout 0 silences this note\n",
                 rates->embedding, rates->attention, rates->residual);
    }
    const char *random_base = explain_random_base(t->model, &t->recipe);
    if (random_base != NULL)
        text_add(&out, "--lora: %s\n", random_base);
    return text_take(&out);
}

void snug_trainer_summary(const snug_trainer *t, struct snug_summary *s)
{
    int64_t per_sample = t->compiled.seq > 0 ? t->compiled.seq : 1;
    double done = (double)((t->step - t->first_step) * t->compiled.batch * per_sample);
    struct rank_account fullest = fullest_account(t);
    *s = (struct snug_summary){.steps = t->step,
                               .planned_bytes = fullest.planned_bytes,
                               .allocated_bytes = fullest.allocated_bytes,
                               .runtime_bytes = fullest.runtime_bytes,
                               .measured_peak_bytes = fullest.peak_bytes,
                               .loss = t->loss,
                               .per_second = t->seconds > 0 ? done / t->seconds : 0,
                               .unit = t->compiled.seq > 0 ? "tokens" : "samples"};
}
