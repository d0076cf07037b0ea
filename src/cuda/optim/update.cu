/*
 * update.cu -- the op update: every elementwise optimizer, moving each byte of a parameter once.
 *
 * The rules come from src/optim in fp32, as in the vectorized CPU kernels.  A kernel is compiled
 * per rule.  How elements are stored (types, quantized states, a master copy, stochastic rounding)
 * is decided at run time, with branches that are uniform across threads and hidden behind the
 * memory traffic.
 *
 *     tensor      | block of threads: 16384 elements | ...
 *     block       | warp: units 0, 8, 16 ... | warp: units 1, 9, 17 ... | ...
 *     unit        | 128 elements, 4 per lane | 128 elements, 4 per lane |
 *
 * A unit of 256 elements is one 8-bit quant block or two 4-bit quant blocks, so a block's scale is
 * a maximum over one warp.  Adjacent lanes read 16 bytes of fp32 each, or 8 bytes of a 16-bit type.
 *
 * A launch takes several tensors.  The first thread of each block computes the constants of the
 * step from the scalar table: the host knows nothing about the step.
 */
#include <string.h>

#include "base/counter_random.h"
#include "base/rng.h"
#include "cuda/kernels/device.h"
#include "cuda/optim/update.h"

#define RULE_REAL float
#include "optim/rules.h"

enum {
    THREADS = 256,
    N_WARPS = THREADS / WARP,
    QUAD = 4,                    /* elements per lane at once */
    HALF_ELEMS = WARP * QUAD,    /* QUANT_BLOCK_4 */
    UNIT_ELEMS = 2 * HALF_ELEMS, /* QUANT_BLOCK_8 */
    UNITS = 64,                  /* per block of threads */
    BLOCK_ELEMS = UNITS * UNIT_ELEMS,
    CONSTANTS_MOST = 16
};
static_assert((int)HALF_ELEMS == (int)QUANT_BLOCK_4 && (int)UNIT_ELEMS == (int)QUANT_BLOCK_8,
              "a warp holds whole quant blocks");

struct update_list {
    int n;
    struct update_tensor tensor[UPDATE_TENSORS_MOST];
};

/* Quantization maps: [0] for values of either sign, [1] for non-negative ones. */
template <bool QUANTIZED> struct update_maps {
};
template <> struct update_maps<true> {
    struct quant_finder finder[2];
    float value[2][QUANT_VALUES_MOST];
};

struct update_shared { /* per block of threads */
    float constants[CONSTANTS_MOST], factor;
    uint64_t key, state_key[MAX_STATES];
    float value[2][QUANT_VALUES_MOST];
};

/* ---- the rules ------------------------------------------------------------------------------- */

#define RULE(name)                                                                            \
    struct rule_##name {                                                                      \
        typedef struct name##_constants constants;                                            \
        typedef struct name##_states states;                                                  \
        enum { n_states = name##_n_states };                                                  \
        static DEVICE_MEMBER void prepare(const struct rule_now *now, const double *options,  \
                                          float *rounded)                                     \
        {                                                                                     \
            struct name##_options o;                                                          \
            struct name##_exact_constants exact;                                              \
            static_assert(sizeof exact <= CONSTANTS_MOST * sizeof(double), "more constants"); \
            memcpy(&o, options, sizeof o);                                                    \
            prepare_##name(&o, now, &exact);                                                  \
            for (size_t i = 0; i < sizeof exact / sizeof(double); i++)                        \
                rounded[i] = (float)((const double *)&exact)[i];                              \
        }                                                                                     \
        static DEVICE_MEMBER void step(const constants *k, float g, float *w, states *s)      \
        {                                                                                     \
            step_##name(k, g, w, s);                                                          \
        }                                                                                     \
    };
#include "ir/rules.def"
#undef RULE

/* ---- four elements at once
 * --------------------------------------------------------------------- */

struct alignas(8) quad_16 {
    uint16_t at[QUAD];
};

/* count: how many of the four exist; the others read as 0. */
DEVICE void quad_load(int type, const void *data, int64_t at, int count, bool aligned,
                      float x[QUAD])
{
    enum dtype dtype = (enum dtype)type;
    if (count < QUAD || !aligned) {
        for (int i = 0; i < QUAD; i++)
            x[i] = i < count ? load(dtype, data, at + i) : 0.0f;
    } else if (dtype == DTYPE_f32) {
        pack_f32 four = *(const pack_f32 *)((const float *)data + at);
        for (int i = 0; i < QUAD; i++)
            x[i] = four.at[i];
    } else {
        quad_16 four = *(const quad_16 *)((const uint16_t *)data + at);
        for (int i = 0; i < QUAD; i++)
            x[i] = dtype == DTYPE_bf16 ? bf16_to_f32(four.at[i]) : from_f16(four.at[i]);
    }
}

