/*
 * simd_winograd_w.c -- conv2d_grad_w for 3 x 3, stride 1, with simd_winograd.h.
 *
 *     dW = G' (sum over tiles of (B' x) . (A dy))
 *
 * dW is split into blocks of channels and outputs, and the tiles into pieces.  Threads take one
 * block of one piece at a time.  A few tiles of x and dy are transformed to the points in L2, 36
 * matmuls add them to the sums of the block, and the sums are transformed back to 9 taps.  Blocks
 * and pieces depend on the shapes only, so the results do not depend on the number of threads.
 * simd_grad_w.h adds up the pieces.
 */
#include "cpu/simd/simd_grad_w.h"
#include "cpu/simd/simd_winograd.h"

enum {
    BLOCK = 64,        /* channels, and outputs */
    CHUNK = 32,        /* tiles */
    ITEMS_WANTED = 32, /* blocks x pieces */
    PIECE_MIN = 128,   /* tiles */
};

struct grad {
    struct picture x, dy;
    int64_t pad;
    struct tiling tiling;
    struct weight_sums sums;
    int64_t n_blocks_c, n_blocks_o;
};

static struct picture picture_of(const struct tensor *t)
{
    const int64_t *dim = t->shape.dim;
    return (struct picture){
        .dtype = t->dtype, .height = dim[1], .width = dim[2], .channels = dim[3]};
}

static struct grad grad_of(const struct op *op, const struct tensor *x, const struct tensor *dy)
{
    struct grad w = {.x = picture_of(x), .dy = picture_of(dy), .pad = attrs_of(op, image)->pad};
    w.tiling = tiling_of(dy->shape.dim[0], w.dy.height, w.dy.width);
    w.n_blocks_c = divide_up(w.x.channels, BLOCK);
    w.n_blocks_o = divide_up(w.dy.channels, BLOCK);
    w.sums =
        (struct weight_sums){.n_pieces = least(divide_up(ITEMS_WANTED, w.n_blocks_c * w.n_blocks_o),
                                               divide_up(w.tiling.n_tiles, PIECE_MIN)),
                             .n_groups = 1,
                             .n_taps = TAPS,
                             .n_channels = w.x.channels,
                             .n_out = w.dy.channels,
                             .pitch = w.dy.channels};
    return w;
}

/* Workspace in floats: the sums, then per part, at each point: x, dy, their matmul. */
enum {
    TILES_PITCH = CHUNK * BLOCK + CACHE_LINE,
    BLOCK_PITCH = BLOCK * BLOCK + CACHE_LINE,
    PART_FLOATS = POINTS * (2 * TILES_PITCH + BLOCK_PITCH)
};

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    if (op->out[0] == TENSOR_NONE)
        return 0;
    struct grad w = grad_of(op, program_tensor(prog, op->in[0]), program_tensor(prog, op->in[1]));
    int64_t floats = w.sums.n_pieces * piece_floats(&w.sums) + facts->threads * PART_FLOATS;
    return (size_t)floats * sizeof(float);
}

/* A block of dW summed over one piece of the tiles. */
struct item {
    int64_t piece, c, n_c, o, n_o;
};

static struct item item_at(const struct grad *w, int64_t i)
{
    struct item item = {.piece = i / (w->n_blocks_c * w->n_blocks_o),
                        .c = i / w->n_blocks_o % w->n_blocks_c * BLOCK,
                        .o = i % w->n_blocks_o * BLOCK};
    item.n_c = least(BLOCK, w->x.channels - item.c);
    item.n_o = least(BLOCK, w->dy.channels - item.o);
    return item;
}

/* Z[36, n_tiles, n] = the transformed dy of some tiles, for n outputs. */
static void result_points(const struct grad *w, int64_t first_tile, int64_t n_tiles, int64_t out,
                          int64_t n, float *z)
{
    float wide[SIDE * SIDE * CHANNELS_AT_ONCE];
    const float *pixels[SIDE * SIDE];
    for (int64_t t = 0; t < n_tiles; t++) {
        find_pixels(&w->dy, tile_place(&w->tiling, first_tile + t), SIDE, out, n, wide, pixels);
        transform_to_points(points_of_results, SIDE, pixels, n, z + t * n, TILES_PITCH);
    }
}

static void multiply_item(const struct grad *w, const struct item *item, float *v, float *z,
                          float *gemms)
{
    struct range range = part_range(w->tiling.n_tiles, (int)w->sums.n_pieces, (int)item->piece, 1);
    for (int64_t first = range.begin; first < range.end; first += CHUNK) {
        int64_t n = least(CHUNK, range.end - first);
        patch_points(&w->x, &w->tiling, w->pad, first, n, item->c, item->n_c, v, TILES_PITCH);
        result_points(w, first, n, item->o, item->n_o, z);
        for (int point = 0; point < POINTS; point++)
            multiply(&(struct gemm){.n_rows = (int)item->n_c,
                                    .n_cols = (int)item->n_o,
                                    .n_inner = (int)n,
                                    .a = v + point * TILES_PITCH,
                                    .a_pitch = (int)item->n_c,
                                    .a_transposed = true,
                                    .b = z + point * TILES_PITCH,
                                    .b_pitch = (int)item->n_o,
                                    .c = gemms + point * BLOCK_PITCH,
                                    .c_pitch = (int)item->n_o,
                                    .add = first > range.begin});
    }
}

static void sum_item(const struct grad *w, struct item item, float *sums, float *part)
{
    float *gemms = part + POINTS * 2 * TILES_PITCH, *taps[TAPS];
    multiply_item(w, &item, part, part + POINTS * TILES_PITCH, gemms);
    for (int64_t c = 0; c < item.n_c; c++) {
        for (int tap = 0; tap < TAPS; tap++)
            taps[tap] = sums + sums_at(&w->sums, item.piece, 0, tap, item.c + c) + item.o;
        transform_from_points(weights_of_points, KERNEL, gemms + c * item.n_o, BLOCK_PITCH,
                              item.n_o, no_pixel, taps);
    }
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct grad w = grad_of(call->op, call->in[0].tensor, call->in[1].tensor);
    w.x.data = call->in[0].data;
    w.dy.data = call->in[1].data;
    sum_bias(call);
    if (call->out[0].data == NULL)
        return SNUG_OK;
    float *sums = call->work, *parts = sums + w.sums.n_pieces * piece_floats(&w.sums);
    int64_t n_items = w.sums.n_pieces * w.n_blocks_c * w.n_blocks_o, taken = 0;
    int n_parts = (int)least(call->facts->threads, n_items);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++)
        for (int64_t i = next_item(&taken); i < n_items; i = next_item(&taken))
            sum_item(&w, item_at(&w, i), sums, parts + part * PART_FLOATS);
    lay_out_weights(call, &w.sums, sums);
    return SNUG_OK;
}

static bool fits(const struct program *prog, const struct op *op)
{
    const struct image_attrs *a = attrs_of(op, image);
    const int64_t *x = program_tensor(prog, op->in[0])->shape.dim;
    const int64_t *dy = program_tensor(prog, op->in[1])->shape.dim;
    return floats_fit(prog, op, 0, 0, 0) &&
           winograd_is_faster(a, a->kernel_h, a->kernel_w, x[3], dy[3], dy[1], dy[2]);
}

static const struct kernel kernels[] = {
    {.kind = OP_conv2d_grad_w,
     .name = KERNEL_NAME,
     .supports = fits,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

const struct kernel *LEVEL(simd_winograd_w_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
