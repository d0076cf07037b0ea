/*
 * cudnn_graph.h -- a small wrapper around cuDNN graphs: tensors, operations on them, a plan that
 * runs them.
 *
 * A graph is built operation by operation.  After the first failed call all later ones do nothing,
 * so only dnn_plan_make checks for errors.  If cuDNN has no engine for a graph, that is not an
 * error: the plan is NULL.
 */
#ifndef SNUG_CUDA_LIB_CUDNN_GRAPH_H
#define SNUG_CUDA_LIB_CUDNN_GRAPH_H

#include "base/dtype.h"
#include "cuda/lib/cuda_libs.h"

enum { DNN_DIMS = 4, DNN_MOST_OBJECTS = 256, DNN_MOST_OPS = 40 };

typedef cudnnBackendDescriptor_t dnn_object;

struct dnn_graph {
    cudnnStatus_t status; /* of the first call that failed */
    const char *failed;   /* what it was building */
    int n_objects, n_ops;
    dnn_object objects[DNN_MOST_OBJECTS], ops[DNN_MOST_OPS];
    int64_t n_virtual;
};

struct dnn_extent {
    int64_t dim[DNN_DIMS], stride[DNN_DIMS];
};
struct dnn_extent dnn_packed(int64_t d0, int64_t d1, int64_t d2,
                             int64_t d3);                   /* the last dimension is contiguous */
struct dnn_extent dnn_transposed(struct dnn_extent extent); /* swaps the last two dimensions */

/* A tensor in memory.  A run passes its address under `uid`; it must be a multiple of 16. */
dnn_object dnn_tensor(struct dnn_graph *g, int64_t uid, cudnnDataType_t type,
                      struct dnn_extent extent);
/* An intermediate tensor that is never stored in memory. */
dnn_object dnn_virtual(struct dnn_graph *g, cudnnDataType_t type, struct dnn_extent extent);
/* One float that a run reads from host memory. */
dnn_object dnn_scalar(struct dnn_graph *g, int64_t uid);

struct dnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t math;
    int64_t axis;       /* for GEN_INDEX */
    dnn_object x, b, t; /* NULL if there is no such operand */
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
/* x, w, y as in the forward convolution; a gradient writes the one it is named after. */
struct dnn_convolution {
    enum dnn_convolution_kind kind;
    int64_t stride, pad; /* the same for height and width */
    dnn_object x, w, y;
};
void dnn_convolution(struct dnn_graph *g, const struct dnn_convolution *how);

struct dnn_plan;

struct dnn_limits {
    int64_t most_work_bytes;
    unsigned refused_notes; /* bit n excludes engines with numerical note n */
};

/* Identifies a graph: who built it, and the values it was built from.  Equal layers share one plan,
 * because building a plan takes cuDNN long. */
enum dnn_writer { DNN_BY_attention = 1, DNN_BY_convolution };
struct dnn_key {
    enum dnn_writer writer;
    int64_t values[16]; /* unused ones are 0 */
};

/* Is there a cached result for this key and these limits?  If so *plan gets one more user; it is
 * NULL if no engine was found. */
bool dnn_plan_find(const struct dnn_key *key, const struct dnn_limits *limits,
                   struct dnn_plan **plan, int64_t *least_work_bytes);
/* Builds the first plan proposed by cuDNN that fits the limits.  Takes ownership of the graph, also
 * on failure.  *least_work_bytes: the smallest workspace among the engines that needed too much. */
enum snug_status dnn_plan_make(const struct dnn_key *key, struct dnn_graph *g, cudnnHandle_t handle,
                               const struct dnn_limits *limits, struct dnn_plan **plan,
                               int64_t *least_work_bytes, struct snug_error *err);
void dnn_plan_release(struct dnn_plan *plan); /* drops one user; NULL is fine */
enum snug_status dnn_plan_run(const struct dnn_plan *plan, cudnnHandle_t handle, int n,
                              const int64_t *uids, const void *const *addresses, void *work,
                              struct snug_error *err);

cudnnDataType_t dnn_type(enum dtype type);

#endif