/* Four elements as stored: a word each in fp32, else two to a word. */
struct raw_quad {
    uint32_t word[QUAD];
};

/* Loads four aligned elements.  The second half is a predicated load: with a branch the warp would
 * wait for each load before it issues the next. */
DEVICE raw_quad quad_fetch(int type, const void *data, int64_t at)
{
    bool is_wide = type == DTYPE_f32;
    const char *from = (const char *)data + at * (is_wide ? 4 : 2);
    raw_quad raw = {};
#if defined(__CUDA_ARCH__)
    asm volatile("{\n"
                 "    .reg .pred wide;\n"
                 "    setp.ne.s32 wide, %4, 0;\n"
                 "    ld.global.v2.u32 {%0, %1}, [%5];\n"
                 "    @wide ld.global.v2.u32 {%2, %3}, [%5 + 8];\n"
                 "}"
                 : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
                 : "r"((int)is_wide), "l"(from));
#else
    memcpy(raw.word, from, is_wide ? 16 : 8);
#endif
    return raw;
}

DEVICE void quad_unpack(int type, const raw_quad &raw, float x[QUAD])
{
    for (int i = 0; i < QUAD; i++) {
        uint32_t word = type == DTYPE_f32 ? raw.word[i] : raw.word[i / 2] >> (i % 2 * 16);
        float wide;
        memcpy(&wide, &word, sizeof wide);
        x[i] = type == DTYPE_f32    ? wide
               : type == DTYPE_bf16 ? bf16_to_f32((uint16_t)word)
                                    : from_f16((uint16_t)word);
    }
}

DEVICE void quad_store_16(void *data, int64_t at, int count, bool aligned, const quad_16 *four)
{
    uint16_t *to = (uint16_t *)data + at;
    if (count == QUAD && aligned) {
        *(quad_16 *)to = *four;
        return;
    }
    for (int i = 0; i < QUAD; i++)
        if (i < count)
            to[i] = four->at[i];
}

DEVICE void quad_store(int type, void *data, int64_t at, int count, bool aligned,
                       const float x[QUAD])
{
    if (type == DTYPE_f32 && (count < QUAD || !aligned)) {
        for (int i = 0; i < QUAD; i++)
            if (i < count)
                ((float *)data)[at + i] = x[i];
    } else if (type == DTYPE_f32) {
        *(pack_f32 *)((float *)data + at) = pack_f32{{x[0], x[1], x[2], x[3]}};
    } else {
        quad_16 four;
        for (int i = 0; i < QUAD; i++)
            four.at[i] = type == DTYPE_bf16 ? to_bf16(x[i]) : to_f16(x[i]);
        quad_store_16(data, at, count, aligned, &four);
    }
}

/* The same with stochastic rounding. */
DEVICE void quad_store_stochastic(int type, const struct update_array *to, uint64_t key, int64_t at,
                                  int count, bool aligned, const float x[QUAD])
{
    quad_16 four;
    for (int i = 0; i < QUAD; i++) {
        uint32_t random = counter_random(key, (uint64_t)(to->from + at + i));
        four.at[i] =
            type == DTYPE_bf16 ? rng_round_bf16(x[i], random) : to_f16(rng_round_f16(x[i], random));
    }
    quad_store_16(to->data, at, count, aligned, &four);
}

/* ---- quantized elements
 * ------------------------------------------------------------------------ */

/* Four quantized elements as one word, the first in the lowest bits: 8 or 4 bits each. */
DEVICE uint32_t quant_load_word(int bits, const void *quants, int64_t at, int count, bool aligned)
{
    const uint8_t *from = (const uint8_t *)quants + (bits == 8 ? at : at / 2);
    if (count == QUAD && aligned)
        return bits == 8 ? *(const uint32_t *)from : *(const uint16_t *)from;
    uint32_t word = 0;
    for (int i = 0; i < (bits == 8 ? count : (count + 1) / 2); i++)
        word |= (uint32_t)from[i] << (8 * i);
    return word;
}

