/*
 * snug.h -- train neural networks inside a memory budget; know where every byte goes before it starts.
 *
 * This is the whole public interface.  Three objects and the verbs on them:
 *
 *     snug_model    what is trained: a preset, a Hugging Face folder, or a network built by hand
 *     snug_recipe   how: batch, precision, optimizer, budget... as key = value
 *     snug_plan     where the bytes go, exact, without touching a device
 *     snug_trainer  the run: one allocation, exactly as planned, then step after step
 *
 * Rules that hold everywhere:
 *   - A function that can fail returns enum snug_status and, if `err` is not NULL, leaves one line
 *     in it that says what is wrong, where, and what to do.  The library never exits and never prints.
 *   - Strings that a function returns as `char *` belong to the caller: free them with snug_free().
 *   - Objects are not shared between threads; different objects may be used by different threads.
 *   - A model must outlive the plans and trainers made from it; a recipe is copied.
 */
#ifndef SNUG_H
#define SNUG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SNUG_VERSION_MAJOR  0
#define SNUG_VERSION_MINOR  1
#define SNUG_VERSION_PATCH  0
#define SNUG_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define SNUG_API __attribute__((visibility("default")))
#else
#define SNUG_API
#endif

/* ---- status ------------------------------------------------------------------------------ */

#define SNUG_STATUS_LIST(X)                                         \
    X(OK, 0, "done")                                                \
    X(NO_MEMORY, 1, "the host is out of memory")                    \
    X(BAD_ARGUMENT, 2, "an argument or a flag is wrong")            \
    X(BAD_PROGRAM, 3, "the program is not well formed")             \
    X(BAD_FILE, 4, "a file is missing, damaged or of another kind") \
    X(IO_ERROR, 5, "reading or writing failed")                     \
    X(OVER_BUDGET, 6, "the plan does not fit the memory budget")    \
    X(UNSUPPORTED, 7, "this build or machine cannot do that")       \
    X(DIVERGED, 8, "the loss is no longer a finite number")         \
    X(MISMATCH, 9, "two things that must agree do not")             \
    X(INTERRUPTED, 10, "stopped on request")                        \
    X(PEER_FAILED, 11, "another rank has failed, and says why")     \
    X(BUSY, 12, "another process is using it")                      \
    X(NO_DATA, 13, "the data has nothing to train on")

enum snug_status {
#define SNUG_STATUS_ENUM(name, value, text) SNUG_##name = value,
    SNUG_STATUS_LIST(SNUG_STATUS_ENUM)
#undef SNUG_STATUS_ENUM
};

struct snug_error {
    enum snug_status status;
    char message[512];
};

SNUG_API const char *snug_status_name(enum snug_status status); /* "BAD_FILE" */
SNUG_API const char *snug_status_text(enum snug_status status);
SNUG_API const char *snug_version(void); /* of the library that runs, not of this header */
SNUG_API char *snug_build_info(void);    /* version, libraries, instruction sets: several lines */
SNUG_API void snug_free(void *text);
/* Makes a name of unknown origin fit to be shown, in place, and returns it: characters that a terminal
 * obeys (control characters, U+0080 to U+009F, those that end a line or turn its direction) and bytes
 * that are not UTF-8 become '?'.  Messages and texts of this library hold names in this form only. */
SNUG_API char *snug_printable(char *text);
/* "Did you mean": of the words, the one that is fewest typing slips away, whatever its case; NULL: none is near.
 * Words that are NULL are skipped. */
SNUG_API const char *snug_nearest(const char *typed, const char *const *words, int n_words);
/* Which of the processes that mpirun has started this is, by its environment; -1: mpirun did not start it. */
SNUG_API int snug_launch_rank(void);

/* ---- models ------------------------------------------------------------------------------ */

typedef struct snug_model snug_model;

/* A preset ("gpt2"), sizes ("mlp:784-512-10", "resnet18:3x32x32,classes=10"), "psi:7.5e9", or a
 * path to a Hugging Face folder. */
SNUG_API enum snug_status snug_model_open(const char *spec, snug_model **model,
                                          struct snug_error *err);
SNUG_API void snug_model_free(snug_model *model);
SNUG_API int64_t snug_model_parameters(const snug_model *model);
/* The file or run that its weights come from; NULL: they start at random, seeded. */
SNUG_API const char *snug_model_weights(const snug_model *model);

/* A network of your own.  Build it for one sample: every input and activation has a leading batch
 * dimension that you do not write.  A tensor is a number; a negative one is an earlier mistake, and
 * whatever is built on it fails too, so check once, at snug_model_finish(). */
