/*
 * test_stages.c -- the programs of all stages of a pipeline: each is valid and planned correctly,
 * no more micro-batches are in flight than its schedule allows, sends match receives, there is no
 * deadlock, every weight is on some stage; and the cut is the best of all possible ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "ir/collective_options.h"
#include "pass/blocks.h"
#include "support/training.h"
#include "compile/compile.h"

enum { RANKS_MOST = 8, QUEUE_MOST = 256 };

struct one_case {
    const char *model, *keys;
    int n_ranks, n_stages;
};

static const struct one_case cases[] = {
    {"gpt-nano", "pipeline=naive batch=6 micro-batch=2 seq=8", 4, 4},
    {"gpt-nano", "pipeline=gpipe batch=4 micro-batch=1 seq=8", 2, 2},
    {"gpt-nano", "pipeline=gpipe batch=9 micro-batch=1 seq=8 precision=bf16", 4, 4},
    {"gpt-nano", "pipeline=1f1b batch=2 micro-batch=1 seq=8", 2, 2},
    {"gpt-nano", "pipeline=1f1b batch=7 micro-batch=1 seq=8 dropout=0.1", 3, 3},
    {"gpt-nano", "pipeline=1f1b batch=11 micro-batch=1 seq=8 checkpoint=all", 8, 8},
    {"gpt-nano", "pipeline=1f1b batch=16 micro-batch=1 seq=8 zero=1 state-bits=8", 8, 4},
    {"gpt-nano", "pipeline=1f1b batch=16 micro-batch=2 seq=8 optimizer=muon", 4, 2},
    {"gpt-nano", "pipeline=pipedream batch=5 micro-batch=1 seq=8", 2, 2},
    {"gpt-nano", "pipeline=pipedream batch=5 micro-batch=1 seq=8 precision=bf16", 5, 5},
    {"gpt-nano", "pipeline=pipedream batch=12 micro-batch=1 seq=8", 3, 3},
    {"gpt-nano", "pipeline=pipedream batch=17 micro-batch=1 seq=8", 8, 8},
    {"gpt-nano", "pipeline=pipedream batch=4 micro-batch=1 seq=8 checkpoint=sqrt", 1, 1},
    {"mlp:7-6-5-4-3", "pipeline=gpipe batch=8 micro-batch=2", 4, 4},
    {"mlp:7-6-5-4-3", "pipeline=pipedream batch=8 micro-batch=2", 3, 3},
    {"resnet18", "pipeline=1f1b batch=4 micro-batch=1", 4, 4},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* ---- one stage ------------------------------------------------------------------------------------ */

static void check_plan(const struct compiled_step *s, const char *what)
{
    struct snug_error err = {0};
    if (program_verify(&s->prog, &err) != SNUG_OK ||
        plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err) !=
            SNUG_OK)
        fail_msg("%s: %s", what, err.message);
}

/* A micro-batch is in flight from its first op to its last. */
static int most_in_flight(const struct compiled_step *s)
{
    int most = 0;
    int *begin = malloc((size_t)s->n_micro * sizeof *begin);
    int *end = malloc((size_t)s->n_micro * sizeof *end);
    for (int m = 0; m < s->n_micro; m++)
        begin[m] = end[m] = -1;
    for (int i = 0; i < program_body_end(&s->prog); i++) {
        const struct op *op = &s->prog.ops[i];
        bool is_at_end = op->kind == OP_clear || op->kind == OP_scale; /* the loss of them all */
        if (op_has(op, TRAIT_collective) || op->kind == OP_sent || is_at_end)
            continue;
        begin[op->micro] = begin[op->micro] < 0 ? i : begin[op->micro];
        end[op->micro] = i;
    }
    for (int i = 0; i < program_body_end(&s->prog); i++) {
        int n = 0;
        for (int m = 0; m < s->n_micro; m++)
            n += begin[m] >= 0 && begin[m] <= i && i <= end[m];
        most = n > most ? n : most;
    }
    free(begin);
    free(end);
    return most;
}

