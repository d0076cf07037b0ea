/*
 * test_graphs.c -- does cuDNN accept our graphs, and run them in the workspace that plans book?
 *
 * cuDNN can be told about a GPU that is not present, and then proposes engines for it.  So this
 * test asks the library what it would do on an H200, on any machine.  Calls that need a device are
 * intercepted (the linker's --wrap): a graph gets no handle, proposals are made for the described
 * GPU, and a plan counts as built once its engine has been proposed.
 *
 * The test cannot show that an engine's code loads and computes the right results.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>

#include "cuda/dispatch/attention_parts.h"
#include "cuda/lib/attention_cudnn.h"
#include "cuda/lib/conv_cudnn.h"
#include "cuda/lib/cudnn_graph.h"

static const char h200[] =
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64],"
    " \"regsPerBlock\": 65536, \"multiProcessorCount\": 132, \"warpSize\": 32,"
    " \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448,"
    " \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32,"
    " \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"pciDeviceId\": 590680286,"
    " \"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": 1980000,"
    " \"memClockRateKHz\": 3201000, \"l2CacheSize\": 62914560, \"deviceName\": \"NVIDIA H200\","
    " \"deviceVer\": 900, \"smVersion\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0,"
    " \"totalGlobalMem\": 150754820096, \"cudartVer\": 13000, \"driverVersion\": 13000,"
    " \"runtimeVersion\": 13000}";

static struct {
    dnn_object gpu;
    dnn_object advice, plan, config; /* the latest of each */
    int n_plans;
    int64_t work_bytes; /* of the latest plan's engine */
} seen;

/* ---- what is caught ------------------------------------------------------------------------- */

cudnnStatus_t __real_cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                                  cudnnBackendDescriptor_t *object);
cudnnStatus_t __real_cudnnBackendSetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              const void *values);
cudnnStatus_t __real_cudnnBackendGetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              int64_t *n_there, void *values);
cudnnStatus_t __real_cudnnBackendFinalize(cudnnBackendDescriptor_t object);
cudnnStatus_t __real_cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t object);

cudnnStatus_t __wrap_cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                                  cudnnBackendDescriptor_t *object);
cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              const void *values);
cudnnStatus_t __wrap_cudnnBackendGetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              int64_t *n_there, void *values);
cudnnStatus_t __wrap_cudnnBackendFinalize(cudnnBackendDescriptor_t object);
cudnnStatus_t __wrap_cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t object);

cudnnStatus_t __wrap_cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                                  cudnnBackendDescriptor_t *object)
{
    cudnnStatus_t status = __real_cudnnBackendCreateDescriptor(kind, object);
    if (kind == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        seen.advice = *object;
    if (kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        seen.plan = *object;
    return status;
}

/* A later object of another kind may get the same address. */
cudnnStatus_t __wrap_cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t object)
{
    if (object == seen.advice)
        seen.advice = NULL;
    if (object == seen.plan)
        seen.plan = NULL;
    return __real_cudnnBackendDestroyDescriptor(object);
}

cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              const void *values)
{
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
        return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
        memcpy(&seen.config, values, sizeof seen.config);
    return __real_cudnnBackendSetAttribute(object, name, type, n, values);
}

cudnnStatus_t __wrap_cudnnBackendFinalize(cudnnBackendDescriptor_t object)
{
    if (object == seen.plan) {
        seen.n_plans++;
        return CUDNN_STATUS_SUCCESS;
    }
    if (object == seen.advice) {
        cudnnStatus_t status = __real_cudnnBackendSetAttribute(
            object, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &seen.gpu);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
    }
    return __real_cudnnBackendFinalize(object);
}

cudnnStatus_t __wrap_cudnnBackendGetAttribute(cudnnBackendDescriptor_t object,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t n,
                                              int64_t *n_there, void *values)
{
    if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
        return __real_cudnnBackendGetAttribute(object, name, type, n, n_there, values);
    cudnnStatus_t status = __real_cudnnBackendGetAttribute(
        seen.config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, type, n, n_there, values);
    memcpy(&seen.work_bytes, values, sizeof seen.work_bytes);
    return status;
}

/* In the place of cuda_libs.c: there is no handle. */
enum snug_status cuda_library_dnn(void *stream, cudnnHandle_t *handle, struct snug_error *err)
{
    (void)stream, (void)err;
    *handle = NULL;
    return SNUG_OK;
}

