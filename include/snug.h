/*
 * snug.h -- train neural networks inside a memory budget, and know where every byte goes before the
 * first step.
 *
 * This is the whole public interface.  The main objects:
 *
 *     snug_model    what to train: a preset, a Hugging Face folder, or a network built by hand
 *     snug_recipe   how to train it: batch, precision, optimizer, budget... as key = value
 *     snug_plan     where the bytes go, exactly, computed without a device
 *     snug_fit      the fastest recipe inside a budget
 *     snug_trainer  a run: one allocation of exactly the planned size, then the training steps
 *
 * Rules for every function:
 *   - A function that can fail returns enum snug_status.  If `err` is not NULL, it gets one line
 *     that says what is wrong, where, and what to do.  The library never exits and never prints.
 *   - The caller owns a string returned as `char *` and frees it with snug_free().
 *   - One object must not be used by two threads at the same time.  Different threads may use
 *     different objects.
 *   - A model must outlive the plans, fits and trainers created from it.  A recipe is copied.
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
/* src/base/status.c; snug_printable: src/base/text.c; the others: src/api/info_api.c */

#define SNUG_STATUS_LIST(X)                                                 \
    X(OK, 0, "done")                                                        \
    X(NO_MEMORY, 1, "the host is out of memory")                            \
    X(BAD_ARGUMENT, 2, "an argument or a flag is wrong")                    \
    X(BAD_PROGRAM, 3, "the program is not well formed")                     \
    X(BAD_FILE, 4, "a file is missing, damaged or of the wrong type")       \
    X(IO_ERROR, 5, "reading or writing failed")                             \
    X(OVER_BUDGET, 6, "the plan does not fit the memory budget")            \
    X(UNSUPPORTED, 7, "this build or machine cannot do that")               \
    X(DIVERGED, 8, "the loss is no longer finite")                          \
    X(MISMATCH, 9, "model, recipe, data, checkpoint or ranks do not match") \
    X(INTERRUPTED, 10, "stopped on request")                                \
    X(PEER_FAILED, 11, "another rank failed; see its message")              \
    X(BUSY, 12, "another process is training in the run folder")            \
    X(NO_DATA, 13, "the data set is empty or too small for one batch or sequence")

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
SNUG_API const char *snug_version(void); /* of the linked library, not of this header */
SNUG_API char *snug_build_info(void);    /* version, libraries, instruction sets: several lines */
SNUG_API void snug_free(void *text);
/* Makes untrusted text safe to print, in place, and returns it.  Control characters (U+0000 to
 * U+001F, U+007F to U+009F), line and paragraph separators, bidirectional controls and invalid
 * UTF-8 become '?'.  Names in this library's messages and texts are already in this form. */
SNUG_API char *snug_printable(char *text);
/* For "did you mean": returns the word with the smallest edit distance to `typed`, ignoring case,
 * or NULL if no word is close.  NULL words are skipped. */
SNUG_API const char *snug_nearest(const char *typed, const char *const *words, int n_words);
/* The rank of this process according to the environment that mpirun or srun set, or -1 if no
 * launcher started it. */
SNUG_API int snug_launch_rank(void);

/* ---- models ------------------------------------------------------------------------------ */
/* src/api/model_api.c; the builder and snug_model_free: src/model/custom.c */

typedef struct snug_model snug_model;

/* A preset ("gpt2"), sizes ("mlp:784-512-10", "resnet18:3x32x32,classes=10"), "psi:7.5e9", or a
 * path to a Hugging Face folder. */
SNUG_API enum snug_status snug_model_open(const char *spec, snug_model **model,
                                          struct snug_error *err);
SNUG_API void snug_model_free(snug_model *model);
SNUG_API int64_t snug_model_parameters(const snug_model *model);
/* The folder or run that the initial weights come from, or NULL for random weights from --seed. */
SNUG_API const char *snug_model_weights(const snug_model *model);

/* Building your own network.  Write the shapes of one sample: every input and activation gets a
 * leading batch dimension.  A snug_tensor is an id.  A negative id marks an earlier error, and
 * every call that takes it fails too, so one check in snug_model_finish() is enough. */
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
/* Token embeddings plus learned position embeddings: ids [T] -> [T, width]. */
SNUG_API snug_tensor snug_embedding_with_positions(snug_model *m, snug_tensor ids, const char *name,
                                                   int64_t rows, const char *positions_name,
                                                   int64_t max_positions, int64_t width);
