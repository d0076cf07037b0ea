/*
 * cudnn_plan.c -- finds an engine for a cuDNN graph.
 *
 * cuDNN proposes engines in its own order of preference, then fallback engines that run almost
 * anything.  We take the first one that can be built, fits the planned workspace and has none of
 * the excluded numerical notes.  With the same library and GPU this is the same engine every time.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/lib/cudnn_graph.h"

enum { MOST_ENGINES = 32 };

struct dnn_plan {
    struct dnn_graph *graph; /* owned: it must live as long as the plan */
    dnn_object graph_object;
    dnn_object config, plan;
};

static void release_object(dnn_object object)
{
    if (object != NULL)
        cudnnBackendDestroyDescriptor(object);
}

static void release_graph(struct dnn_graph *g)
{
    for (int i = g->n_objects - 1; i >= 0; i--)
        release_object(g->objects[i]);
    free(g);
}

static void free_plan(struct dnn_plan *plan)
{
    if (plan == NULL)
        return;
    release_object(plan->plan);
    release_object(plan->config);
    release_object(plan->graph_object);
    release_graph(plan->graph);
    free(plan);
}

static cudnnStatus_t set(dnn_object object, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    return cudnnBackendSetAttribute(object, name, type, n, values);
}

static cudnnStatus_t make_graph(struct dnn_plan *plan, cudnnHandle_t handle)
{
    cudnnStatus_t status = plan->graph->status;
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                                              &plan->graph_object);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(plan->graph_object, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, plan->graph->n_ops, plan->graph->ops);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(plan->graph_object, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                     &handle);
    return status == CUDNN_STATUS_SUCCESS ? cudnnBackendFinalize(plan->graph_object) : status;
}

/* The engine configs that cuDNN proposes in a mode; the caller owns them.  0 if there are none, for
 * whatever reason. */
static int propose(const struct dnn_plan *plan, cudnnBackendHeurMode_t mode,
                   dnn_object configs[MOST_ENGINES])
{
    dnn_object advice = NULL;
    int64_t n = 0;
    int n_created = 0;
    cudnnStatus_t status =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &advice);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(advice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                     1, &plan->graph_object);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(advice, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendFinalize(advice);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendGetAttribute(advice, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL);
    n = n < MOST_ENGINES ? n : MOST_ENGINES;
    while (status == CUDNN_STATUS_SUCCESS && n_created < n) {
        status =
            cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[n_created]);
        n_created += status == CUDNN_STATUS_SUCCESS;
    }
    int64_t n_got = 0;
    if (status == CUDNN_STATUS_SUCCESS && n > 0)
        status = cudnnBackendGetAttribute(advice, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n_got, configs);
    release_object(advice);
    n_got = status == CUDNN_STATUS_SUCCESS ? n_got : 0;
    for (int i = (int)n_got; i < n_created; i++)
        release_object(configs[i]);
    return (int)n_got;
}

/* Does the engine have one of the notes?  If the query fails, assume that it does. */
static bool is_refused(dnn_object config, unsigned notes)
{
    if (notes == 0)
        return false;
    cudnnBackendNumericalNote_t carried[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    dnn_object engine = NULL;
    int64_t n = 0;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                          CUDNN_TYPE_NUMERICAL_NOTE,
                                          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, carried);
    release_object(engine);
    bool refused = status != CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; !refused && i < n && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        refused = (notes >> carried[i] & 1) != 0;
    return refused;
}

/* Returns NULL if the plan cannot be built here. */
static dnn_object build(dnn_object config, int64_t *work_bytes)
{
    dnn_object built = NULL;
    int64_t n = 0;
    cudnnStatus_t status =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &built);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(built, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                     1, &config);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendFinalize(built);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendGetAttribute(built, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &n, work_bytes);
    if (status == CUDNN_STATUS_SUCCESS)
        return built;
    release_object(built);
    return NULL;
}

/* An estimate before the plan is built, which may still need more. */
static int64_t work_bytes_of(dnn_object config)
{
    int64_t n = 0, bytes = 0;
    cudnnStatus_t status = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &n, &bytes);
    return status == CUDNN_STATUS_SUCCESS ? bytes : 0;
}

/* Can plan->config run in the available workspace? */
static bool try_config(struct dnn_plan *plan, const struct dnn_limits *limits,
                       int64_t *least_work_bytes)
{
    int64_t work_bytes = work_bytes_of(plan->config);
    if (is_refused(plan->config, limits->refused_notes))
        return false;
    if (work_bytes <= limits->most_work_bytes) {
        plan->plan = build(plan->config, &work_bytes);
        if (plan->plan == NULL || work_bytes <= limits->most_work_bytes)
            return plan->plan != NULL;
        release_object(plan->plan);
        plan->plan = NULL;
    }
    if (*least_work_bytes == 0 || work_bytes < *least_work_bytes)
        *least_work_bytes = work_bytes;
    return false;
}

