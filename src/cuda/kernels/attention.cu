/*
 * attention.cu -- the fallback for self-attention: types, head sizes, dropout and GPUs that cuDNN
 * does not support.
 *
 * A block owns a tile of queries (for dk and dv: of keys) of one head and loops over the tiles of
 * the other side.  Scores exist for one pair of tiles at a time.  The softmax is computed online:
 * each row keeps a running maximum and sum, and earlier sums are rescaled when the maximum changes.
 * With delta_t = dy_t . y_t, for every pair of tiles:
 *
 *     forward    s = q k^T       p = exp(s - max)                              out += p v
 *     gradient   s = q k^T       p = exp(s - lse)       dp = dy v^T            dv  += p^T dy
 *                                ds = p (dp - delta)    dq += ds k             dk  += ds^T q
 *
 * Tiles are fp32 in shared memory, 4096 elements each: larger heads have fewer rows per tile, so
 * the kernels fit every GPU.  The 256 threads form a 16 x 16 square; thread (ty, tx) owns rows ty,
 * ty + 16 ... and columns tx, tx + 16 ... of whatever is computed.
 *
 * The gradient makes two passes, over keys for dq and over queries for dk and dv, and recomputes s
 * and dp in the second.  So nothing is added across blocks, and the result is deterministic.
 */
#include "cuda/kernels/attention_head.h"
#include "cuda/kernels/device.h"

enum { SIDE = 16, THREADS = SIDE * SIDE, TILE_ELEMS = 4096 };

/* Sizes that follow from DEPTH. */
template <int DEPTH> struct tile {
    static constexpr int ROWS = TILE_ELEMS / DEPTH,
                         PITCH = DEPTH + 1, /* odd, to avoid bank conflicts */
        EACH = ROWS / SIDE,                 /* rows per thread */
        COLUMNS = DEPTH / SIDE,             /* columns per thread */
        SCORE_PITCH = ROWS + 1;
    static constexpr size_t bytes(int n_tiles) /* including one tile of scores */
    {
        return sizeof(float) * (size_t)(n_tiles * ROWS * PITCH + ROWS * SCORE_PITCH);
    }
};

/* The number of rows of the tile that begins at `first`. */
template <int DEPTH> DEVICE int rows_from(const struct cuda_attention &t, int64_t first)
{
    int64_t n = t.n_time - first;
    return n < tile<DEPTH>::ROWS ? (int)n : tile<DEPTH>::ROWS;
}

/* Loads rows from `first` on as fp32; missing elements are 0.  Rows of `from` are row_step
 * apart. */
template <int DEPTH>
DEVICE void load_tile(const struct cuda_attention &t, const void *from, int64_t begin,
                      int64_t row_step, int64_t first, float *to)
{
    for (int i = (int)threadIdx.x; i < TILE_ELEMS; i += THREADS) {
        int row = i / DEPTH, column = i % DEPTH;
        bool there = first + row < t.n_time && column < t.depth;
        to[row * tile<DEPTH>::PITCH + column] =
            there ? load(t.dtype, from, begin + (first + row) * row_step + column) : 0.0f;
    }
}

template <int DEPTH>
DEVICE void load_part(const struct cuda_attention &t, const struct head &head, enum part part,
                      int64_t first, float *to)
{
    load_tile<DEPTH>(t, t.qkv, qkv_at(t, head, part, 0), 3 * (int64_t)width_of(t), first, to);
}

template <int DEPTH>
DEVICE void load_dy(const struct cuda_attention &t, const struct head &head, int64_t first,
                    float *to)
{
    load_tile<DEPTH>(t, t.dy, y_at(t, head, 0), width_of(t), first, to);
}

/* What one thread owns of a pair of tiles, and of a tile of results. */
template <int DEPTH> using scores = float[tile<DEPTH>::EACH][tile<DEPTH>::EACH];
template <int DEPTH> using results = float[tile<DEPTH>::EACH][tile<DEPTH>::COLUMNS];

/* s[i][j] = row i of a . row j of b */
template <int DEPTH>
DEVICE void multiply_rows(const float *a, const float *b, int depth, scores<DEPTH> &s)
{
    constexpr int EACH = tile<DEPTH>::EACH, PITCH = tile<DEPTH>::PITCH;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            s[i][j] = 0.0f;
    for (int d = 0; d < depth; d++) {
        float left[EACH], right[EACH];
        for (int i = 0; i < EACH; i++) {
            left[i] = a[(ty + SIDE * i) * PITCH + d];
            right[i] = b[(tx + SIDE * i) * PITCH + d];
        }
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++)
                s[i][j] += left[i] * right[j];
    }
}