/* Causal self-attention with `heads` heads: qkv [T, 3 x width] -> [T, width]. */
SNUG_API snug_tensor snug_attention(snug_model *m, snug_tensor qkv, int64_t heads);
/* Build the loss last.  It adds the input "target". */
SNUG_API snug_tensor snug_cross_entropy(snug_model *m, snug_tensor logits);
SNUG_API snug_tensor snug_mean_squared_error(snug_model *m, snug_tensor output);
SNUG_API enum snug_status snug_model_finish(snug_model *m, struct snug_error *err);

/* ---- recipes ----------------------------------------------------------------------------- */
/* src/recipe/recipe.c, recipe_values.c (new, free, copy), recipe_file.c, recipe_line.c */

typedef struct snug_recipe snug_recipe;

SNUG_API snug_recipe *snug_recipe_new(void); /* all defaults; NULL: out of memory */
SNUG_API void snug_recipe_free(snug_recipe *recipe);
/* A key is a long flag without its dashes ("micro-batch").  A value is written as on the command
 * line. */
SNUG_API enum snug_status snug_recipe_set(snug_recipe *recipe, const char *key, const char *value,
                                          struct snug_error *err);
SNUG_API enum snug_status snug_recipe_read(snug_recipe *recipe, const char *path,
                                           struct snug_error *err);
/* Several keys in one line: "--micro-batch 4 --zero 2" or "micro-batch=4 zero=2". */
SNUG_API enum snug_status snug_recipe_set_line(snug_recipe *recipe, const char *line,
                                               struct snug_error *err);
SNUG_API snug_recipe *snug_recipe_copy(const snug_recipe *recipe); /* NULL: out of memory */
SNUG_API int snug_recipe_has_key(const char *key);
SNUG_API const char *snug_recipe_key(int index); /* the index-th key; NULL past the last */
SNUG_API char *snug_recipe_help(void);           /* a table of keys, values and defaults */

/* ---- plans ------------------------------------------------------------------------------- */
/* src/api/plan_api.c */

typedef struct snug_plan snug_plan;

struct snug_ledger { /* bytes at the peak; the six kinds add up to total */
    int64_t parameters, gradients, optimizer, activations, temporary, fragmentation, total;
    int64_t n_parameters; /* of the model */
    int64_t n_trained;    /* the same, or with LoRA the parameters of the adapters */
    int64_t lower_bound;  /* most bytes live at once: no placement can use less */
    int64_t forward_flops, recompute_flops, step_flops;
    double step_seconds; /* estimate for --target */
    int64_t peak_op;     /* index of the op in the program */
    int64_t n_ops;
    int64_t budget;    /* 0: no budget */
    int64_t offloaded; /* bytes outside the device's memory; not part of total */
    double
        idle_share; /* pipeline bubble: fraction of a step that a stage is idle; 0: no pipeline */
};

/* Plans one optimizer step, with several ranks the step of the rank with the highest peak.  A plan
 * over budget is not an error here: see snug_plan_check_budget. */
SNUG_API enum snug_status snug_plan_make(const snug_model *model, const snug_recipe *recipe,
                                         snug_plan **plan, struct snug_error *err);
/* Plans the step of the given rank. */
SNUG_API enum snug_status snug_plan_make_rank(const snug_model *model, const snug_recipe *recipe,
                                              int rank, snug_plan **plan, struct snug_error *err);
SNUG_API int snug_plan_ranks(const snug_plan *plan);
/* The pipeline stage of this plan, with the names of its first and last weight, or -1 without a
 * pipeline.  Weights shared with the first stage are reported only there. */
SNUG_API int snug_plan_stage(const snug_plan *plan, const char **first, const char **last);
SNUG_API void snug_plan_free(snug_plan *plan);
SNUG_API void snug_plan_ledger(const snug_plan *plan, struct snug_ledger *ledger);
SNUG_API char *snug_plan_text(const snug_plan *plan,
                              int color); /* table, bars, advice; 80 columns */
