/*
 * attention_mma.cu -- the attention of attention.cu on tensor cores, for bf16 and f16.  This is
 * what runs with dropout, for which cuDNN would draw other random numbers.
 *
 * The loops are those of attention.cu.  A block has 4 warps; a warp owns 16 rows (queries, or keys
 * for dk and dv) and keeps their scores and results in registers.  Tiles are stored in shared
 * memory in 16 bits: as they are where a matmul sums over the columns of a head, transposed where
 * it sums over rows.
 *
 *     forward    s = q k^T      out += p v      (v transposed)
 *     dq         s = q k^T      dp = dy v^T     dq += ds k                  (k also transposed)
 *     dk, dv     s = k q^T      dp = v dy^T     dv += p dy,  dk += ds q     (q, dy also transposed)
 *
 * p and ds are rounded to the type of the tensors before the second matmul.
 */
#include "cuda/attention/attention_head.h"
#include "cuda/kernels/device.h"
#include "cuda/attention/mma.h"

enum { WARPS = 4, THREADS = WARPS * WARP, ROWS = WARPS * 16 };

/* OTHER: rows per tile of the side that a gradient loops over. */
template <int DEPTH> struct sizes {
    static constexpr int PITCH = DEPTH + 8, N_DEPTH = DEPTH / 8;
    static constexpr int OTHER = DEPTH > 64 ? ROWS / 2 : ROWS, TRANSPOSED_PITCH = OTHER + 8;
    /* elements */
    static constexpr int TILE = ROWS * PITCH, OTHER_TILE = OTHER * PITCH;
    static constexpr int TRANSPOSED = DEPTH * TRANSPOSED_PITCH;
};

/* ---- tiles ---------------------------------------------------------------------------------- */

DEVICE pack_16 pack_or_0(const struct cuda_attention &t, const void *from, const struct rows &rows,
                         int row, int column)
{
    pack_16 pack = {};
    if (row < rows.n && column < t.depth)
        pack = *(const pack_16 *)((const uint16_t *)from + rows.begin + row * rows.step + column);
    return pack;
}

/* Loads N_ROWS rows as they are: [row][column]. */
template <int DEPTH, int N_ROWS>
DEVICE void load_rows(const struct cuda_attention &t, const void *from, const struct rows &rows,
                      int first, uint16_t *to)
{
    constexpr int PACKS = DEPTH / PACK;
    for (int i = (int)threadIdx.x; i < N_ROWS * PACKS; i += THREADS) {
        int row = i / PACKS, column = i % PACKS * PACK;
        *(pack_16 *)(to + row * sizes<DEPTH>::PITCH + column) =
            pack_or_0(t, from, rows, first + row, column);
    }
}

/* Loads N_ROWS rows transposed: [column][row].  Neighbouring threads take neighbouring rows, so
 * that their writes are adjacent. */
template <int DEPTH, int N_ROWS>
DEVICE void load_transposed(const struct cuda_attention &t, const void *from,
                            const struct rows &rows, int first, uint16_t *to)
{
    for (int i = (int)threadIdx.x; i < N_ROWS * (DEPTH / PACK); i += THREADS) {
        int row = i % N_ROWS, column = i / N_ROWS * PACK;
        pack_16 pack = pack_or_0(t, from, rows, first + row, column);
        for (int k = 0; k < PACK; k++)
            to[(column + k) * (N_ROWS + 8) + row] = (uint16_t)(pack.two[k / 2] >> 16 * (k % 2));
    }
}

