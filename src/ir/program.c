/*
 * program.c -- builds programs: tensors with unique names, ops, copies, and shape arithmetic.
 */
#include "ir/program.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory while building a program");
}

enum snug_status program_init(struct program *prog, const char *name, struct snug_error *err)
{
    *prog = (struct program){.n_repeat = 1, .loss = TENSOR_NONE, .scalars = TENSOR_NONE};
    prog->name = arena_copy_string(&prog->arena, name);
    return prog->name == NULL ? no_memory(err) : SNUG_OK;
}

void program_free(struct program *prog)
{
    arena_free(&prog->arena);
    free(prog->tensors);
    free(prog->ops);
    free(prog->name_table);
    *prog = (struct program){.loss = TENSOR_NONE, .scalars = TENSOR_NONE};
}

/* ---- names: a hash table with open addressing, at most half full ---------------------------- */

static int32_t *name_slot(const struct program *prog, const char *name)
{
    uint64_t mask = (uint64_t)prog->name_table_size - 1;
    uint64_t at = rng_hash_string(name) & mask;
    while (prog->name_table[at] != 0 &&
           strcmp(prog->tensors[prog->name_table[at] - 1].name, name) != 0)
        at = (at + 1) & mask;
    return &prog->name_table[at];
}

static bool name_table_reserve(struct program *prog)
{
    if (prog->name_table_size > 2 * prog->n_tensors + 2)
        return true;
    int size = prog->name_table_size == 0 ? 64 : 2 * prog->name_table_size;
    int32_t *table = calloc((size_t)size, sizeof *table);
    if (table == NULL)
        return false;
    free(prog->name_table);
    prog->name_table = table;
    prog->name_table_size = size;
    for (int i = 0; i < prog->n_tensors; i++)
        *name_slot(prog, prog->tensors[i].name) = i + 1;
    return true;
}

tensor_id program_find(const struct program *prog, const char *name)
{
    return prog->name_table_size == 0 ? TENSOR_NONE : *name_slot(prog, name) - 1;
}

/* ---- tensors and ops ------------------------------------------------------------------------ */

enum snug_status program_add_tensor(struct program *prog, const struct tensor *tensor,
                                    tensor_id *id, struct snug_error *err)
{
    void *grown = prog->tensors;
    bool ok =
        array_grow(&grown, &prog->tensor_capacity, prog->n_tensors + 1, sizeof *prog->tensors);
    prog->tensors = grown;
    if (!ok || !name_table_reserve(prog))
        return no_memory(err);
    char *name = arena_copy_string(&prog->arena, tensor->name);
    int alike = name == NULL ? 0 : *name_slot(prog, name);
    while (name != NULL && *name_slot(prog, name) != 0)
        name = arena_format(&prog->arena, "%s.%d", tensor->name,
                            2 + prog->tensors[alike - 1].n_alike++);
    if (name == NULL)
        return no_memory(err);
    int32_t *slot = name_slot(prog, name);
    *id = prog->n_tensors++;
    prog->tensors[*id] = *tensor;
    prog->tensors[*id].name = name;
    prog->tensors[*id].n_alike = 0;
    prog->tensors[*id].link = LINK_none;
    prog->tensors[*id].of = TENSOR_NONE;
    prog->tensors[*id].first_link = prog->tensors[*id].next_link = TENSOR_NONE;
    *slot = *id + 1;
    return SNUG_OK;
}

/* Returns the slot in the list of `of` that holds `id`, or where `id` belongs. */
static tensor_id *link_slot(struct program *prog, tensor_id of, tensor_id id)
{
    tensor_id *slot = &prog->tensors[of].first_link;
    while (*slot != TENSOR_NONE && *slot < id)
        slot = &prog->tensors[*slot].next_link;
    return slot;
}

void program_link(struct program *prog, tensor_id id, enum tensor_link link, tensor_id of)
{
    struct tensor *t = &prog->tensors[id];
    if (t->of != TENSOR_NONE)
        *link_slot(prog, t->of, id) = t->next_link;
    t->link = link;
    t->of = link == LINK_none ? TENSOR_NONE : of;
    t->next_link = TENSOR_NONE;
    if (t->of == TENSOR_NONE)
        return;
    tensor_id *slot = link_slot(prog, of, id);
    t->next_link = *slot;
    *slot = id;
}

