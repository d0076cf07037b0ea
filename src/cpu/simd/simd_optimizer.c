/*
 * simd_optimizer.c -- sum_squares and update, with one pass over the optimizer state.
 *
 * An update reads g, W, the states and the fp32 master weights block by block and writes a block
 * before it reads the next.  The rules come from src/optim in fp32.  sum_squares adds in fp64 over
 * chunks of fixed size, then over the chunks in order, so the norm does not depend on the number of
 * threads.
 *
 * One Zen 4 core, v4, 12.6M parameters: adamw 42 GB/s in f32 (28 bytes a parameter), 36 GB/s in
 * bf16 with an fp32 master (30 bytes); sum_squares 30 GB/s.
 */
#include "base/quant_map.h"
#include "base/counter_random.h"
#include "base/rng.h"
#include "cpu/simd/simd_common.h"

#define RULE_REAL        float
#define RULE_POWER(x, p) power_f32(x, p)
#include "optim/rules.h"

enum { CHUNK_ELEMS = 16 * BLOCK_ELEMS };

/* ---- sum of squares ---------------------------------------------------------------------- */

static bool sum_squares_fits(const struct program *prog, const struct op *op)
{
    return operands_fit(prog, op->n_in, op->in, 0, 0) &&
           program_tensor(prog, op->out[0])->dtype == DTYPE_f64;
}

static size_t sum_squares_work_bytes(const struct program *prog, const struct op *op,
                                     const struct device_facts *facts)
{
    (void)facts;
    return (size_t)divide_up(tensor_elems(prog, op->in[0]), CHUNK_ELEMS) * sizeof(double);
}

static enum snug_status run_sum_squares(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t n = shape_elems(&call->in[0].tensor->shape);
    int64_t n_chunks = divide_up(n, CHUNK_ELEMS);
    double *sums = call->work;
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n))
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        float buffer[BLOCK_ELEMS];
        double sum = 0.0;
        int64_t end = least(n, (chunk + 1) * CHUNK_ELEMS);
        for (int64_t at = chunk * CHUNK_ELEMS; at < end; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, end - at);
            sum += sum_squares_f64(in_view(call, 0, at, count, buffer), NULL, count);
        }
        sums[chunk] = sum;
    }
    double total = 0.0;
    for (int64_t i = 0; i < n_chunks; i++)
        total += sums[i];
    *(double *)call->out[0].data = total;
    return SNUG_OK;
}

/* ---- updates ----------------------------------------------------------------------------- */

/* A block of weights and states as fp32: in place if the tensor is fp32, else in buffers. */
struct block {
    int64_t at, count;
    const float *g;
    float *w, *state[MAX_STATES];
};

enum { CONSTANTS_MOST = 16 };

struct update {
    float constants[CONSTANTS_MOST]; /* of the rule */
    float clip;
    int n_states;
    struct quant_map maps[MAX_STATES]; /* of the quantized states */
};

typedef void prepare_fn(const struct rule_now *now, const double *options, float *constants);
typedef void steps_fn(const struct update *update, const struct block *block);

static inline void round_constants(size_t n, const double *exact, float *rounded)
{
    for (size_t i = 0; i < n; i++)
        rounded[i] = (float)exact[i];
}

/* The constants and the loop of each rule.  Constants and states are copied to locals that no store
 * can alias, so the compiler keeps them in registers.  No `omp simd`: gcc does not vectorize a
 * struct that is private to the loop. */
