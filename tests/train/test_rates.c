/*
 * test_rates.c -- measured rates are saved from run to run, separately for each machine, and a
 * damaged file counts as missing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"
#include "compile/device_rates.h"
#include "compile/compile.h"

static char folder[FILES_PATH_MAX];

static struct machine_rates *example(double flops)
{
    struct machine_rates *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->curves[0] = (struct rate_curve){OP_linear, DTYPE_bf16, 0, 2, {{16, 1e9}, {64, flops}}};
    r->curves[1] = (struct rate_curve){OP_update, DTYPE_f32, 108, 1, {{1e6, 3e9}}};
    r->rates =
        (struct device_rates){.flops = flops, .bytes = 2e10, .curves = r->curves, .n_curves = 2};
    return r;
}

static bool are_kept(int threads, struct machine_rates *found)
{
    struct snug_error err = {0};
    bool is_there;
    must(rates_load(threads, backend_cpu_isa(), found, &is_there, &err), &err);
    return is_there;
}

static void kept_for_each_machine(void **state)
{
    (void)state;
    struct snug_error err = {0};
    const struct cpu_isa *isa = backend_cpu_isa();
    struct machine_rates *one = example(5e9), *two = example(9e9),
                         *found = calloc(1, sizeof *found);
    char *path;
    must(rates_save(1, isa, one, &path, &err), &err);
    free(path);
    must(rates_save(2, isa, two, &path, &err), &err);
    assert_true(are_kept(1, found));
    assert_true(found->rates.flops == 5e9 && found->rates.bytes == 2e10);
    assert_int_equal(found->rates.n_curves, 2);
    assert_memory_equal(&found->curves[0], &one->curves[0], sizeof one->curves[0]);
    assert_int_equal(found->rates.curves[1].variant, 108);
    assert_true(are_kept(2, found) && found->rates.flops == 9e9);
    assert_false(are_kept(3, found));

    static const char *const damaged[] = {"", "{", "[1]", "{\"machines\": 3}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        files_write_text(folder, "snug/rates.json", damaged[i]);
        assert_false(are_kept(1, found));
    }
    free(path);
    must(rates_save(1, isa, one, &path, &err), &err); /* and is rewritten */
    assert_true(are_kept(1, found));
    unlink(path);
    free(path);
    free(one);
    free(two);
    free(found);
}

/* The rates of a file decide the time of a plan; a target does without them. */
static void plans_use_them(void **state)
{
    (void)state;
    struct snug_error err = {0};
    const struct cpu_isa *isa = backend_cpu_isa();
    struct machine_rates *slow = example(1e6), found;
    char *path;
    snug_recipe *here = recipe_of("threads=1"), *card = recipe_of("threads=1 target=a100");
    slow->curves[0].dtype = DTYPE_f32;
    must(rates_of_recipe(here, 1, isa, &found, &err), &err);
    assert_non_null(strstr(found.origin, "generic CPU"));
    must(rates_save(1, isa, slow, &path, &err), &err);
    must(rates_of_recipe(here, 1, isa, &found, &err), &err);
    assert_non_null(strstr(found.origin, "measured here"));
    assert_true(found.rates.flops == 1e6);
    must(rates_of_recipe(card, 1, NULL, &found, &err), &err);
    assert_non_null(strstr(found.origin, "A100"));
    assert_true(found.rates.bf16_flops > found.rates.flops && found.rates.n_curves == 0);
    unlink(path);
    free(path);
    free(slow);
    snug_recipe_free(here);
    snug_recipe_free(card);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_for_each_machine),
        cmocka_unit_test(plans_use_them),
    };
    files_make_dir(folder);
    setenv("XDG_CACHE_HOME", folder, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    files_remove_dir(folder);
    return failed;
}
