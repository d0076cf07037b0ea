/*
 * simd_winograd.c -- conv2d and conv2d_grad_x for 3 x 3, stride 1, with simd_winograd.h.
 *
 * The gradient of x is the same convolution over dy with the weights rotated by 180 degrees.  For
 * each panel of outputs all threads together transform the weights to the points once.  Then
 * threads take chunks of tiles: patches of a few channels are transformed to the points, in L2, 36
 * matmuls accumulate them there, and the sums are transformed back to pixels.  Each sum over
 * channels is in an order that depends on the shape only, so the results do not depend on how tiles
 * and panels are distributed.
 *
 * Lower bound, for a tile and 16 channels or outputs: 36 matmuls of channels x outputs instead of
 * 144, so 4 times fewer if tiles fit (28 x 28, 4 x 4), 3.1 if they cover 8 x 8 for 7 x 7.  In
 * addition, a patch takes 36 loads, 144 additions and multiplications and 36 stores to L2 for each
 * 16 channels, and the inverse transform about as much for each 16 outputs: an eighth of the
 * matmuls with 64 channels, a sixteenth with 128.  Weights grow from 9 elements to 36, which
 * dominates if there are few tiles and many channels (4 x 4 of 512).  These are counts; in
 * measurements with 64 channels the transforms took half as long as the matmuls.
 *
 * Speedup over simd_conv.c on one core of a Zen 4 (conv2d, conv2d_grad_x, conv2d_grad_w):
 *
 *     N 32  28 x 28   64 channels  2.9 2.9 2.6        N 8  28 x 28  16 to 16   2.6 2.6 2.6
 *     N 32  14 x 14  128           2.4 2.3 2.4        N 1  28 x 28  64         3.1 3.2 3.4
 *     N 32   7 x  7  256           2.3 1.9 2.4        N 1   4 x  4  512        1.2 1.0 1.5
 *     N 32   4 x  4  512           2.3 2.2 2.6        N 32  5 x  5  64         1.3 1.3 1.4
 *                                                     N 32  2 x  2  64         0.8 0.8 1.1
 */
#include "cpu/simd/simd_winograd.h"

enum {
    STRIP = 32,              /* columns of packed weights */
    PANEL_MAX = 128,         /* outputs whose weights are transformed at a time */
    PANEL_ELEMS = 128 * 256, /* weights per point: they stay in L3 */
    CHUNK = 32,              /* tiles */
    WEIGHT_ROWS = 16,        /* transformed at a time */
    ITEMS_WANTED = 2         /* per thread and panel */
};

struct conv {
    struct picture from;
    int64_t pad;
    struct tiling tiling;
    int64_t height, width, columns; /* of the result */
    bool backward;
    int64_t panel, chunk, group; /* columns of a panel; tiles and columns of an item */
    int64_t u_pitch, v_pitch,
        m_pitch; /* stride from one point to the next: weights, patches, sums */
};

static struct conv conv_of(const struct op *op, const struct tensor *from, const struct tensor *to,
                           int threads)
{
    const int64_t *f = from->shape.dim, *t = to->shape.dim;
    struct conv c = {
        .from = {.dtype = from->dtype, .height = f[1], .width = f[2], .channels = f[3]},
        .tiling = tiling_of(t[0], t[1], t[2]),
        .height = t[1],
        .width = t[2],
        .columns = t[3],
        .backward = op_has(op, TRAIT_grad)};
    c.pad = c.backward ? KERNEL - 1 - attrs_of(op, image)->pad : attrs_of(op, image)->pad;
    int64_t panel = least(PANEL_MAX, PANEL_ELEMS / c.from.channels / STRIP * STRIP);
    c.panel = least(panel < STRIP ? STRIP : panel, c.columns);
    c.chunk = least(CHUNK, c.tiling.n_tiles);
    c.group = c.panel;
    int64_t n_chunks = divide_up(c.tiling.n_tiles, CHUNK);
    while (c.group > STRIP && n_chunks * divide_up(c.panel, c.group) < ITEMS_WANTED * threads)
        c.group = divide_up(c.group / 2, STRIP) * STRIP;
    c.u_pitch = c.from.channels * divide_up(c.panel, STRIP) * STRIP + CACHE_LINE;
    c.v_pitch = CHUNK * CHANNELS_AT_ONCE + CACHE_LINE;
    c.m_pitch = CHUNK * c.group + CACHE_LINE;
    return c;
}

