/*
 * cudnn_graph.c -- builds cuDNN graphs.
 */
#include "cuda/lib/cudnn_graph.h"

struct dnn_extent dnn_packed(int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    return (struct dnn_extent){{d0, d1, d2, d3}, {d1 * d2 * d3, d2 * d3, d3, 1}};
}

struct dnn_extent dnn_transposed(struct dnn_extent e)
{
    return (struct dnn_extent){{e.dim[0], e.dim[1], e.dim[3], e.dim[2]},
                               {e.stride[0], e.stride[1], e.stride[3], e.stride[2]}};
}

cudnnDataType_t dnn_type(enum dtype type)
{
    return type == DTYPE_f32    ? CUDNN_DATA_FLOAT
           : type == DTYPE_bf16 ? CUDNN_DATA_BFLOAT16
                                : CUDNN_DATA_HALF;
}

static void note(struct dnn_graph *g, cudnnStatus_t status, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        g->status = status;
        g->failed = what;
    }
}

static dnn_object make(struct dnn_graph *g, cudnnBackendDescriptorType_t kind, const char *what)
{
    dnn_object object = NULL;
    if (g->n_objects == DNN_MOST_OBJECTS)
        note(g, CUDNN_STATUS_INTERNAL_ERROR, what);
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, cudnnBackendCreateDescriptor(kind, &object), what);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->objects[g->n_objects++] = object;
    return object;
}

static void set(struct dnn_graph *g, dnn_object object, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, cudnnBackendSetAttribute(object, name, type, n, values), what);
}

static void set_object(struct dnn_graph *g, dnn_object object, cudnnBackendAttributeName_t name,
                       dnn_object value, const char *what)
{
    if (value != NULL)
        set(g, object, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finish(struct dnn_graph *g, dnn_object object, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, cudnnBackendFinalize(object), what);
}

static void add_op(struct dnn_graph *g, dnn_object op, const char *what)
{
    finish(g, op, what);
    if (g->n_ops == DNN_MOST_OPS)
        note(g, CUDNN_STATUS_INTERNAL_ERROR, what);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->ops[g->n_ops++] = op;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static dnn_object any_tensor(struct dnn_graph *g, int64_t uid, cudnnDataType_t type,
                             struct dnn_extent extent, bool is_virtual, bool by_value)
{
    const char *what = "building a tensor";
    const int64_t alignment = 16;
    dnn_object tensor = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set(g, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    set(g, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DNN_DIMS, extent.dim, what);
    set(g, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DNN_DIMS, extent.stride, what);
    set(g, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
    set(g, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    if (is_virtual)
        set(g, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    if (by_value)
        set(g, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value, what);
    finish(g, tensor, what);
    return tensor;
}

dnn_object dnn_tensor(struct dnn_graph *g, int64_t uid, cudnnDataType_t type,
                      struct dnn_extent extent)
{
    return any_tensor(g, uid, type, extent, false, false);
}

dnn_object dnn_virtual(struct dnn_graph *g, cudnnDataType_t type, struct dnn_extent extent)
{
    const int64_t first_uid = 1000; /* above all uids that callers use */
    return any_tensor(g, first_uid + g->n_virtual++, type, extent, true, false);
}

dnn_object dnn_scalar(struct dnn_graph *g, int64_t uid)
{
    return any_tensor(g, uid, CUDNN_DATA_FLOAT, dnn_packed(1, 1, 1, 1), false, true);
}

/* ---- operations ----------------------------------------------------------------------------- */

void dnn_pointwise(struct dnn_graph *g, const struct dnn_pointwise *how)
{
    const char *what = "building a pointwise operation";
    const float one = 1.0f;
    dnn_object mode = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(g, mode, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &how->mode, what);
    set(g, mode, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &how->math, what);
    if (how->mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, mode, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &how->axis, what);
    finish(g, mode, what);

    dnn_object op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, how->x, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, how->y, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, how->b, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, how->t, what);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one, what);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one, what);
    add_op(g, op, what);
}

void dnn_float(struct dnn_graph *g, cudnnPointwiseMode_t mode, dnn_object x, dnn_object b,
               dnn_object y)
{
    dnn_pointwise(
        g, &(struct dnn_pointwise){.mode = mode, .math = CUDNN_DATA_FLOAT, .x = x, .b = b, .y = y});
}

void dnn_gemm(struct dnn_graph *g, dnn_object a, dnn_object b, dnn_object c)
{
    const char *what = "building a matmul";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    dnn_object mode = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(g, mode, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    finish(g, mode, what);

    dnn_object op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mode, what);
    add_op(g, op, what);
}

void dnn_reduce(struct dnn_graph *g, cudnnReduceTensorOp_t how, dnn_object x, dnn_object y)
{
    const char *what = "building a reduction";
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    dnn_object mode = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(g, mode, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    set(g, mode, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how, what);
    finish(g, mode, what);

    dnn_object op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    add_op(g, op, what);
}

void dnn_reshape(struct dnn_graph *g, dnn_object x, dnn_object y)
{
    const char *what = "building a reshape";
    dnn_object op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
    set_object(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
    add_op(g, op, what);
}

/* The attribute names of a convolution; each of the three operations has its own. */
static const struct convolution_names {
    cudnnBackendDescriptorType_t kind;
    cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
} convolution_names[] = {
    [DNN_forward] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DNN_grad_x] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DNN_grad_w] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

void dnn_convolution(struct dnn_graph *g, const struct dnn_convolution *how)
{
    const char *what = "building a convolution";
    const struct convolution_names *names = &convolution_names[how->kind];
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t not_mirrored = CUDNN_CROSS_CORRELATION;
    const int64_t n_spatial_dims = 2, pads[2] = {how->pad, how->pad};
    const int64_t strides[2] = {how->stride, how->stride}, dilations[2] = {1, 1};
    const float one = 1.0f, zero = 0.0f;
    dnn_object mode = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &not_mirrored,
        what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n_spatial_dims, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations, what);
    set(g, mode, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides, what);
    finish(g, mode, what);

    dnn_object op = make(g, names->kind, what);
    set_object(g, op, names->x, how->x, what);
    set_object(g, op, names->w, how->w, what);
    set_object(g, op, names->y, how->y, what);
    set_object(g, op, names->how, mode, what);
    set(g, op, names->alpha, CUDNN_TYPE_FLOAT, 1, &one, what);
    set(g, op, names->beta, CUDNN_TYPE_FLOAT, 1, &zero, what);
    add_op(g, op, what);
}
