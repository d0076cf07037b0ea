/*
 * image.cu -- pooling of images, and adding positions.
 *
 * A thread computes elements of the result and gathers its inputs, also in the gradients: no two
 * threads add to the same element.  Neighbouring threads have neighbouring packs of channels.
 *
 *     pooling: per_row blocks cover one row of an image, the next per_row blocks the next row,
 *     over all images
 *
 * All blocks are along x, because other grid dimensions are limited to 65535.
 */
#include "cuda/kernels/image.h"
#include "cuda/kernels/raw.h"

enum { BLOCK = 128, TAPS_AHEAD = 3 };

/* n channels from c on, of one pixel of an image. */
struct place {
    int image, h, w, c, n;
};

DEVICE struct place place_of(int height, int channels, unsigned per_row)
{
    unsigned n_packs = (unsigned)(channels + PACK - 1) / PACK;
    unsigned row = blockIdx.x / per_row;
    unsigned i = blockIdx.x % per_row * BLOCK + threadIdx.x;
    int image = (int)(row / (unsigned)height), h = (int)(row % (unsigned)height);
    int w = (int)(i / n_packs), c = (int)(i % n_packs * PACK);
    return {image, h, w, c, channels - c < PACK ? channels - c : (int)PACK};
}

static unsigned blocks_of_row(int64_t width, int64_t channels)
{
    int64_t n_packs = (channels + PACK - 1) / PACK;
    return grid_of(width * n_packs, BLOCK);
}

/* If there are too many blocks the launch fails; the count must not wrap around. */
static unsigned blocks_of_rows(int64_t n_rows, unsigned per_row)
{
    int64_t n_blocks = n_rows * per_row;
    return n_blocks < UINT32_MAX ? (unsigned)n_blocks : UINT32_MAX;
}

/* ---- max pooling
 * ------------------------------------------------------------------------------ */

/* cuda_conv_shape in 32-bit integers. */
struct pool {
    int x_h, x_w, y_h, y_w, channels, kernel_h, kernel_w, stride, pad;
};

static struct pool pool_of(const struct cuda_conv_shape *s)
{
    return {(int)s->x_h,      (int)s->x_w,      (int)s->y_h,    (int)s->y_w, (int)s->x_c,
            (int)s->kernel_h, (int)s->kernel_w, (int)s->stride, (int)s->pad};
}

/* Offset of these channels in the first pixel of row h; pixels are s.channels apart. */
DEVICE int64_t row_begin(const struct pool &s, const struct place &p, int height, int width, int h)
{
    return ((int64_t)p.image * height + h) * width * s.channels + p.c;
}

/* The taps [begin, end) of a window starting at `at` that are inside n rows (or columns). */
struct span {
    int begin, end;
};

DEVICE struct span taps_within(int at, int kernel, int n)
{
    return {at < 0 ? -at : 0, at + kernel < n ? kernel : n - at};
}

template <int DTYPE>
DEVICE void keep_larger(const raw_pack<DTYPE> &raw, int tap, float most[PACK], int where[PACK])
{
    float x[PACK];
    unpack<DTYPE>(raw, x);
    for (int i = 0; i < PACK; i++)
        if (x[i] > most[i] || x[i] != x[i]) {
            most[i] = x[i];
            where[i] = tap;
        }
}

/* Tap indices, one byte per channel. */
template <int DTYPE> DEVICE uint64_t load_taps(const uint8_t *from, int64_t at, int n)
{
    if (DTYPE != ANY_TYPE)
        return *(const uint64_t *)(from + at);
    uint64_t taps = 0;
    for (int i = 0; i < n; i++)
        taps |= (uint64_t)from[at + i] << 8 * i;
    return taps;
}

template <int DTYPE> DEVICE void store_taps(uint8_t *to, int64_t at, int n, const int taps[PACK])
{
    uint64_t word = 0;
    for (int i = 0; i < PACK; i++)
        word |= (uint64_t)taps[i] << 8 * i;
    if (DTYPE != ANY_TYPE)
        *(uint64_t *)(to + at) = word;
    else
        for (int i = 0; i < n; i++)
            to[at + i] = (uint8_t)(word >> 8 * i);
}

