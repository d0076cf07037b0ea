/*
 * cudnn_graph.h -- cuDNN's graphs in few words: tensors, operations on them, a plan that runs them.
 *
 * A graph is written down operation by operation.  The first call that fails makes the ones after it do
 * nothing, so that only dnn_plan_make looks.  What cuDNN has no engine for is no error: the plan is NULL.
 */
#ifndef SNUG_CUDA_LIB_CUDNN_GRAPH_H
#define SNUG_CUDA_LIB_CUDNN_GRAPH_H

#include "base/dtype.h"
#include "cuda/lib/cuda_libs.h"

enum { DNN_DIMS = 4, DNN_MOST_MADE = 160, DNN_MOST_OPS = 24 };

typedef cudnnBackendDescriptor_t dnn_object;

struct dnn_graph {
    cudnnStatus_t status; /* of the first call that failed */
    const char *failed;   /* what it was to make */
    int n_made, n_ops;
    dnn_object made[DNN_MOST_MADE], ops[DNN_MOST_OPS];
    int64_t n_virtual;
};

struct dnn_extent {
    int64_t dim[DNN_DIMS], stride[DNN_DIMS];
};
struct dnn_extent dnn_packed(int64_t d0, int64_t d1, int64_t d2,
                             int64_t d3);                /* the last one fastest */
struct dnn_extent dnn_swapped(struct dnn_extent extent); /* the last two */

/* In memory, at an address that a run gives for `uid`, a multiple of 16. */
dnn_object dnn_tensor(struct dnn_graph *g, int64_t uid, cudnnDataType_t type,
                      struct dnn_extent extent);
/* Between operations, nowhere in memory. */
dnn_object dnn_virtual(struct dnn_graph *g, cudnnDataType_t type, struct dnn_extent extent);
/* One float, which a run reads from the host's memory. */
dnn_object dnn_scalar(struct dnn_graph *g, int64_t uid);

struct dnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis;       /* of GEN_INDEX */
    dnn_object x, b, t; /* NULL: it has no such operand */
    dnn_object y;
};
void dnn_pointwise(struct dnn_graph *g, const struct dnn_pointwise *how);
/* y = mode(x, b) in fp32; b may be NULL */
void dnn_float(struct dnn_graph *g, cudnnPointwiseMode_t mode, dnn_object x, dnn_object b,
               dnn_object y);
void dnn_gemm(struct dnn_graph *g, dnn_object a, dnn_object b, dnn_object c);
void dnn_reduce(struct dnn_graph *g, cudnnReduceTensorOp_t how, dnn_object x, dnn_object y);
void dnn_reshape(struct dnn_graph *g, dnn_object x, dnn_object y);

enum dnn_convolution_kind { DNN_forward, DNN_grad_x, DNN_grad_w };
/* x, w, y: of the forward convolution; a gradient writes the one that it is named for. */
struct dnn_convolution {
    enum dnn_convolution_kind kind;
    int64_t stride, pad; /* both sides alike */
    dnn_object x, w, y;
};
void dnn_convolution(struct dnn_graph *g, const struct dnn_convolution *how);

struct dnn_plan;

struct dnn_wish {
    int64_t most_work_bytes;
    unsigned refused_notes; /* bit n: no engine that carries this numerical note */
};

/* What a graph is known by: who wrote it, and the numbers that it was written from.  Layers of a model are
 * alike, and to build a plan takes cuDNN long: like graphs have one plan. */
enum dnn_writer { DNN_BY_attention = 1, DNN_BY_convolution };
struct dnn_key {
    enum dnn_writer writer;
    int64_t numbers[16]; /* those that are not used are 0 */
};

/* Was a plan made for this key and wish?  Then it is *plan, and has one more user; NULL: none was found. */
bool dnn_plan_again(const struct dnn_key *key, const struct dnn_wish *wish, struct dnn_plan **plan,
                    int64_t *least_work_bytes);
/* The first plan that cuDNN proposes and that fits the wish.  The plan owns the graph from here on, and
 * so does a failure.  *least_work_bytes: what the least of those wanted that were too large. */
enum snug_status dnn_plan_make(const struct dnn_key *key, struct dnn_graph *g, cudnnHandle_t handle,
                               const struct dnn_wish *wish, struct dnn_plan **plan,
                               int64_t *least_work_bytes, struct snug_error *err);
void dnn_plan_release(struct dnn_plan *plan); /* by one of its users; NULL is fine */
enum snug_status dnn_plan_run(const struct dnn_plan *plan, cudnnHandle_t handle, int n,
                              const int64_t *uids, void *const *addresses, void *work,
                              struct snug_error *err);

cudnnDataType_t dnn_type(enum dtype type);

#endif
