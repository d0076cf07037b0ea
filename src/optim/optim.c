/*
 * optim.c -- the list of optimizers, their options, and the states and update op of a rule.
 */
#include "optim/optim.h"

#include "base/quant_map.h"
#include "base/text.h"
#include "ir/matrix_operands.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MOST = 32, LEAST_QUANTIZED_ELEMS = 4096 };

/* Optimizers without their own rule. */
#define OTHER_OPTIMIZERS(X) \
    X(adam_8bit)            \
    X(adam_4bit)            \
    X(cyclic_lr)            \
    X(lawa_queue)           \
    X(lawa_ema)             \
    X(amos)                 \
    X(muon)                 \
    X(shampoo)              \
    X(caspr)
#define OTHER_DECLARE(id) extern const struct optimizer optimizer_##id;
OTHER_OPTIMIZERS(OTHER_DECLARE)
#undef OTHER_DECLARE

static const struct optimizer *const optimizers[] = {
#define RULE(name) &optimizer_##name,
#include "ir/rules.def"
#undef RULE
#define OTHER_ADDRESS(id) &optimizer_##id,
    OTHER_OPTIMIZERS(OTHER_ADDRESS)
#undef OTHER_ADDRESS
};
enum { N_OPTIMIZERS = (int)(sizeof optimizers / sizeof *optimizers) };

const struct optimizer *optimizer_at(int index)
{
    return index >= 0 && index < N_OPTIMIZERS ? optimizers[index] : NULL;
}

const struct optimizer *optimizer_find(const char *name)
{
    for (int i = 0; i < N_OPTIMIZERS; i++)
        if (strcmp(optimizers[i]->name, name) == 0)
            return optimizers[i];
    return NULL;
}

void optimizer_list_names(struct text *out)
{
    for (int i = 0; i < N_OPTIMIZERS; i++)
        text_add(out, "%s%s", i == 0 ? "" : ", ", optimizers[i]->name);
}

void optimizer_list(struct text *out)
{
    for (int i = 0; i < N_OPTIMIZERS; i++)
        text_add(out, "%-22s %s\n", optimizers[i]->name, optimizers[i]->about);
}

/* The optimizer that describes its rule and states. */
static const struct optimizer *owner(const struct optimizer *optimizer)
{
    return optimizer->like != NULL ? optimizer->like : optimizer;
}

/* Copies word `index` of a list such as "m, v"; false if the list is shorter. */
static bool word_at(const char *list, int index, char word[NAME_MOST])
{
    if (list == NULL || *list == '\0')
        return false;
    for (; index > 0; index--) {
        list = strstr(list, ", ");
        if (list == NULL)
            return false;
        list += 2;
    }
    snprintf(word, NAME_MOST, "%.*s", (int)strcspn(list, ","), list);
    return true;
}

static int find_word(const char *list, const char *wanted)
{
    char word[NAME_MOST];
    for (int i = 0; word_at(list, i, word); i++)
        if (strcmp(word, wanted) == 0)
            return i;
    return -1;
}

/* ---- options ------------------------------------------------------------------------------- */

/* The optimizer that describes its options. */
static const struct optimizer *options_owner(const struct optimizer *optimizer)
{
    return optimizer->options != NULL ? optimizer : owner(optimizer);
}

void optimizer_default_options(const struct optimizer *optimizer, double values[MAX_OPTIONS])
{
    memcpy(values, options_owner(optimizer)->defaults, sizeof optimizer->defaults);
}

/* Options are recognized by name, which means the same in every optimizer.  These are weights of a
 * running mean, and with 1 it would never change. */
static bool is_mean_weight(const char *name)
{
    return find_word("beta, beta1, beta2, beta3, shampoo-beta, mu, rho, gamma", name) >= 0;
}

/* Is x in the option's range?  Options used as divisors must be above 0. */
static bool is_in_range(const char *name, double x, const char **range)
{
    if (find_word("p, clip-threshold, d0", name) >= 0) {
        *range = "> 0";
        return x > 0;
    }
    if (strcmp(name, "cycles") == 0) {
        *range = ">= 1";
        return x >= 1;
    }
    *range = is_mean_weight(name) ? ">= 0 and < 1" : ">= 0";
    return x >= 0 && (!is_mean_weight(name) || x < 1);
}

static enum snug_status read_option(const struct optimizer *optimizer, const char *name,
                                    const char *value, double values[MAX_OPTIONS],
                                    struct snug_error *err)
{
    const char *all = options_owner(optimizer)->options;
    int at = find_word(all, name);
    const char *range = "";
    double x = NAN;
    if (at < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--opt: %s has no option \"%.40s\"; it has: %s",
                         optimizer->name, name, all == NULL || *all == '\0' ? "none" : all);
    bool is_number = text_parse_real(value, &x);
    if (!is_in_range(name, x, &range) || !is_number)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--opt: %s=%.40s: must be a number %s", name,
                         value, range);
    values[at] = x;
    return SNUG_OK;
}