enum snug_status cuda_library_check_dnn(cudnnStatus_t status, const char *what,
                                        struct snug_error *err)
{
    char detail[512] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return SNUG_OK;
    cudnnGetLastErrorString(detail, sizeof detail);
    return snug_fail(err, SNUG_UNSUPPORTED, "%s: %s %s", what, cudnnGetErrorString(status), detail);
}

/* ---- attention ------------------------------------------------------------------------------ */

struct sizes {
    int64_t n_batch, n_heads, n_kv_heads, n_time, depth, window;
    enum dtype type;
    bool causal;
};

/* q, k and v in one tensor, or in tensors of their own. */
static struct cuda_attention_shape shape_of(struct sizes s, bool packed, bool is_grad)
{
    int64_t q_row = s.n_heads * s.depth, kv_row = s.n_kv_heads * s.depth;
    return (struct cuda_attention_shape){.n_batch = s.n_batch,
                                         .n_heads = s.n_heads,
                                         .n_kv_heads = s.n_kv_heads,
                                         .n_time = s.n_time,
                                         .depth = s.depth,
                                         .q_row = packed ? q_row + 2 * kv_row : q_row,
                                         .kv_row = packed ? q_row + 2 * kv_row : kv_row,
                                         .window = s.window,
                                         .type = s.type,
                                         .causal = s.causal,
                                         .is_grad = is_grad};
}

static const char *text_of(const struct cuda_attention_shape *s)
{
    static char text[200];
    snprintf(text, sizeof text, "B=%lld H=%lld G=%lld T=%lld D=%lld W=%lld rows of %lld%s%s%s",
             (long long)s->n_batch, (long long)s->n_heads, (long long)s->n_kv_heads,
             (long long)s->n_time, (long long)s->depth, (long long)s->window, (long long)s->q_row,
             s->causal ? " causal" : "", s->is_grad ? " gradient" : "",
             s->nondeterministic ? " nondeterministic" : "");
    return text;
}

/* Returns whether our kernel sums over the heads that share k and v. */
static bool try_attention(struct cuda_attention_shape shape, int most_plans)
{
    struct snug_error err = {0};
    struct cuda_attention *attention = NULL;
    seen.n_plans = 0;
    size_t booked = cuda_attention_work_bytes(&shape);
    enum snug_status status = cuda_attention_prepare(&shape, booked, &attention, &err);
    if (status != SNUG_OK || attention == NULL || seen.n_plans > most_plans)
        fail_msg("%s in %zu bytes: %s, %d plans", text_of(&shape), booked,
                 status != SNUG_OK ? err.message : "refused", seen.n_plans);
    bool sums = cuda_attention_sums_heads(attention);
    cuda_attention_release(attention);
    return sums;
}

static void test_attention(void **state)
{
    (void)state;
    static const struct sizes sizes[] = {
        {64, 12, 12, 1024, 64, 0, DTYPE_bf16, true}, /* GPT-2 124M */
        {32, 25, 25, 1024, 64, 0, DTYPE_bf16, true}, /* GPT-2 1.5B */
        {1, 12, 12, 8192, 64, 0, DTYPE_f16, true},   /* fewer heads at a time */
        {8, 3, 3, 197, 64, 0, DTYPE_bf16, false},    /* patches of an image */
        {2, 3, 3, 127, 8, 0, DTYPE_f16, true},       {1, 3, 3, 63, 80, 0, DTYPE_bf16, true},
        {1, 2, 2, 130, 128, 0, DTYPE_bf16, false},   {1, 1, 1, 2, 16, 0, DTYPE_bf16, true},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int packed = 0; packed < 2; packed++) {
            try_attention(shape_of(sizes[i], packed, false), 1);
            try_attention(shape_of(sizes[i], packed, true), 2);
        }
}