/* Takes the first config that works, if any, and releases the others. */
static void take_first(struct dnn_plan *plan, const struct dnn_limits *limits, dnn_object *configs,
                       int n_configs, int64_t *least_work_bytes)
{
    int taken = -1;
    for (int i = 0; i < n_configs && taken < 0; i++) {
        plan->config = configs[i];
        if (try_config(plan, limits, least_work_bytes))
            taken = i;
    }
    if (taken < 0)
        plan->config = NULL;
    for (int i = 0; i < n_configs; i++)
        if (i != taken)
            release_object(configs[i]);
}

/* ---- the cache of plans
 * ----------------------------------------------------------------------- */

/* Not locked: one thread prepares.  An entry without a plan stays until the process ends. */
static struct known {
    struct dnn_key key;
    struct dnn_limits limits;
    struct dnn_plan *plan;
    int64_t least_work_bytes;
    int n_users;
    struct known *next;
} * first_known;

static bool matches(const struct known *known, const struct dnn_key *key,
                    const struct dnn_limits *limits)
{
    return known->key.writer == key->writer &&
           memcmp(known->key.values, key->values, sizeof key->values) == 0 &&
           known->limits.most_work_bytes == limits->most_work_bytes &&
           known->limits.refused_notes == limits->refused_notes;
}

bool dnn_plan_find(const struct dnn_key *key, const struct dnn_limits *limits,
                   struct dnn_plan **plan, int64_t *least_work_bytes)
{
    struct known *known = first_known;
    while (known != NULL && !matches(known, key, limits))
        known = known->next;
    if (known == NULL)
        return false;
    known->n_users++;
    *plan = known->plan;
    *least_work_bytes = known->least_work_bytes;
    return true;
}

static enum snug_status remember(const struct dnn_key *key, const struct dnn_limits *limits,
                                 struct dnn_plan *plan, int64_t least_work_bytes,
                                 struct snug_error *err)
{
    struct known *known = calloc(1, sizeof *known);
    if (known == NULL) {
        free_plan(plan);
        return snug_fail(err, SNUG_NO_MEMORY, "cuDNN: out of memory for a plan");
    }
    *known = (struct known){.key = *key,
                            .limits = *limits,
                            .plan = plan,
                            .least_work_bytes = least_work_bytes,
                            .n_users = 1,
                            .next = first_known};
    first_known = known;
    return SNUG_OK;
}

void dnn_plan_release(struct dnn_plan *plan)
{
    struct known **link = &first_known;
    while (plan != NULL && *link != NULL && (*link)->plan != plan)
        link = &(*link)->next;
    if (plan == NULL || *link == NULL || --(*link)->n_users > 0)
        return;
    struct known *unused = *link;
    *link = unused->next;
    free_plan(plan);
    free(unused);
}

/* ---- building a plan
 * -------------------------------------------------------------------------- */

enum snug_status dnn_plan_make(const struct dnn_key *key, struct dnn_graph *g, cudnnHandle_t handle,
                               const struct dnn_limits *limits, struct dnn_plan **plan,
                               int64_t *least_work_bytes, struct snug_error *err)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    *plan = NULL;
    *least_work_bytes = 0;
    struct dnn_plan *created = calloc(1, sizeof *created);
    if (created == NULL) {
        release_graph(g);
        return snug_fail(err, SNUG_NO_MEMORY, "cuDNN: out of memory for a plan");
    }
    created->graph = g;
    enum snug_status status = SNUG_OK;
    if (g->status != CUDNN_STATUS_SUCCESS) /* a bug in our graph */
        status = cuda_library_check_dnn(g->status, g->failed, err);
    else if (make_graph(created, handle) == CUDNN_STATUS_SUCCESS)
        for (size_t i = 0; i < sizeof modes / sizeof *modes && created->plan == NULL; i++) {
            dnn_object configs[MOST_ENGINES];
            int n = propose(created, modes[i], configs);
            take_first(created, limits, configs, n, least_work_bytes);
        }
    if (created->plan == NULL) {
        free_plan(created);
        created = NULL;
    }
    if (status == SNUG_OK)
        status = remember(key, limits, created, *least_work_bytes, err);
    if (status == SNUG_OK)
        *plan = created;
    return status;
}

enum snug_status dnn_plan_run(const struct dnn_plan *plan, cudnnHandle_t handle, int n,
                              const int64_t *uids, const void *const *addresses, void *work,
                              struct snug_error *err)
{
    dnn_object operands = NULL;
    cudnnStatus_t status =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &operands);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(operands, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            set(operands, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, addresses);
    if (status == CUDNN_STATUS_SUCCESS)
        status = set(operands, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendFinalize(operands);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendExecute(handle, plan->plan, operands);
    release_object(operands);
    return cuda_library_check_dnn(status, "running a graph", err);
}
