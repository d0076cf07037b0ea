/*
 * check.c -- an independent checker for plans.
 *
 * It does not use lifetimes or blocks.  It simulates the program on the bytes of the arena, where
 * every byte remembers the tensor that was last written to it, its owner.  A write sets the owner
 * of the tensor's bytes; a read requires that the tensor still owns all of its bytes.  A repeated
 * body is simulated up to three times, as the first, a middle and the last micro-batch.  That is
 * enough: all micro-batches but the first start from the same state, and some ops run only in the
 * last.  The whole step is simulated twice, to check that persistent tensors survive a step.
 *
 * It also checks that
 *   - outputs and workspace of an op do not overlap each other or its inputs, except that output 0
 *     may alias an input where ops.def allows it;
 *   - while a copy is in flight, only other copies may write its inputs or touch its outputs.  A
 *     copy is in flight until an op reads the result of it or of a later copy, or until the last op
 *     of the section.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* The arena is divided into pieces at the first and last byte of every tensor, so that all bytes of
 * a piece have the same owner.  Piece i is [edge[i], edge[i + 1]). */
struct simulation {
    const struct program *prog;
    const int64_t *offset;
    int64_t *edge;    /* ascending; the last one ends the last piece */
    tensor_id *owner; /* per piece: the tensor last written there */
    int n_edges;
    struct snug_error *err;
    int op;         /* the current op */
    int *in_flight; /* copies, in program order */
    int n_in_flight;
};

enum { NO_OWNER = -1 };

static const char *name_of(const struct simulation *s, tensor_id id)
{
    return id < 0 ? "nothing" : s->prog->tensors[id].name;
}

static int64_t begin_of(const struct simulation *s, tensor_id id)
{
    return s->offset[id];
}

static int64_t end_of(const struct simulation *s, tensor_id id)
{
    return s->offset[id] + tensor_bytes(s->prog, id);
}