/* Heads that share k and v, and windows. */
static const struct sizes grouped[] = {
    {16, 14, 2, 1024, 64, 0, DTYPE_bf16, true},    /* Qwen2.5 0.5B */
    {8, 12, 2, 1024, 128, 0, DTYPE_bf16, true},    /* 1.5B */
    {4, 28, 4, 1024, 128, 0, DTYPE_bf16, true},    /* 7B */
    {1, 32, 8, 2048, 128, 0, DTYPE_bf16, true},    /* Llama 3.1 8B */
    {2, 9, 3, 512, 64, 0, DTYPE_bf16, true},       /* SmolLM2 135M */
    {1, 32, 8, 8192, 128, 4096, DTYPE_bf16, true}, /* Mistral 7B */
    {2, 9, 3, 512, 64, 256, DTYPE_bf16, true},     {2, 4, 4, 1000, 64, 256, DTYPE_f16, true},
    {16, 14, 2, 1000, 64, 0, DTYPE_bf16, true},    {16, 14, 2, 1000, 64, 256, DTYPE_bf16, true},
    {2, 6, 1, 197, 64, 0, DTYPE_bf16, false},      {2, 4, 2, 130, 80, 1, DTYPE_bf16, true},
    {1, 8, 1, 3, 8, 2, DTYPE_f16, true},
};

static void test_groups_and_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof grouped / sizeof *grouped; i++)
        for (int packed = 0; packed < 2; packed++) {
            try_attention(shape_of(grouped[i], packed, false), 1);
            for (int run = 0; run < 2; run++) {
                struct cuda_attention_shape shape = shape_of(grouped[i], packed, true);
                shape.nondeterministic = run == 1;
                assert_false(try_attention(shape, 2));
            }
        }
    /* dS of a group is larger than what is booked: we sum, one head at a time */
    const struct sizes longest = {1, 8, 2, 32768, 64, 0, DTYPE_bf16, true};
    assert_true(try_attention(shape_of(longest, false, true), 1));
}

/* cuDNN also has the gradient with dk and dv of every head of q. */
static void test_unsummed_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof grouped / sizeof *grouped; i++)
        for (int run = 0; run < 2; run++) {
            struct cuda_attention_shape shape = shape_of(grouped[i], false, true);
            struct snug_error err = {0};
            struct attention_engine *engine = NULL;
            size_t work_bytes = 0;
            struct attention_part part = {shape.n_batch, shape.n_heads, shape.n_kv_heads,
                                          ATTENTION_SUMS_own};
            shape.nondeterministic = run == 1;
            enum snug_status status = attention_engine_prepare(&shape, &part, (size_t)1 << 40,
                                                               &engine, &work_bytes, &err);
            if (status != SNUG_OK || engine == NULL)
                fail_msg("%s: %s", text_of(&shape), status != SNUG_OK ? err.message : "refused");
            attention_engine_release(engine);
        }
}

static void test_attention_nondeterministic(void **state)
{
    (void)state;
    struct cuda_attention_shape shape =
        shape_of((struct sizes){256, 12, 12, 1024, 64, 0, DTYPE_bf16, true}, true, true);
    try_attention(shape, 2);
    assert_int_equal(seen.n_plans, 2); /* deterministic plans save more, and run in parts */
    shape.nondeterministic = true;
    try_attention(shape, 1);
    /* dQ in fp32 is larger than dS here: in parts */
    shape = shape_of((struct sizes){64, 12, 12, 128, 128, 0, DTYPE_bf16, true}, true, true);
    shape.nondeterministic = true;
    try_attention(shape, 2);
}

/* Layers that are alike have one plan: it is built once, and is there until the last of them goes. */
static void test_like_layers(void **state)
{
    (void)state;
    struct cuda_attention_shape shape =
        shape_of((struct sizes){8, 12, 12, 1024, 64, 0, DTYPE_bf16, true}, true, true);
    struct snug_error err = {0};
    struct cuda_attention *layers[3] = {NULL};
    size_t booked = cuda_attention_work_bytes(&shape);
    for (int round = 0; round < 2; round++) {
        seen.n_plans = 0;
        for (int i = 0; i < 3; i++)
            assert_int_equal(cuda_attention_prepare(&shape, booked, &layers[i], &err), SNUG_OK);
        int n_built = seen.n_plans;
        assert_in_range(n_built, 1, 2); /* the second for a part that fits */
        cuda_attention_release(layers[0]);
        assert_int_equal(cuda_attention_prepare(&shape, booked, &layers[0], &err), SNUG_OK);
        assert_int_equal(seen.n_plans, n_built);
        shape.n_batch++; /* and one that is not alike */
        try_attention(shape, 2);
        assert_in_range(seen.n_plans, 1, 2);
        shape.n_batch--;
        for (int i = 0; i < 3; i++)
            cuda_attention_release(layers[i]);
    }
}

