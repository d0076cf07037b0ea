/*
 * simd_conv.c -- conv2d and conv2d_grad_x: implicit im2col times packed weights.
 *
 * Both are the same matmul (simd_im2col.h): rows of A are gathered into L2 a few at a time, and the
 * weights B are packed once per op into strips of 32 columns.  Threads take chunks of pixels.  Each
 * element is a sum over taps and channels in an order that depends on the shape only.
 *
 * docs/vision.md explains why this is not oneDNN's convolution, with measurements.
 */
#include "cpu/simd/simd_im2col.h"

enum {
    STRIP = 32,          /* columns of packed weights */
    A_FLOATS = 96 << 10, /* gathered elements per thread: they stay in L2 */
    BLOCK_DEPTH = 1024,  /* elements of a row of A at a time, or a window row if that is more */
    PIECE_DEPTH = 256,   /* summed in registers before the next strip */
    CHUNK_MAX = 256      /* pixels */
};

struct conv {
    struct gather gather;                              /* of group 0 */
    int64_t n_images, n_groups, columns;               /* of the result, per group */
    int64_t height, width, channels;                   /* of the result's images */
    int64_t weight_out, weight_in, kernel_h, kernel_w; /* W [weight_out, weight_in, KH, KW] */
    bool backward;
    int64_t chunk, block_depth; /* of A at a time: pixels, elements of each */
    bool needs_sums;            /* results are summed in a buffer first */
};

/* ---- shapes -------------------------------------------------------------------------------- */

static void cut_chunks(struct conv *c)
{
    int64_t per_row = c->gather.w.n_taps * c->gather.n_channels;
    int64_t n_rows = per_row > 0 ? BLOCK_DEPTH / per_row : 1;
    c->block_depth = least(c->gather.depth, per_row * (n_rows < 1 ? 1 : n_rows));
    int64_t chunk = c->block_depth > 0 ? A_FLOATS / c->block_depth / 8 * 8 : 8;
    c->chunk = least(chunk < 8 ? 8 : chunk, CHUNK_MAX);
}

/* Sets up phase `phase` of the result (simd_im2col.h).  Forward has only one. */
static void set_phase(struct conv *c, const struct image_attrs *a, const struct shape *from,
                      int64_t phase)
{
    struct gather *g = &c->gather;
    if (c->backward) {
        g->h = axis_backward(c->height, from->dim[1], c->kernel_h, a, phase / a->stride);
        g->w = axis_backward(c->width, from->dim[2], c->kernel_w, a, phase % a->stride);
    } else {
        g->h = axis_forward(from->dim[1], c->height, c->kernel_h, a);
        g->w = axis_forward(from->dim[2], c->width, c->kernel_w, a);
    }
    g->depth = g->h.n_taps * g->w.n_taps * g->n_channels;
    g->n_pixels = c->n_images * g->h.n_pixels * g->w.n_pixels;
    cut_chunks(c);
}

static struct conv conv_of(const struct op *op, const struct tensor *from,
                           const struct tensor *weight, const struct tensor *to, bool has_bias)
{
    const int64_t *w = weight->shape.dim, groups = attrs_of(op, image)->groups;
    struct conv c = {.n_images = to->shape.dim[0],
                     .n_groups = groups,
                     .columns = to->shape.dim[3] / groups,
                     .height = to->shape.dim[1],
                     .width = to->shape.dim[2],
                     .channels = to->shape.dim[3],
                     .weight_out = w[0],
                     .weight_in = w[1],
                     .kernel_h = w[2],
                     .kernel_w = w[3],
                     .backward = op_has(op, TRAIT_grad)};
    c.gather.dtype = from->dtype;
    c.gather.from_channels = from->shape.dim[3];
    c.gather.n_channels = from->shape.dim[3] / groups;
    c.needs_sums = to->dtype != DTYPE_f32 || c.columns % 16 != 0 || has_bias ||
                   (c.backward && attrs_of(op, image)->stride > 1);
    set_phase(&c, attrs_of(op, image), &from->shape, 0);
    return c;
}

static int64_t n_phases(const struct conv *c, const struct image_attrs *a)
{
    return c->backward ? a->stride * a->stride : 1;
}

/* ---- workspace ----------------------------------------------------------------------------- */

/* In floats: W widened if it is not fp32, packed weights of the largest phase, then per part: A,
 * sums. */
struct layout {
    int64_t wide, packed, rows, sums, parts; /* offsets; `parts`: of part 0 */
    int64_t part_floats, total;
};

