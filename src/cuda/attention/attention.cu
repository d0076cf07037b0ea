/*
 * attention.cu -- the fallback for attention: types, head sizes, dropout, forms of the op and GPUs
 * that cuDNN does not support.
 *
 * A block owns a tile of queries (for dk and dv: of keys) of one head and loops over the tiles of
 * the other side that the causal order, the window and the documents leave.  If several heads of q
 * read the same keys, one block processes these heads in turn and sums dk and dv.  Scores exist for
 * one pair of tiles at a time.  The softmax is computed online: each row keeps a running maximum
 * and sum, and earlier sums are rescaled when the maximum changes.
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
#include "cuda/attention/attention_head.h"
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

/* The number of rows of the tile that begins at `first`, of n in all. */
template <int DEPTH> DEVICE int rows_from(int n, int first)
{
    return smaller(n - first, tile<DEPTH>::ROWS);
}

/* Loads rows from `first` on as fp32; missing elements are 0. */
template <int DEPTH>
DEVICE void load_tile(const struct cuda_attention &t, const void *from, const struct rows &rows,
                      int first, float *to)
{
    for (int i = (int)threadIdx.x; i < TILE_ELEMS; i += THREADS) {
        int row = i / DEPTH, column = i % DEPTH;
        bool there = first + row < rows.n && column < t.depth;
        to[row * tile<DEPTH>::PITCH + column] =
            there ? load(t.dtype, from, rows.begin + (first + row) * rows.step + column) : 0.0f;
    }
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

/* Writes rows of results, times factor[i]. */
template <int DEPTH>
DEVICE void write_rows(const struct cuda_attention &t, void *to, const struct rows &rows, int first,
                       const results<DEPTH> &out, const float *factor)
{
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        for (int c = 0; c < tile<DEPTH>::COLUMNS; c++) {
            int row = first + ty + SIDE * i, column = tx + SIDE * c;
            if (row < rows.n && column < t.depth)
                store(t.dtype, to, rows.begin + row * rows.step + column, out[i][c] * factor[i]);
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
    struct seen seen[tile<DEPTH>::EACH];
    float most[tile<DEPTH>::EACH], total[tile<DEPTH>::EACH];
    results<DEPTH> out;
};

/* Turns the scores of a tile into unnormalized probabilities, in shared memory, and rescales the
 * earlier sums to the new maximum. */
template <int DEPTH>
DEVICE void update_softmax(const struct cuda_attention &t, const struct head &head,
                           const struct mask &mask, int query_0, int key_0, scores<DEPTH> &s,
                           softmax_state<DEPTH> &state, float *p)
{
    constexpr int EACH = tile<DEPTH>::EACH;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    float scale = 1.0f / sqrtf((float)t.depth);
    for (int i = 0; i < EACH; i++) {
        int query = query_0 + ty + SIDE * i;
        float most = -INFINITY, sum = 0.0f;
        for (int j = 0; j < EACH; j++) {
            s[i][j] = sees(state.seen[i], key_0 + tx + SIDE * j) ? s[i][j] * scale : -INFINITY;
            most = s[i][j] > most ? s[i][j] : most;
        }
        most = larger_of_two()(row_reduce(most, larger_of_two()), state.most[i]);
        float base = most == -INFINITY ? 0.0f : most; /* a row that has seen no key yet */
        float kept = __expf(state.most[i] - base);
        for (int j = 0; j < EACH; j++) {
            int key = key_0 + tx + SIDE * j;
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

/* Writes y and lse.  A query that sees no key has y = 0 and lse = -inf. */
template <int DEPTH>
DEVICE void write_softmax(const struct cuda_attention &t, const struct head &head, int first,
                          const softmax_state<DEPTH> &state)
{
    float factor[tile<DEPTH>::EACH];
    for (int i = 0; i < tile<DEPTH>::EACH; i++) {
        int query = first + (int)threadIdx.x / SIDE + SIDE * i;
        factor[i] = state.total[i] == 0.0f ? 0.0f : 1.0f / state.total[i];
        if (threadIdx.x % SIDE == 0 && query < t.n_queries)
            t.lse[query_index(t, head, query)] = state.most[i] + logf(state.total[i]);
    }
    write_rows<DEPTH>(t, t.y, rows_y(t, head), first, state.out, factor);
}

template <int DEPTH> KERNEL attend(struct cuda_attention t, int n_tiles)
{
    constexpr int ROWS = tile<DEPTH>::ROWS;
    DYNAMIC_SHARED(float, q);
    float *kv = q + ROWS * tile<DEPTH>::PITCH, *p = kv + ROWS * tile<DEPTH>::PITCH;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    struct rows keys = rows_kv(t, head);
    int first = query_tile(n_tiles) * ROWS;
    struct span seen = keys_of(t, head, first, ROWS);
    softmax_state<DEPTH> state = {};
    for (int i = 0; i < tile<DEPTH>::EACH; i++) {
        state.seen[i] = seen_by(t, head, first + (int)threadIdx.x / SIDE + SIDE * i);
        state.most[i] = -INFINITY;
    }
    load_tile<DEPTH>(t, t.q, rows_q(t, head), first, q);
    for (int key = seen.begin; key < seen.end; key += ROWS) {
        scores<DEPTH> s;
        __syncthreads(); /* all threads have read the previous v */
        load_tile<DEPTH>(t, t.k, keys, key, kv);
        __syncthreads();
        multiply_rows<DEPTH>(q, kv, t.depth, s);
        __syncthreads();
        load_tile<DEPTH>(t, t.v, keys, key, kv);
        update_softmax<DEPTH>(t, head, mask, first, key, s, state, p);
        __syncthreads();
        add_gemm<DEPTH>(p, false, kv, rows_from<DEPTH>(keys.n, key), state.out);
    }
    write_softmax<DEPTH>(t, head, first, state);
}

/* ---- gradient ------------------------------------------------------------------------------- */

/* delta[row] = dy . y, one warp per row of a head */
KERNEL sum_deltas(struct cuda_attention t, int64_t n_rows)
{
    int64_t row = thread_index() / WARP; /* in [B,heads,Tq] */
    if (row >= n_rows)
        return;
    struct rows of = rows_y(t, head_of(t, row / t.n_queries));
    int64_t begin = of.begin + row % t.n_queries * of.step;
    float sum = 0.0f;
    for (int d = (int)threadIdx.x % WARP; d < t.depth; d += WARP)
        sum += load(t.dtype, t.dy, begin + d) * load(t.dtype, t.y, begin + d);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        t.delta[row] = sum;
}

template <int DEPTH> using tile_facts = struct query_facts[tile<DEPTH>::EACH];

template <int DEPTH>
DEVICE void load_facts(const struct cuda_attention &t, const struct head &head, int query_0,
                       tile_facts<DEPTH> &facts)
{
    for (int i = 0; i < tile<DEPTH>::EACH; i++)
        facts[i] = facts_of(t, head, query_0 + (int)threadIdx.x / SIDE + SIDE * i);
}

/* Replaces s by p with dropout, and dp by ds without the scale, for a tile of queries and one of
 * keys. */
template <int DEPTH>
DEVICE void slopes(const struct cuda_attention &t, const struct head &head, const struct mask &mask,
                   int query_0, int key_0, const tile_facts<DEPTH> &facts, scores<DEPTH> &s,
                   scores<DEPTH> &dp)
{
    constexpr int EACH = tile<DEPTH>::EACH;
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    float scale = 1.0f / sqrtf((float)t.depth);
    for (int i = 0; i < EACH; i++) {
        int query = query_0 + ty + SIDE * i;
        for (int j = 0; j < EACH; j++) {
            int key = key_0 + tx + SIDE * j;
            float p = sees(facts[i].seen, key) ? __expf(s[i][j] * scale - facts[i].lse) : 0.0f;
            float factor = mask_factor(mask, score_index(t, head, query, key));
            s[i][j] = factor * p;
            dp[i][j] = p * (factor * dp[i][j] - facts[i].delta);
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
    struct rows keys = rows_kv(t, head);
    int first = query_tile(n_tiles) * ROWS;
    struct span seen = keys_of(t, head, first, ROWS);
    tile_facts<DEPTH> facts;
    results<DEPTH> dq = {};
    load_facts<DEPTH>(t, head, first, facts);
    load_tile<DEPTH>(t, t.q, rows_q(t, head), first, q);
    load_tile<DEPTH>(t, t.dy, rows_y(t, head), first, dy);
    for (int key = seen.begin; key < seen.end; key += ROWS) {
        scores<DEPTH> s, dp;
        __syncthreads();
        load_tile<DEPTH>(t, t.k, keys, key, k);
        load_tile<DEPTH>(t, t.v, keys, key, v);
        __syncthreads();
        multiply_rows<DEPTH>(q, k, t.depth, s);
        multiply_rows<DEPTH>(dy, v, t.depth, dp);
        slopes<DEPTH>(t, head, mask, first, key, facts, s, dp);
        store_scores<DEPTH>(dp, ds);
        __syncthreads();
        add_gemm<DEPTH>(ds, false, k, rows_from<DEPTH>(keys.n, key), dq);
    }
    float factor[tile<DEPTH>::EACH];
    fill<DEPTH>(factor, 1.0f / sqrtf((float)t.depth));
    write_rows<DEPTH>(t, t.dq, rows_q(t, head), first, dq, factor);
}

/* Adds what one head of q contributes to dk and dv of the tile of keys that begins at `first`. */
template <int DEPTH>
DEVICE void add_grad_kv(const struct cuda_attention &t, const struct head &head,
                        const struct mask &mask, int first, float *k, results<DEPTH> &dk,
                        results<DEPTH> &dv)
{
    constexpr int ROWS = tile<DEPTH>::ROWS, ELEMS = ROWS * tile<DEPTH>::PITCH;
    float *v = k + ELEMS, *q = v + ELEMS, *dy = q + ELEMS, *p = dy + ELEMS;
    struct span span = queries_of(t, head, first, ROWS);
    for (int query = span.begin; query < span.end; query += ROWS) {
        scores<DEPTH> s, dp;
        tile_facts<DEPTH> facts;
        if (begin_after(t, head, query, ROWS, first, ROWS))
            continue;
        __syncthreads();
        load_tile<DEPTH>(t, t.q, rows_q(t, head), query, q);
        load_tile<DEPTH>(t, t.dy, rows_y(t, head), query, dy);
        load_facts<DEPTH>(t, head, query, facts);
        __syncthreads();
        multiply_rows<DEPTH>(q, k, t.depth, s);
        multiply_rows<DEPTH>(dy, v, t.depth, dp);
        slopes<DEPTH>(t, head, mask, query, first, facts, s, dp);
        store_scores<DEPTH>(s, p);
        __syncthreads();
        add_gemm<DEPTH>(p, true, dy, rows_from<DEPTH>(t.n_queries, query), dv);
        __syncthreads();
        store_scores<DEPTH>(dp, p);
        __syncthreads();
        add_gemm<DEPTH>(p, true, q, rows_from<DEPTH>(t.n_queries, query), dk);
    }
}

template <int DEPTH> KERNEL attend_grad_kv(struct cuda_attention t, int n_tiles)
{
    constexpr int ROWS = tile<DEPTH>::ROWS, ELEMS = ROWS * tile<DEPTH>::PITCH;
    DYNAMIC_SHARED(float, k);
    int64_t head_0 = (int64_t)(blockIdx.x / n_tiles) * t.group;
    struct head head = head_of(t, head_0);
    struct mask mask = mask_of(t.dropout);
    int first = (int)(blockIdx.x % n_tiles) * ROWS;
    results<DEPTH> dk = {}, dv = {};
    load_tile<DEPTH>(t, t.k, rows_kv(t, head), first, k);
    load_tile<DEPTH>(t, t.v, rows_kv(t, head), first, k + ELEMS);
    for (int i = 0; i < t.group; i++)
        add_grad_kv<DEPTH>(t, head_of(t, head_0 + i), mask, first, k, dk, dv);
    float factor[tile<DEPTH>::EACH];
    fill<DEPTH>(factor, 1.0f);
    write_rows<DEPTH>(t, t.dv, rows_dkv(t, head), first, dv, factor);
    fill<DEPTH>(factor, 1.0f / sqrtf((float)t.depth));
    write_rows<DEPTH>(t, t.dk, rows_dkv(t, head), first, dk, factor);
}

/* ---- launchers ------------------------------------------------------------------------------ */

/* One block per tile of n_rows rows of n_heads heads. */
template <int DEPTH>
static int launch_tiles(void (*kernel)(struct cuda_attention, int), int n_shared, int n_rows,
                        int n_heads, const struct cuda_attention *t, void *stream)
{
    unsigned n_tiles = grid_of(n_rows, tile<DEPTH>::ROWS);
    return launch(kernel, (unsigned)(t->n_batch * n_heads) * n_tiles, THREADS,
                  tile<DEPTH>::bytes(n_shared), stream, *t, (int)n_tiles);
}

template <int DEPTH> static int launch_forward(const struct cuda_attention *t, void *stream)
{
    return launch_tiles<DEPTH>(attend<DEPTH>, 2, t->n_queries, t->n_heads, t, stream);
}

template <int DEPTH> static int launch_grad(const struct cuda_attention *t, void *stream)
{
    int error = launch_tiles<DEPTH>(attend_grad_q<DEPTH>, 4, t->n_queries, t->n_heads, t, stream);
    return error != 0
               ? error
               : launch_tiles<DEPTH>(attend_grad_kv<DEPTH>, 4, t->n_keys, t->n_kv_heads, t, stream);
}

int cuda_attention(const struct cuda_attention *t, void *stream)
{
    if (cuda_attention_mma_fits(t))
        return cuda_attention_mma(t, stream);
    return t->depth <= 64    ? launch_forward<64>(t, stream)
           : t->depth <= 128 ? launch_forward<128>(t, stream)
                             : launch_forward<256>(t, stream);
}

int cuda_attention_grad(const struct cuda_attention *t, void *stream)
{
    int64_t n_rows = t->n_batch * t->n_heads * t->n_queries;
    int error = launch(sum_deltas, grid_of(n_rows * WARP, THREADS), THREADS, 0, stream, *t, n_rows);
    if (error != 0)
        return error;
    if (cuda_attention_mma_fits(t))
        return cuda_attention_mma_grad(t, stream);
    return t->depth <= 64    ? launch_grad<64>(t, stream)
           : t->depth <= 128 ? launch_grad<128>(t, stream)
                             : launch_grad<256>(t, stream);
}
