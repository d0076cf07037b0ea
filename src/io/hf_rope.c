/*
 * hf_rope.c -- read and write the keys of rotary positions; see hf_rope.h.
 */
#include "io/hf_rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_THETA 10000.0 /* of transformers */

/* What one of the two objects says. */
struct rope_keys {
    const char *name; /* "rope_scaling" or "rope_parameters" */
    const json_t *object;
    double theta; /* 0: not in the object */
    struct rope_attrs rope;
};

static bool is_number(const json_t *object, const char *key, double value)
{
    const json_t *member = json_object_get(object, key);
    return member == NULL || json_is_null(member) ||
           (json_is_number(member) && json_number_value(member) == value);
}

static enum snug_status get_above_0(const struct rope_keys *keys, const char *path, const char *key,
                                    double *value, struct snug_error *err)
{
    TRY(json_get_real(keys->object, path, key, value, err));
    if (!(*value > 0) || !isfinite(*value))
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\": \"%s\" must be above 0", path, keys->name,
                         key);
    return SNUG_OK;
}

static enum snug_status read_llama3(const json_t *root, const char *path, struct rope_keys *keys,
                                    struct snug_error *err)
{
    static const char length[] = "original_max_position_embeddings";
    const json_t *owner = json_has(keys->object, length) ? keys->object : root;
    struct rope_attrs *rope = &keys->rope;
    TRY(get_above_0(keys, path, "factor", &rope->rope_factor, err));
    TRY(get_above_0(keys, path, "low_freq_factor", &rope->low_freq, err));
    TRY(get_above_0(keys, path, "high_freq_factor", &rope->high_freq, err));
    TRY(json_get_integer(owner, path, length, 1, INT32_MAX, &rope->rope_length, err));
    if (rope->low_freq >= rope->high_freq)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"%s\": \"low_freq_factor\" must be below \"high_freq_factor\"", path,
                         keys->name);
    return SNUG_OK;
}

static enum snug_status read_keys(const json_t *root, const char *path, const char *name,
                                  struct rope_keys *keys, struct snug_error *err)
{
    const char *type = "default", *type_key;
    *keys =
        (struct rope_keys){.name = name, .rope = {.rope_factor = 1, .low_freq = 1, .high_freq = 4}};
    if (!json_has(root, name))
        return SNUG_OK;
    json_t *object;
    TRY(json_get_object(root, path, name, &object, err));
    keys->object = object;
    type_key = json_has(object, "rope_type") ? "rope_type" : "type"; /* older files */
    if (json_has(object, type_key))
        TRY(json_get_string(object, path, type_key, &type, err));
    const char *const others[] = {"mrope_section", "full_attention", "sliding_attention"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_has(object, others[i]))
            return snug_fail(err, SNUG_UNSUPPORTED, "%s: \"%s\": \"%s\" is not supported", path,
                             name, others[i]);
    if (!is_number(object, "partial_rotary_factor", 1))
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"%s\": \"partial_rotary_factor\" is not supported; it must be 1",
                         path, name);
    if (json_has(object, "rope_theta"))
        TRY(get_above_0(keys, path, "rope_theta", &keys->theta, err));
    if (strcmp(type, "llama3") == 0)
        return read_llama3(root, path, keys, err);
    if (strcmp(type, "default") != 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"%s\": \"%s\": \"%.60s\" is not supported: snug has RoPE without "
                         "scaling (default) and with that of llama3",
                         path, name, type_key, type);
    return SNUG_OK;
}

static bool are_same(const struct rope_attrs *a, const struct rope_attrs *b)
{
    return a->rope_length == b->rope_length && a->rope_factor == b->rope_factor &&
           a->low_freq == b->low_freq && a->high_freq == b->high_freq;
}

/* Both versions of transformers must get the same from the file.  Version 4 adds its own default of
 * rope_theta to a file of version 5: that one does not count. */
static enum snug_status pick_theta(const json_t *root, const char *path,
                                   const struct rope_keys *old, const struct rope_keys *new,
                                   double *theta, struct snug_error *err)
{
    double top = DEFAULT_THETA;
    if (json_has(root, "rope_theta"))
        TRY(json_get_real(root, path, "rope_theta", &top, err));
    if (!(top > 0) || !isfinite(top))
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"rope_theta\" must be above 0", path);
    const double all[] = {top == DEFAULT_THETA ? 0 : top, old->theta, new->theta};
    *theta = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (*theta > 0 && all[i] > 0 && all[i] != *theta)
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: \"rope_theta\" is %g in one place and %g in another", path,
                             *theta, all[i]);
        *theta = all[i] > 0 ? all[i] : *theta;
    }
    *theta = *theta > 0 ? *theta : top;
    return SNUG_OK;
}

enum snug_status hf_rope_read(const json_t *root, const char *path, struct rope_attrs *rope,
                              struct snug_error *err)
{
    struct rope_keys old, new;
    double theta = 0;
    TRY(read_keys(root, path, "rope_scaling", &old, err));
    TRY(read_keys(root, path, "rope_parameters", &new, err));
    if (old.object != NULL && new.object != NULL && !are_same(&old.rope, &new.rope))
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"rope_scaling\" and \"rope_parameters\" differ: remove one", path);
    TRY(pick_theta(root, path, &old, &new, &theta, err));
    *rope = new.object != NULL ? new.rope : old.rope;
    rope->theta = theta;
    return SNUG_OK;
}

void hf_rope_put(json_t **root, const struct rope_attrs *rope)
{
    json_t *scaling = json_null();
    if (rope->rope_length > 0) {
        scaling = json_object();
        json_put(&scaling, "rope_type", json_string("llama3"));
        json_put(&scaling, "factor", json_real(rope->rope_factor));
        json_put(&scaling, "low_freq_factor", json_real(rope->low_freq));
        json_put(&scaling, "high_freq_factor", json_real(rope->high_freq));
        json_put(&scaling, "original_max_position_embeddings", json_integer(rope->rope_length));
    }
    json_put(root, "rope_theta", json_real(rope->theta));
    json_put(root, "rope_scaling", scaling);
}
