/*
 * batchnorm.cu -- normalisation of each channel over a batch, and its gradient.
 *
 * Both are two sums down each channel and then a walk over the elements: x and x^2, from which mean and
 * variance follow, or g and g h.  Sums of squares are taken around the first row, so that they do not
 * cancel where a channel is far from 0.  Rows are cut into parts by their number alone; a block sums a
 * part of some channels in fp32, a second kernel sums the parts in fp64.
 *
 *     threads of a block: lanes x stripes; lanes take channels, side by side, stripes take rows in turn
 */
#include "cuda/batchnorm.h"
#include "cuda/device.h"

enum { BLOCK = 256, LANES_MOST = 32 };

DEVICE float at_channel(struct cuda_array x, int64_t c)
{
    return load(x.dtype, x.data, c);
}

/* What is known of a channel. */
struct channel {
    float mean, rstd, gamma, beta;
};

DEVICE struct channel channel_of(const struct cuda_batchnorm &t, int64_t c)
{
    return {at_channel(t.mean, c), 1.0f / sqrtf(at_channel(t.var, c) + t.eps),
            at_channel(t.gamma, c), at_channel(t.beta, c)};
}

/* What flows through fn: dy, or nothing where relu was closed. */
DEVICE float slope_of(const struct cuda_batchnorm &t, const struct channel &k, float dy, float h,
                      float y)
{
    float sign = t.y.data != NULL ? y : h * k.gamma + k.beta;
    return t.relu && !(sign > 0.0f) ? 0.0f : dy;
}

/* EACH elements side by side. */
template <int EACH> DEVICE void load_some(struct cuda_array x, int64_t at, float to[EACH])
{
    if (EACH == PACK)
        pack_load(x.dtype, x.data, at, to);
    else
        to[0] = load(x.dtype, x.data, at);
}

/* ---- two sums of each channel --------------------------------------------------------------- */

/* One row's share of both sums. */
template <int EACH, bool GRAD>
DEVICE void add_row(const struct cuda_batchnorm &t, int64_t at, const struct channel k[EACH],
                    float first[EACH], float second[EACH])
{
    float x[EACH], dy[EACH], y[EACH] = {};
    load_some<EACH>(t.x, at, x);
    if (GRAD)
        load_some<EACH>(t.dy, at, dy);
    if (GRAD && t.y.data != NULL)
        load_some<EACH>(t.y, at, y);
    for (int i = 0; i < EACH; i++) {
        float off = x[i] - k[i].mean;
        float u = GRAD ? slope_of(t, k[i], dy[i], off * k[i].rstd, y[i]) : off;
        first[i] += u;
        second[i] += GRAD ? u * off * k[i].rstd : off * off;
    }
}

/* parts [part][2][channels].  blockIdx.x: which channels; blockIdx.y: which part of the rows. */
template <int EACH, bool GRAD>
KERNEL sum_channels(struct cuda_batchnorm t, int n_lanes, float *parts)
{
    SHARED float sums[2][BLOCK * EACH];
    int lane = (int)threadIdx.x % n_lanes, stripe = (int)threadIdx.x / n_lanes;
    int n_stripes = BLOCK / n_lanes;
    int64_t c = ((int64_t)blockIdx.x * n_lanes + lane) * EACH;
    int64_t n_each = (t.n_rows + gridDim.y - 1) / gridDim.y, begin = n_each * blockIdx.y;
    int64_t end = begin + n_each < t.n_rows ? begin + n_each : t.n_rows;
    struct channel k[EACH] = {};
    float first[EACH] = {}, second[EACH] = {};
    for (int i = 0; c < t.channels && i < EACH; i++)
        if (GRAD)
            k[i] = channel_of(t, c + i);
        else
            k[i].mean = at_channel(t.x, c + i); /* of the first row */
    if (c >= t.channels)
        end = begin;
    for (int64_t row = begin + stripe; row < end; row += n_stripes)
        add_row<EACH, GRAD>(t, row * t.channels + c, k, first, second);
    for (int i = 0; i < EACH; i++) {
        sums[0][(i * n_stripes + stripe) * n_lanes + lane] = first[i];
        sums[1][(i * n_stripes + stripe) * n_lanes + lane] = second[i];
    }
    __syncthreads();
    for (int i = stripe; i < 2 * EACH; i += n_stripes) {
        float total = 0.0f;
        for (int s = 0; s < n_stripes; s++)
            total += sums[i / EACH][(i % EACH * n_stripes + s) * n_lanes + lane];
        if (c < t.channels)
            parts[((int64_t)blockIdx.y * 2 + i / EACH) * t.channels + c + i % EACH] = total;
    }
}

/* Of one channel, over all parts: blocks are LANES_MOST channels x 8 stripes. */
DEVICE double sum_of_parts(const float *parts, int64_t n_parts, int64_t channels, int64_t c,
                           double (*shared)[LANES_MOST])
{
    int lane = (int)threadIdx.x % LANES_MOST, stripe = (int)threadIdx.x / LANES_MOST;
    double sum = 0.0;
    for (int64_t p = stripe; c < channels && p < n_parts; p += BLOCK / LANES_MOST)
        sum += (double)parts[p * 2 * channels + c];
    __syncthreads(); /* an earlier call may still be reading */
    shared[stripe][lane] = sum;
    __syncthreads();
    sum = 0.0;
    for (int s = 0; s < BLOCK / LANES_MOST; s++)
        sum += shared[s][lane];
    return sum;
}

DEVICE void store_or_add(struct cuda_array to, int64_t at, float value, bool add)
{
    if (to.data != NULL)
        store(to.dtype, to.data, at, add ? load(to.dtype, to.data, at) + value : value);
}