static int by_byte(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static enum snug_status find_pieces(struct simulation *s)
{
    size_t n = 2 * (size_t)s->prog->n_tensors + 1;
    s->edge = malloc(n * sizeof *s->edge);
    s->owner = malloc(n * sizeof *s->owner);
    if (s->edge == NULL || s->owner == NULL)
        return snug_fail(s->err, SNUG_NO_MEMORY, "check: out of memory");
    int n_all = 0;
    for (int i = 0; i < s->prog->n_tensors; i++)
        if (s->offset[i] >= 0) {
            s->edge[n_all++] = begin_of(s, i);
            s->edge[n_all++] = end_of(s, i);
        }
    qsort(s->edge, (size_t)n_all, sizeof *s->edge, by_byte);
    for (int i = 0; i < n_all; i++)
        if (s->n_edges == 0 || s->edge[i] != s->edge[s->n_edges - 1])
            s->edge[s->n_edges++] = s->edge[i];
    for (int i = 0; i < s->n_edges; i++)
        s->owner[i] = NO_OWNER;
    return SNUG_OK;
}

static int first_piece(const struct simulation *s, tensor_id id)
{
    int low = 0, high = s->n_edges;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (s->edge[mid] <= begin_of(s, id))
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void write_as(struct simulation *s, tensor_id id, tensor_id owner)
{
    int64_t end = end_of(s, id);
    for (int i = first_piece(s, id); s->edge[i] < end; i++)
        s->owner[i] = owner;
}

/* The owner is the base of a view, so that a base can be read after its views were written. */
static void write_tensor(struct simulation *s, tensor_id id)
{
    write_as(s, id, tensor_root(s->prog, id));
}

static enum snug_status read_tensor(struct simulation *s, tensor_id id)
{
    tensor_id owner = tensor_root(s->prog, id);
    int64_t end = end_of(s, id);
    for (int i = first_piece(s, id); s->edge[i] < end; i++)
        if (s->owner[i] != owner)
            return snug_fail(s->err, SNUG_BAD_PROGRAM,
                             "plan is wrong: op %d (%s) reads \"%s\" at byte %lld, but \"%s\" was "
                             "last written there",
                             s->op, op_infos[s->prog->ops[s->op].kind].name, name_of(s, id),
                             (long long)s->edge[i], name_of(s, s->owner[i]));
    return SNUG_OK;
}

static bool overlap(const struct simulation *s, tensor_id a, tensor_id b)
{
    return begin_of(s, a) < end_of(s, b) && begin_of(s, b) < end_of(s, a);
}

static enum snug_status clash(struct simulation *s, tensor_id a, tensor_id b)
{
    return snug_fail(s->err, SNUG_BAD_PROGRAM,
                     "plan is wrong: in op %d (%s), \"%s\" and \"%s\" share bytes", s->op,
                     op_infos[s->prog->ops[s->op].kind].name, name_of(s, a), name_of(s, b));
}

static bool is_in_arena(const struct simulation *s, tensor_id id)
{
    return id != TENSOR_NONE && !s->prog->tensors[id].offloaded;
}

static enum snug_status check_operands(struct simulation *s, const struct op *op)
{
    tensor_id all[MAX_OUTPUTS + 1];
    int n = 0;
    for (int k = 0; k < op->n_out; k++)
        if (is_in_arena(s, op->out[k]))
            all[n++] = op->out[k];
    if (op->work != TENSOR_NONE)
        all[n++] = op->work;
    for (int a = 0; a < n; a++) {
        for (int b = a + 1; b < n; b++)
            if (overlap(s, all[a], all[b]))
                return clash(s, all[a], all[b]);
        for (int k = 0; k < op->n_in; k++) {
            if (!is_in_arena(s, op->in[k]) || op->in[k] == all[a] || !overlap(s, op->in[k], all[a]))
                continue;
            bool in_place = all[a] == op->out[0] && !op->no_alias &&
                            (op_infos[op->kind].inplace >> k & 1) &&
                            begin_of(s, op->in[k]) == begin_of(s, all[a]) &&
                            end_of(s, op->in[k]) == end_of(s, all[a]);
            if (!in_place)
                return clash(s, op->in[k], all[a]);
        }
    }
    return SNUG_OK;
}

static bool writes_root(const struct simulation *s, const struct op *copy, tensor_id root)
{
    for (int k = 0; k < copy->n_out; k++)
        if (copy->out[k] != TENSOR_NONE && tensor_root(s->prog, copy->out[k]) == root)
            return true;
    return false;
}

/* Removes the copies that are complete when the current op starts. */
static void finish_copies(struct simulation *s)
{
    const struct op *op = &s->prog->ops[s->op];
    int n_done = s->op == program_section_last(s->prog, s->op) ? s->n_in_flight : 0;
    for (int i = n_done; i < s->n_in_flight; i++)
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE &&
                writes_root(s, &s->prog->ops[s->in_flight[i]], tensor_root(s->prog, op->in[k])))
                n_done = i + 1;
    s->n_in_flight -= n_done;
    memmove(s->in_flight, s->in_flight + n_done, (size_t)s->n_in_flight * sizeof *s->in_flight);
}

static enum snug_status check_no_alias(struct simulation *s, tensor_id of_copy, tensor_id id)
{
    bool shares = of_copy != TENSOR_NONE && s->offset[of_copy] >= 0 && overlap(s, of_copy, id);
    return shares ? clash(s, of_copy, id) : SNUG_OK;
}

/* Checks a tensor of the current op against the copies in flight. */
static enum snug_status check_against_copies(struct simulation *s, tensor_id id, bool writes)
{
    for (int i = 0; id != TENSOR_NONE && s->offset[id] >= 0 && i < s->n_in_flight; i++) {
        const struct op *copy = &s->prog->ops[s->in_flight[i]];
        for (int k = 0; k < copy->n_out; k++)
            TRY(check_no_alias(s, copy->out[k], id));
        for (int k = 0; writes && k < copy->n_in; k++)
            TRY(check_no_alias(s, copy->in[k], id));
        TRY(check_no_alias(s, copy->work, id));
    }
    return SNUG_OK;
}

static enum snug_status simulate_copies(struct simulation *s, const struct op *op)
{
    if (op_has(op, TRAIT_copy)) {
        s->in_flight[s->n_in_flight++] = s->op;
        return SNUG_OK;
    }
    finish_copies(s);
    for (int k = 0; k < op->n_in; k++)
        TRY(check_against_copies(s, op->in[k], false));
    for (int k = 0; k < op->n_out; k++)
        TRY(check_against_copies(s, op->out[k], true));
    return check_against_copies(s, op->work, true);
}

static enum snug_status simulate_op(struct simulation *s, int micro_batch)
{
    const struct op *op = &s->prog->ops[s->op];
    TRY(simulate_copies(s, op));
    TRY(check_operands(s, op));
    for (int k = 0; k < op->n_in; k++)
        if (is_in_arena(s, op->in[k]))
            TRY(read_tensor(s, op->in[k]));
    if (op->work != TENSOR_NONE)
        write_as(s, op->work, NO_OWNER);
    for (int k = 0; k < op->n_out; k++) {
        if (!is_in_arena(s, op->out[k]))
            continue;
        bool adds = (op_infos[op->kind].accumulates >> k & 1) &&
                    (op->attrs.accumulate == ACC_yes ||
                     (op->attrs.accumulate == ACC_after_first && micro_batch > 0));
        if (adds)
            TRY(read_tensor(s, op->out[k]));
        write_tensor(s, op->out[k]);
    }
    return SNUG_OK;
}

static enum snug_status simulate_step(struct simulation *s)
{
    const struct program *prog = s->prog;
    int body_end = program_body_end(prog), rounds = prog->n_repeat < 3 ? prog->n_repeat : 3;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < prog->n_tensors; i++)
            if (prog->tensors[i].role == ROLE_input && s->offset[i] >= 0)
                write_tensor(s, i);
        for (s->op = 0; s->op < body_end; s->op++)
            if (!prog->ops[s->op].in_last || round == rounds - 1)
                TRY(simulate_op(s, round));
        s->n_in_flight = 0; /* all copies are complete at the end of a section */
    }
    for (s->op = body_end; s->op < prog->n_ops; s->op++)
        TRY(simulate_op(s, 0));
    s->n_in_flight = 0;
    s->op = prog->n_ops - 1; /* for the error message */
    for (int i = 0; i < prog->n_tensors && prog->n_ops > 0; i++)
        if ((prog->tensors[i].persistent || prog->tensors[i].is_output) && s->offset[i] >= 0)
            TRY(read_tensor(s, i));
    return SNUG_OK;
}

