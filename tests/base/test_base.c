/*
 * test_base.c -- dtypes bit for bit, parsing and printing of numbers, random numbers, arenas,
 * existing and missing files.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/fd.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/text.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- 16-bit floats --------------------------------------------------------------------------- */

struct format {
    const char *name;
    uint16_t (*narrow)(float);
    float (*widen)(uint16_t);
    int mantissa_bits, least_exponent; /* of normal numbers */
    double largest;
};
static const struct format formats[] = {
    {"bf16", bf16_from_f32, bf16_to_f32, 7, -126, 0x1.fep127},
    {"f16", f16_from_f32, f16_to_f32, 10, -14, 65504.0},
};

/* The value of a pattern by the definition of IEEE formats. */
static double value_of(const struct format *f, uint16_t bits)
{
    int mantissa = bits & ((1 << f->mantissa_bits) - 1);
    int exponent = (bits & 0x7fff) >> f->mantissa_bits;
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 0x7fff >> f->mantissa_bits)
        return mantissa == 0 ? sign * INFINITY : NAN;
    double fraction = ldexp(mantissa, -f->mantissa_bits);
    return exponent == 0 ? sign * ldexp(fraction, f->least_exponent)
                         : sign * ldexp(1.0 + fraction, exponent - 1 + f->least_exponent);
}

/* Nearest even by arithmetic: how many units of the last place, rounded, and is that too many? */
static double rounded(const struct format *f, double value)
{
    if (value == 0.0 || isinf(value))
        return value;
    int exponent;
    frexp(value, &exponent);
    exponent = exponent - 1 < f->least_exponent ? f->least_exponent : exponent - 1;
    double unit = ldexp(1.0, exponent - f->mantissa_bits);
    double units = value / unit, whole = floor(units), rest = units - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2.0) != 0.0))
        whole += 1.0;
    double result = whole * unit;
    return fabs(result) > f->largest ? copysign(INFINITY, value) : copysign(result, value);
}

static void test_all_patterns(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(formats); i++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const struct format *f = &formats[i];
            float wide = f->widen((uint16_t)bits);
            double truth = value_of(f, (uint16_t)bits);
            uint16_t back = f->narrow(wide);
            if (isnan(truth)) {
                if (!isnan(wide) || !isnan(value_of(f, back)))
                    fail_msg("%s %04x: a NaN is lost", f->name, bits);
            } else if ((double)wide != truth || (signbit(wide) != 0) != (bits >= 0x8000) ||
                       back != bits) {
                fail_msg("%s %04x: is %g, read as %g, back as %04x", f->name, bits, truth,
                         (double)wide, back);
            }
        }
}

static void check_rounding(float value)
{
    for (size_t i = 0; i < LENGTH(formats); i++) {
        const struct format *f = &formats[i];
        double got = value_of(f, f->narrow(value));
        double want = rounded(f, (double)value);
        if (isnan(value) ? !isnan(got) : got != want || (signbit(got) != 0) != (signbit(want) != 0))
            fail_msg("%s of %a (%08x): %a, not %a", f->name, (double)value, bits_of(value), got,
                     want);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    static const uint32_t edges[] = {
        0x00000000, 0x00000001, 0x007fffff, 0x00800000, /* zero, the smallest */
        0x33000000, 0x33000001, 0x32ffffff,             /* half of the smallest f16 */
        0x33800000, 0x33c00000, 0x387fc000, 0x387fe000, 0x387fe001, 0x38800000, /* f16 subnormals */
        0x477fe000, 0x477fefff, 0x477ff000, 0x477ff001, 0x47800000, /* 65504 .. 65520 .. 65536 */
        0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,             /* the end of bf16 and f32 */
        0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff,             /* infinity and NaN */
        0x3f808000, 0x3f818000, 0x3f801000, 0x3f803000, 0x3f801001, /* ties and next to them */
    };
    for (size_t i = 0; i < LENGTH(edges); i++) {
        check_rounding(float_of(edges[i]));
        check_rounding(float_of(edges[i] | 0x80000000u));
    }
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)rng_u64(1, 0, i);
        check_rounding(float_of(bits));
        /* the same near the exponents of f16, and ties of both formats */
        check_rounding(float_of((bits & 0x807fffffu) | (100u + bits % 45u) << 23));
        check_rounding(float_of((bits & 0xffff0000u) | 0x8000u));
        check_rounding(float_of((bits & 0x807fe000u) | 0x1000u | (110u + bits % 35u) << 23));
    }
}