SNUG_API char *snug_plan_json(const snug_plan *plan);

/* One timeline point per op: the bytes live while it runs.  The largest total is
 * ledger.lower_bound, at ledger.peak_op. */
struct snug_timeline_point {
    int64_t parameters, gradients, optimizer, activations, temporary, total;
    const char *op, *tensor; /* op kind and output tensor; valid as long as the plan */
};
/* Returns an array that the caller frees with snug_free(). */
SNUG_API enum snug_status snug_plan_timeline(const snug_plan *plan,
                                             struct snug_timeline_point **points, int64_t *n_points,
                                             struct snug_error *err);
SNUG_API char *snug_plan_timeline_text(const snug_plan *plan, int color); /* a chart; 80 columns */
/* The same JSON as snug_plan_json, with a "timeline" array. */
SNUG_API char *snug_plan_timeline_json(const snug_plan *plan);
/* Compares plans of one model side by side.  names[i] is the recipe of plans[i], "" for the base
 * recipe. */
SNUG_API char *snug_compare_text(const snug_plan *const *plans, const char *const *names,
                                 int n_plans, int color);
SNUG_API char *snug_compare_json(const snug_plan *const *plans, const char *const *names,
                                 int n_plans);

/* Returns SNUG_OK, or SNUG_OVER_BUDGET with a message that suggests a recipe that fits. */
SNUG_API enum snug_status snug_plan_check_budget(const snug_plan *plan, struct snug_error *err);

/* ---- the fastest recipe inside a budget --------------------------------------------------- */
/* src/api/fit_api.c; snug_dump: src/api/plan_api.c */

typedef struct snug_fit snug_fit;

struct snug_fit_point { /* Pareto-optimal in memory and time (times within 0.1% count as equal) */
    const char *flags;  /* changes to the recipe, "" for none; valid as long as the fit */
    int64_t total;      /* bytes of the plan */
    double step_seconds;
    int fits, is_chosen;
};

/* Searches micro-batch, checkpoint, update and offload for the fastest recipe whose plan and
 * runtime memory fit the recipe's budget.  Keys that the recipe sets are not changed.  `allow`
 * lists keys that the search may change although they change the training result:
 * "state-bits,master,lora,lora-base", "all", or NULL for none.  The frontier has only the points
 * near the choice; snug_fit_sweep adds the others.  On SNUG_OVER_BUDGET nothing fits: the message
 * names the smallest recipe, and *fit is valid for its frontier.  After any other failure *fit is
 * NULL. */
SNUG_API enum snug_status snug_fit_make(const snug_model *model, const snug_recipe *recipe,
                                        const char *allow, snug_fit **fit, struct snug_error *err);
/* Completes the frontier, which takes longer than the search.  After a failure the fit can only be
 * freed. */
SNUG_API enum snug_status snug_fit_sweep(snug_fit *fit, struct snug_error *err);
SNUG_API void snug_fit_free(snug_fit *fit);
SNUG_API const snug_recipe *snug_fit_recipe(const snug_fit *fit); /* NULL: nothing fits */
SNUG_API char *snug_fit_command(const snug_fit *fit); /* "snug train MODEL --..."; or NULL */
SNUG_API int snug_fit_n_points(const snug_fit *fit);
SNUG_API void snug_fit_point(const snug_fit *fit, int index, struct snug_fit_point *point);
/* The recipe as a command, the frontier (all of it, or near the choice), and why recipes near the
 * choice lost. */
SNUG_API char *snug_fit_text(const snug_fit *fit, int whole_frontier, int color);
SNUG_API char *snug_fit_json(const snug_fit *fit);

/* Sets *text to the program after the named pass: "model" is before any pass, "last" after all of
 * them.  "kernels" gives one line per op instead, with its kernel and the bytes of its
 * workspace. */
SNUG_API enum snug_status snug_dump(const snug_model *model, const snug_recipe *recipe,
                                    const char *after_pass, char **text, struct snug_error *err);

/* ---- training ---------------------------------------------------------------------------- */
/* src/train/trainer.c; results and descriptions: src/train/trainer_report.c; snug_ranks_abandon:
 * src/api/info_api.c */