static int in_flight_of(const struct compiled_step *s, const struct snug_recipe *recipe)
{
    int of_1f1b = s->n_stages - s->stage;
    return recipe->pipeline == PIPELINE_naive   ? 1
           : recipe->pipeline == PIPELINE_gpipe ? s->n_micro
           : of_1f1b < s->n_micro               ? of_1f1b
                                                : s->n_micro;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

struct queue { /* of messages that leave: those from n_left to n_set_off */
    tensor_id id[QUEUE_MOST];
    int peer[QUEUE_MOST], n_left, n_set_off;
};

/* The lanes of all ranks: a recv waits for its send, `sent` for its recv, a collective for its group. */
struct lane {
    const struct program *prog;
    int at;                                         /* op */
    int64_t sent[RANKS_MOST], received[RANKS_MOST]; /* how many, to and from each rank */
    int64_t bytes[RANKS_MOST][256];                 /* of what was sent */
    struct {
        tensor_id id;
        int peer;
        int64_t number;
    } posted[64];
    int n_posted;
    /* By a GPU's own library, below. */
    bool is_direct;
    int stage_ranks;         /* with the same stage */
    struct queue leaving[2]; /* to neighbours, and beyond */
};

static int group_of(const struct compiled_step *s, const struct op *op, int *ranks)
{
    int n = 0;
    enum collective_group group = collective_group(op);
    for (int r = 0; r < s->n_ranks * s->n_stages; r++) {
        int stage = r / s->n_ranks, replica = r % s->n_ranks;
        bool is_end = (stage == 0 || stage == s->n_stages - 1) && replica == s->rank;
        if (group == GROUP_ALL || (group == GROUP_STAGE && stage == s->stage) ||
            (group == GROUP_ENDS && is_end))
            ranks[n++] = r;
    }
    assert_int_equal(n, collective_ranks(op));
    return n;
}

static bool has_left(const struct lane *lanes, const struct lane *lane, int rank, tensor_id id)
{
    for (int i = 0; i < lane->n_posted; i++)
        if (lane->posted[i].id == id &&
            lanes[lane->posted[i].peer].received[rank] <= lane->posted[i].number)
            return false;
    return true;
}

/* NCCL: a message is done when it is received, and those that leave a rank do so one after the
 * other, but for those beyond the neighbours: these are a queue of their own.  Those of a queue and
 * of one way, up or down, are done in the order in which a rank comes to them, sent or received. */
static bool take_direct(struct lane *lanes, int rank, const struct op *op)
{
    int peer = op->kind == OP_sent ? rank : p2p_peer(op);
    bool is_far = abs(peer - rank) > lanes[rank].stage_ranks;
    struct queue *own = lanes[rank].leaving, *from = &lanes[peer].leaving[is_far];
    if (op->kind == OP_send) {
        struct queue *q = &own[is_far];
        assert_true(q->n_set_off < QUEUE_MOST);
        q->id[q->n_set_off] = op->in[0];
        q->peer[q->n_set_off++] = peer;
        return true;
    }
    for (int far = 0; far < 2; far++)
        for (int i = own[far].n_left; i < own[far].n_set_off; i++) {
            bool is_same_way = far == is_far && (own[far].peer[i] > rank) == (peer < rank);
            if (op->kind == OP_sent ? own[far].id[i] == op->in[0] : is_same_way)
                return false;
        }
    if (op->kind == OP_sent)
        return true;
    if (from->n_left == from->n_set_off || from->peer[from->n_left] != rank)
        return false;
    assert_int_equal(tensor_bytes(lanes[peer].prog, from->id[from->n_left]),
                     tensor_bytes(lanes[rank].prog, op->out[0]));
    from->n_left++;
    return true;
}

/* Can this op, the next of the rank's lane, complete?  Collectives are handled separately. */
static bool take_sent(struct lane *lanes, int rank, const struct op *op)
{
    struct lane *lane = &lanes[rank];
    if (lane->is_direct)
        return take_direct(lanes, rank, op);
    if (op->kind == OP_sent) { /* or it is waiting for a recv that is about to be */
        const struct op *other = NULL;
        for (int i = 0; i < lane->n_posted; i++)
            if (lane->posted[i].id == op->in[0]) {
                const struct lane *peer = &lanes[lane->posted[i].peer];
                other = peer->at < peer->prog->n_ops ? &peer->prog->ops[peer->at] : NULL;
                bool about_to = other != NULL && other->kind == OP_recv &&
                                p2p_peer(other) == rank &&
                                peer->received[rank] == lane->posted[i].number;
                if (peer->received[rank] <= lane->posted[i].number && !about_to)
                    return false;
            }
        return true;
    }
    int peer = p2p_peer(op);
    if (op->kind == OP_send) {
        lane->posted[lane->n_posted % 64].id = op->in[0];
        lane->posted[lane->n_posted % 64].peer = peer;
        lane->posted[lane->n_posted % 64].number = lane->sent[peer];
        lane->n_posted += lane->n_posted < 63;
        lane->bytes[peer][lane->sent[peer]++] = tensor_bytes(lane->prog, op->in[0]);
        return true;
    }
    if (lanes[peer].sent[rank] <= lane->received[peer])
        return false;
    assert_int_equal(lanes[peer].bytes[rank][lane->received[peer]],
                     tensor_bytes(lane->prog, op->out[0]));
    lane->received[peer]++;
    return true;
}

/* All ranks of the group have reached the same collective: all continue. */
static bool take_collective(const struct compiled_step *compiled_steps, struct lane *lanes,
                            int rank)
{
    const struct op *op = &lanes[rank].prog->ops[lanes[rank].at];
    int group[RANKS_MOST], n = group_of(&compiled_steps[rank], op, group);
    for (int i = 0; i < n; i++) {
        const struct lane *other = &lanes[group[i]];
        const struct op *theirs =
            other->at < other->prog->n_ops ? &other->prog->ops[other->at] : NULL;
        if (theirs == NULL || theirs->kind != op->kind ||
            collective_group(theirs) != collective_group(op))
            return false;
        assert_string_equal(other->prog->tensors[collective_whole(theirs, 0)].name,
                            lanes[rank].prog->tensors[collective_whole(op, 0)].name);
    }
    for (int i = 0; i < n; i++)
        lanes[group[i]].at++;
    return true;
}

static void check_lanes(const struct compiled_step *compiled_steps, int n_ranks, bool is_direct,
                        const char *what)
{
    struct lane *lanes = calloc(RANKS_MOST, sizeof *lanes);
    bool moved = true;
    for (int r = 0; r < n_ranks; r++) {
        lanes[r].prog = &compiled_steps[r].prog;
        lanes[r].is_direct = is_direct;
        lanes[r].stage_ranks = compiled_steps[r].n_ranks;
    }
    while (moved) {
        moved = false;
        for (int r = 0; r < n_ranks; r++)
            while (lanes[r].at < lanes[r].prog->n_ops) {
                const struct op *op = &lanes[r].prog->ops[lanes[r].at];
                if (op_has(op, TRAIT_collective)) {
                    if (!take_collective(compiled_steps, lanes, r))
                        break;
                } else if (!op_has(op, TRAIT_p2p) || take_sent(lanes, r, op)) {
                    lanes[r].at++;
                } else {
                    break;
                }
                moved = true;
            }
    }
    for (int r = 0; r < n_ranks; r++) {
        if (lanes[r].at < lanes[r].prog->n_ops)
            fail_msg("%s%s: rank %d waits for ever at op %d (%s)", what,
                     is_direct ? ", from GPU to GPU" : "", r, lanes[r].at,
                     op_infos[lanes[r].prog->ops[lanes[r].at].kind].name);
        for (int far = 0; far < 2; far++)
            assert_int_equal(lanes[r].leaving[far].n_left, lanes[r].leaving[far].n_set_off);
        for (int i = 0; i < lanes[r].n_posted; i++)
            assert_true(has_left(lanes, &lanes[r], r, lanes[r].posted[i].id));
    }
    free(lanes);
}

/* A weight is on one stage, a shared table on at most two. */
static void check_weights(const struct compiled_step *compiled_steps, int n_stages,
                          const char *what)
{
    const struct program *first = compiled_step_forward(&compiled_steps[0]);
    for (int id = 0; id < first->n_tensors; id++) {
        int n = 0;
        for (int stage = 0; stage < n_stages; stage++)
            n += compiled_steps[stage * compiled_steps[0].n_ranks].prog.tensors[id].persistent;
        bool is_table = strcmp(first->tensors[id].name, "wte.weight") == 0;
        if (first->tensors[id].role == ROLE_parameter && (n < 1 || n > 1 + is_table))
            fail_msg("%s: \"%s\" is on %d stages", what, first->tensors[id].name, n);
    }
}

static void test_programs(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const struct one_case *c = &cases[i];
        struct compiled_step compiled_steps[RANKS_MOST];
        struct snug_error err = {0};
        char keys[256], what[300];
        snprintf(keys, sizeof keys, "%s ranks=%d stages=%d threads=1", c->keys, c->n_ranks,
                 c->n_stages);
        snprintf(what, sizeof what, "%s, %s", c->model, keys);
        snug_recipe *recipe = recipe_of(keys);
        snug_model *model = model_of(c->model);
        for (int r = 0; r < c->n_ranks; r++) {
            struct compile_request q = {
                .model = model, .recipe = recipe, .train = true, .rank = &r};
            must(compile_step(&q, &compiled_steps[r], &err), &err);
            check_plan(&compiled_steps[r], what);
            int most = most_in_flight(&compiled_steps[r]),
                should = in_flight_of(&compiled_steps[r], recipe);
            if (most != should)
                fail_msg("%s: rank %d has %d micro-batches in flight, not %d", what, r, most,
                         should);
        }
        check_lanes(compiled_steps, c->n_ranks, false, what);
        check_lanes(compiled_steps, c->n_ranks, true, what);
        check_weights(compiled_steps, c->n_stages, what);
        for (int r = 0; r < c->n_ranks; r++)
            compiled_step_free(&compiled_steps[r]);
        snug_model_free(model);
        snug_recipe_free(recipe);
    }
}

