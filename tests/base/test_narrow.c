/*
 * test_narrow.c -- quantization: the map against its definition written a second time, round trips
 * of quant blocks, and stochastic rounding, which must be unbiased.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/quant_map.h"
#include "base/counter_random.h"
#include "base/dtype.h"
#include "base/rng.h"

enum { SEED = 11 };

static const struct {
    int bits;
    bool is_signed;
} kinds[] = {{8, true}, {8, false}, {4, true}, {4, false}};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static int quant_in(const struct quant_map *map, float x)
{
    return map->bits == 8 ? quantize_one(&map->finder, 7, x) : quantize_one(&map->finder, 3, x);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* bitsandbytes' create_dynamic_map: means of neighbours of linspace(0.1, 1, parts + 1), by decades. */
static int definition(int bits, bool is_signed, double value[QUANT_VALUES_MOST])
{
    int n = 0;
    for (int i = 0; i < bits - 1; i++) {
        int parts = is_signed ? 1 << i : 2 << i;
        for (int k = 0; k < parts; k++) {
            double low = 0.1 + k * 0.9 / parts, high = 0.1 + (k + 1) * 0.9 / parts;
            double mean = (low + high) / 2 * pow(10, i - (bits - 2));
            value[n++] = mean;
            if (is_signed)
                value[n++] = -mean;
        }
    }
    value[n++] = 0;
    value[n++] = 1;
    qsort(value, (size_t)n, sizeof *value, by_value);
    return n;
}

static void test_the_map_is_its_definition(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(kinds); i++) {
        struct quant_map map;
        double right[QUANT_VALUES_MOST];
        quant_map_make(&map, kinds[i].bits, kinds[i].is_signed);
        assert_int_equal(definition(kinds[i].bits, kinds[i].is_signed, right), 1 << kinds[i].bits);
        for (int c = 0; c < 1 << kinds[i].bits; c++) {
            if (!(fabs((double)map.value[c] - right[c]) <= 1e-7 * fabs(right[c])))
                fail_msg("%d bits: value %d is %.9g, not %.9g", kinds[i].bits, c,
                         (double)map.value[c], right[c]);
            assert_int_equal(quant_in(&map, map.value[c]), c);
        }
    }
}

static double distance_to_nearest(const struct quant_map *map, double x)
{
    double best = INFINITY;
    for (int c = 0; c < 1 << map->bits; c++)
        best = fmin(best, fabs(x - (double)map->value[c]));
    return best;
}

/* Over sizes of all decades; above 0, an unsigned code is never that of 0. */
static void test_quants_are_nearest_and_rise(void **state)
{
    (void)state;
    enum { STEPS = 20000 };
    for (int i = 0; i < COUNT(kinds); i++) {
        struct quant_map map;
        quant_map_make(&map, kinds[i].bits, kinds[i].is_signed);
        int before = 0;
        for (int k = kinds[i].is_signed ? -STEPS : 0; k <= STEPS; k++) {
            float x = (float)copysign(pow(10, 9.0 * (abs(k) - STEPS) / STEPS), k);
            x = k == 0 ? 0.0f : x;
            int code = quant_in(&map, x);
            if (code < before)
                fail_msg("%d bits: the quantized value falls to %d at %.9g", kinds[i].bits, code,
                         (double)x);
            before = code;
            if (!kinds[i].is_signed && x > 0 && x <= map.value[1]) {
                assert_int_equal(code, 1);
                continue;
            }
            double error = fabs((double)x - (double)map.value[code]);
            if (!(error <= distance_to_nearest(&map, (double)x) + 1e-6 * fabs((double)x)))
                fail_msg("%d bits: %.9g is quantized as %.9g", kinds[i].bits, (double)x,
                         (double)map.value[code]);
        }
        assert_int_equal(quant_in(&map, 0.0f), map.finder.zero);
        assert_int_equal(quant_in(&map, NAN), map.finder.zero);
        assert_int_equal(quant_in(&map, 1.0f), (1 << kinds[i].bits) - 1);
    }
}

static void test_blocks_come_back(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 127, 128, 129, 256, 257, 1000};
    for (int i = 0; i < COUNT(kinds); i++)
        for (int k = 0; k < COUNT(counts); k++) {
            struct quant_map map;
            float x[1000], y[1000], scales[9];
            uint8_t quants[1001];
            int64_t n = counts[k], block = quant_block_elems(kinds[i].bits);
            quant_map_make(&map, kinds[i].bits, kinds[i].is_signed);
            for (int64_t j = 0; j < n; j++) {
                x[j] = (float)(3e-5 * rng_normal(SEED, 1, (uint64_t)j));
                x[j] = j / block == 2 ? 0.0f : kinds[i].is_signed ? x[j] : fabsf(x[j]);
            }
            memset(quants, 0xee, sizeof quants);
            quantize_elems(&map, quants, scales, 0, n, x);
            assert_int_equal(quants[quant_bytes(kinds[i].bits, n)], 0xee);
            dequantize_elems(&map, quants, scales, 0, n, y);
            for (int64_t j = 0; j < n; j++) {
                double scale = (double)scales[j / block], size = fabs((double)x[j]);
                /* half of a part of the top decade, or of the first one above 0 */
                double part = 0.9 / (1 << (kinds[i].bits - 2 + !kinds[i].is_signed));
                double least = (double)map.value[map.finder.zero + 1];
                assert_true(scale >= size);
                assert_true(fabs((double)y[j] - (double)x[j]) <= scale * (part / 2 + 1e-6));
                assert_true(size > scale * least ||
                            fabs((double)y[j]) <= scale * least * (1 + 1e-6));
                if (x[j] == 0.0f)
                    assert_true(y[j] == 0.0f);
            }
        }
}

