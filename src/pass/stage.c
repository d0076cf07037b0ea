/*
 * stage.c -- pipeline parallelism: keep the layers of one stage and connect it to its neighbours.
 *
 *     stage 0        [ embedding | h.0 | h.1 ]  send
 *     stage 1  recv  [ h.2 | h.3 | h.4 ]        send
 *     stage 2  recv  [ h.5 | head, loss ]
 *
 * The forward program is cut between blocks (blocks.h), where exactly one activation crosses.  The
 * backward half follows from it: the gradient of a recv is a send and that of a send is a recv
 * (gradients.c).
 *
 * Dynamic programming over all splits finds the one whose slowest stage is fastest.  Op times are
 * those of a nominal device, not of this machine, because all ranks, and a planner on another
 * machine, must find the same split.
 *
 * A weight that the first and the last stage read (a token table tied to the head) is on both, and
 * unroll.c sums its gradients.  The weights of other stages stay in the program as tensors that
 * are not persistent.
 *
 * Model states only (psi:N) have no layers: every stage has a range of each tensor.
 *
 * needs: a forward program, a recipe that recipe_check accepts    keeps: ids
 * breaks: nothing    leaves: results.cut, whole, at_ends, n_whole
 * cost:  O(ops + blocks^2 x stages)
 */
#include "base/cut.h"
#include "ir/collective_options.h"
#include "pass/blocks.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

#include <math.h>

struct staging {
    struct program *prog;
    struct pass_env *env;
    struct blocks blocks;
    double *seconds; /* seconds[b]: total time of the blocks before b */
    int begin, end;  /* ops of this stage */
    struct rewriter rw;
};

static enum snug_status no_memory(const struct pass_env *env)
{
    return snug_fail(env->err, SNUG_NO_MEMORY, "stage: out of memory");
}

/* ---- where to cut ---------------------------------------------------------------------------- */

static enum snug_status sum_seconds(struct staging *s)
{
    s->seconds = arena_zeros(s->env->scratch, (size_t)s->blocks.n + 1, sizeof *s->seconds);
    if (s->seconds == NULL)
        return no_memory(s->env);
    for (int b = 0; b < s->blocks.n; b++) {
        s->seconds[b + 1] = s->seconds[b];
        for (int i = s->blocks.list[b].begin; i < s->blocks.list[b].end; i++)
            s->seconds[b + 1] +=
                s->env->device.op_seconds(s->env->device.handle, s->prog, &s->prog->ops[i]);
    }
    return SNUG_OK;
}

/* best[k][b]: time of the slowest stage when k + 1 stages share the first b blocks.  first[k][b]:
 * the block with which the last of these stages begins. */
static enum snug_status find_cut(struct staging *s)
{
    int n = s->blocks.n, n_stages = s->env->config.ranks.n_stages;
    size_t row = (size_t)n + 1;
    double *best = arena_zeros(s->env->scratch, row * (size_t)n_stages, sizeof *best);
    int *first = arena_zeros(s->env->scratch, row * (size_t)n_stages, sizeof *first);
    if (best == NULL || first == NULL)
        return no_memory(s->env);
    for (int b = 1; b <= n; b++)
        best[b] = s->seconds[b];
    for (int k = 1; k < n_stages; k++)
        for (int b = k + 1; b <= n; b++) {
            double *here = &best[(size_t)k * row + (size_t)b];
            *here = INFINITY;
            for (int from = k; from < b; from++) {
                double slowest = fmax(best[(size_t)(k - 1) * row + (size_t)from],
                                      s->seconds[b] - s->seconds[from]);
                if (slowest < *here) {
                    *here = slowest;
                    first[(size_t)k * row + (size_t)b] = from;
                }
            }
        }
    struct stage_cut *cut = s->env->results.cut;
    cut->n_stages = n_stages;
    cut->begin[n_stages] = n;
    for (int k = n_stages - 1; k >= 0; k--)
        cut->begin[k] = k == 0 ? 0 : first[(size_t)k * row + (size_t)cut->begin[k + 1]];
    return SNUG_OK;
}

static void find_slowest(struct staging *s)
{
    struct stage_cut *cut = s->env->results.cut;
    int stage = s->env->config.ranks.stage;
    double own = s->seconds[cut->begin[stage + 1]] - s->seconds[cut->begin[stage]], most = own;
    for (int k = 0; k < cut->n_stages; k++)
        most = fmax(most, s->seconds[cut->begin[k + 1]] - s->seconds[cut->begin[k]]);
    cut->slowest = own > 0 ? most / own : 1;
}