static void test_dtypes(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype type = (enum dtype)i, found = DTYPE_COUNT;
        unsigned char data[4 * 8] = {0};
        assert_true(dtype_parse(dtype_name(type), &found) && found == type);
        assert_true(dtype_parse_safetensors(dtype_safetensors_name(type), &found) && found == type);
        for (int64_t k = 0; k < 4; k++)
            dtype_store(type, data, k, (double)(k + 1));
        for (int64_t k = 0; k < 4; k++)
            assert_true(dtype_load(type, data, k) == (double)(k + 1));
        size_t used = 4 * dtype_bytes(type);
        for (size_t k = used; k < sizeof data; k++)
            assert_int_equal(data[k], 0); /* nothing beyond the fourth element */
        assert_int_equal(dtype_is_float(type), type != DTYPE_i32 && type != DTYPE_u8);
    }
    enum dtype found;
    assert_false(dtype_parse("F32", &found) || dtype_parse("", &found));
    assert_false(dtype_parse_safetensors("f32", &found));
}

/* ---- numbers as text ------------------------------------------------------------------------- */

static const struct {
    const char *text;
    bool ok;
    int64_t value;
} size_rows[] =
    {
        {"0", true, 0},
        {"1024", true, 1024},
        {"1K", true, 1024},
        {"1k", true, 1024},
        {"512M", true, 536870912},
        {"24G", true, 25769803776},
        {"1.5G", true, 1610612736},
        {"2T", true, 2199023255552},
        {"1.5e9", true, 1500000000},
        {"1KiB", true, 1024},
        {"1kb", true, 1024},
        {"10B", true, 10},
        {"0.5K", true, 512},
        {"8191P", false, 0},
        {"", false, 0},
        {"G", false, 0},
        {"B", false, 0},
        {"-1", false, 0},
        {"-1G", false, 0},
        {"1GG", false, 0},
        {"1 G", false, 0},
        {"nan", false, 0},
        {"inf", false, 0},
        {"1e30", false, 0},
        {"9000000000G", false, 0},
        {"twelve", false, 0},
        {" 1", false, 0},
},
  count_rows[] = {
      {"0", true, 0},
      {"117", true, 117},
      {"-5", true, -5},
      {"1e9", true, 1000000000},
      {"1.5e9", true, 1500000000},
      {"9223372036854775807", true, INT64_MAX},
      {"9223372036854775808", false, 0},
      {"1e19", false, 0},
      {"1.5", false, 0},
      {"1e-1", false, 0},
      {"", false, 0},
      {" 1", false, 0},
      {"1 ", false, 0},
      {"1x", false, 0},
      {"nan", false, 0},
      {"infinity", false, 0},
      {"1,000", false, 0},
};

static void test_sizes_and_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(size_rows); i++) {
        int64_t value = -77;
        bool ok = text_parse_size(size_rows[i].text, &value);
        if (ok != size_rows[i].ok || value != (ok ? size_rows[i].value : -77))
            fail_msg("size \"%s\": %d, %lld", size_rows[i].text, ok, (long long)value);
    }
    for (size_t i = 0; i < LENGTH(count_rows); i++) {
        int64_t value = -77;
        bool ok = text_parse_count(count_rows[i].text, &value);
        if (ok != count_rows[i].ok || value != (ok ? count_rows[i].value : -77))
            fail_msg("count \"%s\": %d, %lld", count_rows[i].text, ok, (long long)value);
    }
    char forty[80];
    int64_t value;
    memset(forty, '1', sizeof forty - 1);
    forty[sizeof forty - 1] = '\0';
    assert_false(text_parse_size(forty, &value));
}

static void test_reals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        double value;
    } rows[] = {
        {"0.1", true, 0.1},  {"-3e-4", true, -3e-4}, {"1e308", true, 1e308}, {"5", true, 5},
        {"1e309", false, 0}, {"nan", false, 0},      {"-inf", false, 0},     {"", false, 0},
        {" 1", false, 0},    {"1 ", false, 0},       {"1e", false, 0},       {"x", false, 0},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        double value = -77;
        bool ok = text_parse_real(rows[i].text, &value);
        if (ok != rows[i].ok || value != (ok ? rows[i].value : -77))
            fail_msg("real \"%s\": %d, %g", rows[i].text, ok, value);
    }
}

static void test_printing(void **state)
{
    (void)state;
    static const struct {
        int64_t n;
        const char *size, *count;
    } rows[] = {
        {0, "0 B", "0"},
        {999, "999 B", "999"},
        {1000, "0.98 KiB", "1,000"},
        {1024, "1.00 KiB", "1,024"},
        {1572864, "1.50 MiB", "1,572,864"},
        {-1572864, "-1.50 MiB", "-1,572,864"},
        {10485760, "10.0 MiB", "10,485,760"},
        {104857600, "100 MiB", "104,857,600"},
        {1557611200, "1.45 GiB", "1,557,611,200"},
        {INT64_MAX, "8.00 EiB", "9,223,372,036,854,775,807"},
    };
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char size[TEXT_SIZE_MAX], count[TEXT_SIZE_MAX + 8];
        assert_string_equal(text_size(rows[i].n, size), rows[i].size);
        assert_string_equal(text_count(rows[i].n, count), rows[i].count);
    }
}

