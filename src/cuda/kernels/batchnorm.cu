/*
 * batchnorm.cu -- batch normalization per channel, and its gradient.
 *
 * Both consist of two sums down each channel, then a pass over the elements.  The sums are of x and
 * x^2, which give mean and variance, or of g and g h.  Squares are summed around the first row, so
 * that they do not cancel when the mean of a channel is far from 0.  Rows are assigned to parts by
 * their index alone; a block sums a part of some channels in fp32, and a second kernel sums the
 * parts in fp64.
 *
 *     threads of a block: lanes x stripes.  Lanes take adjacent packs of channels, stripes take
 *     rows in turn.
 *
 * Everything is memory-bound.  A thread keeps its channels, so their constants stay in registers,
 * and it issues the loads of several rows before it works on the first.  The sums run from the
 * first row to the last, with all blocks at about the same place.  The pass over the elements
 * starts at the end, where the data is still in the cache.
 */
#include "cuda/kernels/batchnorm.h"
#include "cuda/kernels/raw.h"

/* Blocks are small so that all CUDA_SUM_PARTS are resident at once, with many registers per
 * thread. */
enum { BLOCK = 128, LANES_MOST = 32, ROWS_AHEAD = 4 };

/* The approximate number of blocks for the pass over the elements.  Few under emulation, so that
 * small tensors take more than one round. */
#if defined(SNUG_CUDA_EMULATED)
enum { ELEMENT_BLOCKS = 8 };
#else
enum { ELEMENT_BLOCKS = 4096 };
#endif

/* Rows loaded ahead: floats take twice the registers. */
template <int DTYPE> constexpr int rows_ahead(void)
{
    return DTYPE == DTYPE_bf16 || DTYPE == DTYPE_f16 ? ROWS_AHEAD : ROWS_AHEAD / 2;
}

/* ---- channels and rows of a thread ---------------------------------------------------------- */

DEVICE float at_channel(struct cuda_array x, int64_t c)
{
    return load(x.dtype, x.data, c);
}

DEVICE float rstd_of(const struct cuda_batchnorm &t, float var)
{
    return rsqrtf(var + t.eps);
}

/* n channels from c on, of some rows: elements at begin, begin + step... before end. */
struct share {
    int64_t c, begin, step, end;
    int n;
};

/* The share of this thread: rows first, first + step... before end; blockIdx.x selects the
 * channels. */
DEVICE struct share share_of(const struct cuda_batchnorm &t, int n_lanes, int64_t first,
                             int64_t step, int64_t end)
{
    int64_t c = ((int64_t)blockIdx.x * n_lanes + threadIdx.x % n_lanes) * PACK;
    int64_t left = c < t.channels ? t.channels - c : 0;
    end = end < t.n_rows ? end : t.n_rows;
    return {c, first * t.channels + c, step * t.channels, end * t.channels,
            left < PACK ? (int)left : (int)PACK};
}

/* Loads from a vector with one element per channel, of any type. */
template <int DTYPE>
DEVICE void load_vector(const struct cuda_array &from, const struct share &own, float to[PACK])
{
    if (DTYPE == ANY_TYPE)
        pack_load_part(from.dtype, from.data, own.c, own.n, to);
    else
        pack_load(from.dtype, from.data, own.c, to);
}

/* y = (x - mean) * scale + shift */
struct channels {
    float mean[PACK], rstd[PACK], scale[PACK], shift[PACK];
};

template <int DTYPE>
DEVICE void load_channels(const struct cuda_batchnorm &t, const struct share &own,
                          struct channels &k)
{
    float var[PACK];
    load_vector<DTYPE>(t.mean, own, k.mean);
    load_vector<DTYPE>(t.var, own, var);
    load_vector<DTYPE>(t.gamma, own, k.scale);
    load_vector<DTYPE>(t.beta, own, k.shift);
    for (int i = 0; i < PACK; i++) {
        k.rstd[i] = rstd_of(t, var[i]);
        k.scale[i] *= k.rstd[i];
    }
}

