/*
 * dequantize.cu -- dequantizes weights stored in 8 or 4 bits (base/quant_map.h).
 *
 * The map is passed by value and looked up in shared memory.  A thread produces one pack; quant
 * blocks are whole packs, so each pack has one scale.
 */
#include "cuda/kernels/dequantize.h"
#include "cuda/kernels/device.h"

enum { BLOCK = 256 };

struct quant_values {
    float value[QUANT_VALUES_MOST];
};

KERNEL dequantize(struct quant_values values, int bits, int64_t n, bool aligned,
                  const uint8_t *quants, const float *scales, struct cuda_array y)
{
    SHARED float value[QUANT_VALUES_MOST];
    value[threadIdx.x] = values.value[threadIdx.x];
    __syncthreads();
    int64_t at = thread_index() * PACK;
    if (at >= n)
        return;
    int count = n - at < PACK ? (int)(n - at) : PACK, n_bytes = bits == 8 ? count : (count + 1) / 2;
    const uint8_t *from = quants + quant_bytes(bits, at);
    uint64_t word = 0; /* the first element in the lowest bits */
    if (aligned && count == PACK)
        word = bits == 8 ? *(const uint64_t *)from : *(const uint32_t *)from;
    else
        for (int i = 0; i < n_bytes; i++)
            word |= (uint64_t)from[i] << (8 * i);
    float x[PACK], scale = scales[at / quant_block_elems(bits)];
    for (int i = 0; i < PACK; i++)
        x[i] = value[word >> (bits * i) & ((1u << bits) - 1)] * scale;
    if (aligned && count == PACK)
        pack_store(y.dtype, y.data, at, x);
    else
        pack_store_part(y.dtype, y.data, at, count, x);
}

int cuda_dequantize(const struct quant_map *map, int64_t n, const uint8_t *quants,
                    const float *scales, struct cuda_array y, void *stream)
{
    struct quant_values values;
    for (int i = 0; i < QUANT_VALUES_MOST; i++)
        values.value[i] = i < 1 << map->bits ? map->value[i] : 0.0f;
    bool aligned = pack_aligned(quants) && pack_aligned(y.data);
    return launch(dequantize, grid_of((n + PACK - 1) / PACK, BLOCK), BLOCK, 0, stream, values,
                  map->bits, n, aligned, quants, scales, y);
}