static void test_words_for_a_shell(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"gpt2", "gpt2"},
        {"./a_b/c.d:e=1,f+g-h", "./a_b/c.d:e=1,f+g-h"},
        {"", "''"},
        {"my run", "'my run'"},
        {"$HOME;ls", "'$HOME;ls'"},
        {"it's", "'it'\\''s'"},
        {"100%d", "'100%d'"},
        {"a\033'\\b c", "$'a\\x1b\\x27\\x5cb c'"},
        {"caf\xc3\xa9", "'caf\xc3\xa9'"},
        {"\xc2\x9b", "$'\\xc2\\x9b'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text t = {0};
        text_add_word(&t, rows[i][0]);
        assert_string_equal(t.data, rows[i][1]);
        text_free(&t);
    }
}

/* Characters that a terminal obeys, and what is not UTF-8 at all, in the middle of a name. */
static void test_names_for_a_terminal(void **state)
{
    static const char *const rows[][2] = {
        {"", ""},
        {"h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\033]0;title\007b", "a?]0;title?b"},
        {"two\nlines\r\tand", "two?lines??and"},
        {"del\x7f", "del?"},
        {"\xc2\x80"
         "a\xc2\x9b"
         "31m\xc2\x9f\xc2\xa0",
         "?a?31m?\xc2\xa0"},
        {"\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9\xe2\x80\xa7", "????\xe2\x80\xa7"},
        {"\x9b"
         "31m",
         "?31m"},
        {"\xff\xfe\xc3", "???"},
        {"\xc0\x9b\xe0\x82\x9b", "?????"}, /* overlong forms of U+001B and U+009B */
        {"\xed\xa0\x80", "???"},           /* half of a surrogate pair */
        {"\xf4\x90\x80\x80", "????"},      /* beyond Unicode */
        {"cut \xe2\x82", "cut ??"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char copy[64];
        struct text text = {0};
        struct snug_error err;
        snprintf(copy, sizeof copy, "%s", rows[i][0]);
        assert_string_equal(snug_printable(copy), rows[i][1]);
        text_add(&text, "\033[1m"); /* what stood there before stays */
        text_add_shown(&text, rows[i][0]);
        assert_string_equal(text.data + 4, rows[i][1]);
        assert_int_equal(text.length, 4 + strlen(rows[i][1]));
        text_free(&text);
        snug_fail(&err, SNUG_BAD_FILE, "%s", rows[i][0]);
        assert_string_equal(err.message, rows[i][1]);
    }
}

static void test_text_grows(void **state)
{
    (void)state;
    struct text text = {0};
    for (int i = 0; i < 1000; i++)
        text_add(&text, "%d,", i);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(text.data), text.length);
    text_add_bytes(&text, "a\0b", 3);
    assert_int_equal(text.length, 3893);
    char *taken = text_take(&text);
    assert_non_null(taken);
    assert_memory_equal(taken + 3890, "a\0b", 4);
    assert_null(text.data);
    free(taken);
    taken = text_take(&text); /* of nothing: the empty string */
    assert_string_equal(taken, "");
    free(taken);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static void test_permute(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 10, 127, 1000};
    for (size_t i = 0; i < LENGTH(sizes); i++)
        for (uint64_t seed = 0; seed < 5; seed++) {
            bool seen[1000] = {false};
            uint64_t n_fixed = 0;
            for (uint64_t k = 0; k < sizes[i]; k++) {
                uint64_t to = rng_permute(seed, 9, k, sizes[i]);
                assert_true(to < sizes[i]);
                assert_false(seen[to]);
                seen[to] = true;
                n_fixed += to == k;
            }
            assert_true(sizes[i] < 100 || n_fixed < 10); /* not the identity */
        }
    uint64_t n_same = 0;
    for (uint64_t k = 0; k < 1000; k++)
        n_same += rng_permute(1, 9, k, 1000) == rng_permute(2, 9, k, 1000);
    assert_true(n_same < 20); /* the seed matters */
}

