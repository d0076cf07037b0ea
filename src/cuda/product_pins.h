/*
 * product_pins.h -- which algorithm makes which product, from its first choice on.
 *
 * The table lives as long as the process.  SNUG_CUDA_PINS=FILE keeps it longer: pins are read from the
 * file at first, and new ones are added to it, so that another run makes every product with the same
 * algorithm, gives the same bits, and starts without timing anything.  A file of another version of the
 * library or of another GPU is left alone, and its pins are not taken.
 */
#ifndef SNUG_CUDA_PRODUCT_PINS_H
#define SNUG_CUDA_PRODUCT_PINS_H

#include "cuda/library.h"
#include "cuda/product.h"

/* The shape is one with every stride filled in.  ms: what it took when it was chosen. */
bool product_pin_find(const struct cuda_product_shape *shape, cublasLtMatmulAlgo_t *algorithm,
                      float *ms);
enum snug_status product_pin_add(const struct cuda_product_shape *shape,
                                 const cublasLtMatmulAlgo_t *algorithm, float ms,
                                 struct snug_error *err);

#endif
