/*
 * decoders.h -- tiny decoder language models of every family, as folders with a config.json.
 */
#ifndef TESTS_SUPPORT_DECODERS_H
#define TESTS_SUPPORT_DECODERS_H

/* The families: "llama", "smollm2", "mistral", "qwen2", "qwen3"; NULL after the last.  They differ in
 * every setting: tied and untied heads, biases, heads shared by 1 to 3 heads of q, a norm of each head,
 * heads x head_dim wider than the model, a window, RoPE scaled as in Llama 3. */
const char *decoders_family(int i);

/* Writes DIR/FAMILY/config.json for all families. */
void decoders_write(const char *dir);

/* DIR/FAMILY if `model` is "@FAMILY", or else the model itself. */
const char *decoders_spec(const char *dir, const char *model);

#endif
