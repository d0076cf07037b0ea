/*
 * embedding.cu -- gathers rows of a table by id, and the gradient of the table.
 *
 * For every id, the gradient sums the rows of dy at the positions of that id.  Scattering them
 * directly would take atomic additions, which are not deterministic.  Instead the positions are
 * sorted by id with a stable radix sort (least significant digit first, 8 bits per round):
 *
 *     count     each digit in each chunk of 1024 ids: one thread per digit scans the chunk
 *     scan      the counts, ordered by digit and then by chunk, become start offsets
 *     scatter   each chunk's positions go there in order, again one thread per digit
 *
 * Now equal ids form runs.  A block takes 64 sorted positions and sums its runs.  Runs that lie
 * inside the block go to the table.  The first and the last run may extend beyond the block; their
 * sums are stored as parts, which a last kernel adds from left to right.
 *
 * Sorting reads 4 bytes per id where summing reads a whole row, so the sort is simple on purpose.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/embedding.h"
#include "cuda/kernels/sums.h"

enum { WARPS = 8, DIGITS = CUDA_SORT_DIGITS, CHUNK = CUDA_SORT_CHUNK, RUN = CUDA_RUN_CHUNK };

/* ---- forward -------------------------------------------------------------------------------- */

DEVICE void load_pack(struct cuda_array x, int64_t at, int n, bool aligned, float to[PACK])
{
    if (aligned)
        pack_load(x.dtype, x.data, at, to);
    else
        pack_load_part(x.dtype, x.data, at, n, to);
}

KERNEL take_rows(int64_t n_ids, int64_t n_time, int64_t n_rows, int width, bool aligned,
                 const int32_t *ids, struct cuda_array table, struct cuda_array positions,
                 struct cuda_array y)
{
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= n_ids)
        return;
    int64_t id = ids[n], t = n % n_time;
    bool there = id >= 0 && id < n_rows;
    for (int c = (int)(threadIdx.x % WARP) * PACK; c < width; c += WARP * PACK) {
        float x[PACK], position[PACK] = {0};
        load_pack(table, (there ? id : 0) * width + c, width - c, aligned, x);
        if (positions.data != NULL)
            load_pack(positions, t * width + c, width - c, aligned, position);
        for (int i = 0; i < PACK; i++)
            x[i] = there ? x[i] + position[i] : NAN;
        if (aligned)
            pack_store(y.dtype, y.data, n * width + c, x);
        else
            pack_store_part(y.dtype, y.data, n * width + c, width - c, x);
    }
}

int cuda_embedding(int64_t n_ids, int64_t n_time, int64_t n_rows, int width, const int32_t *ids,
                   struct cuda_array table, struct cuda_array positions, struct cuda_array y,
                   void *stream)
{
    bool aligned = width % PACK == 0 && pack_aligned(table.data) && pack_aligned(positions.data) &&
                   pack_aligned(y.data);
    return launch(take_rows, grid_of(n_ids, WARPS), WARPS * WARP, 0, stream, n_ids, n_time, n_rows,
                  width, aligned, ids, table, positions, y);
}

/* ---- sorting positions by id
 * ------------------------------------------------------------------ */

/* One round; `from` is NULL in the first, when positions are in their original order. */
struct sort_round {
    int64_t n_ids, n_rows;
    const int32_t *ids, *from;
    int32_t *to, *counts;
    int shift;
};

/* The sort key: the id, or n_rows for invalid ids, so that they come last. */
DEVICE uint32_t key_of(int32_t id, int64_t n_rows)
{
    return id >= 0 && id < n_rows ? (uint32_t)id : (uint32_t)n_rows;
}

DEVICE int32_t place_at(const struct sort_round &r, int64_t i)
{
    return r.from == NULL ? (int32_t)i : r.from[i];
}

/* Loads the chunk's digits into shared memory; returns their number. */
DEVICE int load_digits(const struct sort_round &r, uint8_t *digits)
{
    int64_t first = (int64_t)blockIdx.x * CHUNK;
    int n = r.n_ids - first < CHUNK ? (int)(r.n_ids - first) : CHUNK;
    for (int i = (int)threadIdx.x; i < n; i += DIGITS)
        digits[i] = (uint8_t)(key_of(r.ids[place_at(r, first + i)], r.n_rows) >> r.shift);
    __syncthreads();
    return n;
}