#define RULE(name)                                                                               \
    static void constants_##name(const struct rule_now *now, const double *options,              \
                                 float *constants)                                               \
    {                                                                                            \
        struct name##_options o;                                                                 \
        struct name##_exact_constants exact;                                                     \
        _Static_assert(sizeof exact <= CONSTANTS_MOST * sizeof(double), "more constants");       \
        memcpy(&o, options, sizeof o);                                                           \
        prepare_##name(&o, now, &exact);                                                         \
        round_constants(sizeof exact / sizeof(double), (const double *)&exact, constants);       \
    }                                                                                            \
    static OUT_OF_LINE void steps_##name(const struct update *update, const struct block *block) \
    {                                                                                            \
        struct name##_constants k;                                                               \
        const float *g = block->g;                                                               \
        float *p = block->w, clip = update->clip, *state[MAX_STATES];                            \
        int64_t count = block->count;                                                            \
        memcpy(&k, update->constants, sizeof k);                                                 \
        memcpy(state, block->state, sizeof state);                                               \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++)                                 \
        {                                                                                        \
            struct name##_states s = {0};                                                        \
            float w = p[i];                                                                      \
            for (int j = 0; j < name##_n_states; j++)                                            \
                ((float *)&s)[j] = state[j][i];                                                  \
            step_##name(&k, g[i] * clip, &w, &s); /* STEP of src/optim/NAME.c */                 \
            for (int j = 0; j < name##_n_states; j++)                                            \
                state[j][i] = ((float *)&s)[j];                                                  \
            p[i] = w;                                                                            \
        }                                                                                        \
    }
#include "ir/rules.def"
#undef RULE

static const struct {
    prepare_fn *prepare;
    steps_fn *steps;
    int n_states;
} rules[RULE_COUNT] = {
#define RULE(name) {constants_##name, steps_##name, name##_n_states},
#include "ir/rules.def"
#undef RULE
};

/* Elements of an operand as fp32, in place or in `buffer`. */
static float *open_elems(const struct operand *x, const struct block *block, float *buffer)
{
    float *place = target_f32(x->tensor->dtype, x->data, block->at, buffer);
    if (place == buffer)
        load_f32(x->tensor->dtype, x->data, block->at, block->count, buffer);
    return place;
}

static void round_stochastic(const struct kernel_call *call, const struct operand *x,
                             const struct block *block, const float *from)
{
    const double *scalars = call->in[UPDATE_SCALARS].data;
    uint64_t key = rng_u64((uint64_t)scalars[SCALAR_seed], rng_hash_string(operand_name(x)),
                           (uint64_t)scalars[SCALAR_update_count]);
    uint16_t *to = (uint16_t *)x->data + block->at;
    uint64_t at = (uint64_t)(x->whole_from + block->at);
    if (x->tensor->dtype == DTYPE_f16) {
        float rounded[BLOCK_ELEMS];
        for (int64_t i = 0; i < block->count; i++)
            rounded[i] = rng_round_f16(from[i], counter_random(key, at + (uint64_t)i));
        f16_store(to, block->count, rounded);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < block->count; i++)
        to[i] = rng_round_bf16(from[i], counter_random(key, at + (uint64_t)i));
}

static void store_elems(const struct kernel_call *call, const struct operand *x,
                        const struct block *block, const float *from)
{
    if (attrs_of(call->op, update)->stochastic && x->tensor->dtype != DTYPE_f32)
        round_stochastic(call, x, block, from);
    else
        store_f32(x->tensor->dtype, x->data, block->at, block->count, from);
}

/* Loads weights and states, runs the rule and stores them again. */
static void update_block(const struct kernel_call *call, const struct update *update,
                         struct block *block)
{
    float buffer_g[BLOCK_ELEMS], buffer_w[BLOCK_ELEMS], buffers[MAX_STATES][BLOCK_ELEMS];
    const struct operand *w = &call->in[UPDATE_WEIGHT], *master = &call->in[UPDATE_MASTER];
    const struct operand *stepped = master->data != NULL ? master : w;
    block->g = in_view(call, UPDATE_GRADIENT, block->at, block->count, buffer_g);
    block->w = open_elems(stepped, block, buffer_w);
    for (int j = 0; j < update->n_states; j++) {
        const struct operand *state = &call->in[UPDATE_STATES + 2 * j], *scales = state + 1;
        block->state[j] = buffers[j];
        if (scales->data != NULL)
            dequantize_elems(&update->maps[j], state->data, scales->data, block->at, block->count,
                             buffers[j]);
        else
            block->state[j] = open_elems(state, block, buffers[j]);
    }
    rules[attrs_of(call->op, update)->rule].steps(update, block);
    for (int j = 0; j < update->n_states; j++) {
        const struct operand *state = &call->in[UPDATE_STATES + 2 * j], *scales = state + 1;
        if (scales->data != NULL)
            quantize_elems(&update->maps[j], state->data, scales->data, block->at, block->count,
                           buffers[j]);
        else
            store_elems(call, state, block, block->state[j]);
    }
    store_elems(call, stepped, block, block->w);
    if (stepped == master)
        store_f32(w->tensor->dtype, w->data, block->at, block->count, block->w);
}

static bool update_fits(const struct program *prog, const struct op *op)
{
    unsigned others = 1u << UPDATE_SCALARS;
    for (int k = UPDATE_STATES; k + 1 < op->n_in; k += 2)
        if (op->in[k + 1] != TENSOR_NONE)
            others |= 1u << k; /* quantized elements */
    return operands_fit(prog, op->n_in, op->in, others, 0);
}

static enum snug_status run_update(const struct kernel_call *call, struct snug_error *err)
{
    const struct update_attrs *attrs = attrs_of(call->op, update);
    const double *scalars = call->in[UPDATE_SCALARS].data;
    TRY(update_check_states(call, rules[attrs->rule].n_states, err));
    if (scalars[SCALAR_skip] != 0.0)
        return SNUG_OK;
    struct rule_now now = rule_now(attrs->direction, attrs->lr_factor, attrs->decay, scalars);
    struct update update = {.clip = (float)rule_factor(attrs->direction, scalars),
                            .n_states = update_n_states(call->op)};
    rules[attrs->rule].prepare(&now, attrs->options.value, update.constants);
    for (int j = 0; j < update.n_states && attrs->state_bits != 0; j++)
        quant_map_make(&update.maps[j], (int)attrs->state_bits, (attrs->positive >> j & 1) == 0);
    int64_t n = shape_elems(&call->in[UPDATE_WEIGHT].tensor->shape);
    int n_parts = count_parts(call->facts, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct range range = part_range(n, n_parts, part, BLOCK_ELEMS);
        for (int64_t at = range.begin; at < range.end; at += BLOCK_ELEMS) {
            struct block block = {.at = at, .count = least(BLOCK_ELEMS, range.end - at)};
            update_block(call, &update, &block);
        }
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_sum_squares,
     .name = KERNEL_NAME,
     .supports = sum_squares_fits,
     .workspace_bytes = sum_squares_work_bytes,
     .run = run_sum_squares},
    {.kind = OP_update, .name = KERNEL_NAME, .supports = update_fits, .run = run_update},
};

const struct kernel *LEVEL(simd_optimizer_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