static bool has_weights(const struct staging *s, const struct forward_block *block)
{
    for (int i = block->begin; i < block->end; i++)
        for (int k = 0; k < s->prog->ops[i].n_in; k++) {
            tensor_id id = s->prog->ops[i].in[k];
            if (id != TENSOR_NONE && s->prog->tensors[id].role == ROLE_parameter)
                return true;
        }
    return false;
}

/* A block without weights is merged into a neighbour.  A cast of the inputs goes with the block
 * after it, where gradients end.  A loss goes with the block before it: an evaluation reads the
 * logits, so it cannot be cut there. */
static void merge_weightless(struct staging *s)
{
    struct blocks *b = &s->blocks;
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        bool merges = n > 0 && (!has_weights(s, &b->list[i]) || !has_weights(s, &b->list[n - 1]));
        if (merges)
            b->list[n - 1].end = b->list[i].end;
        else
            b->list[n++] = b->list[i];
    }
    b->n = n;
}

static enum snug_status choose_blocks(struct staging *s)
{
    const struct pass_env *env = s->env;
    int n_stages = env->config.ranks.n_stages;
    TRY(blocks_find(s->prog, s->prog->n_ops, env->scratch, &s->blocks, env->err));
    merge_weightless(s);
    if (n_stages > s->blocks.n)
        return snug_fail(env->err, SNUG_BAD_ARGUMENT,
                         "--stages %d: %s has %d blocks; use at most %d stages", n_stages,
                         s->prog->name, s->blocks.n, s->blocks.n);
    TRY(sum_seconds(s));
    if (env->results.cut->n_stages == 0)
        TRY(find_cut(s));
    if (env->results.cut->begin[n_stages] != s->blocks.n)
        return snug_fail(env->err, SNUG_BAD_PROGRAM,
                         "stage: %s has %d blocks, but its training run has %d", s->prog->name,
                         s->blocks.n, env->results.cut->begin[n_stages]);
    find_slowest(s);
    s->begin = s->blocks.list[env->results.cut->begin[env->config.ranks.stage]].begin;
    s->end = s->blocks.list[env->results.cut->begin[env->config.ranks.stage + 1] - 1].end;
    env->results.cut->last_begin = s->blocks.list[env->results.cut->begin[n_stages - 1]].begin;
    return SNUG_OK;
}

/* ---- which stage reads which weights ------------------------------------------------------- */

static bool is_first(const struct staging *s)
{
    return s->env->config.ranks.stage == 0;
}

static bool is_last(const struct staging *s)
{
    return s->env->config.ranks.stage == s->env->config.ranks.n_stages - 1;
}

static int stage_of_op(const struct staging *s, int op)
{
    int stage = 0;
    while (s->blocks.list[s->env->results.cut->begin[stage + 1] - 1].end <= op)
        stage++;
    return stage;
}

static bool is_of_model(const struct tensor *t)
{
    return t->role == ROLE_parameter || t->role == ROLE_buffer;
}

/* For each parameter and buffer: the first and the last stage that reads it, or -1. */
static enum snug_status find_readers(struct staging *s, int *first, int *last)
{
    for (int t = 0; t < s->prog->n_tensors; t++)
        first[t] = last[t] = -1;
    for (int i = 0; i < s->prog->n_ops; i++) {
        int stage = stage_of_op(s, i);
        for (int k = 0; k < s->prog->ops[i].n_in; k++) {
            tensor_id id = s->prog->ops[i].in[k];
            if (id == TENSOR_NONE || !is_of_model(&s->prog->tensors[id]))
                continue;
            bool is_new = first[id] < 0 || last[id] == stage;
            if (!is_new && (first[id] != 0 || stage != s->env->config.ranks.n_stages - 1))
                return snug_fail(s->env->err, SNUG_UNSUPPORTED,
                                 "\"%s\" is read by stages %d and %d: only the first and the last "
                                 "stage can share a weight",
                                 s->prog->tensors[id].name, last[id], stage);
            first[id] = first[id] < 0 ? stage : first[id];
            last[id] = stage;
        }
    }
    return SNUG_OK;
}

static enum snug_status assign_weights(struct staging *s)
{
    size_t n = (size_t)s->prog->n_tensors + 1;
    int *first = arena_alloc(s->env->scratch, n * sizeof *first);
    int *last = arena_alloc(s->env->scratch, n * sizeof *last);
    s->env->results.at_ends = arena_zeros(s->env->scratch, n, sizeof *s->env->results.at_ends);
    s->env->results.n_whole = s->prog->n_tensors;
    if (first == NULL || last == NULL || s->env->results.at_ends == NULL)
        return no_memory(s->env);
    TRY(find_readers(s, first, last));
    int stage = s->env->config.ranks.stage;
    for (int t = 0; t < s->prog->n_tensors; t++) {
        if (!is_of_model(&s->prog->tensors[t]))
            continue;
        s->env->results.at_ends[t] = first[t] != last[t];
        if (first[t] != stage && last[t] != stage)
            s->prog->tensors[t].persistent = false;
    }
    return SNUG_OK;
}