enum snug_status optimizer_read_options(const struct optimizer *optimizer, const char *text,
                                        double values[MAX_OPTIONS], struct snug_error *err)
{
    while (*text != '\0') {
        char pair[2 * NAME_MOST];
        size_t length = strcspn(text, ",");
        snprintf(pair, sizeof pair, "%.*s", (int)length, text);
        char *equals = strchr(pair, '=');
        if (equals == NULL || length >= sizeof pair)
            return snug_fail(err, SNUG_BAD_ARGUMENT, "--opt: \"%.60s\": expected name=value,...",
                             pair);
        *equals = '\0';
        TRY(read_option(optimizer, pair, equals + 1, values, err));
        text += length + (text[length] == ',');
    }
    return SNUG_OK;
}

void optimizer_write_options(const struct optimizer *optimizer, const double *values,
                             struct text *out)
{
    char name[NAME_MOST];
    for (int i = 0; word_at(options_owner(optimizer)->options, i, name); i++)
        text_add(out, "%s%s=%.17g", i == 0 ? "" : ",", name, values[i]);
}

bool optimizer_has_state_bits(const struct optimizer *optimizer, const double *options)
{
    const struct optimizer *rule = owner(optimizer);
    if (rule->states_if != NULL)
        return options[find_word(options_owner(optimizer)->options, rule->states_if)] > 0;
    return rule->states == NULL || rule->states[0] != '\0';
}

/* ---- states -------------------------------------------------------------------------------- */

static enum snug_status add_linked(const struct optim_target *target, enum tensor_link link,
                                   const char *prefix, enum dtype dtype, const struct shape *shape,
                                   tensor_id *id)
{
    const struct tensor *weight = &target->prog->tensors[target->weight];
    char *name = arena_format(&target->prog->arena, "%s.%s", prefix, weight->name);
    if (name == NULL)
        return snug_fail(target->err, SNUG_NO_MEMORY, "optimizer: out of memory");
    if (program_find(target->prog, name) != TENSOR_NONE)
        return snug_fail(target->err, SNUG_BAD_PROGRAM,
                         "a tensor \"%s\" already exists, but the optimizer needs that name for "
                         "\"%s\": rename one",
                         name, weight->name);
    struct tensor state = {TENSOR_INIT,
                           .name = name,
                           .dtype = dtype,
                           .role = ROLE_optimizer,
                           .shape = shape != NULL ? *shape : weight->shape,
                           .persistent = true,
                           .init = INIT_zeros};
    TRY(program_add_tensor(target->prog, &state, id, target->err));
    program_link(target->prog, *id, link, target->weight);
    return SNUG_OK;
}

static enum tensor_link link_of_state(const struct optim_target *t, const char *prefix)
{
    const char *averaged = t->optimizer->average_state;
    return averaged != NULL && strcmp(prefix, averaged) == 0 ? LINK_average_state : LINK_state;
}

enum snug_status optim_add_state(const struct optim_target *target, const char *prefix,
                                 enum dtype dtype, const struct shape *shape, tensor_id *id)
{
    return add_linked(target, link_of_state(target, prefix), prefix, dtype, shape, id);
}

enum snug_status optim_add_master(const struct optim_target *target, tensor_id *id)
{
    TRY(add_linked(target, LINK_master, "master", DTYPE_f32, NULL, id));
    target->prog->tensors[*id].init = INIT_weight;
    return SNUG_OK;
}

enum snug_status optim_add_copy(const struct optim_target *t, const char *prefix, tensor_id *id)
{
    enum tensor_link link = link_of_state(t, prefix);
    *id = link == LINK_average_state ? program_linked(t->prog, t->weight, link) : TENSOR_NONE;
    if (*id != TENSOR_NONE)
        return SNUG_OK;
    TRY(optim_add_state(t, prefix, DTYPE_f32, NULL, id));
    t->prog->tensors[*id].init = INIT_weight;
    return SNUG_OK;
}

enum snug_status optim_add_direction(const struct optim_target *target, tensor_id *id)
{
    const struct program *prog = target->prog;
    enum dtype dtype = prog->tensors[target->grad].dtype;
    *id = target->grad;
    if (target->scalars == TENSOR_NONE)
        return SNUG_OK; /* no loss: no op runs, and the gradient is never freed */
    char *name = arena_format(&target->prog->arena, "step.%s", prog->tensors[target->weight].name);
    if (name == NULL)
        return snug_fail(target->err, SNUG_NO_MEMORY, "optimizer: out of memory");
    struct tensor step = {TENSOR_INIT, .name = name,
                          .dtype = dtype == DTYPE_f16 ? DTYPE_f32 : dtype, /* too small for fp16 */
                          .role = ROLE_temporary, .shape = prog->tensors[target->grad].shape};
    return program_add_tensor(target->prog, &step, id, target->err);
}