/* Every window overlaps the image: the padding is at most half a window. */
template <int DTYPE>
KERNEL maxpool(struct pool s, unsigned per_row, struct cuda_array x, struct cuda_array y,
               uint8_t *at)
{
    struct place to = place_of(s.y_h, s.channels, per_row);
    if (to.w >= s.y_w)
        return;
    int h = to.h * s.stride - s.pad, w = to.w * s.stride - s.pad;
    struct span rows = taps_within(h, s.kernel_h, s.x_h);
    struct span columns = taps_within(w, s.kernel_w, s.x_w);
    float most[PACK];
    int where[PACK];
    for (int i = 0; i < PACK; i++) {
        most[i] = -INFINITY;
        where[i] = rows.begin * s.kernel_w + columns.begin;
    }
    for (int kh = rows.begin; kh < rows.end; kh++) {
        int64_t row = row_begin(s, to, s.x_h, s.x_w, h + kh);
        for (int kw = columns.begin; kw < columns.end; kw += TAPS_AHEAD) {
            raw_pack<DTYPE> taps[TAPS_AHEAD] = {};
            for (int j = 0; j < TAPS_AHEAD; j++)
                if (kw + j < columns.end)
                    taps[j] =
                        raw_load_some<DTYPE>(x, row + (int64_t)(w + kw + j) * s.channels, to.n);
            for (int j = 0; j < TAPS_AHEAD; j++)
                if (kw + j < columns.end)
                    keep_larger<DTYPE>(taps[j], kh * s.kernel_w + kw + j, most, where);
        }
    }
    int64_t result = row_begin(s, to, s.y_h, s.y_w, to.h) + (int64_t)to.w * s.channels;
    store_some<DTYPE>(y, result, to.n, most);
    store_taps<DTYPE>(at, result, to.n, where);
}

/*
 * Pixels that differ by less than a stride are in the same windows, but under different taps.  They
 * form a cell:
 *
 *     pixel = cell * stride - pad + r, r < stride   is in window cell - i under tap r + i * stride
 */
static int64_t n_cells(int64_t n_pixels, const struct cuda_conv_shape *s)
{
    return (n_pixels - 1 + s->pad) / s->stride + 1;
}

/* Sums the gradient of pixel (r_h, r_w) of a cell, tap by tap. */
template <int DTYPE>
DEVICE void gather(const struct pool &s, const struct place &cell, int r_h, int r_w,
                   const struct cuda_array &dy, const uint8_t *at, float sum[PACK])
{
    for (int kh = r_h, h = cell.h; kh < s.kernel_h && h >= 0; kh += s.stride, h--) {
        if (h >= s.y_h)
            continue;
        int64_t row = row_begin(s, cell, s.y_h, s.y_w, h);
        for (int kw = r_w, w = cell.w; kw < s.kernel_w && w >= 0; kw += s.stride, w--) {
            if (w >= s.y_w)
                continue;
            int64_t from = row + (int64_t)w * s.channels;
            raw_pack<DTYPE> raw = raw_load_some<DTYPE>(dy, from, cell.n);
            uint64_t taps = load_taps<DTYPE>(at, from, cell.n);
            uint64_t wrong = taps ^ (unsigned)(kh * s.kernel_w + kw) * 0x0101010101010101u;
            float slope[PACK];
            unpack<DTYPE>(raw, slope);
            for (int i = 0; i < PACK; i++)
                if ((wrong >> 8 * i & 255) == 0)
                    sum[i] += slope[i];
        }
    }
}

/* One thread per cell. */
template <int DTYPE>
KERNEL maxpool_grad(struct pool s, int cells_h, unsigned per_row, struct cuda_array dy,
                    const uint8_t *at, struct cuda_array dx)
{
    struct place cell = place_of(cells_h, s.channels, per_row);
    for (int r_h = 0; r_h < s.stride; r_h++) {
        int h = cell.h * s.stride - s.pad + r_h;
        int64_t row = row_begin(s, cell, s.x_h, s.x_w, h);
        for (int r_w = 0; r_w < s.stride; r_w++) {
            int w = cell.w * s.stride - s.pad + r_w;
            if (h < 0 || h >= s.x_h || w < 0 || w >= s.x_w)
                continue;
            float sum[PACK] = {};
            gather<DTYPE>(s, cell, r_h, r_w, dy, at, sum);
            store_some<DTYPE>(dx, row + (int64_t)w * s.channels, cell.n, sum);
        }
    }
}

static int type_of_pool(const struct cuda_conv_shape *s, struct cuda_array x, struct cuda_array y,
                        const uint8_t *at)
{
    const struct cuda_array both[] = {x, y};
    return pack_aligned(at) ? type_of_packs(s->x_c, both, 2) : (int)ANY_TYPE;
}