/* Workspace in floats: the transformed weights of a panel, then per part: patches, sums. */
static int64_t part_floats(const struct conv *c)
{
    return POINTS * (c->v_pitch + c->m_pitch);
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    struct conv c = conv_of(op, program_tensor(prog, op->in[0]), program_tensor(prog, op->out[0]),
                            facts->threads);
    return (size_t)(POINTS * c.u_pitch + facts->threads * part_floats(&c)) * sizeof(float);
}

/* ---- weights ------------------------------------------------------------------------------- */

/* Copies W to to[row, tap, column], for some rows (input channels) and columns (output channels).
 * W is [out, in, 3, 3]: forward the taps and rows of a column are contiguous, backward those of a
 * row are, and the order of the taps is reversed. */
static void copy_taps(const struct kernel_call *call, const struct conv *c, int64_t row,
                      int64_t n_rows, int64_t column, int64_t n_columns, float *to)
{
    float wide[STRIP * TAPS];
    int64_t n_outer = c->backward ? n_rows : n_columns, n_inner = c->backward ? n_columns : n_rows;
    int64_t outer = c->backward ? row : column, inner = c->backward ? column : row;
    int64_t per_outer = (c->backward ? c->columns : c->from.channels) * TAPS;
    int64_t outer_step = c->backward ? TAPS * STRIP : 1,
            inner_step = c->backward ? 1 : TAPS * STRIP;
    int64_t tap_step = c->backward ? -STRIP : STRIP;
    float *first = to + (c->backward ? (TAPS - 1) * STRIP : 0);
    for (int64_t i = 0; i < n_outer; i++) {
        const float *w =
            in_view(call, 1, (outer + i) * per_outer + inner * TAPS, n_inner * TAPS, wide);
        for (int64_t j = 0; j < n_inner; j++)
            for (int tap = 0; tap < TAPS; tap++)
                first[i * outer_step + j * inner_step + tap * tap_step] = w[j * TAPS + tap];
    }
}

/* Computes U[36, strip, row, STRIP or the rest] for WEIGHT_ROWS rows of a strip. */
static void weights_to_points(const struct kernel_call *call, const struct conv *c, int64_t row,
                              int64_t column, int64_t width, float *strip)
{
    float taps[WEIGHT_ROWS * TAPS * STRIP];
    int64_t n_rows = least(WEIGHT_ROWS, c->from.channels - row);
    copy_taps(call, c, row, n_rows, column, width, taps);
    for (int64_t i = 0; i < n_rows; i++) {
        const float *at[TAPS];
        for (int tap = 0; tap < TAPS; tap++)
            at[tap] = taps + (i * TAPS + tap) * STRIP;
        transform_to_points(points_of_weights, KERNEL, at, width, strip + (row + i) * width,
                            c->u_pitch);
    }
}

static void pack_panel(const struct kernel_call *call, const struct conv *c, int64_t first,
                       int64_t n_columns, float *u)
{
    int64_t n_blocks = divide_up(c->from.channels, WEIGHT_ROWS);
    int64_t n_items = n_blocks * divide_up(n_columns, STRIP);
    int n_parts = count_parts(call->facts, n_items * WEIGHT_ROWS * STRIP * TAPS);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < n_items; i++) {
        int64_t column = i / n_blocks * STRIP;
        weights_to_points(call, c, i % n_blocks * WEIGHT_ROWS, first + column,
                          least(STRIP, n_columns - column), u + column * c->from.channels);
    }
}

/* ---- matmuls ------------------------------------------------------------------------------ */

/* Some tiles and some columns of the panel. */
struct item {
    int64_t tile, n_tiles;
    int64_t column, n_columns; /* relative to the panel */
};

/* Computes M[36, tile, column] of an item: the sums over all channels. */
static void multiply_item(const struct conv *c, const struct item *item, const float *u, float *v,
                          float *m)
{
    int64_t channels = c->from.channels;
    for (int64_t at = 0; at < channels; at += CHANNELS_AT_ONCE) {
        int64_t n = least(CHANNELS_AT_ONCE, channels - at);
        patch_points(&c->from, &c->tiling, c->pad, item->tile, item->n_tiles, at, n, v, c->v_pitch);
        for (int point = 0; point < POINTS; point++)
            for (int64_t col = 0; col < item->n_columns; col += STRIP) {
                int64_t width = least(STRIP, item->n_columns - col);
                multiply(&(struct gemm){.n_rows = (int)item->n_tiles,
                                        .n_cols = (int)width,
                                        .n_inner = (int)n,
                                        .a = v + point * c->v_pitch,
                                        .a_pitch = (int)n,
                                        .b = u + point * c->u_pitch +
                                             (item->column + col) * channels + at * width,
                                        .b_pitch = (int)width,
                                        .c = m + point * c->m_pitch + col,
                                        .c_pitch = (int)item->n_columns,
                                        .add = at > 0});
            }
    }
}