/* The maximum over all phases: a phase has at most ceil(kernel / stride) taps. */
static struct layout layout_of(struct conv c, const struct image_attrs *a, const struct shape *from,
                               enum dtype weight, int threads)
{
    struct layout l = {0};
    int64_t packed = 0, rows = 0, sums = 0;
    for (int64_t phase = 0; phase < n_phases(&c, a); phase++) {
        set_phase(&c, a, from, phase);
        int64_t strips = divide_up(c.columns, STRIP) * STRIP;
        packed = c.gather.depth * strips > packed ? c.gather.depth * strips : packed;
        rows = c.chunk * c.block_depth > rows ? c.chunk * c.block_depth : rows;
        sums = c.chunk > sums ? c.chunk : sums;
    }
    int64_t n_weights = c.weight_out * c.weight_in * c.kernel_h * c.kernel_w;
    l.packed = weight == DTYPE_f32 ? 0 : padded_floats(n_weights);
    l.parts = l.packed + padded_floats(packed * c.n_groups);
    l.sums = padded_floats(rows);
    l.part_floats = l.sums + (c.needs_sums ? padded_floats(sums * padded_columns(c.columns)) : 0);
    l.total = l.parts + threads * l.part_floats;
    return l;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    const struct tensor *from = program_tensor(prog, op->in[0]);
    const struct tensor *weight = program_tensor(prog, op->in[1]);
    bool has_bias = op->n_in > 2 && op->in[2] != TENSOR_NONE;
    struct conv c = conv_of(op, from, weight, program_tensor(prog, op->out[0]), has_bias);
    struct layout l =
        layout_of(c, attrs_of(op, image), &from->shape, weight->dtype, facts->threads);
    return (size_t)l.total * sizeof(float);
}

/* ---- weights ------------------------------------------------------------------------------- */

/* Packs columns [col, col + n) of B into a strip of `width`.  Row (ih, iw, c) of B belongs to
 * channel c of the side of W that is summed over. */
static void pack_strip(const struct conv *c, const float *w, int64_t group, int64_t col, int64_t n,
                       int64_t width, float *to)
{
    const struct gather *g = &c->gather;
    int64_t taps = c->kernel_h * c->kernel_w, per_out = c->weight_in * taps;
    int64_t across = c->backward ? taps : per_out, along = c->backward ? per_out : taps;
    const float *first = c->backward ? w + group * g->n_channels * per_out + col * taps
                                     : w + (group * c->columns + col) * per_out;
    for (int64_t k = 0; k < g->n_channels; k++)
        for (int64_t ih = 0; ih < g->h.n_taps; ih++)
            for (int64_t iw = 0; iw < g->w.n_taps; iw++) {
                const float *from = first + k * along +
                                    (g->h.kernel_first + ih * g->h.kernel_step) * c->kernel_w +
                                    g->w.kernel_first + iw * g->w.kernel_step;
                float *line = to + ((ih * g->w.n_taps + iw) * g->n_channels + k) * width;
                for (int64_t j = 0; j < n; j++)
                    line[j] = from[j * across];
                for (int64_t j = n; j < width; j++)
                    line[j] = 0.0f;
            }
}

static int64_t strip_width(const struct conv *c, int64_t col)
{
    return least(STRIP, padded_columns(c->columns - col));
}

static void pack_weights(const struct kernel_call *call, const struct conv *c, const float *w,
                         float *packed)
{
    int64_t n_strips = divide_up(c->columns, STRIP), n_all = n_strips * c->n_groups;
    int n_parts = count_parts(call->facts, n_all * STRIP * c->gather.depth);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < n_all; i++) {
        int64_t col = i % n_strips * STRIP;
        pack_strip(c, w, i / n_strips, col, least(STRIP, c->columns - col), strip_width(c, col),
                   packed + i * STRIP * c->gather.depth);
    }
}

/* ---- matmuls ------------------------------------------------------------------------------ */

/* The offset of pixel p of this phase in the result. */
static int64_t pixel_at(const struct conv *c, int64_t p)
{
    const struct axis *h = &c->gather.h, *w = &c->gather.w;
    int64_t column = p % w->n_pixels, row = p / w->n_pixels % h->n_pixels;
    int64_t n = p / (w->n_pixels * h->n_pixels);
    return ((n * c->height + h->to_first + row * h->to_step) * c->width + w->to_first +
            column * w->to_step) *
           c->channels;
}

