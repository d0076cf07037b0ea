/*
 * rope.cu -- rotary position embedding.
 *
 * The work is a list of items: 8 pairs of one head of one row, that is, a pack of the first half of
 * the head and the pack that is half a head further.  A block takes the next BLOCK * EACH items and
 * first loads them all.  While they are on their way it computes the cosines and sines of its rows,
 * once for all heads of a row, in shared memory: a row of a Llama of 8B has 32 heads of 64 pairs.
 * A thread reads its items before it writes them and nobody else touches them, so y may be x.
 *
 * The floor, as a multiple of the bytes of x: 2 (read x, write y).  Positions add 4 bytes per row.
 *
 * At position 131,072 the angle of the first pair has 17 bits before the point, which leaves 7
 * after it in fp32.  So the angle is a multiple of a whole turn in fp64; the whole turns are
 * dropped and only the rest, which is as exact as fp32 can be, goes to sincosf.
 */
#include "cuda/kernels/raw.h"
#include "cuda/kernels/rope.h"

enum { BLOCK = 256, EACH = 2 };

/* The items of this block: `first` is the place of its first item in its first row. */
struct items {
    int64_t row;
    int first, per_row, per_head;
};

DEVICE struct items items_of(const struct cuda_rope &t)
{
    struct items items;
    int64_t begin = (int64_t)blockIdx.x * (BLOCK * EACH);
    items.per_head = (t.n_pairs + PACK - 1) / PACK;
    items.per_row = t.heads * items.per_head;
    items.row = begin / items.per_row;
    items.first = (int)(begin - items.row * items.per_row);
    return items;
}

/* Where an item is: its row among the rows of the block, its first pair, and the elements of x. */
struct item {
    int row, pair, n_pairs;
    int64_t low, high;
    bool exists;
};

DEVICE struct item item_at(const struct cuda_rope &t, const struct items &items, int k)
{
    struct item item;
    int at = items.first + k * BLOCK + (int)threadIdx.x, in_row;
    item.row = at / items.per_row;
    in_row = at - item.row * items.per_row;
    int head = in_row / items.per_head;
    item.pair = (in_row - head * items.per_head) * PACK;
    item.n_pairs = t.n_pairs - item.pair < PACK ? t.n_pairs - item.pair : (int)PACK;
    item.exists = items.row + item.row < t.n_rows;
    item.low = ((items.row + item.row) * t.heads + head) * 2 * t.n_pairs + item.pair;
    item.high = item.low + t.n_pairs;
    return item;
}

/* Cosines of the n_pairs pairs of a row, then sines.  The gap spreads rows over memory banks. */
DEVICE_FN int table_row(int n_pairs)
{
    return 2 * n_pairs + 4;
}

/* Lanes take different rows of one pair: lanes that read different frequencies would wait for each
 * other, because parameters are in constant memory. */
DEVICE void fill_table(const struct cuda_rope &t, const struct items &items, float *table)
{
    const double two_pi = 6.283185307179586;
    int n_rows = (items.first + BLOCK * EACH - 1) / items.per_row + 1;
    if (n_rows > t.n_rows - items.row)
        n_rows = (int)(t.n_rows - items.row);
    for (int at = (int)threadIdx.x; at < n_rows * t.n_pairs; at += BLOCK) {
        int pair = at / n_rows, in_table = at - pair * n_rows;
        int64_t row = items.row + in_table;
        int64_t position = t.positions != NULL ? t.positions[row] : row % t.n_time;
        double turns = (double)position * t.turns[pair];
        float *to = table + in_table * table_row(t.n_pairs) + pair;
        sincosf((float)((turns - rint(turns)) * two_pi), to + t.n_pairs, to);
    }
}

template <int TYPE> DEVICE void table_load(const float *from, int n, float to[PACK])
{
    if (TYPE == ANY_TYPE)
        pack_load_part(DTYPE_f32, from, 0, n, to);
    else
        pack_load(DTYPE_f32, from, 0, to);
}

/* fmaf leaves the compiler no choice: all types have the same roundings. */
template <int TYPE>
DEVICE void rotate(const float *cosines, int n_pairs, int n, float low[PACK], float high[PACK])
{
    float cosine[PACK], sine[PACK];
    table_load<TYPE>(cosines, n, cosine);
    table_load<TYPE>(cosines + n_pairs, n, sine);
    for (int i = 0; i < PACK; i++) {
        float x = low[i], y = high[i];
        low[i] = fmaf(x, cosine[i], -(y * sine[i]));
        high[i] = fmaf(y, cosine[i], x * sine[i]);
    }
}

template <int TYPE> KERNEL rope_items(const GRID_CONSTANT struct cuda_rope t)
{
    DYNAMIC_SHARED(float, table);
    struct items items = items_of(t);
    raw_pack<TYPE> low_raw[EACH] = {}, high_raw[EACH] = {};
    for (int k = 0; k < EACH; k++) {
        struct item item = item_at(t, items, k);
        if (!item.exists)
            continue;
        low_raw[k] = raw_load_some<TYPE>(t.x, item.low, item.n_pairs);
        high_raw[k] = raw_load_some<TYPE>(t.x, item.high, item.n_pairs);
    }
    fill_table(t, items, table);
    __syncthreads();
    for (int k = 0; k < EACH; k++) {
        struct item item = item_at(t, items, k);
        float low[PACK], high[PACK];
        if (!item.exists)
            continue;
        unpack<TYPE>(low_raw[k], low);
        unpack<TYPE>(high_raw[k], high);
        rotate<TYPE>(table + item.row * table_row(t.n_pairs) + item.pair, t.n_pairs, item.n_pairs,
                     low, high);
        store_some<TYPE>(t.y, item.low, item.n_pairs, low);
        store_some<TYPE>(t.y, item.high, item.n_pairs, high);
    }
}

int cuda_rope(const struct cuda_rope *rope, void *stream)
{
    const struct cuda_array operands[] = {rope->x, rope->y};
    auto kernel =
        kernel_of_type(type_of_packs(rope->n_pairs, operands, 2), rope_items<DTYPE_f32>,
                       rope_items<DTYPE_bf16>, rope_items<DTYPE_f16>, rope_items<ANY_TYPE>);
    int per_row = rope->heads * ((rope->n_pairs + PACK - 1) / PACK);
    int rows_of_block = (per_row - 1 + BLOCK * EACH - 1) / per_row + 1; /* at most */
    return launch(kernel, grid_of(rope->n_rows * per_row, BLOCK * EACH), BLOCK,
                  (size_t)(rows_of_block * table_row(rope->n_pairs)) * sizeof(float), stream,
                  *rope);
}