typedef int32_t snug_tensor;
enum snug_type { SNUG_TYPE_F32, SNUG_TYPE_I32 };
enum snug_activation { SNUG_NONE, SNUG_RELU, SNUG_GELU, SNUG_SIGMOID, SNUG_TANH };

SNUG_API snug_model *snug_model_new(const char *name); /* NULL: out of memory */
SNUG_API snug_tensor snug_input(snug_model *m, const char *name, enum snug_type type, int n_dims,
                                const int64_t *dims);
SNUG_API snug_tensor snug_linear(snug_model *m, snug_tensor x, const char *name, int64_t n_out);
SNUG_API snug_tensor snug_activate(snug_model *m, snug_tensor x, enum snug_activation fn);
SNUG_API snug_tensor snug_add(snug_model *m, snug_tensor a, snug_tensor b);
SNUG_API snug_tensor snug_layernorm(snug_model *m, snug_tensor x, const char *name);
SNUG_API snug_tensor snug_embedding(snug_model *m, snug_tensor ids, const char *name, int64_t rows,
                                    int64_t width);
/* Token rows plus learned position rows: ids [T] -> [T, width]. */
SNUG_API snug_tensor snug_embedding_with_positions(snug_model *m, snug_tensor ids, const char *name,
                                                   int64_t rows, const char *positions_name,
                                                   int64_t max_positions, int64_t width);
/* qkv [T, 3 x width], causal self-attention over `heads` heads -> [T, width]. */
SNUG_API snug_tensor snug_attention(snug_model *m, snug_tensor qkv, int64_t heads);
/* The loss is the last thing built; it adds the input "target" by itself. */
SNUG_API snug_tensor snug_cross_entropy(snug_model *m, snug_tensor logits);
SNUG_API snug_tensor snug_mean_squared_error(snug_model *m, snug_tensor output);
SNUG_API enum snug_status snug_model_finish(snug_model *m, struct snug_error *err);

/* ---- recipes ----------------------------------------------------------------------------- */

typedef struct snug_recipe snug_recipe;

SNUG_API snug_recipe *snug_recipe_new(void); /* all defaults; NULL: out of memory */
SNUG_API void snug_recipe_free(snug_recipe *recipe);
/* Keys are the long flags without dashes ("micro-batch"), values as typed on a command line. */
SNUG_API enum snug_status snug_recipe_set(snug_recipe *recipe, const char *key, const char *value,
                                          struct snug_error *err);
SNUG_API enum snug_status snug_recipe_read(snug_recipe *recipe, const char *path,
                                           struct snug_error *err);
/* Several keys in one line: "--micro-batch 4 --precision bf16" or "micro-batch=4 precision=bf16". */
SNUG_API enum snug_status snug_recipe_set_line(snug_recipe *recipe, const char *line,
                                               struct snug_error *err);
SNUG_API snug_recipe *snug_recipe_copy(const snug_recipe *recipe); /* NULL: out of memory */
SNUG_API int snug_recipe_has_key(const char *key);
SNUG_API const char *snug_recipe_key(int index); /* every key there is; NULL past the last */
SNUG_API char *snug_recipe_help(void);           /* the table of keys, values and defaults */

/* ---- plans ------------------------------------------------------------------------------- */

typedef struct snug_plan snug_plan;

struct snug_ledger { /* bytes at the moment of the peak; the six kinds add up to total */
    int64_t parameters, gradients, optimizer, activations, temporary, fragmentation, total;
    int64_t n_parameters; /* of the model */
    int64_t n_trained;    /* all of those, or the adapters beside them */
    int64_t lower_bound;  /* most bytes ever live at once: no placement can need less */
    int64_t forward_flops, recompute_flops, step_flops;
    double step_seconds; /* estimate for the declared device */
    int64_t peak_op;     /* index in the program */
    int64_t n_ops;
    int64_t budget;    /* 0: none was given */
    int64_t offloaded; /* bytes outside the device's memory: beside the total, no part of it */
    double idle_share; /* of a step: how long a stage of a pipeline waits for others; 0: none */
};

/* Plans one optimizer step.  Over budget is not an error here: see ledger.budget. */
SNUG_API enum snug_status snug_plan_make(const snug_model *model, const snug_recipe *recipe,
                                         snug_plan **plan, struct snug_error *err);
/* Of several ranks snug_plan_make plans the one that holds most; this one, any. */
SNUG_API enum snug_status snug_plan_make_rank(const snug_model *model, const snug_recipe *recipe,
                                              int rank, snug_plan **plan, struct snug_error *err);