/* Writes the rows of a warp, from `first` on; each half of them is multiplied by its factor. */
template <int DTYPE, int DEPTH>
DEVICE void write_rows(const struct cuda_attention &t, const float (&out)[DEPTH / 8][4], void *to,
                       const struct rows &rows, int first, const float factor[2])
{
    UNROLL(2)
    for (int half = 0; half < 2; half++) {
        int row = first + mma_group() + 8 * half;
        uint16_t *at = (uint16_t *)to + rows.begin + row * rows.step;
        UNROLL(16)
        for (int j = 0; j < DEPTH / 8; j++) {
            int column = 8 * j + mma_pair();
            if (row < rows.n && column < t.depth)
                *(uint32_t *)(at + column) = mma_round<DTYPE>(out[j][2 * half] * factor[half],
                                                              out[j][2 * half + 1] * factor[half]);
        }
    }
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Reduces over the 4 threads of a row. */
template <class F> DEVICE float row_reduce(float value, F fn)
{
    value = fn(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fn(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/* Turns the scores of one of the two rows of a thread into unnormalized probabilities.  Returns the
 * factor by which earlier sums must be rescaled. */
template <int N>
DEVICE float update_row(const struct cuda_attention &t, const struct head &head,
                        const struct mask &mask, const struct seen &seen, int query, int key_0,
                        int half, float (&s)[N][4], float *most, float *total)
{
    float scale = 1.0f / sqrtf((float)t.depth), largest = -INFINITY, sum = 0.0f;
    UNROLL(16)
    for (int i = 0; i < 2 * N; i++) {
        int key = key_0 + i / 2 * 8 + mma_pair() + i % 2;
        float &score = s[i / 2][2 * half + i % 2];
        score = sees(seen, key) ? score * scale : -INFINITY;
        largest = score > largest ? score : largest;
    }
    largest = larger_of_two()(row_reduce(largest, larger_of_two()), *most);
    float base = largest == -INFINITY ? 0.0f : largest; /* a row that has seen no key yet */
    float kept = __expf(*most - base);
    UNROLL(16)
    for (int i = 0; i < 2 * N; i++) {
        int key = key_0 + i / 2 * 8 + mma_pair() + i % 2;
        float &score = s[i / 2][2 * half + i % 2];
        score = __expf(score - base);
        sum += score;
        if (mask.below != 0)
            score *= mask_factor(mask, score_index(t, head, query, key));
    }
    *total = *total * kept + row_reduce(sum, add_two());
    *most = largest;
    return kept;
}

template <int DTYPE, int DEPTH> KERNEL attend_mma(struct cuda_attention t, int n_tiles)
{
    using z = sizes<DEPTH>;
    DYNAMIC_SHARED(uint16_t, q);
    uint16_t *k = q + z::TILE, *v = k + z::TILE;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    struct rows keys = rows_kv(t, head);
    int first = query_tile(n_tiles) * ROWS, row = (int)threadIdx.x / WARP * 16;
    int query = first + row + mma_group(); /* and query + 8 */
    struct span span = keys_of(t, head, first, ROWS);
    struct seen seen[2] = {seen_by(t, head, query), seen_by(t, head, query + 8)};
    float out[z::N_DEPTH][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
    load_rows<DEPTH, ROWS>(t, t.q, rows_q(t, head), first, q);
    for (int key = span.begin; key < span.end; key += ROWS) {
        __syncthreads();
        load_rows<DEPTH, ROWS>(t, t.k, keys, key, k);
        load_transposed<DEPTH, ROWS>(t, t.v, keys, key, v);
        __syncthreads();
        float s[ROWS / 8][4] = {};
        mma_tiles<DTYPE, ROWS / 8, DEPTH / 16>(s, q, row, k, z::PITCH);
        UNROLL(2)
        for (int half = 0; half < 2; half++) {
            float kept = update_row(t, head, mask, seen[half], query + 8 * half, key, half, s,
                                    &most[half], &total[half]);
            UNROLL(16)
            for (int j = 0; j < z::N_DEPTH; j++) {
                out[j][2 * half] *= kept;
                out[j][2 * half + 1] *= kept;
            }
        }
        mma_results<DTYPE, z::N_DEPTH, ROWS / 16>(out, s, v, ROWS + 8);
    }
    float factor[2]; /* a query that sees no key has y = 0 and lse = -inf */
    UNROLL(2)
    for (int half = 0; half < 2; half++) {
        factor[half] = total[half] == 0.0f ? 0.0f : 1.0f / total[half];
        if (mma_pair() == 0 && query + 8 * half < t.n_queries)
            t.lse[query_index(t, head, query + 8 * half)] = most[half] + logf(total[half]);
    }
    write_rows<DTYPE, DEPTH>(t, out, t.y, rows_y(t, head), first + row, factor);
}

/* ---- gradient ------------------------------------------------------------------------------- */

/* Replaces s by p with dropout, and dp by ds without the scale. */
DEVICE void slope(const struct cuda_attention &t, const struct head &head, const struct mask &mask,
                  const struct query_facts &facts, int query, int key, float *s, float *dp)
{
    float scale = 1.0f / sqrtf((float)t.depth);
    float p = sees(facts.seen, key) ? __expf(*s * scale - facts.lse) : 0.0f;
    float factor = mask.below != 0 ? mask_factor(mask, score_index(t, head, query, key)) : 1.0f;
    *s = factor * p;
    *dp = p * (factor * *dp - facts.delta);
}

template <int DTYPE, int DEPTH> KERNEL attend_mma_grad_q(struct cuda_attention t, int n_tiles)
{
    using z = sizes<DEPTH>;
    DYNAMIC_SHARED(uint16_t, q);
    uint16_t *dy = q + z::TILE, *k = dy + z::TILE, *v = k + z::OTHER_TILE;
    uint16_t *k_transposed = v + z::OTHER_TILE;
    struct head head = head_of(t, blockIdx.x / n_tiles);
    struct mask mask = mask_of(t.dropout);
    struct rows keys = rows_kv(t, head);
    int first = query_tile(n_tiles) * ROWS, row = (int)threadIdx.x / WARP * 16;
    int query = first + row + mma_group(); /* and query + 8 */
    struct span span = keys_of(t, head, first, ROWS);
    struct query_facts facts[2] = {facts_of(t, head, query), facts_of(t, head, query + 8)};
    float dq[z::N_DEPTH][4] = {};
    load_rows<DEPTH, ROWS>(t, t.q, rows_q(t, head), first, q);
    load_rows<DEPTH, ROWS>(t, t.dy, rows_y(t, head), first, dy);
    for (int key_0 = span.begin; key_0 < span.end; key_0 += z::OTHER) {
        __syncthreads();
        load_rows<DEPTH, z::OTHER>(t, t.k, keys, key_0, k);
        load_rows<DEPTH, z::OTHER>(t, t.v, keys, key_0, v);
        load_transposed<DEPTH, z::OTHER>(t, t.k, keys, key_0, k_transposed);
        __syncthreads();
        float s[z::OTHER / 8][4] = {}, dp[z::OTHER / 8][4] = {};
        mma_tiles<DTYPE, z::OTHER / 8, DEPTH / 16>(s, q, row, k, z::PITCH);
        mma_tiles<DTYPE, z::OTHER / 8, DEPTH / 16>(dp, dy, row, v, z::PITCH);
        UNROLL(32)
        for (int i = 0; i < z::OTHER / 2; i++) {
            int half = i % 4 / 2, key = key_0 + i / 4 * 8 + mma_pair() + i % 2;
            slope(t, head, mask, facts[half], query + 8 * half, key, &s[i / 4][i % 4],
                  &dp[i / 4][i % 4]);
        }
        mma_results<DTYPE, z::N_DEPTH, z::OTHER / 16>(dq, dp, k_transposed, z::TRANSPOSED_PITCH);
    }
    float scale = 1.0f / sqrtf((float)t.depth), factor[2] = {scale, scale};
    write_rows<DTYPE, DEPTH>(t, dq, t.dq, rows_q(t, head), first + row, factor);
}

/* Adds what one head of q contributes to dk and dv of the tile of keys that begins at `first`. */
template <int DTYPE, int DEPTH>
DEVICE void add_grad_kv(const struct cuda_attention &t, const struct head &head,
                        const struct mask &mask, int first, uint16_t *k, struct query_facts *facts,
                        float (&dk)[DEPTH / 8][4], float (&dv)[DEPTH / 8][4])
{
    using z = sizes<DEPTH>;
    uint16_t *v = k + z::TILE, *q = v + z::TILE, *dy = q + z::OTHER_TILE;
    uint16_t *q_transposed = dy + z::OTHER_TILE;
    uint16_t *dy_transposed = q_transposed + z::TRANSPOSED;
    struct rows q_rows = rows_q(t, head), dy_rows = rows_y(t, head);
    struct span span = queries_of(t, head, first, ROWS);
    int row = (int)threadIdx.x / WARP * 16;
    for (int query_0 = span.begin; query_0 < span.end; query_0 += z::OTHER) {
        if (begin_after(t, head, query_0, z::OTHER, first, ROWS))
            continue;
        __syncthreads();
        load_rows<DEPTH, z::OTHER>(t, t.q, q_rows, query_0, q);
        load_rows<DEPTH, z::OTHER>(t, t.dy, dy_rows, query_0, dy);
        load_transposed<DEPTH, z::OTHER>(t, t.q, q_rows, query_0, q_transposed);
        load_transposed<DEPTH, z::OTHER>(t, t.dy, dy_rows, query_0, dy_transposed);
        if (threadIdx.x < z::OTHER)
            facts[threadIdx.x] = facts_of(t, head, query_0 + (int)threadIdx.x);
        __syncthreads();
        float s[z::OTHER / 8][4] = {}, dp[z::OTHER / 8][4] = {};
        mma_tiles<DTYPE, z::OTHER / 8, DEPTH / 16>(s, k, row, q, z::PITCH);
        mma_tiles<DTYPE, z::OTHER / 8, DEPTH / 16>(dp, v, row, dy, z::PITCH);
        UNROLL(32)
        for (int i = 0; i < z::OTHER / 2; i++) {
            int column = i / 4 * 8 + mma_pair() + i % 2;
            int key = first + row + mma_group() + i % 4 / 2 * 8;
            slope(t, head, mask, facts[column], query_0 + column, key, &s[i / 4][i % 4],
                  &dp[i / 4][i % 4]);
        }
        mma_results<DTYPE, z::N_DEPTH, z::OTHER / 16>(dv, s, dy_transposed, z::TRANSPOSED_PITCH);
        mma_results<DTYPE, z::N_DEPTH, z::OTHER / 16>(dk, dp, q_transposed, z::TRANSPOSED_PITCH);
    }
}

template <int DTYPE, int DEPTH> KERNEL attend_mma_grad_kv(struct cuda_attention t, int n_tiles)
{
    using z = sizes<DEPTH>;
    DYNAMIC_SHARED(uint16_t, k);
    SHARED struct query_facts facts[z::OTHER];
    int64_t head_0 = (int64_t)(blockIdx.x / n_tiles) * t.group;
    struct head head = head_of(t, head_0);
    struct mask mask = mask_of(t.dropout);
    int first = (int)(blockIdx.x % n_tiles) * ROWS, row = (int)threadIdx.x / WARP * 16;
    float dk[z::N_DEPTH][4] = {}, dv[z::N_DEPTH][4] = {};
    load_rows<DEPTH, ROWS>(t, t.k, rows_kv(t, head), first, k);
    load_rows<DEPTH, ROWS>(t, t.v, rows_kv(t, head), first, k + z::TILE);
    for (int i = 0; i < t.group; i++)
        add_grad_kv<DTYPE, DEPTH>(t, head_of(t, head_0 + i), mask, first, k, facts, dk, dv);
    float scale = 1.0f / sqrtf((float)t.depth), factor[2] = {scale, scale}, one[2] = {1.0f, 1.0f};
    write_rows<DTYPE, DEPTH>(t, dk, t.dk, rows_dkv(t, head), first + row, factor);
    write_rows<DTYPE, DEPTH>(t, dv, t.dv, rows_dkv(t, head), first + row, one);
}

/* ---- launchers ------------------------------------------------------------------------------ */

bool cuda_attention_mma_fits(const struct cuda_attention *t)
{
    return t->dtype != DTYPE_f32 && t->depth % PACK == 0 && t->depth <= 128 && t->n_queries >= 16 &&
           pack_aligned(t->q) && pack_aligned(t->k) && pack_aligned(t->v) && pack_aligned(t->y) &&
           pack_aligned(t->dy) && pack_aligned(t->dq) && pack_aligned(t->dk) && pack_aligned(t->dv);
}

/* One block per tile of n_rows rows of n_heads heads. */
static int launch_tiles(void (*kernel)(struct cuda_attention, int), size_t n_elems, int n_rows,
                        int n_heads, const struct cuda_attention *t, void *stream)
{
    unsigned n_tiles = grid_of(n_rows, ROWS);
    return launch(kernel, (unsigned)(t->n_batch * n_heads) * n_tiles, THREADS,
                  n_elems * sizeof(uint16_t), stream, *t, (int)n_tiles);
}

template <int DTYPE, int DEPTH>
static int launch_forward(const struct cuda_attention *t, void *stream)
{
    using z = sizes<DEPTH>;
    return launch_tiles(attend_mma<DTYPE, DEPTH>, 2 * z::TILE + DEPTH * (ROWS + 8), t->n_queries,
                        t->n_heads, t, stream);
}

template <int DTYPE, int DEPTH> static int launch_grad(const struct cuda_attention *t, void *stream)
{
    using z = sizes<DEPTH>;
    int error =
        launch_tiles(attend_mma_grad_q<DTYPE, DEPTH>, 2 * (z::TILE + z::OTHER_TILE) + z::TRANSPOSED,
                     t->n_queries, t->n_heads, t, stream);
    return error != 0 ? error
                      : launch_tiles(attend_mma_grad_kv<DTYPE, DEPTH>,
                                     2 * (z::TILE + z::OTHER_TILE + z::TRANSPOSED), t->n_keys,
                                     t->n_kv_heads, t, stream);
}

int cuda_attention_mma(const struct cuda_attention *t, void *stream)
{
    if (t->dtype == DTYPE_bf16)
        return t->depth <= 64 ? launch_forward<DTYPE_bf16, 64>(t, stream)
                              : launch_forward<DTYPE_bf16, 128>(t, stream);
    return t->depth <= 64 ? launch_forward<DTYPE_f16, 64>(t, stream)
                          : launch_forward<DTYPE_f16, 128>(t, stream);
}

int cuda_attention_mma_grad(const struct cuda_attention *t, void *stream)
{
    if (t->dtype == DTYPE_bf16)
        return t->depth <= 64 ? launch_grad<DTYPE_bf16, 64>(t, stream)
                              : launch_grad<DTYPE_bf16, 128>(t, stream);
    return t->depth <= 64 ? launch_grad<DTYPE_f16, 64>(t, stream)
                          : launch_grad<DTYPE_f16, 128>(t, stream);
}