template <bool GRAD> KERNEL finish_channels(struct cuda_batchnorm t, int64_t n_parts, float *parts)
{
    SHARED double shared[BLOCK / LANES_MOST][LANES_MOST];
    int64_t c = (int64_t)blockIdx.x * LANES_MOST + threadIdx.x % LANES_MOST;
    double first = sum_of_parts(parts, n_parts, t.channels, c, shared);
    double second = sum_of_parts(parts + t.channels, n_parts, t.channels, c, shared);
    if (threadIdx.x >= LANES_MOST || c >= t.channels)
        return;
    if (GRAD) {
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
    bool by_packs = t->channels % PACK == 0 && pack_aligned(t->x.data) &&
                    pack_aligned(t->dy.data) && (!GRAD || pack_aligned(t->y.data));
    auto kernel = by_packs ? sum_channels<PACK, GRAD> : sum_channels<1, GRAD>;
    auto finish = finish_channels<GRAD>;
    int64_t n_parts = cuda_sum_parts_of(t->n_rows);
    int64_t n_columns = by_packs ? t->channels / PACK : t->channels;
    int n_lanes = 1;
    while (n_lanes < LANES_MOST && n_lanes < n_columns)
        n_lanes *= 2;
    float *parts = t->work + 2 * t->channels;
    dim3 grid(grid_of(n_columns, n_lanes), (unsigned)n_parts);
    int error = launch(kernel, grid, BLOCK, 0, stream, *t, n_lanes, parts);
    return error != 0 ? error
                      : launch(finish, grid_of(t->channels, LANES_MOST), BLOCK, 0, stream, *t,
                               n_parts, parts);
}

/* ---- the walk over the elements ------------------------------------------------------------- */

/* EACH elements from `at` on, of channels from c on. */
template <int EACH> DEVICE void normalise(const struct cuda_batchnorm &t, int64_t at, int64_t c)
{
    float x[EACH], r[EACH] = {};
    load_some<EACH>(t.x, at, x);
    if (t.r.data != NULL)
        load_some<EACH>(t.r, at, r);
    for (int i = 0; i < EACH; i++) {
        struct channel k = channel_of(t, c + i);
        float value = (x[i] - k.mean) * (k.gamma * k.rstd) + k.beta + r[i];
        x[i] = t.relu && value < 0.0f ? 0.0f : value;
    }
    if (EACH == PACK)
        pack_store(t.y.dtype, t.y.data, at, x);
    else
        store(t.y.dtype, t.y.data, at, x[0]);
}

template <int EACH> DEVICE void write_slopes(const struct cuda_batchnorm &t, int64_t at, int64_t c)
{
    float x[EACH], g[EACH], y[EACH] = {};
    load_some<EACH>(t.x, at, x);
    load_some<EACH>(t.dy, at, g);
    if (t.y.data != NULL)
        load_some<EACH>(t.y, at, y);
    for (int i = 0; i < EACH; i++) {
        struct channel k = channel_of(t, c + i);
        float h = (x[i] - k.mean) * k.rstd;
        g[i] = slope_of(t, k, g[i], h, y[i]);
        float mean = (t.work[c + i] + h * t.work[t.channels + c + i]) / (float)t.n_rows;
        x[i] = k.gamma * k.rstd * (g[i] - mean);
    }
    for (int i = 0; EACH < PACK && i < EACH; i++) {
        if (t.dr.data != NULL)
            store(t.dr.dtype, t.dr.data, at, g[i]);
        if (t.dx.data != NULL)
            store(t.dx.dtype, t.dx.data, at, x[i]);
    }
    if (EACH == PACK && t.dr.data != NULL)
        pack_store(t.dr.dtype, t.dr.data, at, g);
    if (EACH == PACK && t.dx.data != NULL)
        pack_store(t.dx.dtype, t.dx.data, at, x);
}

template <int EACH, bool GRAD> KERNEL each_element(struct cuda_batchnorm t)
{
    int64_t at = thread_index() * EACH;
    if (at >= t.n_rows * t.channels)
        return;
    if (GRAD)
        write_slopes<EACH>(t, at, at % t.channels);
    else
        normalise<EACH>(t, at, at % t.channels);
}

template <bool GRAD> static int walk(const struct cuda_batchnorm *t, void *stream)
{
    bool by_packs = t->channels % PACK == 0 && pack_aligned(t->x.data) && pack_aligned(t->y.data) &&
                    pack_aligned(t->r.data) && pack_aligned(t->dy.data) &&
                    pack_aligned(t->dx.data) && pack_aligned(t->dr.data);
    auto kernel = by_packs ? each_element<PACK, GRAD> : each_element<1, GRAD>;
    int64_t n_threads = t->n_rows * t->channels / (by_packs ? PACK : 1);
    return launch(kernel, grid_of(n_threads, BLOCK), BLOCK, 0, stream, *t);
}

int cuda_batchnorm(const struct cuda_batchnorm *norm, void *stream)
{
    int error = make_sums<false>(norm, stream);
    return error != 0 ? error : walk<false>(norm, stream);
}

int cuda_batchnorm_eval(const struct cuda_batchnorm *norm, void *stream)
{
    return walk<false>(norm, stream);
}

int cuda_batchnorm_grad(const struct cuda_batchnorm *norm, void *stream)
{
    int error = make_sums<true>(norm, stream);
    if (error != 0 || (norm->dx.data == NULL && norm->dr.data == NULL))
        return error;
    return walk<true>(norm, stream);
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