/* Transforms and stores a tile of the result from column `first` on.  Pixels outside the image go
 * to `spare`. */
static void store_tile(const struct kernel_call *call, const struct conv *c, struct place at,
                       int64_t first, int64_t n, const float *m, const float *bias)
{
    float spare[SIDE * SIDE * PANEL_MAX], *pixels[SIDE * SIDE];
    int64_t places[SIDE * SIDE]; /* -1 if outside */
    enum dtype dtype = call->out[0].tensor->dtype;
    for (int k = 0; k < SIDE * SIDE; k++) {
        int64_t row = at.row + k / SIDE, column = at.column + k % SIDE;
        bool inside = row < c->height && column < c->width;
        places[k] =
            inside ? ((at.image * c->height + row) * c->width + column) * c->columns + first : -1;
        pixels[k] = spare + k * PANEL_MAX;
        if (inside)
            pixels[k] = out_target(call, 0, places[k], pixels[k]);
    }
    transform_from_points(results_of_points, SIDE, m, c->m_pitch, n, bias, pixels);
    for (int k = 0; dtype != DTYPE_f32 && k < SIDE * SIDE; k++)
        if (places[k] >= 0)
            out_store(call, 0, places[k], n, pixels[k]);
}

static void run_item(const struct kernel_call *call, const struct conv *c, int64_t panel,
                     const struct item *item, const float *u, float *part)
{
    float *m = part + POINTS * c->v_pitch, bias[PANEL_MAX] = {0.0f};
    int64_t first = panel + item->column;
    if (call->op->n_in > 2 && call->in[2].data != NULL)
        load_f32(call->in[2].tensor->dtype, call->in[2].data, first, item->n_columns, bias);
    multiply_item(c, item, u, part, m);
    for (int64_t t = 0; t < item->n_tiles; t++)
        store_tile(call, c, tile_place(&c->tiling, item->tile + t), first, item->n_columns,
                   m + t * item->n_columns, bias);
}

static void run_panel(const struct kernel_call *call, const struct conv *c, int64_t panel, float *u,
                      float *parts)
{
    int64_t n_columns = least(c->panel, c->columns - panel);
    pack_panel(call, c, panel, n_columns, u);
    int64_t n_groups = divide_up(n_columns, c->group), taken = 0;
    int64_t n_items = n_groups * divide_up(c->tiling.n_tiles, c->chunk);
    int n_parts = (int)least(call->facts->threads, n_items);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++)
        for (int64_t i = next_item(&taken); i < n_items; i = next_item(&taken)) {
            struct item item = {.tile = i / n_groups * c->chunk, .column = i % n_groups * c->group};
            item.n_tiles = least(c->chunk, c->tiling.n_tiles - item.tile);
            item.n_columns = least(c->group, n_columns - item.column);
            run_item(call, c, panel, &item, u, parts + part * part_floats(c));
        }
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct conv c =
        conv_of(call->op, call->in[0].tensor, call->out[0].tensor, call->facts->threads);
    c.from.data = call->in[0].data;
    float *u = call->work, *parts = u + POINTS * c.u_pitch;
    for (int64_t panel = 0; panel < c.columns; panel += c.panel)
        run_panel(call, &c, panel, u, parts);
    return SNUG_OK;
}

static bool fits(const struct program *prog, const struct op *op)
{
    const int64_t *w = program_tensor(prog, op->in[1])->shape.dim;
    const int64_t *to = program_tensor(prog, op->out[0])->shape.dim;
    return floats_fit(prog, op, 0, 0, 0) &&
           winograd_is_faster(attrs_of(op, image), w[2], w[3], w[1], w[0], to[1], to[2]);
}

static const struct kernel kernels[] = {
    {.kind = OP_conv2d,
     .name = KERNEL_NAME,
     .supports = fits,
     .workspace_bytes = workspace_bytes,
     .run = run},
    {.kind = OP_conv2d_grad_x,
     .name = KERNEL_NAME,
     .supports = fits,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

const struct kernel *LEVEL(simd_winograd_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