tensor_id program_linked(const struct program *prog, tensor_id of, enum tensor_link link)
{
    tensor_id id = of == TENSOR_NONE ? TENSOR_NONE : prog->tensors[of].first_link;
    while (id != TENSOR_NONE && prog->tensors[id].link != link)
        id = prog->tensors[id].next_link;
    return id;
}

struct op op_make(enum op_kind kind, struct attrs attrs, int n_in, const tensor_id *in, int n_out,
                  const tensor_id *out)
{
    struct op op = {
        .kind = kind, .n_in = n_in, .n_out = n_out, .work = TENSOR_NONE, .attrs = attrs};
    for (int k = 0; k < MAX_INPUTS; k++)
        op.in[k] = k < n_in ? in[k] : TENSOR_NONE;
    for (int k = 0; k < MAX_OUTPUTS; k++)
        op.out[k] = k < n_out ? out[k] : TENSOR_NONE;
    return op;
}

enum snug_status program_add_op(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                                int n_in, const tensor_id *in, int n_out, const tensor_id *out,
                                struct snug_error *err)
{
    void *grown = prog->ops;
    bool ok = array_grow(&grown, &prog->op_capacity, prog->n_ops + 1, sizeof *prog->ops);
    prog->ops = grown;
    if (!ok)
        return no_memory(err);
    if (n_in > MAX_INPUTS || n_out > MAX_OUTPUTS)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: %d inputs and %d outputs are too many",
                         op_infos[kind].name, n_in, n_out);
    prog->ops[prog->n_ops++] = op_make(
        kind, attrs == NULL ? attrs_default(op_infos[kind].family) : *attrs, n_in, in, n_out, out);
    return SNUG_OK;
}

enum snug_status program_add_outputs(struct program *prog, struct op *op, const char *name,
                                     int n_out, struct snug_error *err)
{
    struct shape shapes[MAX_OUTPUTS];
    op->n_out = n_out;
    TRY(op_shapes(prog, op, shapes, err));
    enum dtype dtype = DTYPE_f32;
    for (int k = op->n_in - 1; k >= 0; k--)
        if (op->in[k] != TENSOR_NONE && op->in[k] != prog->scalars &&
            dtype_is_float(prog->tensors[op->in[k]].dtype))
            dtype = prog->tensors[op->in[k]].dtype;
    for (int k = 0; k < n_out; k++) {
        char *own = k == 0 ? arena_copy_string(&prog->arena, name)
                           : arena_format(&prog->arena, "%s.%d", name, k);
        if (own == NULL)
            return no_memory(err);
        bool is_f32 = (op_infos[op->kind].keeps_f32 >> k & 1) && dtype != DTYPE_f64;
        bool is_u8 = op_infos[op->kind].makes_u8 >> k & 1;
        struct tensor output = {TENSOR_INIT, .name = own,
                                .dtype = is_u8    ? DTYPE_u8
                                         : is_f32 ? DTYPE_f32
                                                  : dtype,
                                .role = ROLE_activation, .shape = shapes[k]};
        TRY(program_add_tensor(prog, &output, &op->out[k], err));
    }
    return SNUG_OK;
}

enum snug_status program_emit(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                              int n_in, const tensor_id *in, const char *name, int n_out,
                              tensor_id *ids, struct snug_error *err)
{
    TRY(program_add_op(prog, kind, attrs, n_in, in, 0, NULL, err));
    int at = prog->n_ops - 1;
    enum snug_status status = program_add_outputs(prog, &prog->ops[at], name, n_out, err);
    for (int k = 0; k < n_out && status == SNUG_OK; k++)
        ids[k] = prog->ops[at].out[k];
    if (status != SNUG_OK)
        prog->n_ops = at;
    return status;
}

