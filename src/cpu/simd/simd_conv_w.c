/*
 * simd_conv_w.c -- conv2d_grad_w: transposed im2col times dy.
 *
 *     dW[(kh, kw, c), o] = sum over pixels p of A[p, (kh, kw, c)] dy[p, o]      (simd_im2col.h)
 *
 * The sum is over all pixels of the batch.  dW is split into blocks that threads take one at a
 * time.  A small dW has few blocks, so the pixels are split too, into pieces whose sums
 * simd_grad_w.h adds in order at the end.  Blocks and pieces depend on the shapes only, so the
 * results do not depend on the number of threads.
 */
#include "cpu/simd/simd_im2col.h"
#include "cpu/simd/simd_grad_w.h"

enum {
    BLOCK_K = 192,     /* rows of a block of dW */
    BLOCK_O = 256,     /* and its columns */
    CHUNK = 128,       /* pixels gathered at a time */
    ITEMS_WANTED = 32, /* blocks x pieces */
    PIECE_MIN = 1024   /* pixels */
};

struct grad {
    struct gather gather; /* of group 0 */
    int64_t all_out;      /* channels of dy */
    struct weight_sums sums;
    int64_t n_blocks_k, n_blocks_o;
    bool copies_dy; /* dy is not fp32, or its rows are not whole vectors */
};

static struct grad grad_of(const struct op *op, const struct tensor *x, const struct tensor *dy)
{
    const struct image_attrs *a = attrs_of(op, image);
    const int64_t *from = x->shape.dim, *to = dy->shape.dim;
    struct grad w = {.all_out = to[3],
                     .copies_dy = dy->dtype != DTYPE_f32 || to[3] / a->groups % 16 != 0};
    struct gather *g = &w.gather;
    g->dtype = x->dtype;
    g->from_channels = from[3];
    g->n_channels = from[3] / a->groups;
    g->h = axis_forward(from[1], to[1], a->kernel_h, a);
    g->w = axis_forward(from[2], to[2], a->kernel_w, a);
    g->depth = a->kernel_h * a->kernel_w * g->n_channels;
    g->n_pixels = to[0] * to[1] * to[2];
    w.sums = (struct weight_sums){.n_groups = a->groups,
                                  .n_taps = a->kernel_h * a->kernel_w,
                                  .n_channels = g->n_channels,
                                  .n_out = to[3] / a->groups,
                                  .pitch = padded_columns(to[3] / a->groups)};
    w.n_blocks_k = divide_up(g->depth, BLOCK_K);
    w.n_blocks_o = divide_up(w.sums.n_out, BLOCK_O);
    int64_t n_blocks = a->groups * w.n_blocks_k * w.n_blocks_o;
    w.sums.n_pieces = least(divide_up(ITEMS_WANTED, n_blocks), divide_up(g->n_pixels, PIECE_MIN));
    return w;
}

/* Workspace in floats: the sums, then per part: A, dy. */
static int64_t sums_floats(const struct grad *w)
{
    return w->sums.n_pieces * piece_floats(&w->sums);
}

static int64_t rows_floats(const struct grad *w)
{
    return CHUNK * padded_floats(least(BLOCK_K, w->gather.depth));
}

static int64_t part_floats(const struct grad *w)
{
    return rows_floats(w) + (w->copies_dy ? CHUNK * least(BLOCK_O, w->sums.pitch) : 0);
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    if (op->out[0] == TENSOR_NONE)
        return 0;
    struct grad w = grad_of(op, program_tensor(prog, op->in[0]), program_tensor(prog, op->in[1]));
    return (size_t)(sums_floats(&w) + facts->threads * part_floats(&w)) * sizeof(float);
}

/* A block of dW summed over one piece of the pixels. */
struct item {
    int64_t piece, group, k, n_k, o, n_o;
};

static struct item item_at(const struct grad *w, int64_t i)
{
    struct item item = {.o = i % w->n_blocks_o * BLOCK_O};
    i /= w->n_blocks_o;
    item.k = i % w->n_blocks_k * BLOCK_K;
    i /= w->n_blocks_k;
    item.group = i % w->sums.n_groups;
    item.piece = i / w->sums.n_groups;
    item.n_k = least(BLOCK_K, w->gather.depth - item.k);
    item.n_o = least(BLOCK_O, w->sums.pitch - item.o);
    return item;
}

/* The item's columns of dy for n pixels, in the layout of the matmul. */
static const float *dy_rows(const struct kernel_call *call, const struct grad *w,
                            const struct item *item, int64_t first, int64_t n, float *buffer,
                            int64_t *pitch)
{
    const struct operand *dy = &call->in[1];
    int64_t begin = first * w->all_out + item->group * w->sums.n_out + item->o;
    if (!w->copies_dy) {
        *pitch = w->all_out;
        return (const float *)dy->data + begin;
    }
    int64_t there = least(item->n_o, w->sums.n_out - item->o);
    *pitch = item->n_o;
    for (int64_t p = 0; p < n; p++) {
        float *row = buffer + p * item->n_o;
        load_f32(dy->tensor->dtype, dy->data, begin + p * w->all_out, there, row);
        memset(row + there, 0, (size_t)(item->n_o - there) * sizeof *row);
    }
    return buffer;
}

static void sum_item(const struct kernel_call *call, const struct grad *w, struct item item,
                     float *sums, float *buffers)
{
    struct gather g = w->gather;
    g.first_channel = item.group * g.n_channels;
    bool direct = gather_is_image(&g);
    struct range range = part_range(g.n_pixels, (int)w->sums.n_pieces, (int)item.piece, 1);
    float *c = sums + sums_at(&w->sums, item.piece, item.group, 0, item.k);
    for (int64_t first = range.begin; first < range.end; first += CHUNK) {
        int64_t n = least(CHUNK, range.end - first), a_pitch = item.n_k, b_pitch;
        const float *a = buffers;
        if (direct) {
            a_pitch = g.from_channels;
            a = (const float *)g.from + first * a_pitch + g.first_channel + item.k;
        } else {
            gather_rows(&g, first, n, item.k, item.k + item.n_k, buffers);
        }
        const float *b = dy_rows(call, w, &item, first, n, buffers + rows_floats(w), &b_pitch);
        multiply(&(struct gemm){.n_rows = (int)item.n_k,
                                .n_cols = (int)item.n_o,
                                .n_inner = (int)n,
                                .a = a,
                                .a_pitch = (int)a_pitch,
                                .a_transposed = true,
                                .b = b,
                                .b_pitch = (int)b_pitch,
                                .c = c + item.o,
                                .c_pitch = (int)w->sums.pitch,
                                .add = first > range.begin});
    }
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct grad w = grad_of(call->op, call->in[0].tensor, call->in[1].tensor);
    float *sums = call->work, *parts = sums + sums_floats(&w);
    w.gather.from = call->in[0].data;
    sum_bias(call);
    if (call->out[0].data == NULL)
        return SNUG_OK;
    int64_t n_items = w.sums.n_pieces * w.sums.n_groups * w.n_blocks_k * w.n_blocks_o, taken = 0;
    int n_parts = (int)least(call->facts->threads, n_items);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++)
        for (int64_t i = next_item(&taken); i < n_items; i = next_item(&taken))
            sum_item(call, &w, item_at(&w, i), sums, parts + part * part_floats(&w));
    lay_out_weights(call, &w.sums, sums);
    return SNUG_OK;
}

static bool fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 0);
}

static const struct kernel kernels[] = {
    {.kind = OP_conv2d_grad_w,
     .name = KERNEL_NAME,
     .supports = fits,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

const struct kernel *LEVEL(simd_conv_w_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
