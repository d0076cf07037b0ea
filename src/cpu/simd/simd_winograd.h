/*
 * simd_winograd.h -- 3 x 3 convolutions of stride 1 with a quarter of the multiplications.
 *
 * Winograd's F(4 x 4, 3 x 3): a tile of 4 x 4 pixels of y depends on a patch of 6 x 6 pixels of x.
 * A polynomial of degree 5 is determined by its values at 6 points, so in each dimension
 *
 *     y = A' ((G w) . (B' x))      A' is 4 x 6, G is 6 x 3, B' is 6 x 6, . is elementwise
 *
 * In two dimensions each patch and each 3 x 3 of weights becomes 36 elements, one for each pair of
 * points.  The sum over channels is computed at the points: 36 matmuls [tiles, channels]
 * [channels, outputs] instead of 9 times 16 of them for the same pixels.  The gradient of W is the
 * transposed computation: dw = G' ((A dy) . (B' x)), summed over tiles.
 *
 * The points are 0, +-sqrt(1/2), +-sqrt(2) and infinity.  With the usual 0, +-1, +-2 the rounding
 * error is 4 to 5 times as large: largest error over largest result with 256 channels 1.8e-5, here
 * 3.6e-6, and 0.8e-6 with F(2 x 2, 3 x 3), which needs 1.8 times as many multiplications.
 *
 * Everything is static: each file that includes this is compiled once per instruction level.
 */
#ifndef SNUG_CPU_SIMD_SIMD_WINOGRAD_H
#define SNUG_CPU_SIMD_SIMD_WINOGRAD_H

#include "cpu/simd/simd_common.h"
#include "cpu/simd/simd_tile.h"

enum {
    SIDE = 4,    /* of a tile of y */
    PATCH = 6,   /* of the pixels of x that it sees */
    KERNEL = 3,  /* of the weights */
    POINTS = 36, /* PATCH * PATCH */
    TAPS = 9,
    CHANNELS_AT_ONCE = 64, /* of a patch */
    COVERED_MOST = 3,      /* most pixels of tiles per pixel of the result */
    CACHE_LINE = 16        /* floats of padding between points, which would share cache sets */
};

#define ROOT_2    1.41421356f
#define ROOT_HALF 0.70710678f
#define THIRD     0.33333333f

#define SMALL_LOOP _Pragma("GCC unroll 6")

/* ---- one dimension ------------------------------------------------------------------------- */

/* B': transforms 6 pixels. */
static inline void points_of_pixels(const vec d[PATCH], vec v[PATCH])
{
    vec even = d[4] - 2.0f * d[2], odd = ROOT_HALF * (d[3] - 2.0f * d[1]);
    vec far_even = d[4] - 0.5f * d[2], far_odd = ROOT_2 * (d[3] - 0.5f * d[1]);
    v[0] = d[0] - 2.5f * d[2] + d[4];
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = far_even + far_odd;
    v[4] = far_even - far_odd;
    v[5] = d[1] - 2.5f * d[3] + d[5];
}

/* A': computes 4 results. */
static inline void results_of_points(const vec m[PATCH], vec y[SIDE])
{
    vec even = m[1] + m[2], odd = m[1] - m[2], far_even = m[3] + m[4], far_odd = m[3] - m[4];
    y[0] = m[0] + even + far_even;
    y[1] = ROOT_HALF * odd + ROOT_2 * far_odd;
    y[2] = 0.5f * even + 2.0f * far_even;
    y[3] = 0.5f * ROOT_HALF * odd + 2.0f * ROOT_2 * far_odd + m[5];
}

/* A: transforms 4 gradients of results. */
static inline void points_of_results(const vec y[SIDE], vec m[PATCH])
{
    vec even = y[0] + 0.5f * y[2], odd = ROOT_HALF * (y[1] + 0.5f * y[3]);
    vec far_even = y[0] + 2.0f * y[2], far_odd = ROOT_2 * (y[1] + 2.0f * y[3]);
    m[0] = y[0];
    m[1] = even + odd;
    m[2] = even - odd;
    m[3] = far_even + far_odd;
    m[4] = far_even - far_odd;
    m[5] = y[3];
}

/* G: transforms 3 weights. */
static inline void points_of_weights(const vec w[KERNEL], vec u[PATCH])
{
    vec even = -2.0f * THIRD * w[0] - THIRD * w[2], odd = -2.0f * THIRD * ROOT_HALF * w[1];
    vec far_even = 0.5f * THIRD * w[0] + THIRD * w[2], far_odd = 0.5f * THIRD * ROOT_2 * w[1];
    u[0] = w[0];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = far_even + far_odd;
    u[4] = far_even - far_odd;
    u[5] = w[2];
}

/* G': computes 3 gradients of weights. */
static inline void weights_of_points(const vec u[PATCH], vec w[KERNEL])
{
    vec even = u[1] + u[2], odd = u[1] - u[2], far_even = u[3] + u[4], far_odd = u[3] - u[4];
    w[0] = u[0] - 2.0f * THIRD * even + 0.5f * THIRD * far_even;
    w[1] = 0.5f * THIRD * ROOT_2 * far_odd - 2.0f * THIRD * ROOT_HALF * odd;
    w[2] = THIRD * (far_even - even) + u[5];
}

/* ---- two dimensions ------------------------------------------------------------------------ */

typedef void direction(const vec *from, vec *to);

/* Applies fn in each dimension, to n adjacent channels.  Element k of from is at from[k][0 .. n),
 * of to at to + k * pitch.  Sizes and fn are constants wherever this is inlined.  The intermediate
 * values do not fit in the registers. */