/* ---- stochastic rounding ---------------------------------------------------------------------- */

/* Numbers between two neighbours of bf16 and f16, of both signs, f16 denormals among them. */
static const float numbers[] = {1.0f,     1.001f,    -1.001f, 3.14159265f, -2.7182818e-3f,
                                1.7e-20f, -6.5e4f,   0.0f,    2e-5f,       -3.3e-7f,
                                5e-8f,    6.103e-5f, 1e-4f,   -123.456f};

static double rounded(enum dtype dtype, float x, uint32_t random)
{
    return dtype == DTYPE_bf16 ? (double)bf16_to_f32(rng_round_bf16(x, random))
                               : (double)f16_to_f32(f16_from_f32(rng_round_f16(x, random)));
}

/* The spacing of the type at x. */
static double unit_at(enum dtype dtype, float x)
{
    int exponent;
    frexp((double)x, &exponent);
    if (dtype == DTYPE_bf16)
        return ldexp(1, exponent - 8);
    return fmax(ldexp(1, exponent - 11), 0x1p-24);
}

static void test_roundings_are_neighbours_and_right_in_the_mean(void **state)
{
    (void)state;
    enum { N = 1 << 17 };
    for (enum dtype dtype = DTYPE_bf16; dtype <= DTYPE_f16; dtype++)
        for (int i = 0; i < COUNT(numbers); i++) {
            double x = (double)numbers[i], unit = unit_at(dtype, numbers[i]), sum = 0;
            uint64_t key = rng_u64(SEED, (uint64_t)i, 1);
            for (uint64_t k = 0; k < N; k++) {
                double y = rounded(dtype, numbers[i], counter_random(key, k));
                if (!(fabs(y - x) < unit))
                    fail_msg("%s: %.9g became %.9g", dtype_name(dtype), x, y);
                sum += y - x;
            }
            /* each is off by at most a unit, with a deviation of at most half of one */
            if (!(fabs(sum / N) <= 5 * 0.5 * unit / sqrt(N)))
                fail_msg("%s: the mean of %.9g is off by %.3g units", dtype_name(dtype), x,
                         sum / N / unit);
        }
}

static void test_what_fits_is_not_rounded(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++)
        for (uint64_t k = 0; k < 4; k++) {
            uint32_t random = k == 0 ? 0xffffffffu : counter_random(k, bits);
            float x = bf16_to_f32((uint16_t)bits), y = f16_to_f32((uint16_t)bits);
            if (isnan(x))
                assert_true(isnan(bf16_to_f32(rng_round_bf16(x, random))));
            else
                assert_int_equal(rng_round_bf16(x, random), bits);
            if (isnan(y))
                assert_true(isnan(rng_round_f16(y, random)));
            else
                assert_true(f16_to_f32(f16_from_f32(rng_round_f16(y, random))) == y);
        }
}

/* Bits of neighbouring elements, and of one element in neighbouring steps, are independent. */
static void test_random_bits_are_even(void **state)
{
    (void)state;
    enum { N = 1 << 18, BINS = 256 };
    for (int by_step = 0; by_step < 2; by_step++)
        for (int shift = 0; shift < 32; shift += 8) {
            int count[BINS] = {0};
            for (uint64_t k = 0; k < N; k++) {
                uint64_t key = rng_u64(SEED, 3, by_step ? k : 5);
                count[counter_random(key, by_step ? 77 : k) >> shift & 255]++;
            }
            double chi2 = 0, expected = (double)N / BINS;
            for (int b = 0; b < BINS; b++)
                chi2 += (count[b] - expected) * (count[b] - expected) / expected;
            if (!(chi2 > 140 && chi2 < 400)) /* 255 expected, deviation 22.6 */
                fail_msg("bits from %d: chi squared %.0f for 255 degrees", shift, chi2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_map_is_its_definition),
        cmocka_unit_test(test_quants_are_nearest_and_rise),
        cmocka_unit_test(test_blocks_come_back),
        cmocka_unit_test(test_roundings_are_neighbours_and_right_in_the_mean),
        cmocka_unit_test(test_what_fits_is_not_rounded),
        cmocka_unit_test(test_random_bits_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
