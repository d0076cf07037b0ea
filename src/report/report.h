/*
 * report.h -- formats plans, fits, benchmarks and tables as text and JSON.
 *
 * The caller passes plain structs with all numbers and gets malloc'ed text (NULL: out of memory).
 * Nothing here plans or estimates.  Text is at most 80 columns wide and ends with a newline.
 */
#ifndef SNUG_REPORT_REPORT_H
#define SNUG_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "snug.h"

struct report_alternative { /* a plan that differs in some flags */
    const char *flag;       /* as typed: "--micro-batch 4" */
    const char *changes;    /* effect on the result: "the same result" */
    int64_t total_bytes;
    double step_seconds; /* 0: unknown */
};

struct report_remark { /* explains something that a reader may not expect */
    const char *about, *words;
};

struct report_plan {
    const char *model;  /* "gpt2" */
    const char *recipe; /* "batch 32 x 1024, bf16, adamw"; NULL or "": omitted */
    struct snug_ledger ledger;
    const char *peak_kind; /* kind of the op at the peak, "linear_grad_w"; NULL: no program (psi) */
    const char *peak_name; /* its output tensor, "h.11.mlp.c_fc.weight.grad"; may be NULL */
    const char *budget_origin; /* source of a default budget: "this machine's 15.6 GiB"; or NULL */
    int64_t runtime_bytes;     /* expected on top of the plan, part of the budget; 0: unknown */
    const char *offloaded_to;  /* where the offloaded bytes are: "a file on disk" */
    int64_t n_ranks;
    int64_t batch, seq;
    int64_t longest_seq;   /* what the model allows, if seq is a shorter default; else 0 */
    int64_t usual_batch;   /* the default batch, if the ranks changed it; else 0 */
    int64_t n_stages;      /* 1: no pipeline */
    double bubble;         /* fraction of a step that a stage is idle */
    const char *updates;   /* when weights are updated; NULL: at the end, the default */
    int64_t updates_flops; /* extra cost per step */
    const char *rates;     /* source of the time estimate: "by rates measured here"; may be NULL */
    const char *compared;  /* in a comparison, the flags of this plan; else NULL */
    const struct report_timeline *timeline;        /* for JSON; NULL: omitted */
    const struct report_alternative *alternatives; /* best first; larger plans are not printed */
    int n_alternatives;
    const struct report_remark *remarks; /* only in the text */
    int n_remarks;
};

/* plan_text.c */
/* A title, a table of the six kinds with bars, facts about the plan, and smaller alternatives. */
char *report_plan_text(const struct report_plan *plan, int color);
/* plan_json.c */
/* One JSON object on one line, for scripts ("op" in "peak" is an index in the program). */
char *report_plan_json(const struct report_plan *plan);
struct text;
void report_plan_object(const struct report_plan *plan, struct text *out); /* the object alone */

/* The live bytes of a step over its ops. */
struct report_timeline {
    const char *model, *recipe;
    const struct snug_timeline_point *points;
    int64_t n_points; /* at least 1 */
    int64_t peak_op;
    int64_t loss_op,
        update_op;    /* the last op of forward, the first after backward; loss_op 0: no loss */
    int64_t n_repeat; /* micro-batches */
};
/* timeline_text.c */
char *report_timeline_text(const struct report_timeline *timeline, int color);
/* Adds the array of timeline points, one object per op. */
void report_timeline_json(const struct report_timeline *timeline, struct text *out);

/* compare_text.c */
/* Plans of one model side by side; `compared` of each has its flags ("" for no extra flags). */
char *report_compare_text(const struct report_plan *plans, int n_plans, int color);
char *report_compare_json(const struct report_plan *plans, int n_plans);

struct report_loser { /* a recipe that differs in one key from the chosen one */
    const char *key, *value;
    int changes_training; /* the key changes the training result */
    int64_t needed_bytes; /* plan and runtime */
    double seconds;
};

struct report_fit {
    const char *model, *recipe;    /* as in a plan */
    int64_t budget, runtime_bytes; /* runtime of the chosen plan */
    const char *command; /* "snug train gpt2 --memory 8G --micro-batch 2"; NULL: nothing fits */
    const char *keys;    /* the chosen recipe as lines key = value */
    const struct snug_fit_point *points; /* the fastest first */
    const char *const *differences;      /* of each point from the chosen one, as text */
    int n_points, chosen;                /* chosen -1: nothing fits */
    const struct report_loser *losers;
    int n_losers;
    int is_whole;  /* the points are the whole frontier */
    double tokens; /* or samples, per step */
    const char *unit, *rates;
};
/* fit_text.c */
char *report_fit_text(const struct report_fit *fit, int whole_frontier, int color);
char *report_fit_json(const struct report_fit *fit);

struct report_op { /* NULL or "" prints as a dash */
    const char *name, *reference, *cpu, *cuda, *gradient;
};
/* ops_table.c */
char *report_ops_table(const struct report_op *rows, int n_rows);

struct report_rate {  /* one kernel, or all ops of one kind in a step */
    const char *op;   /* name */
    const char *type; /* "bf16", for a kernel; else NULL */
    char shape[40];   /* "4096 x 768 to 3072", for a kernel */
    int n_calls;      /* per step */
    double seconds, flops, bytes;
    double floor_seconds;  /* time at the limits of the machine */
    double memory_seconds; /* the part of it that is limited by memory */
    const char *limit;     /* the binding limit: "AMX", "tensor", "FMA", "memory" */
};

enum { REPORT_RATES_MOST = 96 };

struct report_bench {
    const char *model, *recipe;
    int threads, n_steps;
    bool on_gpu; /* amx_flops is then the rate of the tensor cores */
    /* The limits, per second.  amx_flops 0: no AMX. */
    double fma_flops, amx_flops, read_bytes, copy_bytes, update_bytes;
    struct report_rate kernels[REPORT_RATES_MOST], ops[REPORT_RATES_MOST];
    int n_kernels, n_ops;
    double step_seconds, floor_seconds;
    int64_t step_tokens;
    const char *unit;              /* "tokens" or "samples" */
    double gemm_flops, conv_flops; /* matmuls and convolutions, per step */
    double best_gemm_flops;        /* of the fastest matmul in isolation, per second */
    double limit_spread;           /* relative spread of the measured limits: 0.1 is 10% */
    bool is_busy;                  /* the spread is too large to save rates */
    int n_rates;                   /* curves measured for the estimates of plan and fit */
    const char *rates_file;        /* where they were saved; NULL: not saved */
};

/* bench_text.c */
/* The limits, the kernels, the step op by op, and the step compared with its matmuls. */
char *report_bench_text(const struct report_bench *bench);
char *report_bench_json(const struct report_bench *bench); /* on one line */

/* plan_json.c */
/* Adds a JSON string with its quotes.  Bytes that are not valid UTF-8 become U+FFFD. */
void report_json_string(struct text *out, const char *value);

#endif