static void test_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum[5] = {0}, uniform_sum = 0, uniform_squares = 0, gemm = 0;
    for (uint64_t i = 0; i < N; i++) {
        double z = rng_normal(7, 3, i), u = rng_uniform(7, 3, i), power = 1;
        for (int k = 1; k <= 4; k++)
            sum[k] += power *= z;
        gemm += z * rng_normal(7, 4, i);
        assert_true(u >= 0.0 && u < 1.0);
        uniform_sum += u;
        uniform_squares += u * u;
    }
    /* five deviations of each estimate: sqrt(1, 2, 15, 96 / N) */
    assert_true(fabs(sum[1] / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(sum[2] / N - 1.0) < 5 * sqrt(2.0 / N));
    assert_true(fabs(sum[3] / N) < 5 * sqrt(15.0 / N));
    assert_true(fabs(sum[4] / N - 3.0) < 5 * sqrt(96.0 / N));
    assert_true(fabs(gemm / N) < 5 * sqrt(1.0 / N)); /* streams are independent */
    assert_true(fabs(uniform_sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(uniform_squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
}

/* Known answers of Philox 4x32-10 (Random123's kat_vectors): counter and key all zeros, all
 * ones. */
static void test_philox(void **state)
{
    (void)state;
    assert_true(rng_u64(0, 0, 0) == UINT64_C(0x6627e8d5e169c58d));
    assert_true(rng_u64(UINT64_MAX, UINT64_MAX, UINT64_MAX) == UINT64_C(0x408f276d41c83b0e));
}

/* ---- arenas ---------------------------------------------------------------------------------- */

static void test_arena(void **state)
{
    (void)state;
    struct arena arena = {0};
    enum { N = 300 };
    unsigned char *made[N];
    size_t bytes[N];
    for (int i = 0; i < N; i++) {
        bytes[i] = (size_t)(rng_u64(1, 1, (uint64_t)i) % (i % 50 == 0 ? 100000 : 200));
        made[i] = arena_alloc(&arena, bytes[i]);
        assert_non_null(made[i]);
        assert_int_equal((uintptr_t)made[i] % 16, 0);
        memset(made[i], i & 0xff, bytes[i]);
    }
    for (int i = 0; i < N; i++) /* nobody wrote on anybody */
        for (size_t k = 0; k < bytes[i]; k++)
            assert_int_equal(made[i][k], i & 0xff);
    const int *zeros = arena_zeros(&arena, 1000, sizeof *zeros);
    assert_non_null(zeros);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(zeros[i], 0);
    assert_string_equal(arena_format(&arena, "%d-%s", 12, "x"), "12-x");
    assert_string_equal(arena_copy_string(&arena, ""), "");

    assert_null(arena_alloc(&arena, SIZE_MAX)); /* failure leaves it usable */
    assert_null(arena_zeros(&arena, SIZE_MAX / 2, 4));
    assert_null(arena_zeros(&arena, 4, SIZE_MAX / 2));
    assert_non_null(arena_alloc(&arena, 16));
    arena_free(&arena);
    assert_null(arena.chunks);
    arena_free(&arena);
    assert_non_null(arena_alloc(&arena, 1)); /* empty again, not dead */
    arena_free(&arena);
}

static void test_array_grow(void **state)
{
    (void)state;
    void *array = NULL;
    int capacity = 0;
    for (int need = 1; need < 1000; need++) {
        assert_true(array_grow(&array, &capacity, need, sizeof(int)));
        assert_true(capacity >= need);
        ((int *)array)[need - 1] = need;
    }
    for (int i = 0; i < 999; i++)
        assert_int_equal(((int *)array)[i], i + 1);
    free(array);
}

/* "No" is an answer, "it cannot be seen" is another. */
static void test_path_find(void **state)
{
    char dir[FILES_PATH_MAX], word[300];
    struct snug_error err = {0};
    bool found = true;
    (void)state;
    files_make_dir(dir);
    files_write_text(dir, "file", "text");
    assert_int_equal(symlink("loop", files_path(dir, "loop")), 0);
    assert_int_equal(path_find(dir, "file", &found, &err), SNUG_OK);
    assert_true(found);
    assert_int_equal(path_find(dir, "none", &found, &err), SNUG_OK);
    assert_false(found);
    assert_int_equal(path_find(files_path(dir, "file"), "none", &found, &err), SNUG_OK);
    assert_false(found);
    assert_int_equal(path_find(dir, "loop", &found, &err), SNUG_IO_ERROR); /* ELOOP, as EIO is */
    assert_false(found);
    assert_non_null(strstr(err.message, "/loop: cannot check whether it exists: "));
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_int_equal(path_find(dir, word, &found, &err), SNUG_IO_ERROR);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_patterns),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_sizes_and_counts),
        cmocka_unit_test(test_reals),
        cmocka_unit_test(test_printing),
        cmocka_unit_test(test_text_grows),
        cmocka_unit_test(test_words_for_a_shell),
        cmocka_unit_test(test_names_for_a_terminal),
        cmocka_unit_test(test_permute),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_array_grow),
        cmocka_unit_test(test_path_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