typedef struct snug_trainer snug_trainer;

/* 0 or NULL in a field is its default, so set only what you need:
 * struct snug_train_options options = {.steps = 100};
 * Later versions add fields at the end. */
struct snug_train_options {
    const char *data; /* NULL: random; text needs a vocabulary <= 256 or tokenizer=bytes */
    const char *out;  /* folder of the run; NULL: do not save */
    int64_t steps;    /* 0: use epochs; both 0: 100 steps */
    double epochs;
    int64_t eval_every;   /* in steps; 0: only at the end; negative: never */
    int64_t eval_batches; /* per evaluation; 0: all held-out data, at most 131,072 tokens of text */
    int64_t save_every;   /* in steps; 0: only at the end */
    int64_t keep;     /* number of checkpoints to keep, as OUT/checkpoints/step-000020; 0: none */
    int resume;       /* continue the run in `out` */
    int weights_only; /* with resume: reset the optimizer state */
};

struct snug_metrics {              /* one step */
    int64_t step, n_steps, tokens; /* step starts at 1; tokens (or samples) in this step */
    double loss, lr, grad_norm, ms, per_second;
    int skipped; /* fp16 overflow: the update was skipped */
    int has_validation, has_accuracy, saved;
    double val_loss, val_accuracy;
};

/* With several ranks, after a run, rank 0 reports the bytes of the rank that allocated most memory;
 * of several such ranks, the one with the highest measured peak. */
struct snug_summary {
    int64_t steps, planned_bytes, allocated_bytes, runtime_bytes, measured_peak_bytes;
    double loss, per_second;
    const char *unit; /* "tokens" or "samples" */
};

/* Called after every step.  Return 0 to continue, nonzero to save and stop. */
typedef int snug_progress_fn(const struct snug_metrics *metrics, void *user);

enum snug_activity { SNUG_STEP, SNUG_SAVE, SNUG_EVALUATION };
struct snug_doing { /* what the library is doing now */
    enum snug_activity activity;
    int64_t step, n_steps; /* of the run; 0 in snug_eval_watched */
    int64_t saved_step;    /* step of the checkpoint in options.out; negative: no checkpoint */
    int64_t done, total;   /* samples or sequences, during an evaluation */
};
/* Called before every step and every save, and often during an evaluation.  Return 0 to continue.
 * Nonzero during an evaluation cancels it at once, and a run then saves and stops; elsewhere the
 * return value is ignored. */
typedef int snug_watch_fn(const struct snug_doing *doing, void *user);

/* Called by snug_trainer_open; options_bytes is the size of the struct that the caller was compiled
 * with.  A program built with an older snug.h passes a smaller struct and gets the defaults for
 * newer fields.  A program built with a newer snug.h gets SNUG_UNSUPPORTED only if it sets a field
 * that this library does not know. */
SNUG_API enum snug_status snug_trainer_open_sized(const snug_model *model,
                                                  const snug_recipe *recipe,
                                                  const struct snug_train_options *options,
                                                  size_t options_bytes, snug_trainer **trainer,
                                                  struct snug_error *err);
/* Plans the run and allocates its memory.  If the plan is over the budget, returns SNUG_OVER_BUDGET
 * and allocates none of it. */
static inline enum snug_status snug_trainer_open(const snug_model *model, const snug_recipe *recipe,
                                                 const struct snug_train_options *options,
                                                 snug_trainer **trainer, struct snug_error *err)
{
    return snug_trainer_open_sized(model, recipe, options, sizeof *options, trainer, err);
}
/* A header of a few lines for the run: model, data, recipe, plan. */
SNUG_API char *snug_trainer_describe(const snug_trainer *trainer);
/* Notes about unexpected properties of this run, one per line; "" if there are none.  NULL: out of
 * memory. */
SNUG_API char *snug_trainer_notes(const snug_trainer *trainer);
/* This process's rank and the number of ranks (0 and 1 without mpirun).  All ranks make the same
 * calls; only rank 0 has results to show. */
SNUG_API int snug_trainer_rank(const snug_trainer *trainer);
SNUG_API int snug_trainer_ranks(const snug_trainer *trainer);
/* On rank 0 after a run: the bytes that a rank planned and allocated.  Returns 1, or 0 if they are
 * not known. */