KERNEL count_digits(struct sort_round r)
{
    SHARED uint8_t digits[CHUNK];
    int n = load_digits(r, digits), count = 0;
    for (int i = 0; i < n; i++)
        count += digits[i] == threadIdx.x;
    r.counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x] = count;
}

/* Exclusive prefix sum of the counts.  One block; each thread takes a contiguous range. */
KERNEL scan_counts(int32_t *counts, int64_t n)
{
    SHARED int32_t before[BLOCK_MOST];
    int me = (int)threadIdx.x;
    int64_t each = (n + BLOCK_MOST - 1) / BLOCK_MOST, first = each * me;
    int64_t end = first + each < n ? first + each : n;
    int32_t sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += counts[i];
    before[me] = sum;
    __syncthreads();
    for (int step = 1; step < BLOCK_MOST; step *= 2) {
        int32_t more = me >= step ? before[me - step] : 0;
        __syncthreads();
        before[me] += more;
        __syncthreads();
    }
    int32_t at = before[me] - sum;
    for (int64_t i = first; i < end; i++) {
        int32_t count = counts[i];
        counts[i] = at;
        at += count;
    }
}

KERNEL scatter_places(struct sort_round r)
{
    SHARED uint8_t digits[CHUNK];
    int n = load_digits(r, digits);
    int64_t first = (int64_t)blockIdx.x * CHUNK;
    int32_t at = r.counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x];
    for (int i = 0; i < n; i++)
        if (digits[i] == threadIdx.x)
            r.to[at++] = place_at(r, first + i);
}

/* Sorts the positions by id; *sorted is one of the two lists. */
static int sort_places(const struct cuda_embedding_grad *g, const struct cuda_embedding_layout &l,
                       const int32_t **sorted, void *stream)
{
    struct sort_round r = {};
    int error = 0;
    r.n_ids = g->n_ids;
    r.n_rows = g->n_rows;
    r.ids = g->ids;
    r.counts = (int32_t *)((char *)g->work + l.counts);
    for (int round = 0; error == 0 && g->n_rows >> r.shift > 0; round++, r.shift += 8) {
        r.to = (int32_t *)((char *)g->work + l.place[round % 2]);
        error = launch(count_digits, (unsigned)l.n_chunks, DIGITS, 0, stream, r);
        if (error == 0)
            error = launch(scan_counts, 1, BLOCK_MOST, 0, stream, r.counts, l.n_chunks * DIGITS);
        if (error == 0)
            error = launch(scatter_places, (unsigned)l.n_chunks, DIGITS, 0, stream, r);
        *sorted = r.from = r.to;
    }
    return error;
}

/* ---- sums of runs --------------------------------------------------------------------------- */

struct run_sums {
    int64_t n_ids, n_rows;
    int width;
    bool add, aligned;
    const int32_t *ids, *sorted;
    struct cuda_array dy, dtable;
    float *parts; /* of block b: entry 2 b is the sum of its first run if that began earlier, entry
                   * 2 b + 1 of its last run if that continues */
};

DEVICE uint32_t sorted_key(const struct run_sums &t, int64_t at)
{
    return key_of(t.ids[t.sorted[at]], t.n_rows);
}

DEVICE void add_to_table(const struct run_sums &t, uint32_t key, int column, const float sum[PACK])
{
    if (key >= t.n_rows)
        return;
    float x[PACK] = {0};
    int64_t at = (int64_t)key * t.width + column;
    if (t.add)
        load_pack(t.dtable, at, t.width - column, t.aligned, x);
    for (int i = 0; i < PACK; i++)
        x[i] += sum[i];
    if (t.aligned)
        pack_store(t.dtable.dtype, t.dtable.data, at, x);
    else
        pack_store_part(t.dtable.dtype, t.dtable.data, at, t.width - column, x);
}

/* Ends a run: adds its sum to the table, or stores a part if the run extends beyond the block. */
DEVICE void end_run(const struct run_sums &t, uint32_t key, bool began_earlier, bool continues,
                    int column, float sum[PACK])
{
    float *part = t.parts + (2 * (int64_t)blockIdx.x + !began_earlier) * t.width + column;
    if (!began_earlier && !continues)
        add_to_table(t, key, column, sum);
    else
        pack_store_part(DTYPE_f32, part, 0, t.width - column, sum);
    for (int i = 0; i < PACK; i++)
        sum[i] = 0.0f;
}

/* Sums one pack of columns, with the loads of several rows in flight.  keys[0] and keys[n + 1]
 * belong to the neighbouring blocks. */