/* ---- the cut ---------------------------------------------------------------------------------------- */

/* Some number for every op, the same each time. */
static double odd_seconds(const void *device, const struct program *prog, const struct op *op)
{
    uint64_t at = (uint64_t)(op - prog->ops), seed = *(const uint64_t *)device;
    return 1 + (double)((at * 2654435761u + seed * 40503u) % 97);
}

/* Of all ways to cut blocks [from, n) into `left` stages, the slowest stage of the best. */
static double best_of_all(const double *seconds, int from, int n, int left)
{
    double best = INFINITY, first = 0;
    if (left == 0)
        return from == n ? 0 : INFINITY;
    for (int end = from + 1; end <= n - (left - 1); end++) {
        first += seconds[end - 1];
        best = fmin(best, fmax(first, best_of_all(seconds, end, n, left - 1)));
    }
    return best;
}

static void test_cut(void **state)
{
    snug_model *model = model_of("mlp:7-6-5-4-3-4-5-6-7-3");
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++)
        for (int n_stages = 2; n_stages <= 6; n_stages++) {
            struct snug_error err = {0};
            struct arena scratch = {0};
            struct program prog = {0};
            struct stage_cut cut = {0};
            struct blocks blocks;
            struct pass_env env = {.scratch = &scratch,
                                   .err = &err,
                                   .config.train = true,
                                   .config.ranks = {.n_ranks = 1, .n_stages = n_stages},
                                   .config.pipeline = PIPELINE_gpipe,
                                   .results.cut = &cut,
                                   .device.op_seconds = odd_seconds,
                                   .device.handle = &seed};
            must(model_forward(model, MODEL_FOR_LOSS, 1, 0, &prog, &err), &err);
            must(blocks_find(&prog, prog.n_ops, &scratch, &blocks, &err), &err);
            double *seconds = arena_zeros(&scratch, (size_t)blocks.n, sizeof *seconds), most = 0;
            for (int b = 0; b < blocks.n; b++)
                for (int i = blocks.list[b].begin; i < blocks.list[b].end; i++)
                    seconds[b] += odd_seconds(&seed, &prog, &prog.ops[i]);
            blocks.n--; /* the loss, which has no weights, stays with the last layer */
            seconds[blocks.n - 1] += seconds[blocks.n];
            must(pass_stage(&prog, &env), &err);
            for (int stage = 0; stage < n_stages; stage++) {
                double sum = 0;
                for (int b = cut.begin[stage]; b < cut.begin[stage + 1]; b++)
                    sum += seconds[b];
                most = fmax(most, sum);
            }
            assert_true(most == best_of_all(seconds, 0, blocks.n, n_stages));
            program_free(&prog);
            arena_free(&scratch);
        }
    snug_model_free(model);
}