SNUG_API int snug_trainer_rank_bytes(const snug_trainer *trainer, int rank, int64_t *planned,
                                     int64_t *allocated);
/* The same for the measured bytes: runtime memory on top of the plan, and the peak of both. */
SNUG_API int snug_trainer_rank_measured(const snug_trainer *trainer, int rank, int64_t *runtime,
                                        int64_t *peak);
/* With --device cuda and several ranks: the index of a rank's GPU on its machine, and one line that
 * describes the transport between ranks.  Otherwise -1 and NULL. */
SNUG_API int snug_trainer_rank_gpu(const snug_trainer *trainer, int rank);
SNUG_API const char *snug_trainer_transport(const snug_trainer *trainer);
/* On rank 0 after a run: the seconds that a rank spent in all steps, and the part of them that it
 * waited for other ranks.  Returns 1, or 0 if they are not known. */
SNUG_API int snug_trainer_rank_seconds(const snug_trainer *trainer, int rank, double *seconds,
                                       double *waited);
/* Trains until the last step.  SNUG_INTERRUPTED: a callback stopped the run before the last step or
 * during the evaluation after it. */
SNUG_API enum snug_status snug_trainer_run(snug_trainer *trainer, snug_progress_fn *progress,
                                           void *user, struct snug_error *err);
SNUG_API void snug_trainer_watch(snug_trainer *trainer, snug_watch_fn *watch, void *user);
SNUG_API void snug_trainer_summary(const snug_trainer *trainer, struct snug_summary *summary);
SNUG_API void snug_trainer_free(snug_trainer *trainer);
/* Call this on a rank that will not make the calls that its peers make.  The peers then fail, and
 * snug_trainer_free does not wait for them. */
SNUG_API void snug_trainer_abandon(snug_trainer *trainer);
/* Call this on a rank that fails before snug_trainer_open, so that its peers, which wait for it
 * there, fail too.  Does nothing in a run of one process. */
SNUG_API void snug_ranks_abandon(void);

/* Trains one step on your own data; open the trainer with options.data = "none".  `inputs` has one
 * pointer per model input, in the order they were built, target last.  Each points to a whole batch
 * of float or int32. */
SNUG_API enum snug_status snug_trainer_step(snug_trainer *trainer, const void *const *inputs,
                                            struct snug_metrics *metrics, struct snug_error *err);
/* Writes a checkpoint to options.out now.  All ranks must call it, as they must call each step; if
 * one fails, its peers fail too. */
SNUG_API enum snug_status snug_trainer_save(snug_trainer *trainer, struct snug_error *err);
/* Copies a weight, an optimizer state or an output of the last step, converted to float. */
SNUG_API enum snug_status snug_trainer_read(snug_trainer *trainer, const char *tensor,
                                            float *values, int64_t n_values,
                                            struct snug_error *err);

/* ---- after training ---------------------------------------------------------------------- */
/* src/api/eval_api.c, generate_api.c, info_api.c, bench_api.c, data_api.c */

struct snug_eval_result {
    int64_t n; /* tokens or samples evaluated */
    double loss, perplexity, accuracy;
    int has_accuracy;
};
SNUG_API enum snug_status snug_eval(const char *run, const char *data, const snug_recipe *recipe,
                                    struct snug_eval_result *result, struct snug_error *err);
/* The same with a callback for progress, which can cancel the evaluation: SNUG_INTERRUPTED. */
SNUG_API enum snug_status snug_eval_watched(const char *run, const char *data,
                                            const snug_recipe *recipe, snug_watch_fn *watch,
                                            void *user, struct snug_eval_result *result,
                                            struct snug_error *err);

struct snug_generate_options {
    const char *prompt;
    int64_t n_tokens;   /* to sample */
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: the whole vocabulary */
    uint64_t seed;
};
/* Called with each piece of text as it is sampled; return nonzero to stop. */
typedef int snug_text_fn(const char *text, size_t length, void *user);
SNUG_API enum snug_status snug_generate(const char *run,
                                        const struct snug_generate_options *options,
                                        const snug_recipe *recipe, snug_text_fn *emit, void *user,
                                        struct snug_error *err);