/* Issues the loads of rows; rows beyond the end are skipped. */
template <int DTYPE, int N_ROWS>
DEVICE void load_rows(const struct cuda_array &from, const struct share &own, int64_t at,
                      raw_pack<DTYPE> (&to)[N_ROWS])
{
    if (from.data == NULL)
        return;
    for (int j = 0; j < N_ROWS; j++)
        if (at + j * own.step < own.end)
            to[j] = raw_load_some<DTYPE>(from, at + j * own.step, own.n);
}

/* The gradient through fn: dy, or 0 where relu was inactive. */
DEVICE float slope_of(const struct cuda_batchnorm &t, const struct channels &k, int i, float dy,
                      float off, float y)
{
    float sign = t.y.data != NULL ? y : off * k.scale[i] + k.shift[i];
    return t.relu && !(sign > 0.0f) ? 0.0f : dy;
}

/* The type for which the kernel is compiled, if all these arrays allow it. */
static int type_of(const struct cuda_batchnorm *t)
{
    const struct cuda_array rows[] = {t->x, t->r, t->y, t->dy, t->dx, t->dr};
    bool aligned = pack_aligned(t->mean.data) && pack_aligned(t->var.data) &&
                   pack_aligned(t->gamma.data) && pack_aligned(t->beta.data) &&
                   pack_aligned(t->work);
    return aligned ? type_of_packs(t->channels, rows, sizeof rows / sizeof *rows) : (int)ANY_TYPE;
}

static int lanes_of(int64_t n_packs)
{
    int n_lanes = 1;
    while (n_lanes < LANES_MOST && n_lanes < n_packs)
        n_lanes *= 2;
    return n_lanes;
}

/* ---- two sums of each channel --------------------------------------------------------------- */

/* Per channel: sums of x - first and its square, or of g and g (x - mean). */
struct two_sums {
    float of[2][PACK];
};

template <int DTYPE, bool GRAD>
DEVICE void add_row(const struct cuda_batchnorm &t, const struct channels &k,
                    const raw_pack<DTYPE> &raw_x, const raw_pack<DTYPE> &raw_dy,
                    const raw_pack<DTYPE> &raw_y, struct two_sums &sums)
{
    float x[PACK], dy[PACK] = {}, y[PACK] = {};
    unpack<DTYPE>(raw_x, x);
    if (GRAD) {
        unpack<DTYPE>(raw_dy, dy);
        unpack<DTYPE>(raw_y, y);
    }
    for (int i = 0; i < PACK; i++) {
        float off = x[i] - k.mean[i];
        float u = GRAD ? slope_of(t, k, i, dy[i], off, y[i]) : off;
        sums.of[0][i] += u;
        sums.of[1][i] += u * off;
    }
}

template <int DTYPE, bool GRAD>
DEVICE void add_rows(const struct cuda_batchnorm &t, const struct share &own, struct two_sums &sums)
{
    constexpr int n_ahead = rows_ahead<DTYPE>() * (GRAD ? 1 : 2);
    struct channels k = {};
    if (GRAD && t.relu && t.y.data == NULL) /* all constants are needed for the sign of y */
        load_channels<DTYPE>(t, own, k);
    else if (GRAD)
        load_vector<DTYPE>(t.mean, own, k.mean);
    else
        unpack<DTYPE>(raw_load_some<DTYPE>(t.x, own.c, own.n), k.mean); /* shift: the first row */
    for (int64_t at = own.begin; at < own.end; at += n_ahead * own.step) {
        raw_pack<DTYPE> x[n_ahead] = {}, dy[n_ahead] = {}, y[n_ahead] = {};
        load_rows(t.x, own, at, x);
        if (GRAD) {
            load_rows(t.dy, own, at, dy);
            load_rows(t.y, own, at, y);
        }
        for (int j = 0; j < n_ahead; j++)
            if (at + j * own.step < own.end)
                add_row<DTYPE, GRAD>(t, k, x[j], dy[j], y[j], sums);
    }
}