SNUG_API int snug_plan_ranks(const snug_plan *plan);
/* Of a pipeline, the stage of this plan, with the first and the last weight that only it has; -1: the model
 * is not cut. */
SNUG_API int snug_plan_stage(const snug_plan *plan, const char **first, const char **last);
SNUG_API void snug_plan_free(snug_plan *plan);
SNUG_API void snug_plan_ledger(const snug_plan *plan, struct snug_ledger *ledger);
SNUG_API char *snug_plan_text(const snug_plan *plan,
                              int color); /* table, bars, advice; 80 columns */
SNUG_API char *snug_plan_json(const snug_plan *plan);

/* A step op by op: the bytes alive at each.  The largest total is ledger.lower_bound, at peak_op. */
struct snug_timeline_point {
    int64_t parameters, gradients, optimizer, activations, temporary, total;
    const char *op, *tensor; /* kind of the op and what it writes; live as long as the plan */
};
/* An array, to be freed with snug_free(). */
SNUG_API enum snug_status snug_plan_timeline(const snug_plan *plan,
                                             struct snug_timeline_point **points, int64_t *n_points,
                                             struct snug_error *err);
SNUG_API char *snug_plan_timeline_text(const snug_plan *plan, int color); /* a chart; 80 columns */
SNUG_API char *snug_plan_timeline_json(const snug_plan *plan); /* the plan's with "timeline" */
/* Plans of one model side by side, each with the name of its recipe ("" for none). */
SNUG_API char *snug_compare_text(const snug_plan *const *plans, const char *const *names,
                                 int n_plans, int color);
SNUG_API char *snug_compare_json(const snug_plan *const *plans, const char *const *names,
                                 int n_plans);

/* SNUG_OVER_BUDGET and a line with the nearest configuration that fits, or SNUG_OK. */
SNUG_API enum snug_status snug_plan_check_budget(const snug_plan *plan, struct snug_error *err);
/* ---- the fastest recipe inside a budget --------------------------------------------------- */

typedef struct snug_fit snug_fit;

struct snug_fit_point { /* of the frontier: nothing faster, by a thousandth, needs less */
    const char *flags; /* what it changes in the recipe, "" for nothing; lives as long as the fit */
    int64_t total;     /* bytes of its plan */
    double step_seconds;
    int fits, is_chosen;
};

/* Searches micro-batch, checkpointing, place of the update and offload for the fastest recipe whose
 * plan and runtime are within the recipe's memory; keys that are set stay.  allow: "state-bits,master,
 * lora" or "all", keys that change what is learned and are changed only as far as nothing else fits;
 * NULL: none.  The frontier is what is near the choice.  SNUG_OVER_BUDGET: nothing fits, the
 * line names the smallest, and *fit is there for its frontier; after other failures it is NULL. */
SNUG_API enum snug_status snug_fit_make(const snug_model *model, const snug_recipe *recipe,
                                        const char *allow, snug_fit **fit, struct snug_error *err);
/* Completes the frontier; takes longer than the search.  After a failure only free it. */
SNUG_API enum snug_status snug_fit_sweep(snug_fit *fit, struct snug_error *err);
SNUG_API void snug_fit_free(snug_fit *fit);
SNUG_API const snug_recipe *snug_fit_recipe(const snug_fit *fit); /* NULL: nothing fits */
SNUG_API char *snug_fit_command(const snug_fit *fit); /* "snug train MODEL --..."; as above */
SNUG_API int snug_fit_n_points(const snug_fit *fit);
SNUG_API void snug_fit_point(const snug_fit *fit, int index, struct snug_fit_point *point);
/* The recipe as a command, the frontier (all of it, or near the choice), why its neighbours lost. */
SNUG_API char *snug_fit_text(const snug_fit *fit, int whole_frontier, int color);
SNUG_API char *snug_fit_json(const snug_fit *fit);

/* The program in text after the named pass ("model" before any, "last" after all).  "kernels": a line for each op
 * with the kernel that runs it and the bytes of its workspace. */
SNUG_API enum snug_status snug_dump(const snug_model *model, const snug_recipe *recipe,
                                    const char *after_pass, char **text, struct snug_error *err);

/* ---- training ---------------------------------------------------------------------------- */

typedef struct snug_trainer snug_trainer;

/* Later versions add fields at the end; 0 or NULL in a field means the default, so set what you need and leave
 * the rest 0: struct snug_train_options options = {.steps = 100}; */
