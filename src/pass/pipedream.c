/*
 * pipedream.c -- PipeDream's asynchronous updates: every backward half is followed by an update,
 * and each micro-batch sees one version of the weights in both of its halves.
 *
 * F of micro-batch j reads the current weights.  By the time its B runs, the updates of earlier
 * micro-batches have changed them, so before an update we copy every weight that a later B still
 * needs (NAME.stash.V: the weight after V updates).  The copy lives until that B has read it.
 * Stage s of p then holds p - s versions, the current one included.
 *
 * A table that both ends of the model use (the token embedding tied to the LM head) belongs to the
 * first stage.  Before each F the first stage sends the version of that micro-batch to the last
 * stage; after B the last stage sends the gradient back.  Both ends therefore see the same version,
 * and one update is made.
 *
 * unroll.c calls these functions; the contract of the pass is in its head.
 */
#include "pass/pipedream.h"

#include "ir/collective_options.h"

#include <stdlib.h>

/* ---- versions of weights --------------------------------------------------------------------- */

/* How many updates this stage has made when it runs F of a micro-batch. */
static int version_of(const struct unrolling *u, int micro)
{
    return micro < u->n_ahead ? 0 : micro - u->n_ahead + 1;
}

/* The last micro-batch whose F reads the weights after `version` updates. */
static int last_reader(const struct unrolling *u, int version)
{
    int micro = version + u->n_ahead - 1;
    return micro < u->n_micro ? micro : u->n_micro - 1;
}

/* Is it a trained table that the first stage owns and the last stage reads? */
static bool is_shared_table(const struct unrolling *u, tensor_id id)
{
    return unroll_n_stages(u) > 1 && id < u->env->results.n_whole && u->env->results.at_ends[id] &&
           !u->prog->tensors[id].frozen;
}

static tensor_id *version_slot(const struct unrolling *u, int version, tensor_id id)
{
    return &u->pipedream->versions[(size_t)version * (size_t)u->n_tensors + (size_t)id];
}

/* An op that reads only the shape of a weight (embedding_grad) needs no old version of it. */
static void find_stashed(struct unrolling *u)
{
    for (int i = u->split; i < u->body_end; i++)
        for (int k = 0; k < u->prog->ops[i].n_in; k++) {
            tensor_id id = u->prog->ops[i].in[k];
            bool is_read = (op_infos[u->prog->ops[i].kind].unread >> k & 1) == 0;
            if (id != TENSOR_NONE && is_read)
                u->pipedream->is_stashed[id] = u->prog->tensors[id].role == ROLE_parameter &&
                                               !u->prog->tensors[id].frozen &&
                                               !is_shared_table(u, id);
        }
}

static enum snug_status copy_weight(struct unrolling *u, tensor_id id, int version,
                                    const char *format, tensor_id *added)
{
    struct tensor copy = u->prog->tensors[id];
    copy.persistent = false;
    copy.init = INIT_none;
    TRY(unroll_add_copy(u, id, &copy, version, format, added));
    return unroll_append(u, OP_accumulate, ATTRS(), id, *added);
}

/* Before the update that ends this version. */
static enum snug_status stash_weights(struct unrolling *u, int version)
{
    for (int id = 0; id < u->n_tensors && last_reader(u, version) > version; id++)
        if (u->pipedream->is_stashed[id])
            TRY(copy_weight(u, id, version, "%s.stash.%d", version_slot(u, version, id)));
    return SNUG_OK;
}

tensor_id pipedream_version(const struct unrolling *u, bool backward, int micro, tensor_id id)
{
    int version = version_of(u, micro);
    bool is_shared = is_shared_table(u, id);
    if (unroll_is_last_stage(u) && is_shared)
        return *unroll_own_slot(u, micro, id);
    if (backward && unroll_is_first_stage(u) && is_shared) /* an op that B recomputes */
        return *version_slot(u, version, id);
    if (backward && u->pipedream->is_stashed[id] && version < micro)
        return *version_slot(u, version, id);
    return TENSOR_NONE;
}

/* ---- a table of the first stage that the last one reads -------------------------------------- */

static struct attrs other_end(const struct unrolling *u)
{
    int stage = unroll_is_first_stage(u) ? unroll_n_stages(u) - 1 : 0;
    return p2p_attrs(rank_at(&u->env->config.ranks, stage, 0));
}

/* Before F: from the first stage to the last. */
static enum snug_status transfer_table(struct unrolling *u, tensor_id id, int micro)
{
    int version = version_of(u, micro);
    if (unroll_is_last_stage(u)) {
        struct tensor copy = u->prog->tensors[id];
        copy.persistent = false;
        copy.init = INIT_none;
        TRY(unroll_add_copy(u, id, &copy, micro, "%s@%d", unroll_own_slot(u, micro, id)));
        return unroll_append(u, OP_recv, other_end(u), TENSOR_NONE, *unroll_own_slot(u, micro, id));
    }
    if (*version_slot(u, version, id) == TENSOR_NONE)
        TRY(copy_weight(u, id, version, "%s.copy.%d", version_slot(u, version, id)));
    return unroll_append(u, OP_send, other_end(u), *version_slot(u, version, id), TENSOR_NONE);
}