/* parts [part][2][channels].  blockIdx.x selects the channels, blockIdx.y the part of the rows. */
template <int DTYPE, bool GRAD>
KERNEL sum_channels(struct cuda_batchnorm t, int n_lanes, float *parts)
{
    SHARED float shared[2][BLOCK * PACK];
    int lane = (int)threadIdx.x % n_lanes, stripe = (int)threadIdx.x / n_lanes;
    int n_stripes = BLOCK / n_lanes;
    struct share own = share_of(t, n_lanes, (int64_t)blockIdx.y * n_stripes + stripe,
                                (int64_t)gridDim.y * n_stripes, t.n_rows);
    struct two_sums sums = {};
    if (own.n > 0)
        add_rows<DTYPE, GRAD>(t, own, sums);
    for (int i = 0; i < 2 * PACK; i++)
        shared[i / PACK][(i % PACK * n_stripes + stripe) * n_lanes + lane] =
            sums.of[i / PACK][i % PACK];
    __syncthreads();
    for (int i = stripe; i < 2 * PACK; i += n_stripes) {
        float total = 0.0f;
        for (int s = 0; s < n_stripes; s++)
            total += shared[i / PACK][(i % PACK * n_stripes + s) * n_lanes + lane];
        if (i % PACK < own.n)
            parts[((int64_t)blockIdx.y * 2 + i / PACK) * t.channels + own.c + i % PACK] = total;
    }
}

/* Blocks that sum the parts: a few channels, as many as one memory access brings, x stripes. */
enum { FINISH_BLOCK = 512, FINISH_LANES = 8, FINISH_WARPS = FINISH_BLOCK / WARP };