static inline __attribute__((always_inline)) void transform_to_points(direction *fn, int n_from,
                                                                      const float *const *from,
                                                                      int64_t n, float *to,
                                                                      int64_t pitch)
{
    for (int64_t at = 0; at < n; at += VEC_ELEMS) {
        vec between[PATCH][PATCH], line[PATCH], made[PATCH];
        SMALL_LOOP
        for (int j = 0; j < n_from; j++) {
            SMALL_LOOP
            for (int i = 0; i < n_from; i++)
                line[i] = vec_load(from[i * n_from + j] + at);
            fn(line, made);
            SMALL_LOOP
            for (int i = 0; i < PATCH; i++)
                between[i][j] = made[i];
        }
        SMALL_LOOP
        for (int i = 0; i < PATCH; i++) {
            fn(between[i], made);
            SMALL_LOOP
            for (int j = 0; j < PATCH; j++)
                vec_store(to + (i * PATCH + j) * pitch + at, made[j]);
        }
    }
}

/* The inverse: element k of from is at from + k * pitch, of to at to[k]; adds `bias` to each. */
static inline __attribute__((always_inline)) void
transform_from_points(direction *fn, int n_to, const float *from, int64_t pitch, int64_t n,
                      const float *bias, float *const *to)
{
    for (int64_t at = 0; at < n; at += VEC_ELEMS) {
        vec between[PATCH][PATCH], line[PATCH], made[PATCH], shift = vec_load(bias + at);
        SMALL_LOOP
        for (int j = 0; j < PATCH; j++) {
            SMALL_LOOP
            for (int i = 0; i < PATCH; i++)
                line[i] = vec_load(from + (i * PATCH + j) * pitch + at);
            fn(line, made);
            SMALL_LOOP
            for (int i = 0; i < n_to; i++)
                between[i][j] = made[i];
        }
        SMALL_LOOP
        for (int i = 0; i < n_to; i++) {
            fn(between[i], made);
            SMALL_LOOP
            for (int j = 0; j < n_to; j++)
                vec_store(to[i * n_to + j] + at, made[j] + shift);
        }
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

/* The tiles that cover the images, row by row. */
struct tiling {
    int64_t across, down, n_tiles;
};

static inline struct tiling tiling_of(int64_t n_images, int64_t height, int64_t width)
{
    struct tiling t = {.across = divide_up(width, SIDE), .down = divide_up(height, SIDE)};
    t.n_tiles = n_images * t.across * t.down;
    return t;
}

struct place {
    int64_t image, row, column; /* of the tile's first pixel */
};

static inline struct place tile_place(const struct tiling *t, int64_t i)
{
    return (struct place){i / (t->across * t->down), i / t->across % t->down * SIDE,
                          i % t->across * SIDE};
}

struct picture { /* input images, channels last */
    enum dtype dtype;
    const void *data;
    int64_t height, width, channels;
};

static inline bool is_inside(const struct picture *p, int64_t row, int64_t column)
{
    return row >= 0 && row < p->height && column >= 0 && column < p->width;
}

static inline int64_t pixel_of(const struct picture *p, int64_t image, int64_t row, int64_t column)
{
    return ((image * p->height + row) * p->width + column) * p->channels;
}

static const float no_pixel[CHANNELS_AT_ONCE]; /* zeros for pixels outside the image */

/* Sets pixels[side * side] to the n channels of each pixel of a square.  They are widened into
 * `wide` if they are not fp32. */
static inline void find_pixels(const struct picture *p, struct place at, int side, int64_t channel,
                               int64_t n, float *wide, const float **pixels)
{
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++) {
            int k = i * side + j;
            pixels[k] = no_pixel;
            if (is_inside(p, at.row + i, at.column + j))
                pixels[k] = view_f32(p->dtype, p->data,
                                     pixel_of(p, at.image, at.row + i, at.column + j) + channel, n,
                                     wide + k * CHANNELS_AT_ONCE);
        }
}

/* V[36, n_tiles, n] = the transformed patches of some tiles, for n channels.  A patch starts `pad`
 * pixels above and to the left of its tile. */
static inline void patch_points(const struct picture *x, const struct tiling *tiling, int64_t pad,
                                int64_t first_tile, int64_t n_tiles, int64_t channel, int64_t n,
                                float *v, int64_t pitch)
{
    float wide[POINTS * CHANNELS_AT_ONCE];
    const float *pixels[POINTS];
    for (int64_t t = 0; t < n_tiles; t++) {
        struct place at = tile_place(tiling, first_tile + t);
        at.row -= pad;
        at.column -= pad;
        find_pixels(x, at, PATCH, channel, n, wide, pixels);
        transform_to_points(points_of_pixels, PATCH, pixels, n, v + t * n, pitch);
    }
}

/* ---- which convolutions -------------------------------------------------------------------- */

/* Depends on the shape only.  Channels must be whole vectors at every level.  If the sides of the
 * image are not multiples of 4, tiles cover more than the image, which may cost more than is saved:
 * see simd_winograd.c. */
static inline bool winograd_is_faster(const struct image_attrs *a, int64_t kernel_h,
                                      int64_t kernel_w, int64_t channels_in, int64_t channels_out,
                                      int64_t height, int64_t width)
{
    int64_t covered = divide_up(height, SIDE) * divide_up(width, SIDE) * SIDE * SIDE;
    return kernel_h == KERNEL && kernel_w == KERNEL && a->stride == 1 && a->groups == 1 &&
           a->pad < KERNEL && channels_in % 16 == 0 && channels_out % 16 == 0 &&
           covered <= COVERED_MOST * height * width;
}

#endif
