/*
 * layer_name.h -- finds the layer in the name of a tensor.
 */
#ifndef SNUG_PASS_LAYER_NAME_H
#define SNUG_PASS_LAYER_NAME_H

#include <stddef.h>

/* The length of "h.3" in "h.3.attn.c_attn.weight", of "layer1.0" in "layer1.0.conv1.weight"; 0 if
 * no component of the name is a number. */
size_t layer_name_length(const char *name);

#endif