DEVICE void sum_column(const struct run_sums &t, int n, const uint32_t *keys, const int32_t *places,
                       int column)
{
    enum { AT_ONCE = 4 };
    float sum[PACK] = {0}, x[AT_ONCE][PACK];
    bool began_earlier = keys[0] == keys[1];
    for (int first = 0; first < n; first += AT_ONCE) {
        UNROLL(4)
        for (int j = 0; j < AT_ONCE; j++)
            if (first + j < n)
                load_pack(t.dy, (int64_t)places[first + j] * t.width + column, t.width - column,
                          t.aligned, x[j]);
        UNROLL(4)
        for (int j = 0; j < AT_ONCE; j++) {
            int k = first + j + 1;
            if (k > n)
                break;
            for (int i = 0; i < PACK; i++)
                sum[i] += x[j][i];
            bool continues = keys[k] == keys[k + 1];
            if (k == n || !continues) {
                end_run(t, keys[k], began_earlier, continues, column, sum);
                began_earlier = false;
            }
        }
    }
}

KERNEL sum_runs(struct run_sums t)
{
    SHARED uint32_t keys[RUN + 2];
    SHARED int32_t places[RUN];
    int64_t first = (int64_t)blockIdx.x * RUN;
    int n = t.n_ids - first < RUN ? (int)(t.n_ids - first) : RUN;
    for (int i = (int)threadIdx.x; i < n + 2; i += (int)blockDim.x) {
        int64_t at = first + i - 1;
        keys[i] = at >= 0 && at < t.n_ids ? sorted_key(t, at) : UINT32_MAX;
        if (i >= 1 && i <= n)
            places[i - 1] = t.sorted[at];
    }
    __syncthreads();
    for (int c = (int)threadIdx.x * PACK; c < t.width; c += (int)blockDim.x * PACK)
        sum_column(t, n, keys, places, c);
}

/* If a run begins in this block and continues, adds up its parts to where it ends. */
KERNEL add_parts(struct run_sums t)
{
    int64_t b = blockIdx.x, first = b * RUN, next = first + RUN;
    if (next >= t.n_ids)
        return;
    uint32_t key = sorted_key(t, next);
    bool began_earlier = first > 0 && sorted_key(t, first - 1) == key;
    if (sorted_key(t, next - 1) != key || began_earlier)
        return;
    for (int c = (int)threadIdx.x * PACK; c < t.width; c += (int)blockDim.x * PACK) {
        float sum[PACK], more[PACK];
        pack_load_part(DTYPE_f32, t.parts, (2 * b + 1) * t.width + c, t.width - c, sum);
        for (int64_t other = b + 1; other * RUN < t.n_ids && sorted_key(t, other * RUN) == key;
             other++) {
            pack_load_part(DTYPE_f32, t.parts, 2 * other * t.width + c, t.width - c, more);
            for (int i = 0; i < PACK; i++)
                sum[i] += more[i];
        }
        add_to_table(t, key, c, sum);
    }
}

/* Threads for one row of packs, in whole warps. */
static int threads_of(int width)
{
    int n_packs = (width + PACK - 1) / PACK, n = (n_packs + WARP - 1) / WARP * WARP;
    return n < 256 ? n : 256;
}

int cuda_embedding_grad(const struct cuda_embedding_grad *g, void *stream)
{
    struct cuda_embedding_layout l = cuda_embedding_layout(g->n_ids, g->width);
    struct run_sums sums = {};
    int error = sort_places(g, l, &sums.sorted, stream);
    sums.n_ids = g->n_ids;
    sums.n_rows = g->n_rows;
    sums.width = g->width;
    sums.add = g->add;
    sums.aligned = g->width % PACK == 0 && pack_aligned(g->dy.data) && pack_aligned(g->dtable.data);
    sums.ids = g->ids;
    sums.dy = g->dy;
    sums.dtable = g->dtable;
    sums.parts = (float *)((char *)g->work + l.parts);
    if (error == 0 && !g->add) /* most rows get no gradient */
        error = cuda_clear(
            g->dtable.data,
            (size_t)g->n_rows * (size_t)g->width * (g->dtable.dtype == DTYPE_f32 ? 4 : 2), stream);
    if (error == 0)
        error = launch(sum_runs, (unsigned)l.n_runs, threads_of(g->width), 0, stream, sums);
    if (error == 0)
        error = launch(add_parts, (unsigned)l.n_runs, threads_of(g->width), 0, stream, sums);
    return error;
}