struct snug_train_options {
    const char *data; /* NULL: random; text only for 256 tokens or fewer, or tokenizer=bytes */
    const char *out;  /* NULL: nothing is saved */
    int64_t steps;    /* 0: by epochs; both 0: 100 steps */
    double epochs;
    int64_t eval_every;   /* 0: at the end only; negative: never */
    int64_t eval_batches; /* of --batch; 0: all held-out data, of text at most 131,072 tokens */
    int64_t save_every;   /* 0: at the end only */
    int64_t keep;         /* this many checkpoints stay, in OUT/checkpoints/step-000020; 0: none */
    int resume;           /* continue the run in `out` */
    int weights_only;     /* with resume: the optimizer's state begins anew */
};

struct snug_metrics {              /* one step */
    int64_t step, n_steps, tokens; /* step counts from 1; tokens (or samples) of this step */
    double loss, lr, grad_norm, ms, per_second;
    int skipped; /* fp16 overflow: no update was made */
    int has_validation, has_accuracy, saved;
    double val_loss, val_accuracy;
};

/* Under mpirun, on rank 0 after a run: the bytes are those of the rank that allocated most, and among
 * equals of the one with the highest peak. */
struct snug_summary {
    int64_t steps, planned_bytes, allocated_bytes, runtime_bytes, measured_peak_bytes;
    double loss, per_second;
    const char *unit; /* "tokens" or "samples" */
};

/* Called after every step.  Return 0 to go on, anything else to save and stop. */
typedef int snug_progress_fn(const struct snug_metrics *metrics, void *user);

enum snug_activity { SNUG_STEP, SNUG_SAVE, SNUG_EVALUATION };
struct snug_doing { /* what goes on right now */
    enum snug_activity activity;
    int64_t step, n_steps; /* of the run; 0 in snug_eval_watched */
    int64_t saved_step;    /* of the checkpoint in options.out; negative: there is none */
    int64_t done, total;   /* of an evaluation: samples or sequences */
};
/* Called before every step and every save, and often during an evaluation.  Return 0 to go on; anything else
 * abandons the evaluation at once (and the run then saves and stops), and means nothing elsewhere. */
typedef int snug_watch_fn(const struct snug_doing *doing, void *user);

/* What snug_trainer_open calls: options_bytes is the size of the struct that the caller was compiled with.  A
 * program built with an older snug.h passes a smaller one and gets the defaults of the newer fields; one
 * built with a newer snug.h gets SNUG_UNSUPPORTED only if it sets a field that this library does not know. */
SNUG_API enum snug_status snug_trainer_open_sized(const snug_model *model,
                                                  const snug_recipe *recipe,
                                                  const struct snug_train_options *options,
                                                  size_t options_bytes, snug_trainer **trainer,
                                                  struct snug_error *err);
/* Refuses (SNUG_OVER_BUDGET) before a byte of the plan is allocated. */
static inline enum snug_status snug_trainer_open(const snug_model *model, const snug_recipe *recipe,
                                                 const struct snug_train_options *options,
                                                 snug_trainer **trainer, struct snug_error *err)
{
    return snug_trainer_open_sized(model, recipe, options, sizeof *options, trainer, err);
}
/* Model, data, recipe and plan in a few lines: what is about to happen. */
SNUG_API char *snug_trainer_describe(const snug_trainer *trainer);
/* What the user may not expect of this run, a line each; empty: nothing.  NULL: out of memory. */
SNUG_API char *snug_trainer_notes(const snug_trainer *trainer);
/* Under mpirun: which of how many processes this is.  All of them make the same calls; one, rank 0, has
 * something to show. */
SNUG_API int snug_trainer_rank(const snug_trainer *trainer);
SNUG_API int snug_trainer_ranks(const snug_trainer *trainer);
/* On rank 0 after a run: what each rank planned and allocated.  0: not known. */
SNUG_API int snug_trainer_rank_bytes(const snug_trainer *trainer, int rank, int64_t *planned,
                                     int64_t *allocated);
/* The same for what was measured: runtime beside the plan, and the peak of both together. */
SNUG_API int snug_trainer_rank_measured(const snug_trainer *trainer, int rank, int64_t *runtime,
                                        int64_t *peak);
/* With --device cuda: the GPU of a rank, by its number in its machine, and which way ranks exchange, in a
 * line.  -1, NULL: not on GPUs, or alone. */
