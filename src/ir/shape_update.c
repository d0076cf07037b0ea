/*
 * shape_update.c -- the shape rules of the ops that update weights and average them, and of decode:
 * what a direction, each state and quantized elements must be as large as.  Such ops work in place: most outputs
 * are not checked.
 */
#include "base/quant_map.h"
#include "ir/collective_options.h"
#include "ir/matrix_operands.h"
#include "ir/shape_rules.h"

/* A state is as large as the weight, in a float type, or quantized with a scale a block. */
static enum snug_status check_state(const struct program *prog, const struct op *op, int k,
                                    struct snug_error *err)
{
    const struct tensor *state = &prog->tensors[op->in[k]];
    tensor_id scales = k + 1 < op->n_in ? op->in[k + 1] : TENSOR_NONE;
    int64_t n = tensor_elems(prog, op->in[UPDATE_WEIGHT]), bits = attrs_of(op, update)->state_bits;
    if (scales == TENSOR_NONE)
        return dtype_is_float(state->dtype) && shape_elems(&state->shape) == n
                   ? SNUG_OK
                   : wrong(prog, op, k, "of a float type and as large as the weight", err);
    if (bits != 8 && bits != 4)
        return wrong(prog, op, k + 1, "left out, or state_bits 8 or 4", err);
    if (state->dtype != DTYPE_u8 || shape_elems(&state->shape) != quant_bytes((int)bits, n))
        return wrong(prog, op, k, "u8 quantized elements, of 8 or 4 bits as state_bits says", err);
    if (prog->tensors[scales].dtype != DTYPE_f32 ||
        tensor_elems(prog, scales) != quant_blocks((int)bits, n))
        return wrong(prog, op, k + 1, "f32, one scale a block", err);
    return SNUG_OK;
}

enum snug_status shape_update(const struct program *prog, const struct op *op, struct shape *out,
                              struct snug_error *err)
{
    if (op->in[UPDATE_GRADIENT] == TENSOR_NONE || op->in[UPDATE_WEIGHT] == TENSOR_NONE ||
        (unsigned)attrs_of(op, update)->rule >= RULE_COUNT)
        return snug_fail(err, SNUG_BAD_PROGRAM, "update: needs a gradient, a weight and a rule");
    int64_t n = tensor_elems(prog, op->in[UPDATE_WEIGHT]);
    if (tensor_elems(prog, op->in[UPDATE_GRADIENT]) != n)
        return wrong(prog, op, UPDATE_GRADIENT, "as large as the weight", err);
    if (op->n_in > UPDATE_MASTER && op->in[UPDATE_MASTER] != TENSOR_NONE &&
        tensor_elems(prog, op->in[UPDATE_MASTER]) != n)
        return wrong(prog, op, UPDATE_MASTER, "as large as the weight", err);
    for (int k = UPDATE_STATES; k < op->n_in; k += 2)
        if (op->in[k] != TENSOR_NONE)
            TRY(check_state(prog, op, k, err));
    return shape_none(prog, op, out, err);
}

/* The direction of a step is as the gradient; tensors of more than two dimensions count as matrices
 * [first, rest], those of one keep a number for each element. */
enum snug_status shape_adafactor(const struct program *prog, const struct op *op, struct shape *out,
                                 struct snug_error *err)
{
    bool has_columns = op->n_in > 4 && op->in[4] != TENSOR_NONE;
    TRY(shape_none(prog, op, out, err));
    if (op->in[0] == TENSOR_NONE || op->in[2] == TENSOR_NONE || op->in[3] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "adafactor: needs a gradient, a weight and rows");
    const struct shape *g = in_shape(prog, op, 0);
    int64_t n = shape_elems(g), n_rows = g->n_dims < 2 ? n : g->dim[0];
    if (has_columns != (g->n_dims >= 2))
        return wrong(prog, op, 0, "a matrix where there are columns, else a vector", err);
    if (tensor_elems(prog, op->in[2]) != n)
        return wrong(prog, op, 2, "as large as the gradient", err);
    if (tensor_elems(prog, op->in[3]) != n_rows)
        return wrong(prog, op, 3, "a number for each row", err);
    if (has_columns && tensor_elems(prog, op->in[4]) != n / n_rows)
        return wrong(prog, op, 4, "a number for each column", err);
    out[0] = *g;
    return SNUG_OK;
}

enum snug_status shape_amos(const struct program *prog, const struct op *op, struct shape *out,
                            struct snug_error *err)
{
    TRY(shape_none(prog, op, out, err));
    if (op->in[0] == TENSOR_NONE || op->in[2] == TENSOR_NONE || op->in[3] == TENSOR_NONE ||
        op->in[4] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "amos: needs a gradient, a weight, v and b");
    const struct shape *g = in_shape(prog, op, 0);
    int64_t n = shape_elems(g), n_numbers = tensor_elems(prog, op->in[3]);
    if (tensor_elems(prog, op->in[2]) != n)
        return wrong(prog, op, 2, "as large as the gradient", err);
    if (n_numbers != 1 && n_numbers != g->dim[0])
        return wrong(prog, op, 3, "one number, or one for each row", err);
    if (tensor_elems(prog, op->in[4]) != 1)
        return wrong(prog, op, 4, "one number", err);
    out[0] = *g;
    return SNUG_OK;
}

enum snug_status shape_prodigy_sums(const struct program *prog, const struct op *op,
                                    struct shape *out, struct snug_error *err)
{
    TRY(shape_none(prog, op, out, err));
    for (int k = 0; k < op->n_in; k++)
        if (k != 1 && (op->in[k] == TENSOR_NONE ||
                       tensor_elems(prog, op->in[k]) != tensor_elems(prog, op->in[0])))
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "prodigy_sums: all are as large as the gradient");
    out[0] = vector(2);
    return SNUG_OK;
}

