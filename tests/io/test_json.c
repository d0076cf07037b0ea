/*
 * test_json.c -- the parser against jansson's own, and with every allocation failing once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "io/json.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const char *const texts[] = {
    "{}",
    "[]",
    " \t\r\n{ } \n",
    "",
    " ",
    "1",
    "\"a\"",
    "null",
    "[",
    "{",
    "]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{a:1}",
    "{\"a\":1 \"b\":2}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"b\":{\"a\":2}}",
    "{} {}",
    "[1]x",
    "[true,false,null]",
    "[True]",
    "[truex]",
    "[nul]",
    "[0,-0,1,-1,9223372036854775807,-9223372036854775808]",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[01]",
    "[-]",
    "[+1]",
    "[.5]",
    "[1.]",
    "[1.5,1e3,1E-3,1.25e+2,0.0,-0.0,1e-400]",
    "[1e400]",
    "[1e]",
    "[1e+]",
    "[1.5.5]",
    "[0x10]",
    "[NaN]",
    "[\"\",\"a\",\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
    "[\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"]",
    "[\"\\u0000\"]",
    "[\"\\ud83d\"]",
    "[\"\\ud83dx\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\ude00\"]",
    "[\"\\u12g4\"]",
    "[\"\\u12\"]",
    "[\"\\x\"]",
    "[\"\\",
    "[\"a",
    "[\"a\nb\"]",
    "[\"a\tb\"]",
    "[\"\x7f\"]",
    "[\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"]",
    "[\"\xc3\"]",
    "[\"\xc0\x80\"]",
    "[\"\xe0\x80\x80\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "[\"\xf8\x88\x80\x80\x80\"]",
    "[\"\x80\"]",
    "{\"\xc3\xa9\":1}",
    "\xef\xbb\xbf{}",
    "{\"step\": 12, \"loss\": 0.693147182, \"lr\": 0.0003, \"a longer key than fits at first\": "
    "[[[]]]}",
    "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"sizes\": [4, 3, 2], \"deep\": {\"er\": {\"x\": "
    "null}}}",
};

/* Both take it and make the same of it, or neither does. */
static void compare(const char *text, size_t n_bytes)
{
    struct snug_error err = {0};
    json_error_t reason;
    json_t *wanted = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &reason), *found;
    enum snug_status status = json_parse(text, n_bytes, "text", &found, &err);
    if ((status == SNUG_OK) != (wanted != NULL) || !(wanted == NULL || json_equal(wanted, found)))
        fail_msg("%.*s: jansson: %s, snug: %s", (int)n_bytes, text,
                 wanted == NULL ? reason.text : "taken", status == SNUG_OK ? "taken" : err.message);
    if (status != SNUG_OK) {
        assert_int_equal(status, SNUG_BAD_FILE);
        assert_null(found);
        assert_non_null(strstr(err.message, "text: not valid JSON: line "));
    }
    json_decref(wanted);
    json_decref(found);
}

static void test_as_jansson(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(texts); i++)
        compare(texts[i], strlen(texts[i]));
    compare("[\0]", 3);
    compare("[\"\0\"]", 5);
    compare("{}\0", 3);
}

/* Letters changed, taken out or doubled, by a seed: what comes of it is mostly not JSON. */
static void test_as_jansson_changed(void **state)
{
    (void)state;
    static const char letters[] = "{}[]\",:\\u0019-+.eE truefalsn\n\x80\xc3\xa9";
    for (uint64_t i = 0; i < 40000; i++) {
        const char *from = texts[rng_u64(7, 1, i) % LENGTH(texts)];
        size_t n = strlen(from), at = n == 0 ? 0 : rng_u64(7, 2, i) % n;
        char letter = letters[rng_u64(7, 3, i) % (sizeof letters - 1)];
        char *text = malloc(n + 2); /* of its own: asan sees what is read behind it */
        uint64_t kind = n == 0 ? 2 : rng_u64(7, 4, i) % 4;
        memcpy(text, from, at);
        size_t length = at;
        if (kind > 0)
            text[length++] = letter;
        if (kind < 3) {
            size_t skip = kind == 2 || n == 0 ? 0 : 1;
            memcpy(text + length, from + at + skip, n - at - skip);
            length += n - at - skip;
        }
        char *exact = malloc(length + 1);
        memcpy(exact, text, length);
        exact = realloc(exact, length > 0 ? length : 1);
        compare(exact, length);
        free(exact);
        free(text);
    }
}

static void test_depth(void **state)
{
    (void)state;
    for (int depth = 2040; depth < 2060; depth++) {
        char text[5000];
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        compare(text, 2 * (size_t)depth);
    }
}

/* ---- with no memory ---------------------------------------------------------------------------- */

static long n_calls, fail_at;

static void *failing(size_t bytes)
{
    return ++n_calls == fail_at ? NULL : malloc(bytes);
}

/* Jansson's parser gives values that lack a letter here. */
static void test_no_memory(void **state)
{
    (void)state;
    struct snug_error err = {0};
    long n_injected = 0;
    for (size_t i = 0; i < LENGTH(texts); i++) {
        json_t *wanted, *found;
        size_t n_bytes = strlen(texts[i]);
        if (json_parse(texts[i], n_bytes, "", &wanted, NULL) != SNUG_OK)
            continue;
        char *text = json_to_text(wanted, JSON_COMPACT);
        assert_non_null(text);
        bool done = false;
        json_set_alloc_funcs(failing, free);
        for (fail_at = 1; !done; fail_at++) {
            n_calls = 0;
            enum snug_status status = json_parse(texts[i], n_bytes, "text", &found, &err);
            done = n_calls < fail_at;
            n_injected += !done;
            assert_int_equal(status, done ? SNUG_OK : SNUG_NO_MEMORY);
            assert_true(status != SNUG_OK || json_equal(wanted, found));
            json_decref(found);
        }
        done = false;
        for (fail_at = 1; !done; fail_at++) {
            n_calls = 0;
            char *again = json_to_text(wanted, JSON_COMPACT);
            done = n_calls < fail_at;
            n_injected += !done;
            assert_true(again == NULL || strcmp(again, text) == 0);
            assert_true(again != NULL || !done);
            free(again);
        }
        json_set_alloc_funcs(malloc, free);
        free(text);
        json_decref(wanted);
    }
    print_message("%ld injections\n", n_injected);
    assert_true(n_injected > 0);
}

static void test_making(void **state)
{
    (void)state;
    bool done = false;
    long n_injected = 0;
    json_set_alloc_funcs(failing, free);
    for (fail_at = 1; !done; fail_at++) {
        n_calls = 0;
        json_t *object = json_object(), *list = json_array();
        for (int i = 0; i < 20; i++) {
            char key[16];
            snprintf(key, sizeof key, "key %d", i);
            json_push(&list, json_integer(i));
            json_put(&object, key, json_real(i));
        }
        json_put(&object, "list", list);
        done = n_calls < fail_at;
        n_injected += !done;
        assert_true((object != NULL) == done);
        assert_true(!done || (json_object_size(object) == 21 &&
                              json_array_size(json_object_get(object, "list")) == 20));
        json_decref(object);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n_injected > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_jansson), cmocka_unit_test(test_as_jansson_changed),
        cmocka_unit_test(test_depth),      cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_making),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
