/*
 * recipe_hint.c -- suggests a valid value for a mistyped one.
 */
#include "recipe/recipe_hint.h"

#include "base/nearest.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Values of other training programs. */
static const struct {
    const char *key, *typed, *ours;
} foreign[] = {
    {"precision", "float16", "fp16"},
    {"precision", "f16", "fp16"},
    {"precision", "half", "fp16"},
    {"precision", "16", "bf16"},
    {"precision", "16-mixed", "fp16"},
    {"precision", "bfloat16", "bf16"},
    {"precision", "bf16-mixed", "bf16"},
    {"precision", "mixed", "bf16"},
    {"precision", "float32", "fp32"},
    {"precision", "float", "fp32"},
    {"precision", "32", "fp32"},
    {"device", "gpu", "cuda"},
    {"device", "cuda:0", "cuda"},
    {"optimizer", "adamw_torch", "adamw"},
    {"optimizer", "adamw_torch_fused", "adamw"},
    {"optimizer", "adamw_hf", "adamw"},
    {"optimizer", "adamw_8bit", "adam-8bit"},
    {"optimizer", "adamw_bnb_8bit", "adam-8bit"},
    {"optimizer", "paged_adamw_8bit", "adam-8bit"},
    {"optimizer", "adam8bit", "adam-8bit"},
    {"schedule", "constant_with_warmup", "constant"},
    {"schedule", "cosine_with_restarts", "cyclic"},
    {"schedule", "onecycle", "cyclic"},
    {"schedule", "warmup_stable_decay", "wsd"},
    {"checkpoint", "true", "every:1"},
    {"checkpoint", "full", "all"},
    {"checkpoint", "selective", "cheap"},
    {"offload", "cpu", "states"},
    {"offload", "optimizer", "states"},
    {"master", "false", "none"},
    {"update", "in_backward", "in-backward"},
};

enum { WORDS_MOST = 192, LETTERS_LEAST = 4 };
static const char between[] = " ,;()";

const char *recipe_hint(const char *key, const char *typed, char *values)
{
    const char *words[WORDS_MOST];
    char *rest = NULL;
    int n = 0;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strcmp(key, foreign[i].key) == 0 && strcasecmp(typed, foreign[i].typed) == 0)
            return foreign[i].ours;
    for (char *word = strtok_r(values, between, &rest); word != NULL && n < WORDS_MOST;
         word = strtok_r(NULL, between, &rest))
        words[n++] = word;
    for (int i = 0; i < n && strlen(typed) < LETTERS_LEAST; i++)
        if (strncasecmp(typed, words[i], strlen(typed)) != 0)
            words[i] = NULL; /* short words must match from the start: "tpu" is no typo of "cpu" */
    return nearest_word(typed, words, n);
}

bool recipe_is_bare_size(const char *value, int64_t bytes)
{
    enum { LEAST = 1 << 20 };
    bool ends_in_digit = value[0] != '\0' && isdigit((unsigned char)value[strlen(value) - 1]);
    return ends_in_digit && bytes < LEAST;
}
