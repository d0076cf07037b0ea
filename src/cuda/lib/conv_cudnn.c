/*
 * conv_cudnn.c -- a convolution or one of its gradients with cuDNN: a graph of one operation.
 *
 * Nondeterministic engines are excluded.  For fp32, so are engines that round their operands to
 * fewer bits for the tensor cores.
 */
#include <stdlib.h>

#include "cuda/lib/conv_cudnn.h"
#include "cuda/lib/cudnn_graph.h"

enum uid { UID_x = 1, UID_w, UID_y, N_UIDS = 3 };

struct cuda_conv {
    struct dnn_plan *plan;
};

/* cuDNN lists the dimensions as N, C, H, W in any layout; here the channels are contiguous. */
static struct dnn_extent channels_last(int64_t n, int64_t h, int64_t w, int64_t c)
{
    return (struct dnn_extent){{n, c, h, w}, {h * w * c, 1, w * c, c}};
}

void cuda_conv_release(struct cuda_conv *conv)
{
    if (conv != NULL)
        dnn_plan_release(conv->plan);
    free(conv);
}

static void write_graph(struct dnn_graph *g, const struct cuda_conv_shape *s, enum dtype type,
                        enum dtype w_type)
{
    static const enum dnn_convolution_kind kinds[] = {
        [CONV_forward] = DNN_forward, [CONV_grad_x] = DNN_grad_x, [CONV_grad_w] = DNN_grad_w};
    struct dnn_convolution conv = {
        .kind = kinds[s->kind],
        .stride = s->stride,
        .pad = s->pad,
        .x = dnn_tensor(g, UID_x, dnn_type(type), channels_last(s->n, s->x_h, s->x_w, s->x_c)),
        .w = dnn_tensor(g, UID_w, dnn_type(w_type),
                        channels_last(s->y_c, s->kernel_h, s->kernel_w, s->x_c / s->groups)),
        .y = dnn_tensor(g, UID_y, dnn_type(type), channels_last(s->n, s->y_h, s->y_w, s->y_c))};
    dnn_convolution(g, &conv);
}

/* *plan is NULL if cuDNN rejects the convolution. */
static enum snug_status plan_of(const struct cuda_conv_shape *s, enum dtype type, enum dtype w_type,
                                size_t most_work_bytes, struct dnn_plan **plan,
                                struct snug_error *err)
{
    const unsigned nondeterministic = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    const unsigned fewer_bits =
        1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    struct dnn_limits limits = {.most_work_bytes = (int64_t)most_work_bytes,
                                .refused_notes =
                                    nondeterministic | (type == DTYPE_f32 ? fewer_bits : 0u)};
    struct dnn_key key = {DNN_BY_convolution,
                          {s->kind, s->n, s->x_h, s->x_w, s->x_c, s->y_h, s->y_w, s->y_c,
                           s->kernel_h, s->kernel_w, s->stride, s->pad, s->groups, type, w_type}};
    int64_t least_work_bytes = 0;
    if (dnn_plan_find(&key, &limits, plan, &least_work_bytes))
        return SNUG_OK;
    cudnnHandle_t handle;
    TRY(cuda_library_dnn(NULL, &handle, err));
    struct dnn_graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "convolution: out of memory for its cuDNN graph");
    write_graph(g, s, type, w_type);
    return dnn_plan_make(&key, g, handle, &limits, plan, &least_work_bytes, err);
}

enum snug_status cuda_conv_prepare(const struct cuda_conv_shape *shape, enum dtype type,
                                   enum dtype w_type, size_t most_work_bytes,
                                   struct cuda_conv **conv, struct snug_error *err)
{
    *conv = NULL;
    struct cuda_conv *c = calloc(1, sizeof *c);
    if (c == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "convolution: out of memory while preparing it");
    enum snug_status status = plan_of(shape, type, w_type, most_work_bytes, &c->plan, err);
    if (status == SNUG_OK && c->plan != NULL)
        *conv = c;
    else
        cuda_conv_release(c);
    return status;
}

enum snug_status cuda_conv_run(const struct cuda_conv *conv, const struct cuda_conv_call *call,
                               struct snug_error *err)
{
    const int64_t uids[N_UIDS] = {UID_x, UID_w, UID_y};
    const void *const addresses[N_UIDS] = {call->x, call->w, call->y};
    cudnnHandle_t handle;
    TRY(cuda_library_dnn(call->stream, &handle, err));
    return dnn_plan_run(conv->plan, handle, N_UIDS, uids, addresses, call->work, err);
}