/* Adds one state of a rule in state_bits: pair is the tensor and its scales, or TENSOR_NONE. */
static enum snug_status add_rule_state(const struct optim_target *t, const char *name,
                                       tensor_id pair[2])
{
    int64_t n = tensor_elems(t->prog, t->weight);
    bool quantized = t->state_bits <= 8 && n >= LEAST_QUANTIZED_ELEMS;
    pair[1] = TENSOR_NONE;
    if (find_word(owner(t->optimizer)->copies, name) >= 0)
        return optim_add_copy(t, name, pair);
    if (!quantized)
        return optim_add_state(t, name, t->state_bits == 16 ? DTYPE_bf16 : DTYPE_f32, NULL, pair);
    char scales[NAME_MOST + 8];
    snprintf(scales, sizeof scales, "%s.scales", name);
    struct shape halves = {1, {quant_bytes(4, n)}}, blocks = {1, {quant_blocks(t->state_bits, n)}};
    TRY(optim_add_state(t, name, DTYPE_u8, t->state_bits == 4 ? &halves : NULL, &pair[0]));
    return optim_add_state(t, scales, DTYPE_f32, &blocks, &pair[1]);
}

static bool is_16_bits(const struct optim_target *t, tensor_id id)
{
    return dtype_bytes(t->prog->tensors[id].dtype) == 2;
}

enum snug_status optim_check_schedule_free(const struct optim_target *t)
{
    return t->options[0] > 0 ? SNUG_OK
                             : snug_fail(t->err, SNUG_BAD_ARGUMENT, "--opt: %s needs beta1 > 0",
                                         t->optimizer->name);
}

enum snug_status optim_add_average_clock(const struct optim_target *t)
{
    struct attrs attrs = ATTRS(average, .average = t->optimizer->average);
    memcpy(attrs.average.options.value, t->options, sizeof attrs.average.options);
    return program_add_op(t->prog, OP_average_clock, &attrs, 1, &t->scalars, 1, &t->scalars,
                          t->err);
}

enum snug_status optim_emit_rule(const struct optim_target *t)
{
    const struct optimizer *rule = owner(t->optimizer);
    tensor_id in[MAX_INPUTS] = {t->grad, t->scalars, t->weight, t->master};
    struct attrs attrs = ATTRS(update, .rule = rule->rule, .decay = t->decay,
                               .lr_factor = t->lr_factor, .direction = t->direction);
    struct update_attrs *update = &attrs.update;
    char name[NAME_MOST];
    int n = UPDATE_STATES;
    if (t->options != NULL)
        memcpy(update->options.value, t->options, sizeof update->options);
    update->stochastic = is_16_bits(t, t->weight) && t->master == TENSOR_NONE;
    for (int i = 0; word_at(rule->states, i, name); i++, n += 2) {
        TRY(add_rule_state(t, name, &in[n]));
        if (in[n + 1] != TENSOR_NONE)
            update->state_bits = (int8_t)t->state_bits;
        if (in[n + 1] != TENSOR_NONE && find_word(rule->positive, name) >= 0)
            update->positive = (int8_t)(update->positive | 1 << i);
        update->stochastic |= is_16_bits(t, in[n]);
    }
    while (in[n - 1] == TENSOR_NONE)
        n--;
    return program_add_op(t->prog, OP_update, &attrs, n, in, n - UPDATE_WEIGHT, in + UPDATE_WEIGHT,
                          t->err);
}

enum snug_status optim_emit_direction(const struct optim_target *t, enum op_kind kind,
                                      const double options[MAX_OPTIONS], int n_states,
                                      const tensor_id *states, const struct optim_target *apply)
{
    const struct tensor *weight = &t->prog->tensors[t->weight];
    struct tensor direction = {TENSOR_INIT,
                               .name = arena_format(&t->prog->arena, "u.%s", weight->name),
                               .dtype = DTYPE_f32, .role = ROLE_temporary, .shape = weight->shape};
    if (direction.name == NULL)
        return snug_fail(t->err, SNUG_NO_MEMORY, "optimizer: out of memory");
    tensor_id in[MAX_INPUTS] = {t->grad, t->scalars}, out[MAX_OUTPUTS];
    struct attrs attrs = ATTRS(options);
    memcpy(attrs.options.options.value, options, sizeof attrs.options.options);
    TRY(program_add_tensor(t->prog, &direction, &out[0], t->err));
    memcpy(in + MATRIX_STATES, states, (size_t)n_states * sizeof *states);
    memcpy(out + 1, states, (size_t)n_states * sizeof *states);
    TRY(program_add_op(t->prog, kind, &attrs, MATRIX_STATES + n_states, in, 1 + n_states, out,
                       t->err));
    struct optim_target applied = *apply;
    applied.grad = out[0];
    applied.direction = DIRECTION_as_is;
    return optim_emit_rule(&applied);
}