DEVICE void quant_store_word(int bits, void *quants, int64_t at, int count, bool aligned,
                             uint32_t word)
{
    uint8_t *to = (uint8_t *)quants + (bits == 8 ? at : at / 2);
    if (count == QUAD && aligned) {
        if (bits == 8)
            *(uint32_t *)to = word;
        else
            *(uint16_t *)to = (uint16_t)word;
        return;
    }
    for (int i = 0; i < (bits == 8 ? count : (count + 1) / 2); i++)
        to[i] = (uint8_t)(word >> (8 * i));
}

DEVICE void quad_dequantize(int bits, const float *value, uint32_t word, float scale, float x[QUAD])
{
    for (int i = 0; i < QUAD; i++)
        x[i] = value[word >> (bits * i) & ((1u << bits) - 1)] * scale;
}

/* Elements beyond `count` become 0. */
DEVICE uint32_t quad_quantize(int bits, const struct quant_finder *finder, float unit, int count,
                              const float x[QUAD])
{
    uint32_t word = 0;
    for (int i = 0; i < QUAD; i++) {
        int quant =
            bits == 8 ? quantize_one(finder, 7, x[i] / unit) : quantize_one(finder, 3, x[i] / unit);
        word |= (i < count ? (uint32_t)quant : 0) << (bits * i);
    }
    return word;
}

DEVICE float quad_largest(int count, const float x[QUAD], float largest)
{
    for (int i = 0; i < QUAD; i++) {
        float size = x[i] < 0 ? -x[i] : x[i];
        largest = i < count && size > largest ? size : largest;
    }
    return largest;
}

/* ---- one unit -------------------------------------------------------------------------------- */

struct unit { /* positions of a lane's eight elements */
    int64_t at[2];
    int count[2];
    bool is_whole; /* the same for all lanes */
};

DEVICE struct unit unit_at(int64_t n, int64_t index, int lane)
{
    struct unit u;
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        u.at[h] = index * UNIT_ELEMS + h * HALF_ELEMS + lane * QUAD;
        int64_t left = n - u.at[h];
        u.count[h] = left >= QUAD ? QUAD : left > 0 ? (int)left : 0;
    }
    u.is_whole = (index + 1) * UNIT_ELEMS <= n;
    return u;
}

/* Index of the scale of half h. */
DEVICE int64_t scale_at(int bits, const struct unit *u, int h)
{
    return bits == 8 ? u->at[0] / QUANT_BLOCK_8 : u->at[h] / QUANT_BLOCK_4;
}

template <bool QUANTIZED>
DEVICE void open_state(const struct update_job *job, const struct update_tensor *t,
                       const struct update_shared *shared, const struct unit *u, int j,
                       float x[2][QUAD])
{
    bool is_quantized = QUANTIZED && t->scales[j] != NULL;
    UNROLL(2)
    for (int h = 0; h < 2; h++)
        if (is_quantized) {
            uint32_t word = quant_load_word(job->state_bits, t->state[j].data, u->at[h],
                                            u->count[h], t->aligned);
            float scale = u->count[h] > 0 ? t->scales[j][scale_at(job->state_bits, u, h)] : 0.0f;
            quad_dequantize(job->state_bits, shared->value[t->positive >> j & 1], word, scale,
                            x[h]);
        } else {
            quad_load(t->state_type[j], t->state[j].data, u->at[h], u->count[h], t->aligned, x[h]);
        }
}

/* All lanes must call it: the scale of a quant block is a maximum over the warp. */
DEVICE void store_quants(const struct update_job *job, const struct update_tensor *t,
                         const struct quant_finder *finder, const struct unit *u, int j,
                         const float x[2][QUAD])
{
    float largest[2];
    UNROLL(2)
    for (int h = 0; h < 2; h++)
        largest[h] = warp_max(quad_largest(u->count[h], x[h], 0.0f));
    if (job->state_bits == 8)
        largest[0] = largest[1] = largest[0] > largest[1] ? largest[0] : largest[1];
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        float unit = largest[h] > 0.0f ? largest[h] : 1.0f;
        uint32_t word = quad_quantize(job->state_bits, finder, unit, u->count[h], x[h]);
        quant_store_word(job->state_bits, t->state[j].data, u->at[h], u->count[h], t->aligned,
                         word);
        if (threadIdx.x % WARP == 0 && u->count[h] > 0)
            t->scales[j][scale_at(job->state_bits, u, h)] = largest[h];
    }
}

