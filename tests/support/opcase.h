/*
 * opcase.h -- op cases: small programs in text files, each used in three ways.
 *
 * A case is a forward op with its gradient ops, written once and built at several sizes:
 *
 *     case linear
 *     sizes B=3 T=127 I=65 O=31          compare fast kernels with the reference
 *     small B=2 T=3 I=5 O=4              the same, and gradients by finite differences in f64
 *     time B=8 T=128 I=768 O=3072        time the kernels
 *     in x float B,T,I                   dtype: float (the one under test), f32, f64, i32
 *     in w float O,I scale=0.1           normal values: scale, shift, positive; i32: below=V
 *     in dy float B,T,O
 *     in starts i32 B,T documents=20     where each position's document begins; their mean length
 *     in s scalars lr=0.1                the scalar table
 *     y pre = linear x w _ act=gelu      shapes follow from the op's rule; _: left out
 *     dp = act_grad dy pre act=gelu
 *     dw:f32 db = linear_grad_w x dp     :TYPE forces a dtype
 *     functional y*dy                    L = sum of y * dy (loss * s: loss times the loss scale)
 *     gradient w dw                      dL/dw is dw
 *
 * An output that has the name of an input of the case is updated in place.  Statistics that are f32
 * in every precision are f64 if the dtype under test is f64.
 */
#ifndef SNUG_TESTS_OPCASE_H
#define SNUG_TESTS_OPCASE_H

#include "ir/program.h"

/* only=TYPE in a line of sizes: run them for that dtype only, because only its kernels treat them
 * differently. */
enum case_use { CASE_sizes, CASE_small, CASE_time, CASE_USES };

enum { MAX_CASE_LINES = 40, MAX_CASE_PAIRS = 8, MAX_CASES = 128 };

struct case_text {
    const char *name;
    const char *line[MAX_CASE_LINES];
    int n_lines;
    const char *use[CASE_USES][MAX_CASE_LINES]; /* the size lines */
    int n_uses[CASE_USES];
};

struct case_list {
    struct arena arena;
    struct case_text cases[MAX_CASES];
    int n_cases;
};

/* Reads every *.case file of the folder, in the order of their names. */
enum snug_status case_list_read(const char *folder, struct case_list *list, struct snug_error *err);
void case_list_free(struct case_list *list);

struct fill { /* the values of an input */
    bool is_input, positive, is_scalars;
    double scale, shift;
    int64_t below, documents;
    double scalars[SCALAR_COUNT];
};

struct pair {
    tensor_id of, by;
};

struct opcase {
    char label[160]; /* case, sizes, type, seed: what a failure prints */
    struct program prog;
    struct fill *fills; /* per tensor */
    void **data;        /* per tensor; inputs are filled, the rest is NaN */
    int n_tensors;
    uint64_t seed;
    struct pair functional[MAX_CASE_PAIRS], gradient[MAX_CASE_PAIRS];
    int n_functional, n_gradient;
};

/* Do these sizes apply to this dtype? */
bool opcase_is_for(const struct case_text *text, enum case_use use, int index, enum dtype dtype);
enum snug_status opcase_build(const struct case_text *text, enum case_use use, int index,
                              enum dtype dtype, uint64_t seed, struct opcase *c,
                              struct snug_error *err);
void opcase_free(struct opcase *c);

/* Writes the values of `id` to `data`; another `stream` gives other random values. */
void opcase_fill(const struct opcase *c, tensor_id id, void *data, uint64_t stream);

#endif