/* After B: the gradient goes back to the first stage.  The last stage knows that it has arrived
 * when it receives what the first stage sends afterwards. */
static enum snug_status return_gradient(struct unrolling *u, tensor_id id, int micro)
{
    tensor_id grad = program_linked(u->prog, id, LINK_gradient), own, other;
    TRY(unroll_own_tensor(u, micro, grad, &own));
    if (unroll_is_last_stage(u))
        return unroll_append(u, OP_send, other_end(u), own, TENSOR_NONE);
    struct tensor copy = u->prog->tensors[grad];
    TRY(unroll_add_copy(u, grad, &copy, micro, "%s.head@%d", &other));
    TRY(unroll_append(u, OP_recv, other_end(u), TENSOR_NONE, other));
    return unroll_append(u, OP_accumulate, ATTRS(common, .accumulate = ACC_yes), other, own);
}

static enum snug_status wait_for_gradient(struct unrolling *u, tensor_id id, int micro)
{
    tensor_id own;
    TRY(unroll_own_tensor(u, micro, program_linked(u->prog, id, LINK_gradient), &own));
    return unroll_append(u, OP_sent, ATTRS(), own, TENSOR_NONE);
}

/* The first stage waits for a version's sends once its last reader is done; the last stage waits
 * for a gradient p micro-batches later. */
static enum snug_status wait_for_table(struct unrolling *u, tensor_id id, bool backward, int micro)
{
    int version = version_of(u, micro), sent = micro - unroll_n_stages(u);
    if (unroll_is_first_stage(u) && backward && last_reader(u, version) == micro)
        return unroll_append(u, OP_sent, ATTRS(), *version_slot(u, version, id), TENSOR_NONE);
    return unroll_is_last_stage(u) && !backward && sent >= 0 ? wait_for_gradient(u, id, sent)
                                                             : SNUG_OK;
}

static bool is_end(const struct unrolling *u)
{
    return unroll_is_first_stage(u) || unroll_is_last_stage(u);
}

enum snug_status pipedream_begin_half(struct unrolling *u, bool backward, int micro)
{
    for (int id = 0; id < u->n_tensors && is_end(u) && !backward; id++)
        if (is_shared_table(u, id))
            TRY(transfer_table(u, id, micro));
    return SNUG_OK;
}

/* What came after the body comes after each B. */
static enum snug_status append_update(struct unrolling *u, int micro, int n_ops)
{
    tensor_id loss;
    TRY(stash_weights(u, micro));
    for (int i = u->body_end; i < n_ops; i++)
        TRY(unroll_append_op(u, i, micro));
    if (!unroll_is_last_stage(u))
        return SNUG_OK;
    TRY(unroll_own_tensor(u, micro, u->prog->loss, &loss));
    struct attrs adds = ATTRS(common, .accumulate = micro == 0 ? ACC_no : ACC_yes);
    return unroll_append(u, OP_accumulate, adds, loss, u->pipedream->loss_sum);
}

enum snug_status pipedream_end_half(struct unrolling *u, bool backward, int micro, int n_ops)
{
    for (int id = 0; id < u->n_tensors && is_end(u); id++) {
        if (!is_shared_table(u, id))
            continue;
        if (backward)
            TRY(return_gradient(u, id, micro));
        TRY(wait_for_table(u, id, backward, micro));
    }
    return backward ? append_update(u, micro, n_ops) : SNUG_OK;
}

/* ---- the end of the step --------------------------------------------------------------------- */

enum snug_status pipedream_wait_sends(struct unrolling *u)
{
    int first = u->n_micro - unroll_n_stages(u);
    for (int id = 0; id < u->n_tensors && unroll_is_last_stage(u); id++)
        for (int micro = first > 0 ? first : 0; micro < u->n_micro && is_shared_table(u, id);
             micro++)
            TRY(wait_for_gradient(u, id, micro));
    return SNUG_OK;
}

enum snug_status pipedream_average_loss(struct unrolling *u)
{
    struct attrs mean = ATTRS(options);
    mean.options.options.value[0] = 1.0 / u->n_micro;
    return unroll_append(u, OP_scale, mean, u->pipedream->loss_sum, u->prog->loss);
}

enum snug_status pipedream_init(struct unrolling *u, struct pipedream *p)
{
    size_t n = (size_t)u->n_tensors + 1, n_versions = n * ((size_t)u->n_micro + 1);
    p->versions = malloc(n_versions * sizeof *p->versions);
    p->is_stashed = arena_zeros(u->env->scratch, n, sizeof *p->is_stashed);
    if (p->versions == NULL || p->is_stashed == NULL)
        return unroll_no_memory(u);
    for (size_t i = 0; i < n_versions; i++)
        p->versions[i] = TENSOR_NONE;
    u->pipedream = p;
    find_stashed(u);
    struct tensor sum = u->prog->tensors[u->prog->loss];
    sum.name = "loss.sum";
    sum.is_output = false;
    for (int id = 0; id < u->n_tensors; id++)
        if (is_shared_table(u, id) && !unroll_is_first_stage(u))
            u->prog->tensors[id].persistent = false;
    return program_add_tensor(u->prog, &sum, &p->loss_sum, u->env->err);
}

void pipedream_free(struct pipedream *p)
{
    free(p->versions);
}
