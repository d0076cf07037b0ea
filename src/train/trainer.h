/*
 * trainer.h -- a run: compiled step, executor, data, step counter; and its evaluation on held-out data.
 */
#ifndef SNUG_TRAIN_TRAINER_H
#define SNUG_TRAIN_TRAINER_H

#include "checkpoint/rank_parts.h"
#include "comm/comm.h"
#include "data/data.h"
#include "io/metrics.h"
#include "io/run_lock.h"
#include "ir/collective_options.h"
#include "compile/compile.h"
#include "exec/exec.h"

/* What the loss op of a program says about the data that it wants. */
struct input_spec {
    enum data_target target;
    tensor_id input,
        target_input; /* TENSOR_NONE: the model has other inputs than one and a target */
    tensor_id output; /* logits or values that the loss reads; TENSOR_NONE: never whole */
    int64_t n_classes;
};
enum snug_status input_spec_of(const struct program *prog, struct input_spec *input_spec,
                               struct snug_error *err);
enum snug_status input_spec_open_data(const struct compiled_step *compiled,
                                      const struct input_spec *input_spec, const char *spec,
                                      const struct snug_recipe *recipe, struct data **data,
                                      struct snug_error *err);

/* Forward only, on the held-out split. */
struct evaluator {
    struct compiled_step compiled;
    struct exec *exec;
    struct input_spec input_spec;
    struct data *data; /* borrowed */
    int64_t n_samples; /* to score */
    int64_t first;     /* of the batch being fed */
    int64_t n_now;     /* samples that this batch scores */
    struct comm *comm; /* of a pipeline: its ranks; NULL: this one has all stages */
    struct comm
        *ranks; /* which run the same batches, and abandon them together; NULL: it is alone */
    /* Hears how far a run of it is, and says whether to abandon it; NULL: nobody does. */
    bool (*stop)(void *user, int64_t done, int64_t total);
    void *stop_user;
};
/* SNUG_DIVERGED: the loss is not finite; the message names the first tensor that is not.
 * On at most max_samples (0: all, but not more than 131,072 tokens of text), which does not depend on
 * the micro-batch; request->micro_batch is the most that is run at once.  `shared`: in its arena, of
 * arena_limit bytes.  All stages of a pipeline come to it over `comm`, and to each run. */
enum snug_status evaluator_make(struct evaluator *evaluator, const struct compile_request *request,
                                struct exec *shared, struct data *data, int64_t max_samples,
                                int64_t arena_limit, struct comm *comm, struct snug_error *err);
/* SNUG_INTERRUPTED: abandoned on request, on all ranks. */
enum snug_status evaluator_run(struct evaluator *evaluator, struct snug_eval_result *result,
                               struct snug_error *err);
void evaluator_free(struct evaluator *evaluator);

struct rank_account {
    int64_t planned_bytes, allocated_bytes;
    int64_t runtime_bytes, peak_bytes; /* measured: beside the arena, and all at the highest */
    double seconds, waited_seconds;
};

struct snug_trainer {
    const snug_model *model; /* borrowed, or `fitted` */
    snug_model fitted;       /* the model at the size of the data's images */
    snug_recipe recipe;
    struct snug_train_options options;
    char *data_spec, *out;
    struct compiled_step compiled;
    struct exec *exec;
    struct input_spec input_spec;
    struct data *data; /* NULL: steps are fed by the caller */
    struct evaluator evaluator;
    bool can_evaluate;
    struct compiled_step averages; /* what is saved in the place of the weights */
    struct exec *averages_exec;    /* NULL: the weights are */
    snug_watch_fn *watch;          /* NULL: nobody does */
    void *watch_user;
    struct run_lock *lock; /* of `out`, on rank 0 */
    bool made_out;         /* the folder was not there */
    struct metrics *metrics;
    int64_t step, n_steps, first_step; /* steps done; the goal; where this process began */
    const void *const *given;          /* the caller's inputs of the present step */
    double loss, seconds;
    int64_t runtime_bytes;
    int64_t most_planned_bytes;             /* of the rank that planned most */
    int64_t saved_step;                     /* -1: never */
    struct comm *comm;                      /* the ranks of this run; itself alone, at least */
    struct comm *groups[COLLECTIVE_GROUPS]; /* of a pipeline, among them */
    struct rank_state rank_state;           /* of this one, for saving */
    bool failed;                            /* so that other ranks may have ended */
    /* On rank 0, of a run that has ended: of each rank, what it planned and allocated, and how long it has
     * worked and waited. */
    struct rank_account *accounts;
};

/* run_begin.c */
/* Before anything is built: may --out be written to, is there something to resume? */
enum snug_status trainer_check_out(const struct snug_trainer *trainer, struct snug_error *err);
/* The folder, config.json, plan.json and the log of metrics. */
enum snug_status trainer_begin_run(struct snug_trainer *trainer, struct snug_error *err);

/* save_resume.c */
/* The saved recipe, for every key that the user did not give, and the data if none was. */
enum snug_status trainer_inherit(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_save(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_resume(struct snug_trainer *trainer, struct snug_error *err);

/* run_folder.c: `out` is checked, and locked if it is there; before its first byte is written it is locked in
 * any case, all ranks come to that; at the end it is free again. */
enum snug_status trainer_claim_out(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_take_out(struct snug_trainer *trainer, struct snug_error *err);
void trainer_leave_out(struct snug_trainer *trainer);
/* With --keep, on rank 0: the checkpoint in `out` beside the last ones. */
enum snug_status trainer_keep(struct snug_trainer *trainer, struct snug_error *err);

/* rank_groups.c: to be opened when all ranks agree; closed before comm is. */
enum snug_status trainer_open_groups(struct snug_trainer *trainer, struct snug_error *err);
void trainer_close_groups(struct snug_trainer *trainer);

/* A network for images whose size nobody gave takes that of the data. */
enum snug_status trainer_fit_model(struct snug_trainer *trainer, struct snug_error *err);

/* On rank 0: what every rank planned, allocated, took and waited (trainer_report.c). */
enum snug_status trainer_gather_accounts(struct snug_trainer *t, struct snug_error *err);
/* Sets most_planned_bytes: all ranks come to it. */
enum snug_status trainer_find_fullest(struct snug_trainer *t, struct snug_error *err);
/* The plan of the fullest rank as JSON, for the caller to free; NULL: out of memory. */
char *trainer_plan_json(const struct snug_trainer *t);

#endif
