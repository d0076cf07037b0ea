/*
 * shape_update.c -- shape rules of updates, directions, averages, dequantize and collectives:
 * checks the sizes of states, scales and quantized elements.  Most of these ops work in place, so
 * most outputs are UNCHECKED.
 */
#include "base/quant_map.h"
#include "ir/collective_options.h"
#include "ir/matrix_operands.h"
#include "ir/shape_rules.h"

/* A state has a float dtype and the size of the weight, or is quantized with a scale per block. */
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
        return wrong(prog, op, k + 1, "left out, unless state_bits is 8 or 4", err);
    if (state->dtype != DTYPE_u8 || shape_elems(&state->shape) != quant_bytes((int)bits, n))
        return wrong(prog, op, k, "u8 quantized elements, state_bits each", err);
    if (prog->tensors[scales].dtype != DTYPE_f32 ||
        tensor_elems(prog, scales) != quant_blocks((int)bits, n))
        return wrong(prog, op, k + 1, "f32, one scale per block", err);
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

/* The direction has the shape of the gradient.  A tensor of more than two dimensions is viewed as a
 * matrix [first, rest]; a vector has a second moment per element, not row and column means. */
enum snug_status shape_adafactor(const struct program *prog, const struct op *op, struct shape *out,
                                 struct snug_error *err)
{
    bool has_columns = op->n_in > 4 && op->in[4] != TENSOR_NONE;
    TRY(shape_none(prog, op, out, err));
    if (op->in[0] == TENSOR_NONE || op->in[2] == TENSOR_NONE || op->in[3] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "adafactor: needs a gradient, a weight and row means");
    const struct shape *g = in_shape(prog, op, 0);
    int64_t n = shape_elems(g), n_rows = g->n_dims < 2 ? n : g->dim[0];
    if (has_columns != (g->n_dims >= 2))
        return wrong(prog, op, 0, "a matrix if there are column means, else a vector", err);
    if (tensor_elems(prog, op->in[2]) != n)
        return wrong(prog, op, 2, "as large as the gradient", err);
    if (tensor_elems(prog, op->in[3]) != n_rows)
        return wrong(prog, op, 3, "one element per row", err);
    if (has_columns && tensor_elems(prog, op->in[4]) != n / n_rows)
        return wrong(prog, op, 4, "one element per column", err);
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
    int64_t n = shape_elems(g), n_v = tensor_elems(prog, op->in[3]);
    if (tensor_elems(prog, op->in[2]) != n)
        return wrong(prog, op, 2, "as large as the gradient", err);
    if (n_v != 1 && n_v != g->dim[0])
        return wrong(prog, op, 3, "one element, or one per row", err);
    if (tensor_elems(prog, op->in[4]) != 1)
        return wrong(prog, op, 4, "one element", err);
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
                             "prodigy_sums: z, x0 and s must be as large as the gradient");
    out[0] = vector(2);
    return SNUG_OK;
}

/* z and an EMA are as large as the weight.  A queue holds several copies of the weight. */
static enum snug_status check_average(const struct program *prog, const struct op *op,
                                      struct snug_error *err)
{
    bool queue = attrs_of(op, average)->average == AVERAGE_queue;
    if (op->in[1] == TENSOR_NONE || op->in[2] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: needs a weight and its average state",
                         op_infos[op->kind].name);
    int64_t n = tensor_elems(prog, op->in[1]), kept = tensor_elems(prog, op->in[2]);
    if (queue ? kept % n != 0 : kept != n)
        return wrong(prog, op, 2, queue ? "whole copies of the weight" : "as large as the weight",
                     err);
    return SNUG_OK;
}

enum snug_status shape_average(const struct program *prog, const struct op *op, struct shape *out,
                               struct snug_error *err)
{
    TRY(check_average(prog, op, err));
    out[0] = *in_shape(prog, op, 1);
    return SNUG_OK;
}

enum snug_status shape_average_keep(const struct program *prog, const struct op *op,
                                    struct shape *out, struct snug_error *err)
{
    TRY(check_average(prog, op, err));
    out[0] = *in_shape(prog, op, 2);
    return SNUG_OK;
}

/* The size of state k of a matrix optimizer; 0 if it is left out. */
static int64_t direction_state_elems(const struct op *op, int k, const struct shape *g)
{
    bool in_blocks = op_has(op, TRAIT_blocks);
    bool is_left = k == STATE_l || k == STATE_pl || k == STATE_l_then;
    if (k == STATE_m || k == STATE_v)
        return shape_elems(g);
    if (!in_blocks && (k >= op->n_in - MATRIX_STATES || op->in[MATRIX_STATES + k] == TENSOR_NONE))
        return 0;
    struct matrix m =
        matrix_of(g, in_blocks ? (int64_t)attrs_of(op, options)->options.value[PRECONDITION_block]
                               : INT64_MAX);
    if (!in_blocks)
        return is_left ? m.rows * m.rows : m.cols * m.cols;
    return is_left ? matrix_left_elems(&m) : matrix_right_elems(&m);
}

