/*
 * amx_limits.c -- measure the peak rate of tile matmuls in registers, the limit for bf16 matmuls.
 */
#include "cpu/amx/amx_tiles.h"

/* Two accumulators, as in a kernel.  The tiles are filled first: the CPU tracks empty ones, which
 * are cheaper. */
static void multiply_in_registers(int64_t n_rounds)
{
    static const uint16_t halves[TILE_ELEMS] = {0x3f00, 0xbf00};
    struct tiles tiles;
    tiles_begin(&tiles);
    tile_zero(&tiles, 0);
    tile_zero(&tiles, 1);
    tile_load(&tiles, 2, halves, 64);
    tile_load(&tiles, 3, halves, 64);
    for (int64_t i = 0; i < n_rounds; i++) {
        tile_multiply(&tiles, 0, 2, 3);
        tile_multiply(&tiles, 1, 2, 3);
        tile_multiply(&tiles, 0, 2, 3);
        tile_multiply(&tiles, 1, 2, 3);
    }
    tiles_end(&tiles);
}

double TILED(tile_flops)(int threads, int64_t n_rounds)
{
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++)
        multiply_in_registers(n_rounds);
    return 4 * (2.0 * TILE_SIDE * TILE_SIDE * TILE_DEPTH) * (double)n_rounds * threads;
}