/* An evaluation reads the logits, so that it cannot be cut before the loss.  It runs on the stages of its run. */
static void test_cut_of_evaluation(void **state)
{
    snug_model *model = model_of("mlp:40-64-10");
    struct stage_cut cut = {0};
    (void)state;
    for (int is_evaluation = 0; is_evaluation < 2; is_evaluation++) {
        struct snug_error err = {0};
        struct arena scratch = {0};
        struct program prog = {0};
        uint64_t seed = 1;
        struct pass_env env = {.scratch = &scratch,
                               .err = &err,
                               .config.train = !is_evaluation,
                               .config.ranks = {.n_ranks = 1, .n_stages = 2},
                               .config.pipeline = PIPELINE_gpipe,
                               .results.cut = &cut,
                               .device.op_seconds = odd_seconds,
                               .device.handle = &seed};
        must(model_forward(model, MODEL_FOR_LOSS, 1, 0, &prog, &err), &err);
        if (is_evaluation)
            prog.tensors[prog.ops[prog.n_ops - 1].in[0]].is_output = true;
        must(pass_stage(&prog, &env), &err);
        assert_int_equal(cut.begin[2], 2);
        program_free(&prog);
        arena_free(&scratch);
    }
    snug_model_free(model);
}

/* The cast of the inputs has no weights.  A stage of its own would never take the gradient that the next one
 * sends, and all would wait. */
static void test_stages_have_weights(void **state)
{
    struct snug_error err = {0};
    struct compiled_step s;
    snug_model *model = model_of("mlp:40-64-10");
    snug_recipe *recipe = recipe_of("batch=12 precision=bf16 pipeline=naive ranks=3 threads=1");
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    (void)state;
    assert_int_equal(compile_step(&q, &s, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "has 2 blocks; use at most 2 stages"));
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_cut_of_evaluation),
        cmocka_unit_test(test_stages_have_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