/* Stores updated elements; with stochastic rounding if they have 16 bits and the op asks for it. */
DEVICE void store_elements(const struct update_tensor *t, int type, const struct update_array *to,
                           uint64_t key, const struct unit *u, const float x[2][QUAD])
{
    UNROLL(2)
    for (int h = 0; h < 2; h++)
        if (t->stochastic && type != DTYPE_f32)
            quad_store_stochastic(type, to, key, u->at[h], u->count[h], t->aligned, x[h]);
        else
            quad_store(type, to->data, u->at[h], u->count[h], t->aligned, x[h]);
}

template <class R>
DEVICE void step_unit(const struct update_shared *shared, const float g[2][QUAD], float w[2][QUAD],
                      float state[][2][QUAD])
{
    typename R::constants k;
    memcpy(&k, shared->constants, sizeof k);
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        UNROLL(4)
        for (int i = 0; i < QUAD; i++) {
            typename R::states s = {};
            for (int j = 0; j < R::n_states; j++)
                ((float *)&s)[j] = state[j][h][i];
            R::step(&k, g[h][i] * shared->factor, &w[h][i], &s);
            for (int j = 0; j < R::n_states; j++)
                state[j][h][i] = ((const float *)&s)[j];
        }
    }
}

/* What update_unit loads, element by element where the unit is partial or not aligned. */
template <class R, bool QUANTIZED>
DEVICE void load_part_of_unit(const struct update_job *job, const struct update_tensor *t,
                              const struct update_shared *shared, const struct unit *u,
                              float g[2][QUAD], float w[2][QUAD], float state[][2][QUAD])
{
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        quad_load(t->g_type, t->g, u->at[h], u->count[h], t->aligned, g[h]);
        quad_load(t->stepped_type, t->stepped.data, u->at[h], u->count[h], t->aligned, w[h]);
    }
    UNROLL(4)
    for (int j = 0; j < R::n_states; j++)
        open_state<QUANTIZED>(job, t, shared, u, j, state[j]);
}

/* The same for a whole aligned unit: issues all loads before it unpacks the first. */
template <class R, bool QUANTIZED>
DEVICE void load_unit(const struct update_job *job, const struct update_tensor *t,
                      const struct update_shared *shared, const struct unit *u, float g[2][QUAD],
                      float w[2][QUAD], float state[][2][QUAD])
{
    raw_quad raw_g[2], raw_w[2], raw_state[R::n_states > 0 ? R::n_states : 1][2];
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        raw_g[h] = quad_fetch(t->g_type, t->g, u->at[h]);
        raw_w[h] = quad_fetch(t->stepped_type, t->stepped.data, u->at[h]);
        UNROLL(4)
        for (int j = 0; j < R::n_states; j++)
            if (!QUANTIZED || t->scales[j] == NULL)
                raw_state[j][h] = quad_fetch(t->state_type[j], t->state[j].data, u->at[h]);
    }
    UNROLL(4)
    for (int j = 0; j < R::n_states; j++)
        if (QUANTIZED && t->scales[j] != NULL)
            open_state<QUANTIZED>(job, t, shared, u, j, state[j]);
        else
            for (int h = 0; h < 2; h++)
                quad_unpack(t->state_type[j], raw_state[j][h], state[j][h]);
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        quad_unpack(t->g_type, raw_g[h], g[h]);
        quad_unpack(t->stepped_type, raw_w[h], w[h]);
    }
}