/* ---- tokenizers -------------------------------------------------------------------------- */
/* src/api/token_api.c */

typedef struct snug_tokenizer snug_tokenizer;
/* path: a tokenizer.json, or a folder with one or with the two files of GPT-2 (vocab.json or
 * encoder.json, and merges.txt or vocab.bpe).  threads 0: all cores. */
SNUG_API enum snug_status snug_tokenizer_open(const char *path, int threads,
                                              snug_tokenizer **tokenizer, struct snug_error *err);
SNUG_API void snug_tokenizer_free(snug_tokenizer *tokenizer);
SNUG_API int64_t snug_tokenizer_size(const snug_tokenizer *tokenizer); /* the largest id + 1 */
/* Encodes n texts of any bytes.  The caller frees *ids with snug_free; ends[i] is where the ids of
 * text i end in it.  If parse_special is 0, special tokens in the texts are ordinary characters. */
SNUG_API enum snug_status snug_tokenizer_encode(snug_tokenizer *tokenizer, const char *const *texts,
                                                const size_t *lengths, int n, int parse_special,
                                                int32_t **ids, size_t *ends,
                                                struct snug_error *err);
/* The text of n ids: *length bytes and a NUL.  The caller frees *text with snug_free. */
SNUG_API enum snug_status snug_tokenizer_decode(const snug_tokenizer *tokenizer, const int32_t *ids,
                                                size_t n, char **text, size_t *length,
                                                struct snug_error *err);

/* src/api/tokenize_api.c */

struct snug_tokenize_options {
    const char *tokenizer; /* as for snug_tokenizer_open */
    const char *folder;    /* where the shards go; it must not have shards already */
    int threads;           /* 0: all cores */
};
struct snug_tokenized {
    int64_t n_documents, n_tokens;
    int64_t n_bytes, total_bytes; /* of text: so far, and in all */
    int n_files, token_bits;      /* 16 or 32 */
    int32_t end_id;               /* the token after each document, or -1 */
};
/* Called after each file; return nonzero to stop. */
typedef int snug_tokenize_fn(const struct snug_tokenized *done, void *user);
/* Writes the tokens of text files, and of all files in folders, as shards in llm.c's layout, with the
 * identity of the tokenizer in the header.  The shards get their names when all are complete. */
SNUG_API enum snug_status snug_data_tokenize(const char *const *paths, int n_paths,
                                             const struct snug_tokenize_options *options,
                                             snug_tokenize_fn *progress, void *user,
                                             struct snug_tokenized *result,
                                             struct snug_error *err);

/* ---- files, measurements, data sets -------------------------------------------------------- */

/* Describes a run, a metrics.jsonl, a safetensors file or a data file. */
SNUG_API enum snug_status snug_inspect(const char *path, char **text, struct snug_error *err);
/* Measures the peak rates of this machine (what is "cpu" or "cuda"), the kernels of the model in
 * isolation, and a training step op by op, each compared with its limit.  Returns tables or one
 * JSON object.  model NULL is gpt-nano; "cpu" then also measures the op rates that plan and fit use
 * for their time estimates and, unless the machine was busy, saves them in
 * $XDG_CACHE_HOME/snug/rates.json (default ~/.cache). */
SNUG_API enum snug_status snug_bench(const char *what, const snug_model *model,
                                     const snug_recipe *recipe, int as_json, char **text,
                                     struct snug_error *err);
/* Downloads a named data set ("fashion-mnist", "cifar-10") with the program curl, verifies it
 * against the published md5 and reports each action in one line.  folder NULL: the folder in which
 * snug_trainer_open looks up the name.  from NULL: the publisher's URL. */
typedef void snug_say_fn(const char *line, void *user);
SNUG_API enum snug_status snug_data_fetch(const char *name, const char *folder, const char *from,
                                          snug_say_fn *say, void *user, struct snug_error *err);
/* Lists "models", "optimizers" or "data-sets": one line each, the name and a description. */
SNUG_API char *snug_list(const char *what);
SNUG_API char *snug_ops_table(void); /* every op: reference, cpu, cuda, gradient */

#ifdef __cplusplus
}
#endif
#endif
