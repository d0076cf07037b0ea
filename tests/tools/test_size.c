/*
 * test_size.c -- tests see the size and the part that the runner requests, and every item is in
 * exactly one part.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/size.h"

static void test_sizes(void **state)
{
    (void)state;
    setenv("SNUG_TEST_SIZE", "small", 1);
    assert_true(size_is_small());
    assert_int_equal(sized(3, 20), 3);
    setenv("SNUG_TEST_SIZE", "full", 1);
    assert_int_equal(sized(3, 20), 20);
    unsetenv("SNUG_TEST_SIZE");
    assert_int_equal(sized(3, 20), 20);
}

static void test_parts(void **state)
{
    (void)state;
    unsetenv("SNUG_TEST_PART");
    for (int i = 0; i < 5; i++)
        assert_true(part_has(i));
    for (int n_parts = 1; n_parts <= 4; n_parts++)
        for (int i = 0; i < 10; i++) {
            int n_has = 0;
            for (int part = 1; part <= n_parts; part++) {
                char text[16];
                snprintf(text, sizeof text, "%d/%d", part, n_parts);
                setenv("SNUG_TEST_PART", text, 1);
                n_has += part_has(i);
            }
            assert_int_equal(n_has, 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