/* z or a running mean is as large as the weight, a queue holds whole copies of it. */
enum snug_status shape_average(const struct program *prog, const struct op *op, struct shape *out,
                               struct snug_error *err)
{
    bool queue = attrs_of(op, average)->average == AVERAGE_queue;
    if (op->in[1] == TENSOR_NONE || op->in[2] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: needs a weight and what is kept of it",
                         op_infos[op->kind].name);
    int64_t n = tensor_elems(prog, op->in[1]), kept = tensor_elems(prog, op->in[2]);
    if (queue ? kept % n != 0 : kept != n)
        return wrong(prog, op, 2, queue ? "copies of the weight" : "as large as the weight", err);
    out[0] = *in_shape(prog, op, op->kind == OP_average_keep ? 2 : 1);
    return SNUG_OK;
}

/* How large a state of these ops is, one that is left out 0. */
static int64_t direction_state_elems(const struct op *op, int k, const struct shape *g)
{
    bool is_soap = op->kind == OP_soap,
         is_left = k == STATE_l || k == STATE_pl || k == STATE_l_then;
    if (k == STATE_m || k == STATE_v)
        return shape_elems(g);
    if (is_soap && (k >= op->n_in - MATRIX_STATES || op->in[MATRIX_STATES + k] == TENSOR_NONE))
        return 0;
    struct matrix m = matrix_of(
        g, is_soap ? INT64_MAX : (int64_t)attrs_of(op, options)->options.value[PRECONDITION_block]);
    if (is_soap)
        return is_left ? m.rows * m.rows : m.cols * m.cols;
    return is_left ? matrix_left_elems(&m) : matrix_right_elems(&m);
}

/* u is like g; the states are as large as ir/matrix_operands.h says. */
enum snug_status shape_direction(const struct program *prog, const struct op *op, struct shape *out,
                                 struct snug_error *err)
{
    if (op->in[MATRIX_GRADIENT] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: needs a gradient", op_infos[op->kind].name);
    bool in_blocks = op_has(op, TRAIT_blocks);
    double block = attrs_of(op, options)->options.value[PRECONDITION_block];
    if (in_blocks && !(block >= 1 && block <= MATRIX_SIDE_MOST))
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: blocks are of 1 to %d rows, not %g",
                         op_infos[op->kind].name, MATRIX_SIDE_MOST, block);
    TRY(shape_none(prog, op, out, err));
    out[0] = *in_shape(prog, op, MATRIX_GRADIENT);
    for (int k = 0; k < op->n_in - MATRIX_STATES; k++) {
        tensor_id id = op->in[MATRIX_STATES + k];
        int64_t n = id == TENSOR_NONE ? 0 : tensor_elems(prog, id);
        if (n != direction_state_elems(op, k, &out[0]) ||
            (id != TENSOR_NONE && !dtype_is_float(prog->tensors[id].dtype)))
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "%s: state %d has %lld elements, %lld are right",
                             op_infos[op->kind].name, k, (long long)n,
                             (long long)direction_state_elems(op, k, &out[0]));
    }
    return SNUG_OK;
}

/* Codes do not say the shape of what they stand for. */
enum snug_status shape_dequantize(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    int bits = attrs_of(op, quant)->state_bits;
    int64_t height = attrs_of(op, quant)->height, width = attrs_of(op, quant)->width;
    if (bits != 8 && bits != 4)
        return wrong(prog, op, 0, "of state_bits 8 or 4", err);
    if (height < 1 || width < 1 || height > TENSOR_ELEMS_MAX / width)
        return snug_fail(err, SNUG_BAD_PROGRAM, "dequantize: height or width is out of range");
    if (prog->tensors[op->in[0]].dtype != DTYPE_u8 ||
        tensor_elems(prog, op->in[0]) != quant_bytes(bits, height * width))
        return wrong(prog, op, 0, "u8 quantized elements of height x width elements", err);
    if (prog->tensors[op->in[1]].dtype != DTYPE_f32 ||
        tensor_elems(prog, op->in[1]) != quant_blocks(bits, height * width))
        return wrong(prog, op, 1, "f32, one scale a block", err);
    out[0] = (struct shape){2, {height, width}};
    return SNUG_OK;
}

/* What each operand is to the other is the same on all ranks; how large a range is, is not. */
enum snug_status shape_collective(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    const char *name = op_infos[op->kind].name;
    if (op->n_in != op->n_out || collective_ranks(op) < 1 || collective_cut(op).unit < 1)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: needs ranks, a unit and pairs of operands",
                         name);
    for (int k = 0; k < op->n_in; k++) {
        tensor_id whole = collective_whole(op, k), piece = collective_piece(op, k);
        if (whole == TENSOR_NONE)
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: operand %d has no whole", name, k);
        if (prog->tensors[whole].dtype != prog->tensors[collective_whole(op, 0)].dtype ||
            (piece != TENSOR_NONE && prog->tensors[piece].dtype != prog->tensors[whole].dtype))
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: \"%s\" is of another type", name,
                             prog->tensors[whole].name);
        if (op->kind == OP_all_reduce && piece != whole)
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: \"%s\" is to be summed in place", name,
                             prog->tensors[whole].name);
        if (piece != TENSOR_NONE && tensor_elems(prog, piece) > tensor_elems(prog, whole))
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: \"%s\" is larger than its whole", name,
                             prog->tensors[piece].name);
    }
    return shape_none(prog, op, out, err);
}
