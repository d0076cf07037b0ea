/*
 * test_file.c -- checksums against known values, atomic writing under every failure, metrics.jsonl.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/file.h"
#include "io/metrics.h"
#include "support/files.h"

static void test_crc(void **state)
{
    static const struct {
        const char *text;
        uint32_t crc;
    } rows[] = {{"", 0},
                {"a", 0xe8b7be43},
                {"123456789", 0xcbf43926},
                {"The quick brown fox jumps over the lazy dog", 0x414fa339}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].text);
        assert_int_equal(file_crc32(0, rows[i].text, n), rows[i].crc);
        for (size_t cut = 0; cut <= n; cut++) { /* in two pieces, and joined from two sums */
            uint32_t head = file_crc32(0, rows[i].text, cut);
            assert_int_equal(file_crc32(head, rows[i].text + cut, n - cut), rows[i].crc);
            uint32_t tail = file_crc32(0, rows[i].text + cut, n - cut);
            assert_int_equal(file_crc32_join(head, tail, (int64_t)(n - cut)), rows[i].crc);
        }
    }
    char *large = calloc(1, 3000001);
    memset(large, 'x', 1500000);
    uint32_t whole = file_crc32(0, large, 3000001);
    assert_int_equal(
        file_crc32_join(file_crc32(0, large, 3), file_crc32(0, large + 3, 2999998), 2999998),
        whole);
    free(large);
}

static void test_atomic_write(void **state)
{
    char dir[FILES_PATH_MAX];
    int n_injected = 0;
    (void)state;
    files_make_dir(dir);
    files_write_text(dir, "f", "old");
    for (int crash = 0; crash < 2; crash++) {
        for (int64_t n = 1;; n++) {
            struct snug_error err = {0};
            struct file_faults faults = {.fail_at = n, .crash = crash, .error = ENOSPC};
            const char *path = files_path(dir, "f");
            enum snug_status status = file_write_atomic(path, "newer", 5, &faults, &err);
            size_t n_bytes;
            char *text = files_read(path, &n_bytes);
            assert_true(strcmp(text, "old") == 0 || strcmp(text, "newer") == 0);
            free(text);
            if (status == SNUG_OK)
                break;
            n_injected++;
            assert_int_equal(status, SNUG_IO_ERROR);
            assert_non_null(strstr(err.message, "No space left"));
            files_write_text(dir, "f", "old");
        }
        files_write_text(dir, "f", "old");
    }
    assert_true(n_injected >= 10);
    files_remove_dir(dir);
}

static void test_read_all(void **state)
{
    char dir[FILES_PATH_MAX], *text;
    struct snug_error err;
    size_t n_bytes;
    (void)state;
    files_make_dir(dir);
    files_write_text(dir, "f", "12345");
    assert_int_equal(file_read_all(files_path(dir, "f"), 5, &text, &n_bytes, &err), SNUG_OK);
    assert_int_equal(n_bytes, 5);
    assert_string_equal(text, "12345");
    free(text);
    assert_int_equal(file_read_all(files_path(dir, "f"), 4, &text, &n_bytes, &err), SNUG_BAD_FILE);
    assert_int_equal(file_read_all(files_path(dir, "no"), 4, &text, &n_bytes, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(file_read_all(dir, 4, &text, &n_bytes, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "not a regular file"));
    files_remove_dir(dir);
}

#define LINE(n) "{\"step\": " #n ", \"loss\": 1.5}\n"

static void test_metrics_resume(void **state)
{
    static const struct {
        const char *name, *before;
        int64_t keep_steps;
        const char *after;
    } rows[] = {
        {"starts over", LINE(1) LINE(2), 0, LINE(7)},
        {"keeps all", LINE(1) LINE(2), 2, LINE(1) LINE(2) LINE(7)},
        {"cuts what is repeated", LINE(1) LINE(2) LINE(3) LINE(4), 2, LINE(1) LINE(2) LINE(7)},
        {"cuts a broken line", LINE(1) "{\"step\": 2, \"lo", 9, LINE(1) LINE(7)},
        {"cuts a line without end", LINE(1) "{\"step\": 2}", 9, LINE(1) LINE(7)},
        {"cuts rubbish", LINE(1) "rubbish\n" LINE(2), 9, LINE(1) LINE(7)},
        {"empty", "", 5, LINE(7)},
    };
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct metrics *metrics;
        struct snug_error err;
        size_t n_bytes;
        files_write_text(dir, "m", rows[i].before);
        assert_int_equal(metrics_open(files_path(dir, "m"), rows[i].keep_steps, &metrics, &err),
                         SNUG_OK);
        struct file_faults faults = {.fail_at = 2};
        assert_int_equal(metrics_append(metrics, "{\"step\": 6}", &faults, &err), SNUG_IO_ERROR);
        assert_int_equal(metrics_append(metrics, "{\"step\": 7, \"loss\": 1.5}", NULL, &err),
                         SNUG_OK);
        metrics_close(metrics);
        char *text = files_read(files_path(dir, "m"), &n_bytes);
        if (strcmp(text, rows[i].after) != 0)
            print_error("case '%s'\n", rows[i].name);
        assert_string_equal(text, rows[i].after);
        free(text);
    }
    files_remove_dir(dir);
}

/* A line that waits for more is not lost with the process, and is in the log once. */
static void test_metrics_held(void **state)
{
    static const char three[] = "{\"step\": 3, \"loss\": 1.5}",
                      more[] = "{\"step\": 3, \"val_loss\": 2}";
    static const struct {
        const char *log, *held; /* as a process left them */
        int64_t keep_steps;
        const char *want;
    } rows[] = {
        {"{\"step\": 2}\n", three, 3, "{\"step\": 2}\n{\"step\": 3, \"loss\": 1.5}\n"},
        {"{\"step\": 2}\n{\"step\": 3}\n", three, 3, "{\"step\": 2}\n{\"step\": 3}\n"},
        {"{\"step\": 2}\n", three, 2, "{\"step\": 2}\n"}, /* its checkpoint was not saved */
        {"{\"step\": 2}\n{\"step\": 3, \"lo", three, 3,
         "{\"step\": 2}\n{\"step\": 3, \"loss\": 1.5}\n"},
        {"", three, 0, ""},
    };
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct metrics *metrics;
    size_t n;
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        files_write_text(dir, "m", rows[i].log);
        files_write_text(dir, "m.held", rows[i].held);
        assert_int_equal(metrics_open(files_path(dir, "m"), rows[i].keep_steps, &metrics, &err),
                         SNUG_OK);
        metrics_close(metrics);
        char *text = files_read(files_path(dir, "m"), &n);
        assert_string_equal(text, rows[i].want);
        free(text);
        assert_int_not_equal(access(files_path(dir, "m.held"), F_OK), 0);
    }
    assert_int_equal(metrics_open(files_path(dir, "m"), 0, &metrics, &err), SNUG_OK);
    assert_int_equal(metrics_hold(metrics, three, NULL, &err), SNUG_OK);
    assert_int_equal(access(files_path(dir, "m.held"), F_OK), 0);
    assert_int_equal(metrics_append(metrics, more, NULL, &err), SNUG_OK);
    assert_int_not_equal(access(files_path(dir, "m.held"), F_OK), 0);
    metrics_close(metrics);
    char *text = files_read(files_path(dir, "m"), &n);
    assert_string_equal(text, "{\"step\": 3, \"val_loss\": 2}\n");
    free(text);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),          cmocka_unit_test(test_atomic_write),
        cmocka_unit_test(test_read_all),     cmocka_unit_test(test_metrics_resume),
        cmocka_unit_test(test_metrics_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
