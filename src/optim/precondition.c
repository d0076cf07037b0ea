/*
 * precondition.c -- the states and ops of shampoo and caspr for one parameter.
 */
#include "optim/precondition.h"

#include <math.h>
#include <string.h>

enum snug_status optim_whole_option(const struct optim_target *t, const char *name, double most,
                                    double *value)
{
    if (!(*value >= 1))
        return snug_fail(t->err, SNUG_BAD_ARGUMENT, "--opt: %s=%g: must be a number >= 1", name,
                         *value);
    *value = floor(fmin(*value, most));
    return SNUG_OK;
}

enum snug_status precondition_options(const struct optim_target *t, double options[MAX_OPTIONS])
{
    memcpy(options, t->options, MAX_OPTIONS * sizeof *options);
    TRY(optim_whole_option(t, "block", MATRIX_SIDE_MOST, &options[PRECONDITION_block]));
    TRY(optim_whole_option(t, "every", 1e15, &options[PRECONDITION_every]));
    options[PRECONDITION_start] = floor(options[PRECONDITION_start]);
    return SNUG_OK;
}

enum snug_status precondition_emit(const struct optim_target *t, enum op_kind kind,
                                   const double options[MAX_OPTIONS])
{
    struct matrix w =
        matrix_of(&t->prog->tensors[t->weight].shape, (int64_t)options[PRECONDITION_block]);
    struct shape left = {1, {matrix_left_elems(&w)}}, right = {1, {matrix_right_elems(&w)}};
    tensor_id states[STATE_l_then + 1];
    int n_states = op_infos[kind].max_in - MATRIX_STATES;
    TRY(optim_add_state(t, "m", DTYPE_f32, NULL, &states[STATE_m]));
    TRY(optim_add_state(t, "v", DTYPE_f32, NULL, &states[STATE_v]));
    TRY(optim_add_state(t, "l", DTYPE_f32, &left, &states[STATE_l]));
    TRY(optim_add_state(t, "r", DTYPE_f32, &right, &states[STATE_r]));
    TRY(optim_add_state(t, "pl", DTYPE_f32, &left, &states[STATE_pl]));
    TRY(optim_add_state(t, "pr", DTYPE_f32, &right, &states[STATE_pr]));
    if (n_states > STATE_l_then)
        TRY(optim_add_state(t, "l_then", DTYPE_f32, &left, &states[STATE_l_then]));
    struct optim_target apply = *t;
    apply.optimizer = &optimizer_sgd;
    apply.options = NULL;
    return optim_emit_direction(t, kind, options, n_states, states, &apply);
}

enum snug_status precondition_emit_nadamw(const struct optim_target *t, double beta1, double beta2,
                                          double eps)
{
    double options[MAX_OPTIONS] = {beta1, beta2, eps};
    struct optim_target other = *t;
    other.optimizer = &optimizer_nadamw;
    other.options = options;
    return optim_emit_rule(&other);
}