enum snug_status program_scalars(struct program *prog, tensor_id *id, struct snug_error *err)
{
    if (prog->scalars == TENSOR_NONE) {
        struct tensor table = {TENSOR_INIT,
                               .name = "scalars",
                               .dtype = DTYPE_f64,
                               .role = ROLE_temporary,
                               .shape = {1, {(SCALAR_COUNT + 7) / 8 * 8}}, /* whole cache lines */
                               .persistent = true};
        TRY(program_add_tensor(prog, &table, &prog->scalars, err));
    }
    *id = prog->scalars;
    return SNUG_OK;
}

void program_set_ops(struct program *prog, struct op *ops, int n_ops)
{
    free(prog->ops);
    prog->ops = ops;
    prog->n_ops = prog->op_capacity = n_ops;
}

enum snug_status program_copy(struct program *to, const struct program *from,
                              struct snug_error *err)
{
    TRY(program_init(to, from->name, err));
    for (int i = 0; i < from->n_tensors; i++) {
        tensor_id id;
        TRY(program_add_tensor(to, &from->tensors[i], &id, err));
    }
    for (int i = 0; i < from->n_tensors; i++)
        program_link(to, i, from->tensors[i].link, from->tensors[i].of);
    struct op *ops = malloc((size_t)(from->n_ops + 1) * sizeof *ops);
    if (ops == NULL)
        return no_memory(err);
    if (from->n_ops > 0)
        memcpy(ops, from->ops, (size_t)from->n_ops * sizeof *ops);
    program_set_ops(to, ops, from->n_ops);
    to->body_end = from->body_end;
    to->n_repeat = from->n_repeat;
    to->loss = from->loss;
    to->scalars = from->scalars;
    return SNUG_OK;
}

/* ---- shape arithmetic ----------------------------------------------------------------------- */

/* Saturates at INT64_MAX, so that an overflow is still visible to program_check_sizes. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t product_of(const int64_t *dim, int n_dims)
{
    int64_t n = 1;
    for (int d = 0; d < n_dims; d++)
        n = times(n, dim[d]);
    return n;
}

int64_t shape_elems(const struct shape *shape)
{
    return product_of(shape->dim, shape->n_dims);
}

int64_t shape_last(const struct shape *shape)
{
    return shape->n_dims == 0 ? 1 : shape->dim[shape->n_dims - 1];
}

int64_t shape_rows(const struct shape *shape)
{
    return product_of(shape->dim, shape->n_dims - 1);
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->n_dims != b->n_dims)
        return false;
    for (int d = 0; d < a->n_dims; d++)
        if (a->dim[d] != b->dim[d])
            return false;
    return true;
}

int64_t tensor_elems(const struct program *prog, tensor_id id)
{
    return shape_elems(&prog->tensors[id].shape);
}

int64_t tensor_bytes(const struct program *prog, tensor_id id)
{
    return times(tensor_elems(prog, id), (int64_t)dtype_bytes(prog->tensors[id].dtype));
}

tensor_id tensor_root(const struct program *prog, tensor_id id)
{
    tensor_id base = prog->tensors[id].base;
    return base == TENSOR_NONE ? id : base;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static enum snug_status too_large(const struct program *prog, const struct tensor *t,
                                  struct snug_error *err)
{
    double n_elems = 1;
    for (int d = 0; d < t->shape.n_dims; d++)
        n_elems *= (double)t->shape.dim[d];
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "%s: tensor \"%s\" would have %.2g elements: choose %s", prog->name, t->name,
                     n_elems, t->persistent ? "a smaller model" : "a smaller --batch or --seq");
}

enum snug_status program_check_sizes(const struct program *prog, struct snug_error *err)
{
    double total_bytes = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        if (shape_elems(&t->shape) > TENSOR_ELEMS_MAX)
            return too_large(prog, t, err);
        if (t->offset_elems > TENSOR_ELEMS_MAX)
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: tensor \"%s\" extends beyond its base",
                             prog->name, t->name);
        total_bytes += t->base == TENSOR_NONE ? (double)tensor_bytes(prog, i) : 0;
    }
    if (total_bytes > (double)PROGRAM_BYTES_MAX)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%s: all tensors together would have %.2g bytes: choose a smaller --batch "
                         "or --seq",
                         prog->name, total_bytes);
    return SNUG_OK;
}