SNUG_API int snug_trainer_rank_gpu(const snug_trainer *trainer, int rank);
SNUG_API const char *snug_trainer_transport(const snug_trainer *trainer);
/* The same for time: of all steps, and of that what it has waited for others. */
SNUG_API int snug_trainer_rank_seconds(const snug_trainer *trainer, int rank, double *seconds,
                                       double *waited);
/* SNUG_INTERRUPTED: stopped on request before the last step, or in the evaluation after it. */
SNUG_API enum snug_status snug_trainer_run(snug_trainer *trainer, snug_progress_fn *progress,
                                           void *user, struct snug_error *err);
SNUG_API void snug_trainer_watch(snug_trainer *trainer, snug_watch_fn *watch, void *user);
SNUG_API void snug_trainer_summary(const snug_trainer *trainer, struct snug_summary *summary);
SNUG_API void snug_trainer_free(snug_trainer *trainer);
/* For a rank that will not make the calls that the others make: they find out, and snug_trainer_free does not
 * wait for them. */
SNUG_API void snug_trainer_abandon(snug_trainer *trainer);
/* For a rank that fails before it comes to snug_trainer_open: the others, who wait for it there, find
 * out.  Nothing where this process is the only one. */
SNUG_API void snug_ranks_abandon(void);

/* Step by step, with data of your own (open with options.data = "none").  `inputs` has one pointer
 * per model input in the order they were built, target last: a whole batch each, float or int32. */
SNUG_API enum snug_status snug_trainer_step(snug_trainer *trainer, const void *const *inputs,
                                            struct snug_metrics *metrics, struct snug_error *err);
/* Writes a checkpoint of the run in options.out now.  Of several ranks all come to it, and to each step; one
 * that fails ends the others. */
SNUG_API enum snug_status snug_trainer_save(snug_trainer *trainer, struct snug_error *err);
/* Copies a weight, an optimizer state or an output of the last step out as floats. */
SNUG_API enum snug_status snug_trainer_read(snug_trainer *trainer, const char *tensor,
                                            float *values, int64_t n_values,
                                            struct snug_error *err);

/* ---- after training ---------------------------------------------------------------------- */

struct snug_eval_result {
    int64_t n; /* tokens or samples seen */
    double loss, perplexity, accuracy;
    int has_accuracy;
};
SNUG_API enum snug_status snug_eval(const char *run, const char *data, const snug_recipe *recipe,
                                    struct snug_eval_result *result, struct snug_error *err);
/* The same; `watch` hears of it, and can abandon it: SNUG_INTERRUPTED. */
SNUG_API enum snug_status snug_eval_watched(const char *run, const char *data,
                                            const snug_recipe *recipe, snug_watch_fn *watch,
                                            void *user, struct snug_eval_result *result,
                                            struct snug_error *err);

struct snug_generate_options {
    const char *prompt;
    int64_t n_tokens;   /* how many to sample */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* 0: all */
    uint64_t seed;
};
/* Called with each piece of text as it is sampled; return nonzero to stop. */
typedef int snug_text_fn(const char *text, size_t length, void *user);
SNUG_API enum snug_status snug_generate(const char *run,
                                        const struct snug_generate_options *options,
                                        const snug_recipe *recipe, snug_text_fn *emit, void *user,
                                        struct snug_error *err);
/* What is in a checkpoint, a metrics.jsonl, a safetensors file or a data file. */
SNUG_API enum snug_status snug_inspect(const char *path, char **text, struct snug_error *err);
/* what "cpu": the limits of this machine, kernels of the model alone, then a step of it op by op, each
 * beside its limit; tables, or one JSON object.  model NULL: gpt-nano, and the rates of ops that plans
 * are timed by are measured and, unless the machine was busy, kept in $XDG_CACHE_HOME/snug/rates.json (or ~/.cache). */
SNUG_API enum snug_status snug_bench(const char *what, const snug_model *model,
                                     const snug_recipe *recipe, int as_json, char **text,
                                     struct snug_error *err);
/* Downloads a named data set ("fashion-mnist", "cifar-10") with the program curl, checks it against
 * the published md5 and says each thing it does in a line.  folder NULL: where the name is looked for;
 * from NULL: the publisher's address. */
typedef void snug_say_fn(const char *line, void *user);
SNUG_API enum snug_status snug_data_fetch(const char *name, const char *folder, const char *from,
                                          snug_say_fn *say, void *user, struct snug_error *err);
/* "models", "optimizers" or "data-sets": a line for each, its name and what it is. */
SNUG_API char *snug_list(const char *what);
SNUG_API char *snug_ops_table(void); /* every op: reference, cpu, cuda, gradient */

#ifdef __cplusplus
}
#endif
#endif
