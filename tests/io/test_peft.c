/*
 * test_peft.c -- reading and writing adapter_config.json, and refused values, which are named.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "io/peft.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define LORA          "\"peft_type\": \"LORA\", \"r\": 16, \"lora_alpha\": 8"

static const struct {
    const char *name, *text;
    enum snug_status status;
    double scale;
    const char *words;
} rows[] = {
    {"least", "{" LORA "}", SNUG_OK, 0.5, ""},
    {"as PEFT writes it",
     "{\"alpha_pattern\": {}, \"rank_pattern\": {}, \"bias\": \"none\", \"modules_to_save\": null, "
     "\"use_dora\": false, \"use_rslora\": false, \"fan_in_fan_out\": true, "
     "\"lora_dropout\": 0.1, \"target_modules\": [\"c_attn\"], \"lora_bias\": false, " LORA "}",
     SNUG_OK, 0.5, ""},
    {"scaled by the root of the rank", "{" LORA ", \"use_rslora\": true}", SNUG_OK, 2, ""},
    {"an alpha that is not whole", "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 0.25}",
     SNUG_OK, 0.25, ""},
    {"another kind", "{\"peft_type\": \"IA3\"}", SNUG_UNSUPPORTED, 0, "\"IA3\" is not supported"},
    {"no kind", "{}", SNUG_BAD_FILE, 0, "\"peft_type\" is missing"},
    {"no rank", "{\"peft_type\": \"LORA\", \"lora_alpha\": 8}", SNUG_BAD_FILE, 0,
     "\"r\" is missing"},
    {"rank 0", "{\"peft_type\": \"LORA\", \"lora_alpha\": 8, \"r\": 0}", SNUG_BAD_FILE, 0,
     "\"r\" is 0"},
    {"alpha 0", "{\"peft_type\": \"LORA\", \"lora_alpha\": 0, \"r\": 1}", SNUG_BAD_FILE, 0,
     "must be above 0"},
    {"biases", "{" LORA ", \"bias\": \"all\"}", SNUG_UNSUPPORTED, 0, "\"bias\": \"all\""},
    {"DoRA", "{" LORA ", \"use_dora\": true}", SNUG_UNSUPPORTED, 0, "\"use_dora\" is not"},
    {"whole layers", "{" LORA ", \"modules_to_save\": [\"lm_head\"]}", SNUG_UNSUPPORTED, 0,
     "\"modules_to_save\" is not"},
    {"several ranks", "{" LORA ", \"rank_pattern\": {\"c_fc\": 4}}", SNUG_UNSUPPORTED, 0,
     "\"rank_pattern\" is not"},
    {"layers that are not names", "{" LORA ", \"target_modules\": [7]}", SNUG_BAD_FILE, 0,
     "\"target_modules\" must hold names"},
    {"not JSON", "{", SNUG_BAD_FILE, 0, "not valid JSON"},
};

static void test_reading(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct snug_error err = {0};
        struct peft_config config;
        files_write_text(dir, PEFT_CONFIG_NAME, rows[i].text);
        enum snug_status status = peft_config_read(dir, &config, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL)
            fail_msg("%s: %s", rows[i].name, err.message);
        if (status == SNUG_OK && fabs(config.scale - rows[i].scale) > 1e-12)
            fail_msg("%s: scale %g", rows[i].name, config.scale);
    }
    files_remove_dir(dir);
}

/* What is written is what PEFT reads, and what we read. */
static void test_writing(void **state)
{
    (void)state;
    static const char *const targets[] = {"attn.c_attn", "mlp.c_fc"};
    char dir[FILES_PATH_MAX];
    struct snug_error err;
    struct peft_config config = {.rank = 8,
                                 .alpha = 16,
                                 .is_language = true,
                                 .in_out = true,
                                 .base = "/models/gpt2",
                                 .targets = targets,
                                 .n_targets = 2},
                       back;
    char *text = peft_config_text(&config);
    assert_non_null(text);
    json_t *root = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "peft_type")), "LORA");
    assert_string_equal(json_string_value(json_object_get(root, "task_type")), "CAUSAL_LM");
    assert_string_equal(json_string_value(json_object_get(root, "base_model_name_or_path")),
                        "/models/gpt2");
    assert_true(json_is_true(json_object_get(root, "fan_in_fan_out")));
    assert_int_equal(json_integer_value(json_object_get(root, "r")), 8);
    assert_int_equal(json_integer_value(json_object_get(root, "lora_alpha")), 16);
    const json_t *list = json_object_get(root, "target_modules");
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(json_string_value(json_array_get(list, 1)), "mlp.c_fc");
    files_make_dir(dir);
    files_write_text(dir, PEFT_CONFIG_NAME, text);
    assert_int_equal(peft_config_read(dir, &back, &err), SNUG_OK);
    assert_true(back.rank == 8 && back.scale == 2);
    json_decref(root);
    free(text);
    config = (struct peft_config){.rank = 2, .alpha = 0.5};
    text = peft_config_text(&config);
    root = json_loads(text, 0, NULL);
    assert_true(json_is_null(json_object_get(root, "base_model_name_or_path")));
    assert_true(json_is_null(json_object_get(root, "task_type")));
    assert_true(json_is_false(json_object_get(root, "fan_in_fan_out")));
    json_decref(root);
    free(text);
    files_remove_dir(dir);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
         "h.0.attn.c_attn.lora_A.weight"},
        {"base_model.model.layers.0.lora_B.weight", "layers.0.lora_B.weight"},
        {"transformer.h.0.x", "transformer.h.0.x"},
        {"h.0.x", "h.0.x"},
    };
    for (size_t i = 0; i < LENGTH(names); i++)
        assert_string_equal(peft_bare_name(names[i][0]), names[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("peft", tests, NULL, NULL);
}