int cuda_maxpool(const struct cuda_conv_shape *shape, struct cuda_array x, struct cuda_array y,
                 uint8_t *at, void *stream)
{
    auto kernel = kernel_of_type(type_of_pool(shape, x, y, at), maxpool<DTYPE_f32>,
                                 maxpool<DTYPE_bf16>, maxpool<DTYPE_f16>, maxpool<ANY_TYPE>);
    unsigned per_row = blocks_of_row(shape->y_w, shape->y_c);
    return launch(kernel, blocks_of_rows(shape->n * shape->y_h, per_row), BLOCK, 0, stream,
                  pool_of(shape), per_row, x, y, at);
}

int cuda_maxpool_grad(const struct cuda_conv_shape *shape, struct cuda_array dy, const uint8_t *at,
                      struct cuda_array dx, void *stream)
{
    auto kernel =
        kernel_of_type(type_of_pool(shape, dx, dy, at), maxpool_grad<DTYPE_f32>,
                       maxpool_grad<DTYPE_bf16>, maxpool_grad<DTYPE_f16>, maxpool_grad<ANY_TYPE>);
    int64_t cells_h = n_cells(shape->x_h, shape), cells_w = n_cells(shape->x_w, shape);
    unsigned per_row = blocks_of_row(cells_w, shape->x_c);
    return launch(kernel, blocks_of_rows(shape->n * cells_h, per_row), BLOCK, 0, stream,
                  pool_of(shape), cells_h, per_row, dy, at, dx);
}

/* ---- mean pooling and positions
 * --------------------------------------------------------------- */

KERNEL meanpool(int64_t n_elems, int64_t n_pixels, int64_t channels, struct cuda_array x,
                struct cuda_array y)
{
    int64_t i = thread_index();
    if (i >= n_elems)
        return;
    int64_t begin = i / channels * n_pixels * channels + i % channels;
    float sum = 0.0f;
    for (int64_t p = 0; p < n_pixels; p++)
        sum += load(x.dtype, x.data, begin + p * channels);
    store(y.dtype, y.data, i, sum / (float)n_pixels);
}

template <int DTYPE>
KERNEL meanpool_grad(int n_pixels, int channels, unsigned per_row, struct cuda_array dy,
                     struct cuda_array dx)
{
    struct place to = place_of(1, channels, per_row);
    if (to.w >= n_pixels)
        return;
    float slope[PACK];
    unpack<DTYPE>(raw_load_some<DTYPE>(dy, (int64_t)to.image * channels + to.c, to.n), slope);
    for (int i = 0; i < PACK; i++)
        slope[i] /= (float)n_pixels;
    store_some<DTYPE>(dx, ((int64_t)to.image * n_pixels + to.w) * channels + to.c, to.n, slope);
}

int cuda_meanpool(int64_t n, int64_t n_pixels, int64_t channels, struct cuda_array x,
                  struct cuda_array y, void *stream)
{
    return launch(meanpool, grid_of(n * channels, BLOCK), BLOCK, 0, stream, n * channels, n_pixels,
                  channels, x, y);
}

int cuda_meanpool_grad(int64_t n, int64_t n_pixels, int64_t channels, struct cuda_array dy,
                       struct cuda_array dx, void *stream)
{
    const struct cuda_array both[] = {dx, dy};
    auto kernel = kernel_of_type(type_of_packs(channels, both, 2), meanpool_grad<DTYPE_f32>,
                                 meanpool_grad<DTYPE_bf16>, meanpool_grad<DTYPE_f16>,
                                 meanpool_grad<ANY_TYPE>);
    unsigned per_row = blocks_of_row(n_pixels, channels);
    return launch(kernel, blocks_of_rows(n, per_row), BLOCK, 0, stream, n_pixels, channels, per_row,
                  dy, dx);
}

KERNEL add_repeated(int64_t n, int64_t period, struct cuda_array x, struct cuda_array more,
                    struct cuda_array y)
{
    int64_t i = thread_index();
    if (i < n)
        store(y.dtype, y.data, i,
              load(x.dtype, x.data, i) + load(more.dtype, more.data, i % period));
}

int cuda_add_repeated(int64_t n, int64_t period, struct cuda_array x, struct cuda_array more,
                      struct cuda_array y, void *stream)
{
    return launch(add_repeated, grid_of(n, BLOCK), BLOCK, 0, stream, n, period, x, more, y);
}