/* u has the shape of g; ir/matrix_operands.h defines the sizes of the states. */
enum snug_status shape_direction(const struct program *prog, const struct op *op, struct shape *out,
                                 struct snug_error *err)
{
    if (op->in[MATRIX_GRADIENT] == TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: needs a gradient", op_infos[op->kind].name);
    bool in_blocks = op_has(op, TRAIT_blocks);
    double block = attrs_of(op, options)->options.value[PRECONDITION_block];
    if (in_blocks && !(block >= 1 && block <= MATRIX_SIDE_MOST))
        return snug_fail(err, SNUG_BAD_PROGRAM, "%s: the block size must be 1 to %d, not %g",
                         op_infos[op->kind].name, MATRIX_SIDE_MOST, block);
    TRY(shape_none(prog, op, out, err));
    out[0] = *in_shape(prog, op, MATRIX_GRADIENT);
    for (int k = 0; k < op->n_in - MATRIX_STATES; k++) {
        tensor_id id = op->in[MATRIX_STATES + k];
        int64_t n = id == TENSOR_NONE ? 0 : tensor_elems(prog, id);
        if (n != direction_state_elems(op, k, &out[0]) ||
            (id != TENSOR_NONE && !dtype_is_float(prog->tensors[id].dtype)))
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: state %d has %lld elements, expected %lld",
                             op_infos[op->kind].name, k, (long long)n,
                             (long long)direction_state_elems(op, k, &out[0]));
    }
    return SNUG_OK;
}

/* Quantized elements are a flat u8 tensor, so the attributes height and width give the shape. */
enum snug_status shape_dequantize(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    int bits = attrs_of(op, quant)->state_bits;
    int64_t height = attrs_of(op, quant)->height, width = attrs_of(op, quant)->width;
    if (bits != 8 && bits != 4)
        return wrong(prog, op, 0, "quantized, with state_bits 8 or 4", err);
    if (height < 1 || width < 1 || height > TENSOR_ELEMS_MAX / width)
        return snug_fail(err, SNUG_BAD_PROGRAM, "dequantize: height or width is out of range");
    if (prog->tensors[op->in[0]].dtype != DTYPE_u8 ||
        tensor_elems(prog, op->in[0]) != quant_bytes(bits, height * width))
        return wrong(prog, op, 0, "u8, height x width quantized elements", err);
    if (prog->tensors[op->in[1]].dtype != DTYPE_f32 ||
        tensor_elems(prog, op->in[1]) != quant_blocks(bits, height * width))
        return wrong(prog, op, 1, "f32, one scale per block", err);
    out[0] = (struct shape){2, {height, width}};
    return SNUG_OK;
}

/* The pairs of operands are the same on all ranks, but the size of a range differs from rank to
 * rank, so it is not checked exactly. */
enum snug_status shape_collective(const struct program *prog, const struct op *op,
                                  struct shape *out, struct snug_error *err)
{
    const char *name = op_infos[op->kind].name;
    if (op->n_in != op->n_out || collective_ranks(op) < 1 || collective_cut(op).unit < 1)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "%s: needs ranks and a unit of at least 1, and pairs of operands", name);
    for (int k = 0; k < op->n_in; k++) {
        tensor_id whole = collective_whole(op, k), piece = collective_piece(op, k);
        if (whole == TENSOR_NONE)
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: pair %d has no whole tensor", name, k);
        if (prog->tensors[whole].dtype != prog->tensors[collective_whole(op, 0)].dtype ||
            (piece != TENSOR_NONE && prog->tensors[piece].dtype != prog->tensors[whole].dtype))
            return snug_fail(err, SNUG_BAD_PROGRAM,
                             "%s: \"%s\" does not have the dtype of the other operands", name,
                             prog->tensors[whole].name);
        if (op_has(op, TRAIT_reduces) && op_has(op, TRAIT_gathers) && piece != whole)
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: \"%s\" must be summed in place", name,
                             prog->tensors[whole].name);
        if (piece != TENSOR_NONE && tensor_elems(prog, piece) > tensor_elems(prog, whole))
            return snug_fail(err, SNUG_BAD_PROGRAM, "%s: \"%s\" is larger than the whole tensor",
                             name, prog->tensors[piece].name);
    }
    return shape_none(prog, op, out, err);
}
