/*
 * test_wide_ids.c -- token ids above 65,535 from the file to the gradient: a step changes exactly
 * the rows of the embedding whose tokens it has read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"

enum { WIDTH = 16, VOCABULARY = 70001, N_IDS = 400, LEAST_ID = 65530 };

/* Ids around 2^16 and up to the last one; every id of the data is at least LEAST_ID. */
static void write_ids(const char *dir)
{
    uint32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i % 3 == 0 ? (uint32_t)(LEAST_ID + i % 12) : (uint32_t)(VOCABULARY - 1 - i * 7);
    files_write(dir, "tokens.bin", ids, sizeof ids);
}

static void *copy_of(const snug_trainer *t, tensor_id id)
{
    size_t n = (size_t)tensor_bytes(&t->compiled.prog, id);
    void *copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, exec_data(t->exec, id), n);
    return copy;
}

/* Row by row: is it in the data and moved, or not and the same? */
static void check_rows(const char *keys, const char *before, const char *after, size_t row_bytes)
{
    int n_moved = 0;
    for (int id = 0; id < VOCABULARY; id++) {
        bool moved =
            memcmp(before + (size_t)id * row_bytes, after + (size_t)id * row_bytes, row_bytes) != 0;
        if (moved && id < LEAST_ID)
            fail_msg("%s: the row of token %d, which is not in the data, moved", keys, id);
        n_moved += moved;
    }
    if (n_moved < 50)
        fail_msg("%s: only %d rows moved", keys, n_moved);
}

static void check(const char *dir, const char *more)
{
    char keys[200];
    struct snug_error err;
    snug_trainer *t = NULL;
    snprintf(keys, sizeof keys, "batch=4 seq=16 lr=0.1 weight-decay=0 clip=0 %s", more);
    snug_model *model = model_of(dir);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {
        .data = files_path(dir, "tokens.bin"), .steps = 2, .eval_every = -1};
    must(snug_trainer_open(model, recipe, &options, &t, &err), &err);
    tensor_id table = program_find(&t->compiled.prog, "model.embed_tokens.weight");
    assert_int_not_equal(table, TENSOR_NONE);
    void *before = copy_of(t, table);
    must(snug_trainer_run(t, NULL, NULL, &err), &err);
    check_rows(keys, before, exec_data(t->exec, table),
               WIDTH * dtype_bytes(t->compiled.prog.tensors[table].dtype));
    free(before);
    snug_trainer_free(t);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_wide_ids(void **state)
{
    (void)state;
    static const char *const rows[] = {"threads=1 kernels=reference optimizer=sgd", "threads=2",
                                       "threads=2 precision=bf16", "threads=1 precision=fp16",
                                       "threads=1 micro-batch=2 checkpoint=every:1"};
    char dir[FILES_PATH_MAX];
    files_make_dir(dir);
    files_write_text(dir, "config.json",
                     "{\"model_type\":\"qwen2\",\"hidden_size\":16,\"intermediate_size\":24,"
                     "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                     "\"vocab_size\":70001,\"max_position_embeddings\":32,\"rms_norm_eps\":1e-6,"
                     "\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
                     "\"tie_word_embeddings\":false}");
    write_ids(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(dir, rows[i]);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide_ids)};
    return cmocka_run_group_tests_name("wide_ids", tests, NULL, NULL);
}