static enum snug_status check_bounds(const struct program *prog, const int64_t *offset,
                                     int64_t arena_bytes, int alignment, struct snug_error *err)
{
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        if (offset[i] < 0)
            continue;
        int64_t end = offset[i] + tensor_bytes(prog, i);
        if (end > arena_bytes)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan is wrong: \"%s\" ends at byte %lld of an arena of %lld", t->name,
                             (long long)end, (long long)arena_bytes);
        if (t->base == TENSOR_NONE && offset[i] % alignment != 0)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan is wrong: \"%s\" begins at byte %lld, not at a multiple of %d",
                             t->name, (long long)offset[i], alignment);
        if (t->base != TENSOR_NONE &&
            offset[i] != offset[t->base] + t->offset_elems * (int64_t)dtype_bytes(t->dtype))
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan is wrong: view \"%s\" is not at its offset in its base",
                             t->name);
    }
    return SNUG_OK;
}

static enum snug_status check_has_offsets(const struct program *prog, const int64_t *offset,
                                          struct snug_error *err)
{
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in + op->n_out + 1; k++) {
            tensor_id id = k < op->n_in               ? op->in[k]
                           : k < op->n_in + op->n_out ? op->out[k - op->n_in]
                                                      : op->work;
            if (id != TENSOR_NONE && prog->tensors[id].offloaded != (offset[id] < 0))
                return snug_fail(err, SNUG_BAD_PROGRAM, "plan is wrong: \"%s\" %s in the arena",
                                 prog->tensors[id].name,
                                 offset[id] < 0 ? "has no offset" : "is offloaded but");
        }
    }
    return SNUG_OK;
}

