/*
 * compile.h -- the compiler: a model and a recipe in, one compiled step out.
 *
 *     model + recipe -> forward program -> passes -> program of one rank -> plan -> compiled step
 *
 * The forward program comes from model/.  Passes (pass/) rewrite it: autodiff, mixed precision,
 * checkpointing, optimizer, sharding, offload...  The plan (plan/) gives every tensor its offset in
 * one arena and estimates the time of a step.  The executor (exec/) runs the result.
 *
 * plan, train, eval, generate and bench all call compile_step, the only entry point, so a plan
 * shows exactly what a run allocates.  compile.c shows the functions below it.
 */
#ifndef SNUG_COMPILE_COMPILE_H
#define SNUG_COMPILE_COMPILE_H

#include "exec/backend.h"
#include "model/model.h"
#include "pass/pass.h"
#include "plan/plan.h"
#include "recipe/recipe.h"

struct compile_target;

struct compiled_step {
    struct program prog;
    struct plan plan;
    struct device_facts facts;
    const struct backend *backend;
    int64_t batch, micro_batch, seq; /* seq is 0 for models without sequences */
    int64_t longest_seq; /* the model's, if the default seq is shorter and was used; else 0 */
    int64_t usual_batch; /* the default batch, if the ranks cannot share it equally; else 0 */
    int n_ranks, rank;   /* data-parallel ranks per stage, and the one this program is for */
    int rank_kinds[RANK_KINDS_MAX]; /* if no rank was requested: see struct pass_results */
    int n_rank_kinds;
    int n_stages, stage;             /* pipeline stages (1: no pipeline), and this program's */
    int n_micro;                     /* micro-batches per step on this rank */
    bool collectives_alone;          /* a single rank runs collectives with itself, to test NCCL */
    struct program whole;            /* with a pipeline: the forward program of the whole model */
    struct stage_cut *cut;           /* where it is cut into stages; NULL without stages */
    bool is_estimate;                /* no offsets: the plan is a lower bound */
    int64_t n_parameters, n_trained; /* the model's; trained ones, adapters included */
    enum update_place update_place;  /* where --update in-backward placed the updates */
    double forward_flops;            /* per step on this rank; 0 if nothing is trained */
    double repeated_flops;           /* per step, if the backward half runs twice */
    struct checkpointing checkpoint; /* the settings the pass was run with */
    struct checkpoint_bounds checkpoint_bounds; /* found by the pass, with auto */
    char rates_origin[96]; /* which rates the step time is based on; "": not told, or no time */
};

struct compile_request {
    const struct snug_model *model;
    const struct snug_recipe *recipe;
    enum model_purpose purpose;
    bool train;
    int64_t batch, micro_batch, seq;  /* 0: from the recipe, else the model's default */
    const struct compiled_step *over; /* plan inside the arena of this run, or NULL */
    bool least_workspace;             /* prefer kernels with little workspace to fast ones */
    const int *rank;     /* NULL: the rank of `over`, or the one with the largest plan */
    const int *stage;    /* with rank NULL: consider only ranks of this stage; NULL: of all */
    bool averages_only;  /* the program computes the weight averages of `over`, nothing else */
    int64_t room_bytes;  /* --checkpoint auto: see struct checkpointing; 0: no limit */
    bool estimate;       /* assign no offsets; the total is the plan's lower bound */
    bool bound_first;    /* an estimate that tells whether the plan is within --memory */
    int64_t least_bytes; /* --checkpoint auto: smaller plans are of no interest; 0: all are */
    const struct compile_target *target; /* NULL: read it (compile_target.h), or that of `over` */
    /* Stop after this pass, without a plan; "last" runs all, "model" none.  The program is the one
     * that the same request compiles without last_pass: if plans decide its rank, micro-batch or
     * recomputation, they are made first.  NULL: go on to the plan. */
    const char *last_pass;
    /* Instead of a model and a recipe: a finished program, which gets kernels and a plan for the
     * device of the step `like`.  Taken over, also on failure. */
    struct program *program;
    const struct compiled_step *like;
};

/* compile.c, which calls compile_rank.c, auto_checkpoint.c and lower.c. */
enum snug_status compile_step(const struct compile_request *request, struct compiled_step *compiled,
                              struct snug_error *err);

/* ---- compiled_step.c: accessors, the ledger, descriptions ------------------------------------ */

void compiled_step_free(struct compiled_step *compiled);

/* The forward program of the whole model; its inputs are what the data loader fills. */
const struct program *compiled_step_forward(const struct compiled_step *compiled);

/* With stages: is this weight shared by the last stage and an earlier one (tied embeddings)? */
bool compiled_step_is_at_ends(const struct compiled_step *compiled, tensor_id weight);

/* The pipeline bubble: the share of a step in which a stage is idle, (p - 1) / (m + p - 1). */
double compiled_step_bubble(const struct compiled_step *compiled, const struct snug_recipe *recipe);

bool compiled_step_is_on_gpu(const struct compiled_step *compiled);

void compiled_step_ledger(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                          struct snug_ledger *ledger);

/* One line per op: index, op, kernel, workspace bytes, result. */
void compiled_step_kernels(const struct compiled_step *compiled, struct text *out);

/* "batch 32 x 1024 in 4 micro-batches, bf16, adamw" */
void compiled_step_describe(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                            struct text *out);

/* ---- runtime_bytes.c, thread_bytes.c: memory beside the plan; what depends on threads -------- */

/* An upper bound of the memory the process needs in addition to the plan. */
int64_t compiled_step_runtime_bytes(const struct compiled_step *compiled);

/* Does a workspace of this program depend on the number of threads? */
bool compiled_step_has_thread_bytes(const struct compiled_step *compiled);

#endif
