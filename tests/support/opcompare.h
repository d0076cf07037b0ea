/*
 * opcompare.h -- runs every op case and compares each kernel of a backend with the reference.
 *
 * A kernel runs at every size and dtype of the cases, with every input that its output may alias,
 * twice: its results must be within the tolerance, have the same bits both times, and nothing
 * around them may change.
 */
#ifndef SNUG_TESTS_OPCOMPARE_H
#define SNUG_TESTS_OPCOMPARE_H

#include "support/oprun.h"

enum { OPCOMPARE_SEED = 20240229, MAX_TRIPLES = 2000 };
enum { N_COMPARED_TYPES = 3 };
extern const enum dtype compared_types[N_COMPARED_TYPES];

struct triple { /* an op, a dtype and a kernel that were compared */
    enum op_kind kind;
    enum dtype dtype;
    const struct kernel *row;
    const char *level;
    double worst; /* error relative to the tolerance */
    char where[96];
};

struct opcompare {
    struct case_list cases;
    /* NULL: the CPU, at each of its instruction levels.  Another backend may lack kernels. */
    const struct backend *device_of;
    struct device *device; /* open */
    const char *only;
    bool verbose;
    /* Under a tool that watches every access: a part of the cases (part of n_parts, from 0; 0
     * parts: all), each row once, where its bits are not held against a second run's.  most_rows:
     * sizes whose first number is larger are left out; 0: none is.  ignores_results: ops must run, their
     * results are not compared. */
    int part, n_parts, most_rows;
    bool once, small_only, ignores_results;
    struct triple triples[MAX_TRIPLES];
    int n_triples, n_runs, n_failures, n_left_out;
    bool has_case[OP_COUNT][DTYPE_COUNT], has_gradient[OP_COUNT], has_rule[RULE_COUNT];
};

/* Counts a failure, and prints it unless there were many already. */
void opcompare_problem(struct opcompare *ctx, const struct opcase *c, const struct op *op,
                       const char *row, const char *level, const char *what);
bool opcompare_wants(const struct opcompare *ctx, const struct case_text *text);

/* Is the case too large for the small test size, or for asan, which is ten times slower? */
bool opcompare_is_too_large(const struct opcase *c, bool is_emulated);

/* Runs all cases and counts failures. */
void opcompare_cases(struct opcompare *ctx);

#endif