/* sums[n, columns] = A B for n pixels from `first` on. */
static void multiply_chunk(const struct conv *c, const struct gather *g, int64_t first, int64_t n,
                           const float *packed, float *rows_of_a, float *sums, int64_t pitch)
{
    bool direct = gather_is_image(g);
    for (int64_t block = 0; block < g->depth; block += c->block_depth) {
        int64_t depth = least(c->block_depth, g->depth - block), a_pitch = depth;
        const float *a = rows_of_a;
        if (direct) {
            a_pitch = g->from_channels;
            a = (const float *)g->from + first * a_pitch + g->first_channel + block;
        } else {
            gather_rows(g, first, n, block, block + depth, rows_of_a);
        }
        for (int64_t col = 0; col < c->columns; col += STRIP)
            for (int64_t at = 0; at < depth; at += PIECE_DEPTH) {
                int64_t width = strip_width(c, col);
                multiply(&(struct gemm){.n_rows = (int)n,
                                        .n_cols = (int)width,
                                        .n_inner = (int)least(PIECE_DEPTH, depth - at),
                                        .a = a + at,
                                        .a_pitch = (int)a_pitch,
                                        .b = packed + col * g->depth + (block + at) * width,
                                        .b_pitch = (int)width,
                                        .c = sums + col,
                                        .c_pitch = (int)pitch,
                                        .add = block + at > 0});
            }
    }
}

/* Copies the sums to the result and adds the bias. */
static void finish_chunk(const struct kernel_call *call, const struct conv *c, int64_t group,
                         int64_t first, int64_t n, float *sums, int64_t pitch)
{
    const struct operand *bias = &call->in[2], *y = &call->out[0];
    bool has_bias = call->op->n_in > 2 && bias->data != NULL;
    for (int64_t p = 0; p < n; p++) {
        float *row = sums + p * pitch;
        for (int64_t at = 0; has_bias && at < c->columns; at += BLOCK_ELEMS) {
            float buffer[BLOCK_ELEMS];
            int64_t count = least(BLOCK_ELEMS, c->columns - at);
            const float *b =
                view_f32(bias->tensor->dtype, bias->data, group * c->columns + at, count, buffer);
            for (int64_t j = 0; j < count; j++)
                row[at + j] += b[j];
        }
        store_f32(y->tensor->dtype, y->data, pixel_at(c, first + p) + group * c->columns,
                  c->columns, row);
    }
}

static void run_chunk(const struct kernel_call *call, const struct conv *c, int64_t item,
                      const float *packed, float *part, int64_t sums_at)
{
    int64_t n_chunks = divide_up(c->gather.n_pixels, c->chunk);
    int64_t group = item / n_chunks, first = item % n_chunks * c->chunk;
    int64_t n = least(c->chunk, c->gather.n_pixels - first);
    struct gather g = c->gather;
    g.first_channel = group * g.n_channels;
    bool direct = !c->needs_sums;
    int64_t pitch = direct ? c->channels : padded_columns(c->columns);
    float *sums = direct ? (float *)call->out[0].data + first * c->channels + group * c->columns
                         : part + sums_at;
    int64_t strips = divide_up(c->columns, STRIP) * STRIP;
    if (g.depth == 0) /* no tap reaches these pixels */
        memset(sums, 0, (size_t)(n * pitch) * sizeof *sums);
    multiply_chunk(c, &g, first, n, packed + group * strips * g.depth, part, sums, pitch);
    if (c->needs_sums)
        finish_chunk(call, c, group, first, n, sums, pitch);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct image_attrs *a = attrs_of(call->op, image);
    const struct tensor *from = call->in[0].tensor, *weight = call->in[1].tensor;
    bool has_bias = call->op->n_in > 2 && call->in[2].data != NULL;
    struct conv c = conv_of(call->op, from, weight, call->out[0].tensor, has_bias);
    struct layout l = layout_of(c, a, &from->shape, weight->dtype, call->facts->threads);
    float *work = call->work;
    const float *w =
        view_f32(weight->dtype, call->in[1].data, 0, shape_elems(&weight->shape), work + l.wide);
    c.gather.from = call->in[0].data;
    for (int64_t phase = 0; phase < n_phases(&c, a); phase++) {
        set_phase(&c, a, &from->shape, phase);
        if (c.gather.n_pixels == 0)
            continue; /* the image is smaller than the stride */
        pack_weights(call, &c, w, work + l.packed);
        int64_t n_items = c.n_groups * divide_up(c.gather.n_pixels, c.chunk), taken = 0;
        int n_parts = (int)least(call->facts->threads, n_items);
#pragma omp parallel for schedule(static, 1) num_threads(n_parts)
        for (int part = 0; part < n_parts; part++)
            for (int64_t i = next_item(&taken); i < n_items; i = next_item(&taken))
                run_chunk(call, &c, i, work + l.packed, work + l.parts + part * l.part_floats,
                          l.sums);
    }
    return SNUG_OK;
}

static bool fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 0);
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

const struct kernel *LEVEL(simd_conv_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
