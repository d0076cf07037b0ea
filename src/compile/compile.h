/*
 * compile.h -- recipe + model + passes + plan = one compiled step: what plan, train, eval and generate share, so
 * that there is one truth.  compile_step is the entry; compile.c draws what is below it.
 */
#ifndef SNUG_COMPILE_COMPILE_H
#define SNUG_COMPILE_COMPILE_H

#include "exec/backend.h"
#include "model/model.h"
#include "pass/pass.h"
#include "plan/plan.h"
#include "recipe/recipe.h"

struct compiled_step {
    struct program prog;
    struct plan plan;
    struct device_facts facts;
    const struct backend *backend;
    int64_t batch, micro_batch, seq; /* seq 0: no sequences */
    int64_t usual_batch; /* the model's default where the ranks need another one; 0: it is not so */
    int n_ranks, rank;   /* that share the batch; the one that this program is of */
    int rank_kinds[RANK_KINDS_MAX]; /* where no rank was asked for: see struct pass_env */
    int n_rank_kinds;
    int n_stages, stage;             /* of a pipeline; this program's.  1: there is none */
    int n_micro;                     /* micro-batches a step, of this rank */
    struct program whole;            /* of a stage: the forward program that it is a part of */
    struct stage_cut *cut;           /* and where that is cut; NULL: it is not */
    int64_t n_parameters, n_trained; /* of the model; of those and of adapters */
    enum update_place update_place;  /* where --update in-backward has put them */
    double forward_flops;            /* a step, of this rank; 0 where nothing is trained */
    double repeated_flops;           /* a step, of a second backward half */
    struct checkpointing checkpoint; /* as the pass was asked */
    struct checkpoint_bounds checkpoint_bounds; /* found by it, with auto */
    char rates_origin[96]; /* where the time of a step comes from; "": from whoever asked */
};

struct compile_request {
    const struct snug_model *model;
    const struct snug_recipe *recipe;
    enum model_purpose purpose;
    bool train;
    int64_t batch, micro_batch, seq;  /* 0: from the recipe, then the model's default */
    const struct compiled_step *over; /* plan in the arena of this run, or NULL */
    bool least_workspace;             /* rows that book least rather than fast ones */
    const int *rank;    /* of the recipe's; NULL: that of `over`, or the one that holds most */
    const int *stage;   /* rank NULL: among those with this stage; NULL: of any */
    bool averages_only; /* of that run's weights, as outputs, and nothing else */
    int64_t room_bytes; /* --checkpoint auto: see struct checkpointing; 0: no end */
    bool estimate;      /* no offsets: the ledger's lower bound is the total */
    const struct device_rates *rates; /* NULL: looked up for the recipe (compile/device_rates.h) */
};

enum snug_status compile_step(const struct compile_request *request, struct compiled_step *compiled,
                              struct snug_error *err);
void compiled_step_free(struct compiled_step *compiled);

/* The program after the named pass, without a plan; NULL: after all, and every op has a kernel. */
enum snug_status compile_program(const struct compile_request *request, const char *last_pass,
                                 struct compiled_step *compiled, struct snug_error *err);

/* Books and plans the program of a compiled step that has backend and facts: one made by hand. */
enum snug_status compile_plan(struct compiled_step *compiled, struct snug_error *err);

/* The forward program of the whole model, as the data sees it. */
const struct program *compiled_step_forward(const struct compiled_step *compiled);

/* Of a stage: does the first stage have this weight as well as the last? */
bool compiled_step_is_at_ends(const struct compiled_step *compiled, tensor_id weight);

/* Of the time of a step, how much a stage has nothing to do: (p - 1) / (m + p - 1). */
double compiled_step_bubble(const struct compiled_step *compiled, const struct snug_recipe *recipe);

/* Is it for a GPU, whose memory is not the machine's? */
bool compiled_step_is_on_gpu(const struct compiled_step *compiled);
/* One rank that exchanges with itself, as SNUG_NCCL=force wants: to try NCCL with a single GPU. */
bool compiled_step_runs_collectives_alone(const struct compiled_step *compiled);

/* runtime_bytes.c: what the process takes beside the plan, as a bound used before anything runs. */
int64_t compiled_step_runtime_bytes(const struct compiled_step *compiled);

void compiled_step_ledger(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                          struct snug_ledger *ledger);

/* thread_bytes.c: does a workspace of this program depend on how many threads there are? */
bool compiled_step_has_thread_bytes(const struct compiled_step *compiled);
/* A line for each op: its place, what it does, its kernel, the bytes of its workspace, what it makes. */
void compiled_step_kernels(const struct compiled_step *compiled, struct text *out);

/* "batch 32 x 1024 in 4 micro-batches, bf16, adamw" */
void compiled_step_describe(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                            struct text *out);

#endif
