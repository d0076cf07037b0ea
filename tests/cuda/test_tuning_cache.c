/*
 * test_tuning_cache.c -- the tuning cache file: later processes find its entries, several processes share
 * it, and it never causes a failure.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/tuning_cache_file.h"
#include "support/files.h"

static const char *const TITLE = "cuBLASLt 130001 on NVIDIA H200, driver 13000";

static char *path_of(const char *title)
{
    char *path;
    assert_true(tuning_cache_file_path(title, &path));
    return path;
}

static struct tuning tuning_of(int number)
{
    struct tuning tuning = {.key = {number, -1, 1LL << 40}, .algorithm = {~0ULL, 7}, .ms = 0.1f};
    tuning.algorithm[TUNING_WORDS - 1] = (uint64_t)number;
    return tuning;
}

/* What a process does that chooses one more. */
static void keep(const char *title, int number)
{
    struct tuning_list list = {0};
    struct tuning tuning = tuning_of(number);
    char *path = path_of(title);
    assert_true(tuning_list_add(&list, &tuning));
    if (path != NULL)
        tuning_cache_file_add(path, title, &list);
    tuning_list_free(&list);
    free(path);
}

/* How many of the first n a new process finds; what it finds must be as it was kept. */
static int n_found(const char *title, int n)
{
    struct tuning_list list = {0};
    char *path = path_of(title);
    int found = 0;
    if (path != NULL)
        (void)tuning_cache_file_read(path, title, &list);
    for (int i = 0; i < n; i++) {
        struct tuning right = tuning_of(i);
        const struct tuning *tuning = tuning_list_find(&list, right.key);
        if (tuning != NULL) {
            assert_memory_equal(tuning->algorithm, right.algorithm, sizeof right.algorithm);
            assert_true(tuning->ms == right.ms);
        }
        found += tuning != NULL;
    }
    assert_int_equal(list.n, found); /* and nothing else */
    tuning_list_free(&list);
    free(path);
    return found;
}

static int setup(void **state)
{
    static char folder[FILES_PATH_MAX];
    files_make_dir(folder);
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("SNUG_TUNING_CACHE");
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    files_remove_dir(*state);
    return 0;
}

static void test_the_next_process_finds_what_one_kept(void **state)
{
    (void)state;
    assert_int_equal(n_found(TITLE, 3), 0);
    for (int i = 0; i < 3; i++)
        keep(TITLE, i);
    assert_int_equal(n_found(TITLE, 3), 3);
}

static void test_another_gpu_or_library_has_its_own(void **state)
{
    (void)state;
    const char *const other = "cuBLASLt 130002 on NVIDIA H200, driver 13000";
    keep(TITLE, 0);
    assert_int_equal(n_found(other, 3), 0);
    keep(other, 1);
    assert_int_equal(n_found(other, 3), 1);
    assert_int_equal(n_found(TITLE, 3), 1);
}

static void test_off_keeps_nothing(void **state)
{
    keep(TITLE, 0);
    setenv("SNUG_TUNING_CACHE", "off", 1);
    assert_int_equal(n_found(TITLE, 1), 0);
    keep(TITLE, 1);
    unsetenv("SNUG_TUNING_CACHE");
    assert_int_equal(n_found(TITLE, 2), 1);
    (void)state;
}

static void test_a_file_of_the_user_with_another_title_is_left_alone(void **state)
{
    setenv("SNUG_TUNING_CACHE", files_path(*state, "mine"), 1);
    keep(TITLE, 0);
    assert_int_equal(n_found(TITLE, 1), 1);
    keep("another", 1);
    assert_int_equal(n_found("another", 2), 0);
    assert_int_equal(n_found(TITLE, 2), 1);
}

static void test_a_damaged_file_costs_what_is_damaged(void **state)
{
    char *path = path_of(TITLE);
    for (int i = 0; i < 4; i++)
        keep(TITLE, i);
    FILE *file = fopen(path, "a"); /* cut short, too long, words */
    assert_non_null(file);
    fputs("4 4 4\nno numbers\n", file);
    for (int i = 0; i < TUNING_KEY + TUNING_WORDS + 2; i++)
        fputs("5 ", file);
    fputs("\n4 -1", file);
    fclose(file);
    assert_int_equal(n_found(TITLE, 5), 4);
    keep(TITLE, 4);
    assert_int_equal(n_found(TITLE, 6), 5);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(n_found(TITLE, 5), 0);
    keep(TITLE, 4);
    assert_int_equal(n_found(TITLE, 5), 1);
    free(path);
    (void)state;
}

static void test_what_was_not_timed_is_not_kept(void **state)
{
    struct tuning tunings[] = {tuning_of(0), tuning_of(1)};
    struct tuning_list list = {.tunings = tunings, .n = 2};
    char *path = path_of(TITLE);
    tunings[1].ms = 0.0f;
    tuning_cache_file_add(path, TITLE, &list);
    assert_int_equal(n_found(TITLE, 2), 1);
    free(path);
    (void)state;
}

