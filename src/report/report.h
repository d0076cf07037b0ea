/*
 * report.h -- plans and tables as people and programs read them.
 *
 * Plain structs in, malloc'ed text out (NULL: out of memory).  Nothing here plans, prices or looks
 * up: whoever calls has the numbers.  Text keeps to 80 columns and ends in a newline.
 */
#ifndef SNUG_REPORT_REPORT_H
#define SNUG_REPORT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "snug.h"

struct report_alternative { /* the same plan with one thing changed */
    const char *flag;       /* as typed: "--micro-batch 4" */
    const char *changes;    /* what it changes: "the same result" */
    int64_t total_bytes;
    double step_seconds; /* 0: unknown */
};

struct report_remark { /* why something is not as a reader may expect */
    const char *about, *words;
};

struct report_plan {
    const char *model;  /* "gpt2" */
    const char *recipe; /* "batch 32 x 1024, bf16, adamw"; NULL or "": left out */
    struct snug_ledger ledger;
    const char *peak_kind; /* kind of the op at the peak, "linear_grad_w"; NULL: no program (psi) */
    const char *peak_name; /* what it writes, "h.11.mlp.c_fc.weight.grad"; may be NULL */
    const char *budget_origin; /* of a budget that was not given: "this machine's 15.6 GiB"; NULL */
    int64_t runtime_bytes;    /* expected beside the plan and held against the budget; 0: unknown */
    const char *offloaded_to; /* where ledger.offloaded lies: "a file on disk" */
    int64_t n_ranks;
    int64_t batch, usual_batch; /* a default that the ranks changed; usual_batch 0: it was not */
    int64_t n_stages;           /* of a pipeline; 1: there is none */
    double bubble;              /* share of a step in which a stage has nothing to do */
    const char *updates;   /* when weights are updated, if not at the end as always; NULL: so */
    int64_t updates_flops; /* what that costs, a step */
    const char *rates;     /* where the time comes from: "by rates measured here"; may be NULL */
    const char *compared;  /* of several plans side by side, the flags of this one; NULL: of one */
    const struct report_timeline *timeline;        /* for the JSON; NULL: left out */
    const struct report_alternative *alternatives; /* the best first; larger ones are left out */
    int n_alternatives;
    const struct report_remark *remarks; /* for the text alone */
    int n_remarks;
};

/* Title, a table of the six kinds with bars, the facts of the plan, and what would need less. */
char *report_plan_text(const struct report_plan *plan, int color);
/* One object on one line, keys as promised to scripts ("peak": op is the index in the program). */
char *report_plan_json(const struct report_plan *plan);
struct text;
void report_plan_object(const struct report_plan *plan, struct text *out); /* adds that object */

/* The bytes of a step over its ops. */
struct report_timeline {
    const char *model, *recipe;
    const struct snug_timeline_point *points;
    int64_t n_points; /* at least 1 */
    int64_t peak_op;
    int64_t loss_op,
        update_op;    /* the last op of forward, the first after backward; loss_op 0: none */
    int64_t n_repeat; /* micro-batches */
};
char *report_timeline_text(const struct report_timeline *timeline, int color);
/* Adds the series, an object an op. */
void report_timeline_json(const struct report_timeline *timeline, struct text *out);

/* Plans of one model side by side; `compared` of each says which recipe it is ("" as it is). */
char *report_compare_text(const struct report_plan *plans, int n_plans, int color);
char *report_compare_json(const struct report_plan *plans, int n_plans);

struct report_loser { /* a recipe beside the chosen one */
    const char *key, *value;
    int changes_training; /* by this key */
    int64_t needed_bytes; /* plan and runtime */
    double seconds;
};

struct report_fit {
    const char *model, *recipe;    /* as in a plan */
    int64_t budget, runtime_bytes; /* beside the chosen plan */
    const char *command; /* "snug train gpt2 --memory 8G --micro-batch 2"; NULL: nothing fits */
    const char *keys;    /* of the chosen recipe: lines key = value */
    const struct snug_fit_point *points; /* the fastest first */
    const char *const *differences;      /* of each from the chosen one, in words */
    int n_points, chosen;                /* chosen -1: none */
    const struct report_loser *losers;
    int n_losers;
    int is_whole;  /* the points are all there are */
    double tokens; /* or samples, of a step */
    const char *unit, *rates;
};
char *report_fit_text(const struct report_fit *fit, int whole_frontier, int color);
char *report_fit_json(const struct report_fit *fit);

struct report_op { /* a cell that is NULL or "" prints as a dash */
    const char *name, *reference, *cpu, *cuda, *gradient;
};
char *report_ops_table(const struct report_op *rows, int n_rows);

struct report_rate {  /* one kernel, or all ops of one kind in a step */
    const char *op;   /* its name */
    const char *type; /* "bf16"; of a kernel, else NULL */
    char shape[40];   /* "4096 x 768 to 3072"; of a kernel */
    int n_calls;      /* in a step */
    double seconds, flops, bytes;
    double floor_seconds;  /* what the limits alone would take */
    double memory_seconds; /* of that, where memory is the limit */
    const char *limit;     /* the one that counts: "AMX", "tensor", "FMA", "memory" */
};

enum { REPORT_RATES_MOST = 96 };

struct report_bench {
    const char *model, *recipe;
    int threads, n_steps;
    bool on_gpu; /* its tiles are those of tensor cores */
    /* The limits, a second.  amx_flops 0: no tiles. */
    double fma_flops, amx_flops, read_bytes, copy_bytes, update_bytes;
    struct report_rate kernels[REPORT_RATES_MOST], ops[REPORT_RATES_MOST];
    int n_kernels, n_ops;
    double step_seconds, floor_seconds;
    int64_t step_tokens;
    const char *unit;              /* "tokens" or "samples" */
    double gemm_flops, conv_flops; /* of a step: its matmuls, its convolutions */
    double best_gemm_flops;        /* of the fastest matmul alone, a second */
    double limit_spread;           /* how far measurements of a limit are apart: 0.1 is a tenth */
    bool is_busy;                  /* so far that nothing is kept */
    int n_rates;                   /* curves that were measured for the estimates of plan and fit */
    const char *rates_file;        /* where they are kept; NULL: they could not be */
};

/* The limits, the kernels beside them, the step op by op, and the step beside its matmuls. */
char *report_bench_text(const struct report_bench *bench);
char *report_bench_json(const struct report_bench *bench); /* the same on one line */

/* Adds a JSON string with its quotes.  Bytes that are not valid UTF-8 become U+FFFD. */
void report_json_string(struct text *out, const char *value);

#endif