/* Sums over the stripes of a channel. */
DEVICE double sum_of_stripes(double sum)
{
    SHARED double shared[FINISH_WARPS][FINISH_LANES];
    int lane = (int)threadIdx.x % FINISH_LANES;
    for (int mask = FINISH_LANES; mask < WARP; mask *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    __syncthreads(); /* an earlier call may still be reading */
    if (threadIdx.x % WARP < FINISH_LANES)
        shared[threadIdx.x / WARP][lane] = sum;
    __syncthreads();
    sum = 0.0;
    for (int w = 0; w < FINISH_WARPS; w++)
        sum += shared[w][lane];
    return sum;
}

DEVICE void store_or_add(struct cuda_array to, int64_t at, float value, bool add)
{
    if (to.data != NULL)
        store(to.dtype, to.data, at, add ? load(to.dtype, to.data, at) + value : value);
}

template <bool GRAD>
KERNEL finish_channels(struct cuda_batchnorm t, int64_t n_parts, const float *parts)
{
    int64_t c = (int64_t)blockIdx.x * FINISH_LANES + threadIdx.x % FINISH_LANES;
    int64_t n = c < t.channels ? n_parts : 0;
    double first = 0.0, second = 0.0;
    for (int64_t p = threadIdx.x / FINISH_LANES; p < n; p += FINISH_BLOCK / FINISH_LANES) {
        first += (double)parts[p * 2 * t.channels + c];
        second += (double)parts[(p * 2 + 1) * t.channels + c];
    }
    first = sum_of_stripes(first);
    second = sum_of_stripes(second);
    if (threadIdx.x >= FINISH_LANES || c >= t.channels)
        return;
    if (GRAD) {
        second *= (double)rstd_of(t, at_channel(t.var, c));
        t.work[c] = (float)first;
        t.work[t.channels + c] = (float)second;
        store_or_add(t.dgamma, c, (float)second, t.add);
        store_or_add(t.dbeta, c, (float)first, t.add);
    } else {
        double off = first / (double)t.n_rows, var = second / (double)t.n_rows - off * off;
        store(t.mean.dtype, t.mean.data, c, (float)((double)at_channel(t.x, c) + off));
        store(t.var.dtype, t.var.data, c, (float)(var < 0.0 ? 0.0 : var)); /* NaN stays NaN */
    }
}

template <bool GRAD> static int make_sums(const struct cuda_batchnorm *t, void *stream)
{
    auto kernel =
        kernel_of_type(type_of(t), sum_channels<DTYPE_f32, GRAD>, sum_channels<DTYPE_bf16, GRAD>,
                       sum_channels<DTYPE_f16, GRAD>, sum_channels<ANY_TYPE, GRAD>);
    auto finish = finish_channels<GRAD>;
    int64_t n_parts = cuda_sum_parts_of(t->n_rows), n_packs = (t->channels + PACK - 1) / PACK;
    int n_lanes = lanes_of(n_packs);
    int64_t n_filled = grid_of(t->n_rows, BLOCK / n_lanes); /* parts with at least one row */
    n_parts = n_filled < n_parts ? n_filled : n_parts;
    float *parts = t->work + 2 * t->channels;
    dim3 grid(grid_of(n_packs, n_lanes), (unsigned)n_parts);
    int error = launch(kernel, grid, BLOCK, 0, stream, *t, n_lanes, parts);
    return error != 0 ? error
                      : launch(finish, grid_of(t->channels, FINISH_LANES), FINISH_BLOCK, 0, stream,
                               *t, n_parts, parts);
}

/* ---- the pass over the elements
 * --------------------------------------------------------------- */

template <int DTYPE>
DEVICE void normalise(const struct cuda_batchnorm &t, const struct share &own,
                      const struct channels &k, int64_t at, const raw_pack<DTYPE> &raw_x,
                      const raw_pack<DTYPE> &raw_r)
{
    float x[PACK], r[PACK];
    unpack<DTYPE>(raw_x, x);
    unpack<DTYPE>(raw_r, r);
    for (int i = 0; i < PACK; i++) {
        float value = (x[i] - k.mean[i]) * k.scale[i] + k.shift[i] + r[i];
        x[i] = t.relu && value < 0.0f ? 0.0f : value;
    }
    store_some<DTYPE>(t.y, at, own.n, x);
}

/* dx = scale * g - (constant + off * linear): the corrections for the means of g and of g h */
struct corrections {
    float constant[PACK], linear[PACK];
};

template <int DTYPE>
DEVICE void load_corrections(const struct cuda_batchnorm &t, const struct share &own,
                             const struct channels &k, struct corrections &correction)
{
    float per_row = 1.0f / (float)t.n_rows;
    load_vector<DTYPE>({DTYPE_f32, t.work}, own, correction.constant);
    load_vector<DTYPE>({DTYPE_f32, t.work + t.channels}, own, correction.linear);
    for (int i = 0; i < PACK; i++) {
        correction.constant[i] *= per_row * k.scale[i];
        correction.linear[i] *= per_row * k.scale[i] * k.rstd[i];
    }
}

template <int DTYPE>
DEVICE void write_slopes(const struct cuda_batchnorm &t, const struct share &own,
                         const struct channels &k, const struct corrections &correction, int64_t at,
                         const raw_pack<DTYPE> &raw_x, const raw_pack<DTYPE> &raw_dy,
                         const raw_pack<DTYPE> &raw_y)
{
    float x[PACK], g[PACK], y[PACK];
    unpack<DTYPE>(raw_x, x);
    unpack<DTYPE>(raw_dy, g);
    unpack<DTYPE>(raw_y, y);
    for (int i = 0; i < PACK; i++) {
        float off = x[i] - k.mean[i];
        g[i] = slope_of(t, k, i, g[i], off, y[i]);
        x[i] = k.scale[i] * g[i] - (correction.constant[i] + off * correction.linear[i]);
    }
    if (t.dr.data != NULL)
        store_some<DTYPE>(t.dr, at, own.n, g);
    if (t.dx.data != NULL)
        store_some<DTYPE>(t.dx, at, own.n, x);
}

/* blockIdx.x selects the channels, blockIdx.y a range of rows_each rows, counted from the end. */
template <int DTYPE, bool GRAD>
KERNEL each_element(struct cuda_batchnorm t, int n_lanes, int64_t rows_each)
{
    int64_t begin = rows_each * (gridDim.y - 1 - blockIdx.y);
    struct share own =
        share_of(t, n_lanes, begin + threadIdx.x / n_lanes, BLOCK / n_lanes, begin + rows_each);
    if (own.n == 0)
        return;
    struct channels k;
    struct corrections correction;
    load_channels<DTYPE>(t, own, k);
    if (GRAD)
        load_corrections<DTYPE>(t, own, k, correction);
    constexpr int n_ahead = rows_ahead<DTYPE>();
    for (int64_t at = own.begin; at < own.end; at += n_ahead * own.step) {
        raw_pack<DTYPE> x[n_ahead] = {}, dy[n_ahead] = {}, more[n_ahead] = {};
        load_rows(t.x, own, at, x);
        if (GRAD)
            load_rows(t.dy, own, at, dy);
        load_rows(GRAD ? t.y : t.r, own, at, more);
        for (int j = 0; j < n_ahead; j++) {
            int64_t to = at + j * own.step;
            if (to >= own.end)
                break;
            if (GRAD)
                write_slopes<DTYPE>(t, own, k, correction, to, x[j], dy[j], more[j]);
            else
                normalise<DTYPE>(t, own, k, to, x[j], more[j]);
        }
    }
}

template <bool GRAD> static int launch_elements(const struct cuda_batchnorm *t, void *stream)
{
    auto kernel =
        kernel_of_type(type_of(t), each_element<DTYPE_f32, GRAD>, each_element<DTYPE_bf16, GRAD>,
                       each_element<DTYPE_f16, GRAD>, each_element<ANY_TYPE, GRAD>);
    int64_t n_packs = (t->channels + PACK - 1) / PACK;
    int n_lanes = lanes_of(n_packs);
    unsigned n_across = grid_of(n_packs, n_lanes);
    int64_t rows_least = (int64_t)BLOCK / n_lanes * ROWS_AHEAD;
    int64_t rounds =
        (t->n_rows * n_across + ELEMENT_BLOCKS * rows_least - 1) / (ELEMENT_BLOCKS * rows_least);
    int64_t rows_each = rows_least * rounds;
    dim3 grid(n_across, (unsigned)((t->n_rows + rows_each - 1) / rows_each));
    return launch(kernel, grid, BLOCK, 0, stream, *t, n_lanes, rows_each);
}

int cuda_batchnorm(const struct cuda_batchnorm *norm, void *stream)
{
    int error = make_sums<false>(norm, stream);
    return error != 0 ? error : launch_elements<false>(norm, stream);
}

int cuda_batchnorm_eval(const struct cuda_batchnorm *norm, void *stream)
{
    return launch_elements<false>(norm, stream);
}

int cuda_batchnorm_grad(const struct cuda_batchnorm *norm, void *stream)
{
    int error = make_sums<true>(norm, stream);
    if (error != 0 || (norm->dx.data == NULL && norm->dr.data == NULL))
        return error;
    return launch_elements<true>(norm, stream);
}

KERNEL update_running(int64_t n_rows, int64_t channels, float momentum, struct cuda_array mean,
                      struct cuda_array var, struct cuda_array running_mean,
                      struct cuda_array running_var)
{
    int64_t c = thread_index();
    if (c >= channels)
        return;
    float unbiased = n_rows > 1 ? (float)((double)n_rows / (double)(n_rows - 1)) : 1.0f;
    store(running_mean.dtype, running_mean.data, c,
          (1.0f - momentum) * at_channel(running_mean, c) + momentum * at_channel(mean, c));
    store(running_var.dtype, running_var.data, c,
          (1.0f - momentum) * at_channel(running_var, c) +
              momentum * unbiased * at_channel(var, c));
}

int cuda_batchnorm_update(int64_t n_rows, int64_t channels, float momentum, struct cuda_array mean,
                          struct cuda_array var, struct cuda_array running_mean,
                          struct cuda_array running_var, void *stream)
{
    return launch(update_running, grid_of(channels, BLOCK), BLOCK, 0, stream, n_rows, channels,
                  momentum, mean, var, running_mean, running_var);
}