/* Of two that chose at the same time the first counts, for both; but what no longer serves is replaced. */
static void test_the_first_choice_counts_unless_it_is_replaced(void **state)
{
    struct tuning own = tuning_of(0);
    struct tuning_list list = {.tunings = &own, .n = 1};
    char *path = path_of(TITLE);
    keep(TITLE, 0);
    own.algorithm[1] = 8;
    tuning_cache_file_add(path, TITLE, &list);
    assert_int_equal(own.algorithm[1], 7);
    own.algorithm[1] = 9;
    own.replaces = true;
    tuning_cache_file_add(path, TITLE, &list);
    struct tuning_list there = {0};
    assert_true(tuning_cache_file_read(path, TITLE, &there));
    assert_int_equal(there.n, 1);
    assert_int_equal(there.tunings[0].algorithm[1], 9);
    assert_false(there.tunings[0].replaces);
    tuning_list_free(&there);
    free(path);
    (void)state;
}

static void test_an_empty_file_is_nobodys(void **state)
{
    char *path = path_of(TITLE);
    keep(TITLE, 0); /* makes the folder */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    setenv("SNUG_TUNING_CACHE", path, 1);
    keep(TITLE, 3);
    assert_int_equal(n_found(TITLE, 4), 1);
    unsetenv("SNUG_TUNING_CACHE");
    free(path);
    (void)state;
}

static void test_a_folder_that_cannot_be_written_is_no_mistake(void **state)
{
    (void)state;
    setenv("XDG_CACHE_HOME", "/dev/null/below", 1);
    keep(TITLE, 0);
    assert_int_equal(n_found(TITLE, 1), 0);
    unsetenv("XDG_CACHE_HOME");
    char *home = strdup(getenv("HOME") == NULL ? "" : getenv("HOME"));
    unsetenv("HOME");
    assert_null(path_of(TITLE));
    setenv("HOME", home, 1);
    free(home);
}

static void test_several_processes_at_once_leave_a_whole_file(void **state)
{
    enum { N_PROCESSES = 4, N_EACH = 150 };
    for (int p = 0; p < N_PROCESSES; p++)
        if (fork() == 0) {
            struct tuning_list list = {0};
            char *path = path_of(TITLE);
            for (int i = 0; i < N_EACH; i++) {
                struct tuning tuning = tuning_of(p * N_EACH + i);
                if (!tuning_list_add(&list, &tuning))
                    _exit(1);
                tuning_cache_file_add(path, TITLE, &list);
                struct tuning_list there = {0};
                if (!tuning_cache_file_read(path, TITLE, &there) || there.n == 0)
                    _exit(2); /* half a file */
                tuning_list_free(&there);
            }
            _exit(0);
        }
    for (int p = 0; p < N_PROCESSES; p++) {
        int status = 0;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    /* The last to write had all of its own. */
    assert_true(n_found(TITLE, N_PROCESSES * N_EACH) >= N_EACH);
    char *path = path_of(TITLE); /* and nothing beside it */
    assert_int_equal(remove(path), 0);
    assert_int_equal(rmdir(files_path(*state, "snug")), 0);
    free(path);
}

static long n_calls, fail_at; /* of realloc and fopen; 0: none fails */

static bool must_fail(void)
{
    n_calls++;
    errno = ENOMEM;
    return n_calls == fail_at;
}

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    return must_fail() ? NULL : __real_realloc(old, bytes);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    return must_fail() ? NULL : __real_fopen(path, mode);
}

static void test_no_memory_takes_nothing_from_the_file(void **state)
{
    char *path = path_of(TITLE);
    struct tuning tuning = tuning_of(100);
    long last = 0;
    for (int i = 0; i < 100; i++)
        keep(TITLE, i);
    for (long n = 1; last == 0; n++) {
        struct tuning_list list = {0};
        assert_true(tuning_list_add(&list, &tuning));
        n_calls = 0;
        fail_at = n;
        tuning_cache_file_add(path, TITLE, &list);
        last = n_calls < n ? n : 0;
        fail_at = 0;
        tuning_list_free(&list);
        int found = n_found(TITLE, 101);
        assert_in_range(found, 100, 101);
    }
    assert_true(last > 4); /* injections */
    assert_int_equal(n_found(TITLE, 101), 101);
    free(path);
    (void)state;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static void test_a_pipe_is_not_waited_for(void **state)
{
    char dir[FILES_PATH_MAX];
    struct tuning_list list = {0};
    (void)state;
    files_make_dir(dir);
    assert_int_equal(mkfifo(files_path(dir, "pipe"), 0600), 0);
    alarm(20); /* ends a reader that waits */
    assert_false(tuning_cache_file_read(files_path(dir, "pipe"), TITLE, &list));
    alarm(0);
    tuning_list_free(&list);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_the_next_process_finds_what_one_kept),
        CASE(test_another_gpu_or_library_has_its_own),
        CASE(test_off_keeps_nothing),
        cmocka_unit_test(test_a_pipe_is_not_waited_for),
        CASE(test_a_file_of_the_user_with_another_title_is_left_alone),
        CASE(test_a_damaged_file_costs_what_is_damaged),
        CASE(test_what_was_not_timed_is_not_kept),
        CASE(test_the_first_choice_counts_unless_it_is_replaced),
        CASE(test_an_empty_file_is_nobodys),
        CASE(test_a_folder_that_cannot_be_written_is_no_mistake),
        CASE(test_no_memory_takes_nothing_from_the_file),
        CASE(test_several_processes_at_once_leave_a_whole_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
