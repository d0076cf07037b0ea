/*
 * trainer.h -- a training run: compiled step, executor, data, step counter and evaluation.
 */
#ifndef SNUG_TRAIN_TRAINER_H
#define SNUG_TRAIN_TRAINER_H

#include "checkpoint/rank_parts.h"
#include "comm/comm.h"
#include "io/metrics.h"
#include "checkpoint/run_lock.h"
#include "ir/collective_options.h"
#include "train/evaluator.h"

struct rank_account {
    int64_t planned_bytes, allocated_bytes;
    int64_t runtime_bytes, peak_bytes; /* measured: outside the arena, and the peak of everything */
    double seconds, waited_seconds;
};

struct snug_trainer {
    const snug_model *model; /* borrowed, or `fitted` */
    snug_model fitted;       /* the model with the image size of the data */
    snug_recipe recipe;
    struct snug_train_options options;
    char *data_spec, *out;
    struct compiled_step compiled;
    struct exec *exec;
    struct input_spec input_spec;
    struct data *data; /* NULL: the caller feeds the steps */
    struct evaluator evaluator;
    bool can_evaluate;
    struct compiled_step averages; /* computes the weight averages, which are saved instead */
    struct exec *averages_exec;    /* NULL: the weights themselves are saved */
    snug_watch_fn *watch;          /* may be NULL */
    void *watch_user;
    struct run_lock *lock; /* of `out`, on rank 0 */
    bool made_out;         /* this process created the folder */
    struct metrics *metrics;
    int64_t step, n_steps, first_step; /* steps done; the goal; where this process started */
    const void *const *given;          /* the caller's inputs of the current step */
    double loss, seconds;
    int64_t runtime_bytes;
    int64_t most_planned_bytes;             /* the largest plan of any rank */
    int64_t saved_step;                     /* -1 if never saved */
    struct comm *comm;                      /* the ranks of this run; never NULL */
    struct comm *groups[COLLECTIVE_GROUPS]; /* with a pipeline: groups of them */
    struct rank_state rank_state;           /* this rank's, for saving */
    bool failed;                            /* other ranks may have ended: do not wait for them */
    /* On rank 0 after a run: what each rank planned, allocated and measured, and its times. */
    struct rank_account *accounts;
};

/* run_begin.c */
/* Before anything is compiled: may --out be written to, and is there a checkpoint to resume? */
enum snug_status trainer_check_out(const struct snug_trainer *trainer, struct snug_error *err);
/* Creates the folder, config.json, plan.json and metrics.jsonl. */
enum snug_status trainer_begin_run(struct snug_trainer *trainer, struct snug_error *err);

/* save_resume.c */
/* Takes the saved recipe for every key that the user did not give, and the data if none was
 * given. */
enum snug_status trainer_inherit(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_save(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_resume(struct snug_trainer *trainer, struct snug_error *err);

/* run_folder.c: claim checks `out` and locks it if it exists.  take, which is collective, makes
 * sure it is locked before the first byte is written.  leave releases the lock. */
enum snug_status trainer_claim_out(struct snug_trainer *trainer, struct snug_error *err);
enum snug_status trainer_take_out(struct snug_trainer *trainer, struct snug_error *err);
void trainer_leave_out(struct snug_trainer *trainer);
/* With --keep, on rank 0: keeps a copy of the checkpoint in `out` and deletes the oldest copies. */
enum snug_status trainer_keep(struct snug_trainer *trainer, struct snug_error *err);

/* rank_groups.c: open after trainer_agree, close before comm. */
enum snug_status trainer_open_groups(struct snug_trainer *trainer, struct snug_error *err);
void trainer_close_groups(struct snug_trainer *trainer);

/* batches.c: fills the inputs of a micro-batch, an exec_feed. */
enum snug_status trainer_feed(void *trainer, int micro, struct snug_error *err);
/* Asks all ranks whether to go on.  The samples of the next step are checked here, while all
 * weights are those of a finished step and can be saved: *is_bad if any rank cannot read its own,
 * *why if this one cannot.  Collective. */
enum snug_status trainer_agree_to_go_on(struct snug_trainer *t, bool *stop, bool *is_bad,
                                        struct snug_error *why, struct snug_error *err);

/* trainer.c: sets the image size of a vision model from the data, unless the user gave one. */
enum snug_status trainer_fit_model(struct snug_trainer *trainer, struct snug_error *err);

/* trainer_report.c: collects every rank's account on rank 0.  Collective. */
enum snug_status trainer_gather_accounts(struct snug_trainer *t, struct snug_error *err);
/* Sets most_planned_bytes.  Collective. */
enum snug_status trainer_find_fullest(struct snug_trainer *t, struct snug_error *err);
/* The largest plan of any rank as JSON, for the caller to free; NULL if out of memory. */
char *trainer_plan_json(const struct snug_trainer *t);

#endif