template <class R, bool QUANTIZED>
DEVICE void update_unit(const struct update_job *job, const struct update_tensor *t,
                        const struct update_maps<QUANTIZED> *maps,
                        const struct update_shared *shared, const struct unit *u)
{
    float g[2][QUAD], w[2][QUAD], state[R::n_states > 0 ? R::n_states : 1][2][QUAD];
    if (t->aligned && u->is_whole)
        load_unit<R, QUANTIZED>(job, t, shared, u, g, w, state);
    else
        load_part_of_unit<R, QUANTIZED>(job, t, shared, u, g, w, state);
    step_unit<R>(shared, g, w, state);
    UNROLL(4)
    for (int j = 0; j < R::n_states; j++) {
        if constexpr (QUANTIZED)
            if (t->scales[j] != NULL) {
                store_quants(job, t, &maps->finder[t->positive >> j & 1], u, j, state[j]);
                continue;
            }
        store_elements(t, t->state_type[j], &t->state[j], shared->state_key[j], u, state[j]);
    }
    store_elements(t, t->stepped_type, &t->stepped, shared->key, u, w);
    UNROLL(2)
    for (int h = 0; h < 2; h++)
        if (t->copy != NULL)
            quad_store(t->copy_type, t->copy, u->at[h], u->count[h], t->aligned, w[h]);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class R>
DEVICE void prepare_block(const struct update_job *job, const struct update_tensor *t,
                          struct update_shared *shared)
{
    const double *scalars = job->scalars;
    uint64_t seed = (uint64_t)scalars[SCALAR_seed];
    uint64_t count = (uint64_t)scalars[SCALAR_update_count];
    struct rule_now now = rule_now(job->direction, t->lr_factor, t->decay, scalars);
    R::prepare(&now, job->options, shared->constants);
    shared->factor = (float)rule_factor(job->direction, scalars);
    shared->key = rng_u64(seed, t->stepped.stream, count);
    for (int j = 0; j < R::n_states; j++)
        shared->state_key[j] = rng_u64(seed, t->state[j].stream, count);
}

/* Index of the tensor that a block works on. */
DEVICE int find_tensor(const struct update_list *list, int block)
{
    int low = 0, high = list->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (list->tensor[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

template <class R, bool QUANTIZED>
KERNEL update(const GRID_CONSTANT struct update_job job,
              const GRID_CONSTANT struct update_list list,
              const GRID_CONSTANT struct update_maps<QUANTIZED> maps)
{
    SHARED struct update_shared shared;
    if (job.scalars[SCALAR_skip] != 0.0)
        return;
    const struct update_tensor *t = &list.tensor[find_tensor(&list, (int)blockIdx.x)];
    if (threadIdx.x == 0)
        prepare_block<R>(&job, t, &shared);
    if constexpr (QUANTIZED)
        for (int i = (int)threadIdx.x; i < 2 * QUANT_VALUES_MOST; i += THREADS)
            shared.value[i / QUANT_VALUES_MOST][i % QUANT_VALUES_MOST] =
                maps.value[i / QUANT_VALUES_MOST][i % QUANT_VALUES_MOST];
    __syncthreads();
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int64_t first = ((int64_t)blockIdx.x - t->first_block) * UNITS;
    for (int64_t index = first + warp; index < first + UNITS && index * UNIT_ELEMS < t->n;
         index += N_WARPS) {
        struct unit u = unit_at(t->n, index, lane);
        update_unit<R, QUANTIZED>(&job, t, &maps, &shared, &u);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

template <class R, bool QUANTIZED>
static int launch_rule(const struct update_job *job, const struct update_list *list, int n_blocks,
                       const struct update_maps<QUANTIZED> *maps, void *stream)
{
    if constexpr (QUANTIZED && R::n_states == 0) {
        return cudaErrorInvalidValue;
    } else {
        auto kernel = update<R, QUANTIZED>;
        return launch(kernel, (unsigned)n_blocks, THREADS, 0, stream, *job, *list, *maps);
    }
}

template <bool QUANTIZED>
static int launch_list(const struct update_job *job, const struct update_list *list, int n_blocks,
                       const struct update_maps<QUANTIZED> *maps, void *stream)
{
    switch (job->rule) {
#define RULE(name)    \
    case RULE_##name: \
        return launch_rule<rule_##name, QUANTIZED>(job, list, n_blocks, maps, stream);
#include "ir/rules.def"
#undef RULE
    default:
        return cudaErrorInvalidValue;
    }
}

int cuda_update(const struct update_job *job, int n_tensors, const struct update_tensor *tensors,
                const struct quant_map *maps, void *stream)
{
    struct update_list list = {};
    int n_blocks = 0;
    for (int i = 0; i < n_tensors; i++) {
        list.tensor[i] = tensors[i];
        list.tensor[i].first_block = n_blocks;
        n_blocks += (int)grid_of(tensors[i].n, BLOCK_ELEMS);
    }
    list.n = n_tensors;
    if (maps == NULL) {
        struct update_maps<false> none;
        return launch_list<false>(job, &list, n_blocks, &none, stream);
    }
    struct update_maps<true> both;
    for (int i = 0; i < 2; i++) {
        both.finder[i] = maps[i].finder;
        memcpy(both.value[i], maps[i].value, sizeof both.value[i]);
    }
    return launch_list<true>(job, &list, n_blocks, &both, stream);
}