/* out[i][c] += sum over r < n of p[row i][r] b[r][column c]; p is read transposed if by_column */
template <int DEPTH>
DEVICE void add_gemm(const float *p, bool by_column, const float *b, int n, results<DEPTH> &out)
{
    constexpr int EACH = tile<DEPTH>::EACH, COLUMNS = tile<DEPTH>::COLUMNS;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    int row_step = by_column ? 1 : tile<DEPTH>::SCORE_PITCH;
    int step = by_column ? tile<DEPTH>::SCORE_PITCH : 1;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < EACH; i++) {
            float left = p[(ty + SIDE * i) * row_step + r * step];
            for (int c = 0; c < COLUMNS; c++)
                out[i][c] += left * b[r * tile<DEPTH>::PITCH + tx + SIDE * c];
        }
}

/* Writes rows of results, times factor[i].  `begin` is the offset of row 0 of the head. */
template <int DEPTH>
DEVICE void write_rows(const struct cuda_attention &t, void *to, int64_t begin, int64_t row_step,
                       int64_t first, const results<DEPTH> &out, const float *factor)
{
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        for (int c = 0; c < tile<DEPTH>::COLUMNS; c++) {
            int64_t row = first + ty + SIDE * i;
            int column = tx + SIDE * c;
            if (row < t.n_time && column < t.depth)
                store(t.dtype, to, begin + row * row_step + column, out[i][c] * factor[i]);
        }
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Reduces over the 16 threads of a row. */
template <class F> DEVICE float row_reduce(float value, F fn)
{
    for (int mask = SIDE / 2; mask > 0; mask /= 2)
        value = fn(value, __shfl_xor_sync(0xffffffffu, value, mask));
    return value;
}

template <int DEPTH> struct softmax_state {
    float most[tile<DEPTH>::EACH], total[tile<DEPTH>::EACH];
    results<DEPTH> out;
};

/* Turns the scores of a tile into unnormalized probabilities, in shared memory, and rescales the
 * earlier sums to the new maximum. */
template <int DEPTH>
DEVICE void update_softmax(const struct cuda_attention &t, const struct head &head,
                           const struct mask &mask, int64_t query_0, int64_t key_0,
                           scores<DEPTH> &s, softmax_state<DEPTH> &state, float *p)
{
    constexpr int EACH = tile<DEPTH>::EACH;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    float scale = 1.0f / sqrtf((float)t.depth);
    for (int i = 0; i < EACH; i++) {
        int64_t query = query_0 + ty + SIDE * i;
        float most = -INFINITY, sum = 0.0f;
        for (int j = 0; j < EACH; j++) {
            s[i][j] = sees(t, query, key_0 + tx + SIDE * j) ? s[i][j] * scale : -INFINITY;
            most = s[i][j] > most ? s[i][j] : most;
        }
        most = larger_of_two()(row_reduce(most, larger_of_two()), state.most[i]);
        float base = most == -INFINITY ? 0.0f : most; /* a row beyond the end */
        float kept = __expf(state.most[i] - base);
        for (int j = 0; j < EACH; j++) {
            int64_t key = key_0 + tx + SIDE * j;
            float e = __expf(s[i][j] - base);
            sum += e;
            if (mask.below != 0)
                e *= mask_factor(mask, score_index(t, head, query, key));
            p[(ty + SIDE * i) * tile<DEPTH>::SCORE_PITCH + tx + SIDE * j] = e;
        }
        state.total[i] = state.total[i] * kept + row_reduce(sum, add_two());
        state.most[i] = most;
        for (int c = 0; c < tile<DEPTH>::COLUMNS; c++)
            state.out[i][c] *= kept;
    }
}

template <int DEPTH> KERNEL attend(struct cuda_attention t, int n_tiles)
{
    constexpr int ROWS = tile<DEPTH>::ROWS;
    DYNAMIC_SHARED(float, q);
    float *kv = q + ROWS * tile<DEPTH>::PITCH, *p = kv + ROWS * tile<DEPTH>::PITCH;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    int64_t first = query_tile(n_tiles) * ROWS;
    int64_t n_keys = t.causal && first + ROWS < t.n_time ? first + ROWS : t.n_time;
    softmax_state<DEPTH> state = {};
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        state.most[i] = -INFINITY;
    load_part<DEPTH>(t, head, PART_q, first, q);
    for (int64_t key = 0; key < n_keys; key += ROWS) {
        scores<DEPTH> s;
        __syncthreads(); /* all threads have read the previous v */
        load_part<DEPTH>(t, head, PART_k, key, kv);
        __syncthreads();
        multiply_rows<DEPTH>(q, kv, t.depth, s);
        __syncthreads();
        load_part<DEPTH>(t, head, PART_v, key, kv);
        update_softmax<DEPTH>(t, head, mask, first, key, s, state, p);
        __syncthreads();
        add_gemm<DEPTH>(p, false, kv, rows_from<DEPTH>(t, key), state.out);
    }
    float factor[tile<DEPTH>::EACH];
    for (int i = 0; i < tile<DEPTH>::EACH; i++) {
        int64_t row = first + threadIdx.x / SIDE + SIDE * i;
        factor[i] = 1.0f / state.total[i];
        if (threadIdx.x % SIDE == 0 && row < t.n_time)
            t.lse[head.index * t.n_time + row] = state.most[i] + logf(state.total[i]);
    }
    write_rows<DEPTH>(t, t.y, y_at(t, head, 0), width_of(t), first, state.out, factor);
}

/* ---- gradient ------------------------------------------------------------------------------- */

/* delta[row] = dy . y, one warp per row of a head */
KERNEL sum_deltas(struct cuda_attention t, int64_t n_rows)
{
    int64_t row = thread_index() / WARP; /* in [B,H,T] */
    if (row >= n_rows)
        return;
    struct head head = head_of(t, row / t.n_time);
    int64_t begin = y_at(t, head, row % t.n_time);
    float sum = 0.0f;
    for (int d = (int)threadIdx.x % WARP; d < t.depth; d += WARP)
        sum += load(t.dtype, t.dy, begin + d) * load(t.dtype, t.y, begin + d);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        t.delta[row] = sum;
}

/* Replaces s by p with dropout, and dp by ds without the scale, for a tile of queries and one of
 * keys. */
template <int DEPTH>
DEVICE void slopes(const struct cuda_attention &t, const struct head &head, const struct mask &mask,
                   int64_t query_0, int64_t key_0, scores<DEPTH> &s, scores<DEPTH> &dp)
{
    constexpr int EACH = tile<DEPTH>::EACH;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    float scale = 1.0f / sqrtf((float)t.depth);
    for (int i = 0; i < EACH; i++) {
        int64_t query = query_0 + ty + SIDE * i, row = head.index * t.n_time + query;
        float lse = query < t.n_time ? t.lse[row] : 0.0f;
        float delta = query < t.n_time ? t.delta[row] : 0.0f;
        for (int j = 0; j < EACH; j++) {
            int64_t key = key_0 + tx + SIDE * j;
            float p = sees(t, query, key) ? __expf(s[i][j] * scale - lse) : 0.0f;
            float factor = mask_factor(mask, score_index(t, head, query, key));
            s[i][j] = factor * p;
            dp[i][j] = p * (factor * dp[i][j] - delta);
        }
    }
}

template <int DEPTH> DEVICE void store_scores(const scores<DEPTH> &s, float *to)
{
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        for (int j = 0; j < tile<DEPTH>::EACH; j++)
            to[(ty + SIDE * i) * tile<DEPTH>::SCORE_PITCH + tx + SIDE * j] = s[i][j];
}

template <int DEPTH> DEVICE void fill(float (&to)[tile<DEPTH>::EACH], float value)
{
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        to[i] = value;
}

template <int DEPTH> KERNEL attend_grad_q(struct cuda_attention t, int n_tiles)
{
    constexpr int ROWS = tile<DEPTH>::ROWS, ELEMS = ROWS * tile<DEPTH>::PITCH;
    DYNAMIC_SHARED(float, q);
    float *dy = q + ELEMS, *k = dy + ELEMS, *v = k + ELEMS, *ds = v + ELEMS;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    int64_t first = query_tile(n_tiles) * ROWS;
    int64_t n_keys = t.causal && first + ROWS < t.n_time ? first + ROWS : t.n_time;
    results<DEPTH> dq = {};
    load_part<DEPTH>(t, head, PART_q, first, q);
    load_dy<DEPTH>(t, head, first, dy);
    for (int64_t key = 0; key < n_keys; key += ROWS) {
        scores<DEPTH> s, dp;
        __syncthreads();
        load_part<DEPTH>(t, head, PART_k, key, k);
        load_part<DEPTH>(t, head, PART_v, key, v);
        __syncthreads();
        multiply_rows<DEPTH>(q, k, t.depth, s);
        multiply_rows<DEPTH>(dy, v, t.depth, dp);
        slopes<DEPTH>(t, head, mask, first, key, s, dp);
        store_scores<DEPTH>(dp, ds);
        __syncthreads();
        add_gemm<DEPTH>(ds, false, k, rows_from<DEPTH>(t, key), dq);
    }
    float factor[tile<DEPTH>::EACH];
    fill<DEPTH>(factor, 1.0f / sqrtf((float)t.depth));
    write_rows<DEPTH>(t, t.dqkv, qkv_at(t, head, PART_q, 0), 3 * (int64_t)width_of(t), first, dq,
                      factor);
}

template <int DEPTH> KERNEL attend_grad_kv(struct cuda_attention t, int n_tiles)
{
    constexpr int ROWS = tile<DEPTH>::ROWS, ELEMS = ROWS * tile<DEPTH>::PITCH;
    DYNAMIC_SHARED(float, k);
    float *v = k + ELEMS, *q = v + ELEMS, *dy = q + ELEMS, *p = dy + ELEMS;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    int64_t first = (int64_t)(blockIdx.x % n_tiles) * ROWS, row_step = 3 * (int64_t)width_of(t);
    results<DEPTH> dk = {}, dv = {};
    load_part<DEPTH>(t, head, PART_k, first, k);
    load_part<DEPTH>(t, head, PART_v, first, v);
    for (int64_t query = t.causal ? first : 0; query < t.n_time; query += ROWS) {
        scores<DEPTH> s, dp;
        __syncthreads();
        load_part<DEPTH>(t, head, PART_q, query, q);
        load_dy<DEPTH>(t, head, query, dy);
        __syncthreads();
        multiply_rows<DEPTH>(q, k, t.depth, s);
        multiply_rows<DEPTH>(dy, v, t.depth, dp);
        slopes<DEPTH>(t, head, mask, query, first, s, dp);
        store_scores<DEPTH>(s, p);
        __syncthreads();
        add_gemm<DEPTH>(p, true, dy, rows_from<DEPTH>(t, query), dv);
        __syncthreads();
        store_scores<DEPTH>(dp, p);
        __syncthreads();
        add_gemm<DEPTH>(p, true, q, rows_from<DEPTH>(t, query), dk);
    }
    float factor[tile<DEPTH>::EACH];
    fill<DEPTH>(factor, 1.0f);
    write_rows<DEPTH>(t, t.dqkv, qkv_at(t, head, PART_v, 0), row_step, first, dv, factor);
    fill<DEPTH>(factor, 1.0f / sqrtf((float)t.depth));
    write_rows<DEPTH>(t, t.dqkv, qkv_at(t, head, PART_k, 0), row_step, first, dk, factor);
}

/* ---- launchers ------------------------------------------------------------------------------ */

template <int DEPTH>
static int launch_tiles(void (*kernel)(struct cuda_attention, int), int n_shared,
                        const struct cuda_attention *t, void *stream)
{
    unsigned n_tiles = grid_of(t->n_time, tile<DEPTH>::ROWS);
    return launch(kernel, (unsigned)(t->n_batch * t->n_heads) * n_tiles, THREADS,
                  tile<DEPTH>::bytes(n_shared), stream, *t, (int)n_tiles);
}

template <int DEPTH> static int launch_grad(const struct cuda_attention *t, void *stream)
{
    int error = launch_tiles<DEPTH>(attend_grad_q<DEPTH>, 4, t, stream);
    return error != 0 ? error : launch_tiles<DEPTH>(attend_grad_kv<DEPTH>, 4, t, stream);
}

int cuda_attention(const struct cuda_attention *t, void *stream)
{
    if (cuda_attention_mma_fits(t))
        return cuda_attention_mma(t, stream);
    return t->depth <= 64    ? launch_tiles<64>(attend<64>, 2, t, stream)
           : t->depth <= 128 ? launch_tiles<128>(attend<128>, 2, t, stream)
                             : launch_tiles<256>(attend<256>, 2, t, stream);
}

int cuda_attention_grad(const struct cuda_attention *t, void *stream)
{
    int64_t n_rows = t->n_batch * t->n_heads * t->n_time;
    int error = launch(sum_deltas, grid_of(n_rows * WARP, THREADS), THREADS, 0, stream, *t, n_rows);
    if (error != 0)
        return error;
    if (cuda_attention_mma_fits(t))
        return cuda_attention_mma_grad(t, stream);
    return t->depth <= 64    ? launch_grad<64>(t, stream)
           : t->depth <= 128 ? launch_grad<128>(t, stream)
                             : launch_grad<256>(t, stream);
}