/* ---- the ops of the stage ------------------------------------------------------------------ */

static enum snug_status append(struct staging *s, enum op_kind kind, struct attrs attrs,
                               tensor_id in, tensor_id out)
{
    struct op op = op_make(kind, attrs, in != TENSOR_NONE, &in, 1, &out);
    return rewriter_add(&s->rw, &op);
}

static struct attrs peer(const struct staging *s, int stage)
{
    const struct rank_place *ranks = &s->env->config.ranks;
    return p2p_attrs(rank_at(ranks, stage, ranks->rank < 0 ? 0 : ranks->rank));
}

/* Every stage receives the batch.  A wait_copy names each input, so that even an unread one gets
 * memory to be filled. */
static enum snug_status name_inputs(struct staging *s)
{
    for (int t = 0; t < s->prog->n_tensors; t++)
        if (s->prog->tensors[t].role == ROLE_input)
            TRY(append(s, OP_wait_copy, ATTRS(), t, TENSOR_NONE));
    return SNUG_OK;
}

/* With PipeDream the last stage has no copy of a tied table (pipedream.c).  In an evaluation the
 * first stage sends it. */
static enum snug_status send_tied_tables(struct staging *s)
{
    for (int t = 0; t < s->env->results.n_whole; t++) {
        bool is_sent = s->env->results.at_ends[t] && !s->prog->tensors[t].frozen &&
                       !s->env->config.train && s->env->config.pipeline == PIPELINE_pipedream;
        if (is_sent && is_first(s)) {
            TRY(append(s, OP_send, peer(s, s->env->config.ranks.n_stages - 1), t, TENSOR_NONE));
            TRY(append(s, OP_sent, ATTRS(), t, TENSOR_NONE));
        }
        if (is_sent && is_last(s)) {
            s->prog->tensors[t].persistent = false;
            TRY(append(s, OP_recv, peer(s, 0), TENSOR_NONE, t));
        }
    }
    return SNUG_OK;
}

static enum snug_status make_ops(struct staging *s)
{
    const struct stage_cut *cut = s->env->results.cut;
    int stage = s->env->config.ranks.stage;
    TRY(name_inputs(s));
    TRY(send_tied_tables(s));
    if (!is_first(s))
        TRY(append(s, OP_recv, peer(s, stage - 1), TENSOR_NONE,
                   s->blocks.list[cut->begin[stage]].input));
    for (int i = s->begin; i < s->end; i++)
        TRY(rewriter_copy(&s->rw, i));
    if (is_last(s))
        return SNUG_OK;
    tensor_id result = s->blocks.list[cut->begin[stage + 1]].input;
    TRY(append(s, OP_send, peer(s, stage + 1), result, TENSOR_NONE));
    if (s->env->config.train)
        return SNUG_OK;
    TRY(append(s, OP_sent, ATTRS(), result, TENSOR_NONE));
    return append(s, OP_clear, ATTRS(), TENSOR_NONE, s->prog->loss);
}

/* ---- the pass -------------------------------------------------------------------------------- */

static void cut_states_alone(struct program *prog, const struct rank_place *ranks)
{
    for (int i = 0; i < prog->n_tensors; i++) {
        struct tensor *t = &prog->tensors[i];
        struct cut_range own = cut_of((struct cut){.unit = 1, .owner = CUT_OVER_ALL},
                                      shape_elems(&t->shape), ranks->n_stages, ranks->stage);
        t->whole = t->shape;
        t->whole_from = own.from;
        t->shape = (struct shape){1, {own.count}};
        t->persistent = own.count > 0;
    }
}

enum snug_status pass_stage(struct program *prog, struct pass_env *env)
{
    struct staging s = {.prog = prog, .env = env, .rw = rewriter_begin(prog, "stage", env->err)};
    if (prog->n_ops == 0) {
        cut_states_alone(prog, &env->config.ranks);
        return SNUG_OK;
    }
    if (env->results.whole != NULL)
        TRY(program_copy(env->results.whole, prog, env->err));
    TRY(choose_blocks(&s));
    TRY(assign_weights(&s));
    return rewriter_finish(&s.rw, make_ops(&s));
}