/* ---- convolutions --------------------------------------------------------------------------- */

static void test_convolutions(void **state)
{
    (void)state;
    static const struct { /* images n x side x side x c, o kernels of side k */
        int64_t n, side, c, o, k, stride, pad, groups;
    } convs[] = {
        {128, 28, 1, 32, 3, 1, 1, 1},  {128, 32, 3, 64, 3, 1, 1, 1},   {32, 32, 64, 64, 3, 1, 1, 1},
        {32, 32, 64, 128, 1, 2, 0, 1}, {32, 16, 128, 128, 3, 2, 1, 1}, {8, 224, 3, 64, 7, 2, 3, 1},
        {2, 9, 33, 65, 1, 1, 0, 1},    {1, 8, 8, 8, 3, 1, 1, 8},
    };
    static const enum dtype types[] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
        for (int run = 0; run < 9; run++) {
            enum dtype type = types[run / 3];
            int64_t side = (convs[i].side + 2 * convs[i].pad - convs[i].k) / convs[i].stride + 1;
            struct cuda_conv_shape shape = {(enum cuda_conv_kind)(run % 3),
                                            convs[i].n,
                                            convs[i].side,
                                            convs[i].side,
                                            convs[i].c,
                                            side,
                                            side,
                                            convs[i].o,
                                            convs[i].k,
                                            convs[i].k,
                                            convs[i].stride,
                                            convs[i].pad,
                                            convs[i].groups};
            struct snug_error err = {0};
            struct cuda_conv *conv = NULL;
            enum snug_status status = cuda_conv_prepare(
                &shape, type, type, cuda_conv_work_bytes(&shape, type), &conv, &err);
            if (status != SNUG_OK || conv == NULL)
                fail_msg("convolution %zu, kind %d, %s: %s", i, run % 3, dtype_name(type),
                         status != SNUG_OK ? err.message : "refused");
            cuda_conv_release(conv);
        }
}

/* ---- a graph that is wrong ------------------------------------------------------------------ */

static void test_a_graph_that_nothing_runs(void **state)
{
    (void)state;
    struct snug_error err = {0};
    struct dnn_plan *plan = NULL;
    struct dnn_key key = {DNN_BY_attention, {0}};
    struct dnn_limits wish = {.most_work_bytes = 1 << 20};
    int64_t least = 0;
    struct dnn_graph *g = calloc(1, sizeof *g);
    assert_non_null(g);
    dnn_object a = dnn_tensor(g, 1, CUDNN_DATA_BFLOAT16, dnn_packed(1, 1, 8, 16));
    dnn_object c = dnn_tensor(g, 2, CUDNN_DATA_BFLOAT16, dnn_packed(1, 1, 8, 8));
    dnn_gemm(g, a, a, c); /* 8 x 16 times 8 x 16 */
    assert_int_not_equal(
        dnn_plan_make(&key, g, NULL, &wish, &plan, &least, &err) == SNUG_OK && plan != NULL, true);
    dnn_plan_release(plan);
}

enum { SKIPPED = 77 }; /* as tools/run-tests.sh has it */

int main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return printf("skip: cuDNN is not run with a sanitizer\n"), SKIPPED;
#endif
    /* Where there is no driver, its stub answers to the driver's name. */
    if (dlopen("libcuda.so.1", RTLD_NOW) == NULL && dlopen(CUDA_STUB, RTLD_NOW) == NULL)
        return printf("skip: neither a driver nor %s\n", CUDA_STUB), SKIPPED;
    cudnnStatus_t status =
        __real_cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &seen.gpu);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            __real_cudnnBackendSetAttribute(seen.gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                            CUDNN_TYPE_CHAR, (int64_t)strlen(h200), h200);
    if (status == CUDNN_STATUS_SUCCESS)
        status = __real_cudnnBackendFinalize(seen.gpu);
    if (status != CUDNN_STATUS_SUCCESS)
        return printf("skip: this cuDNN takes no description of a GPU\n"), SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_groups_and_windows),
        cmocka_unit_test(test_unsummed_gradients),
        cmocka_unit_test(test_attention_nondeterministic),
        cmocka_unit_test(test_like_layers),
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_a_graph_that_nothing_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