enum snug_status plan_check(const struct program *prog, const int64_t *offset, int64_t arena_bytes,
                            int alignment, struct snug_error *err)
{
    TRY(check_bounds(prog, offset, arena_bytes, alignment, err));
    TRY(check_has_offsets(prog, offset, err));
    struct simulation s = {.prog = prog, .offset = offset, .err = err};
    enum snug_status status = find_pieces(&s);
    s.in_flight = malloc(((size_t)prog->n_ops + 1) * sizeof *s.in_flight);
    if (status == SNUG_OK && s.in_flight == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "check: out of memory");
    for (int i = 0; i < prog->n_tensors && status == SNUG_OK; i++)
        if (prog->tensors[i].persistent && prog->tensors[i].base == TENSOR_NONE && offset[i] >= 0)
            write_tensor(&s, i);
    for (int step = 0; step < 2 && status == SNUG_OK; step++)
        status = simulate_step(&s);
    free(s.edge);
    free(s.owner);
    free(s.in_flight);
    return status;
}

struct offloaded {
    int64_t begin, end;
    tensor_id id;
};

static int by_begin(const void *a, const void *b)
{
    return by_byte(&((const struct offloaded *)a)->begin, &((const struct offloaded *)b)->begin);
}

static enum snug_status check_offloaded(const struct program *prog, struct offloaded *all, int n,
                                        int64_t pool_bytes, struct snug_error *err)
{
    qsort(all, (size_t)n, sizeof *all, by_begin);
    for (int i = 0; i < n; i++) {
        if (all[i].begin < 0 || all[i].end > pool_bytes)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan is wrong: \"%s\" is not inside the offload pool's %lld bytes",
                             prog->tensors[all[i].id].name, (long long)pool_bytes);
        if (i > 0 && all[i].begin < all[i - 1].end)
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "plan is wrong: \"%s\" and \"%s\" share bytes of the offload pool",
                             prog->tensors[all[i - 1].id].name, prog->tensors[all[i].id].name);
    }
    return SNUG_OK;
}

enum snug_status plan_check_pool(const struct program *prog, const int64_t *pool_offset,
                                 int64_t pool_bytes, struct snug_error *err)
{
    int n = 0;
    struct offloaded *all = malloc(((size_t)prog->n_tensors + 1) * sizeof *all);
    if (all == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "check: out of memory");
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].offloaded && prog->tensors[i].base == TENSOR_NONE)
            all[n++] =
                (struct offloaded){pool_offset[i], pool_offset[i] + tensor_bytes(prog, i), i};
    enum snug_status status = check_offloaded(prog, all, n, pool_bytes, err);
    free(all);
    return status;
}

/* ---- in the arena of another program --------------------------------------------------------- */

/* Checks tensor `id` of prog against the persistent tensors of the host program. */
static enum snug_status check_on_host(const struct program *prog, const int64_t *offset,
                                      tensor_id id, const struct program *host,
                                      const int64_t *host_offset, struct snug_error *err)
{
    const struct tensor *t = &prog->tensors[id];
    int64_t begin = offset[id], end = begin + tensor_bytes(prog, id);
    bool found = false;
    for (int h = 0; h < host->n_tensors; h++) {
        const struct tensor *other = &host->tensors[h];
        int64_t host_end = host_offset[h] + tensor_bytes(host, h);
        if (!other->persistent || other->base != TENSOR_NONE || host_offset[h] < 0 ||
            begin >= host_end || host_offset[h] >= end)
            continue;
        bool is_itself = t->persistent && strcmp(t->name, other->name) == 0 &&
                         begin == host_offset[h] && end == host_end;
        if (!is_itself)
            return snug_fail(
                err, SNUG_BAD_PROGRAM,
                "plan is wrong: \"%s\" of %s overlaps \"%s\" of %s, which is persistent", t->name,
                prog->name, other->name, host->name);
        found = true;
    }
    if (t->persistent && !found)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "plan is wrong: \"%s\" is not at the offset that %s gives it", t->name,
                         host->name);
    return SNUG_OK;
}

enum snug_status plan_check_over(const struct program *prog, const int64_t *offset,
                                 int64_t arena_bytes, int alignment, const struct program *host,
                                 const int64_t *host_offset, struct snug_error *err)
{
    TRY(plan_check(prog, offset, arena_bytes, alignment, err));
    for (int i = 0; i < prog->n_tensors; i++)
        if (offset[i] >= 0 && prog->tensors[i].base == TENSOR_NONE) /* views are inside a base */
            TRY(check_on_host(prog, offset, i, host, host_offset, err));
    return SNUG_OK;
}
