/*
 * simd_rope.c -- rotary position embedding.
 *
 * The angles of a position are computed once and serve all heads, and all sequences of the batch if
 * positions are not given.  Angle and range reduction are in fp64, because positions reach 131,072;
 * the polynomials of the reduced angle, which is at most pi / 4, are in fp32.
 *
 * y may alias x: a group of heads is read before it is written.
 */
#include "cpu/simd/simd_common.h"
#include "ir/rope_angles.h"

/* Workspace (h: half a head, in floats rounded up to a cache line; g: a group of heads):
 *     frequencies 2 h (fp64), then per part: quadrants h, reduced angles h, cosines h, sines h,
 *     heads g */
enum { FREQUENCY_LINES = 2, PART_LINES = 4 };

struct sizes {
    int64_t batch, time, heads, depth, half;
    int64_t group; /* heads that are converted at once */
    int64_t pitch; /* floats of h */
    bool has_positions;
    int64_t n_items; /* rows with angles of their own */
    int n_parts;
};

static struct sizes sizes_of(const struct op *op, const struct tensor *x,
                             const struct device_facts *facts)
{
    struct sizes s = {.batch = x->shape.dim[0],
                      .time = x->shape.dim[1],
                      .heads = attrs_of(op, rope)->heads,
                      .has_positions = op->n_in > 1 && op->in[1] != TENSOR_NONE};
    s.depth = shape_last(&x->shape) / s.heads;
    s.half = s.depth / 2;
    s.group = s.depth < BLOCK_ELEMS ? least(s.heads, BLOCK_ELEMS / s.depth) : 1;
    s.pitch = padded_floats(s.half);
    s.n_items = s.has_positions ? s.batch * s.time : s.time;
    s.n_parts = (int)least(count_parts(facts, shape_elems(&x->shape)), s.n_items);
    return s;
}

static int64_t part_floats(const struct sizes *s)
{
    return PART_LINES * s->pitch + padded_floats(s->group * s->depth);
}

static bool rope_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 1, 0, 0);
}

static size_t work_bytes(const struct program *prog, const struct op *op,
                         const struct device_facts *facts)
{
    struct sizes s = sizes_of(op, program_tensor(prog, op->in[0]), facts);
    return (size_t)(FREQUENCY_LINES * s.pitch + s.n_parts * part_floats(&s)) * sizeof(float);
}

struct table {
    int32_t *quadrant;
    float *reduced, *cosine, *sine;
};

/* angle = quadrant pi / 2 + reduced.  Adding 1.5 * 2^52 rounds to an integer, which is then in the
 * low bits. */
static OUT_OF_LINE void reduce_angles(int64_t n, const double *frequency, double position,
                                      int32_t *quadrant, float *reduced)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        double angle = position * frequency[i];
        double shifted = angle * 0.63661977236758134308 + 6755399441055744.0;
        uint64_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        int32_t k = (int32_t)(uint32_t)bits;
        quadrant[i] = k;
        reduced[i] = (float)(angle - (double)k * 1.57079632679489661923);
    }
}

/* The polynomials are those of Cephes; errors of about 1e-7.  sign: -1 for the opposite angles. */
static OUT_OF_LINE void rotate_quadrants(int64_t n, const int32_t *quadrant, const float *reduced,
                                         float sign, float *cosine, float *sine)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float r = reduced[i], square = r * r;
        float s = fmadd(square, -1.9515295891e-4f, 8.3321608736e-3f);
        s = fmadd(square, s, -1.6666654611e-1f);
        s = fmadd(square * r, s, r);
        float c = fmadd(square, 2.443315711809948e-5f, -1.388731625493765e-3f);
        c = fmadd(square, c, 4.166664568298827e-2f);
        c = fmadd(square * square, c, fmadd(square, -0.5f, 1.0f));
        uint32_t k = (uint32_t)quadrant[i];
        float of_cosine = (k & 1u) != 0 ? s : c, of_sine = (k & 1u) != 0 ? c : s;
        cosine[i] = ((k + 1u) & 2u) != 0 ? -of_cosine : of_cosine;
        sine[i] = (k & 2u) != 0 ? -sign * of_sine : sign * of_sine;
    }
}

static OUT_OF_LINE void rotate_head(int64_t half, const float *x, const float *cosine,
                                    const float *sine, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[half + i];
        y[i] = fmadd(first, cosine[i], -second * sine[i]);
        y[half + i] = fmadd(second, cosine[i], first * sine[i]);
    }
}

static void rotate_row(const struct kernel_call *call, const struct sizes *s, int64_t row,
                       const struct table *table, float *buffer)
{
    for (int64_t head = 0; head < s->heads; head += s->group) {
        int64_t n_heads = least(s->group, s->heads - head);
        int64_t begin = (row * s->heads + head) * s->depth, n = n_heads * s->depth;
        const float *x = in_view(call, 0, begin, n, buffer);
        float *y = out_target(call, 0, begin, buffer);
        for (int64_t h = 0; h < n_heads; h++)
            rotate_head(s->half, x + h * s->depth, table->cosine, table->sine, y + h * s->depth);
        out_store(call, 0, begin, n, y);
    }
}

static enum snug_status run_rope(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct rope_attrs *rope = attrs_of(call->op, rope);
    struct sizes s = sizes_of(call->op, call->in[0].tensor, call->facts);
    const int32_t *positions = s.has_positions ? call->in[1].data : NULL;
    double *frequency = call->work;
    float *work = (float *)call->work + FREQUENCY_LINES * s.pitch;
    float sign = rope->inverse ? -1.0f : 1.0f;
    for (int64_t i = 0; i < s.half; i++)
        frequency[i] = rope_frequency(rope, s.depth, i);
#pragma omp parallel for schedule(static) num_threads(s.n_parts)
    for (int part = 0; part < s.n_parts; part++) {
        float *own = work + part * part_floats(&s), *buffer = own + PART_LINES * s.pitch;
        struct table table = {(int32_t *)(void *)own, own + s.pitch, own + 2 * s.pitch,
                              own + 3 * s.pitch};
        struct range range = part_range(s.n_items, s.n_parts, part, 1);
        for (int64_t item = range.begin; item < range.end; item++) {
            double position = positions != NULL ? (double)positions[item] : (double)item;
            reduce_angles(s.half, frequency, position, table.quadrant, table.reduced);
            rotate_quadrants(s.half, table.quadrant, table.reduced, sign, table.cosine, table.sine);
            for (int64_t row = item; row < s.batch * s.time; row += s.n_items)
                rotate_row(call, &s, row, &table, buffer);
        }
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_rope,
     .name = KERNEL_NAME,
     .supports = rope_fits,
     .workspace_bytes = work_bytes,
     .run = run_rope},
};

const struct kernel *LEVEL(simd_rope_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
