/*
 * device_rates_file.c -- measured device rates on disk.
 *
 *     {"machines": {"AMD EPYC, v4, 2 threads": {"flops": .., "bytes": ..,
 *       "curves": [{"op": "linear", "type": "bf16", "variant": 0,
 *                   "points": [[size, rate], ..]}, ..]}}}
 *
 * A file that is missing, damaged or of another version is treated as empty: estimates get coarser,
 * and the next measurement rewrites it.
 */
#include "compile/device_rates.h"

#include "base/cache.h"
#include "base/fd.h"
#include "exec/backend.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *file_in(const char *folder)
{
    struct text path = {0};
    text_add(&path, "%s/rates.json", folder);
    return text_take(&path);
}

static void add_cpu_name(struct text *out)
{
    char lines[4096]; /* of the first core */
    bool is_readable = fd_read_start("/proc/cpuinfo", lines, sizeof lines);
    const char *line = is_readable ? strstr(lines, "\nmodel name") : NULL;
    const char *value = line == NULL ? NULL : strstr(line, ": ");
    if (value != NULL)
        text_add(out, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    else
        text_add(out, "CPU");
}

/* "AMD EPYC, v4, 2 threads", for the caller to free. */
static char *machine_name(int threads, const struct cpu_isa *isa)
{
    struct text name = {0};
    add_cpu_name(&name);
    text_add(&name, ", %s, %d thread%s", backend_cpu_isa_name(isa), threads,
             threads == 1 ? "" : "s");
    return text_take(&name);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool find_op(const char *name, enum op_kind *kind)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(op_infos[i].name, name) == 0) {
            *kind = (enum op_kind)i;
            return true;
        }
    return false;
}

static bool read_curve(const json_t *row, struct rate_curve *curve)
{
    const char *op = json_string_value(json_object_get(row, "op"));
    const char *type = json_string_value(json_object_get(row, "type"));
    const json_t *points = json_object_get(row, "points");
    double last = 0;
    if (op == NULL || type == NULL || !find_op(op, &curve->kind) ||
        !dtype_parse(type, &curve->dtype))
        return false;
    curve->variant = (int)json_integer_value(json_object_get(row, "variant"));
    curve->n_points = (int)json_array_size(points);
    if (curve->n_points < 1 || curve->n_points > RATE_POINTS_MAX)
        return false;
    for (int i = 0; i < curve->n_points; i++) {
        const json_t *point = json_array_get(points, (size_t)i);
        struct rate_point p = {json_number_value(json_array_get(point, 0)),
                               json_number_value(json_array_get(point, 1))};
        if (!(p.size > last) || !(p.rate > 0))
            return false;
        curve->points[i] = p;
        last = p.size;
    }
    return true;
}

static bool read_machine(const json_t *machine, struct machine_rates *rates)
{
    const json_t *curves = json_object_get(machine, "curves");
    rates->rates =
        (struct device_rates){.flops = json_number_value(json_object_get(machine, "flops")),
                              .bytes = json_number_value(json_object_get(machine, "bytes")),
                              .curves = rates->curves};
    for (size_t i = 0; i < json_array_size(curves) && rates->rates.n_curves < RATE_CURVES_MAX; i++)
        if (read_curve(json_array_get(curves, i), &rates->curves[rates->rates.n_curves]))
            rates->rates.n_curves++;
    return rates->rates.flops > 0 && rates->rates.bytes > 0;
}

/* The whole file, or an empty object. */
static enum snug_status read_file(const char *path, json_t **all, struct snug_error *err)
{
    struct snug_error why = {0};
    enum snug_status status = json_read_object(path, all, &why);
    if (status == SNUG_BAD_FILE)
        *all = json_object();
    else if (status != SNUG_OK)
        return snug_fail(err, status, "%s", why.message);
    return *all != NULL ? SNUG_OK
                        : snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory while reading", path);
}

/* The path of the file and the key of this machine in it.  *path is NULL if there is no home
 * folder. */
static enum snug_status find_file(int threads, const struct cpu_isa *isa, char **folder,
                                  char **path, char **name, struct snug_error *err)
{
    *folder = *path = *name = NULL;
    TRY(cache_folder(folder, err));
    if (*folder == NULL)
        return SNUG_OK;
    *path = file_in(*folder);
    *name = machine_name(threads, isa);
    return *path != NULL && *name != NULL
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory while looking for rates",
                           *folder);
}

enum snug_status rates_load(int threads, const struct cpu_isa *isa, struct machine_rates *rates,
                            bool *found, struct snug_error *err)
{
    char *folder, *path, *name;
    json_t *all = NULL;
    *found = false;
    enum snug_status status = find_file(threads, isa, &folder, &path, &name, err);
    if (status == SNUG_OK && path != NULL)
        status = read_file(path, &all, err);
    if (status == SNUG_OK && path != NULL) {
        const json_t *machine = json_object_get(json_object_get(all, "machines"), name);
        *found = machine != NULL && read_machine(machine, rates);
    }
    if (*found)
        snprintf(rates->origin, sizeof rates->origin, "by rates measured here, %d thread%s",
                 threads, threads == 1 ? "" : "s");
    json_decref(all);
    free(folder);
    free(path);
    free(name);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *curve_json(const struct rate_curve *curve)
{
    json_t *points = json_array();
    for (int i = 0; i < curve->n_points; i++)
        json_push(&points, json_pack("[f, f]", curve->points[i].size, curve->points[i].rate));
    return json_pack("{s: s, s: s, s: i, s: o}", "op", op_infos[curve->kind].name, "type",
                     dtype_name(curve->dtype), "variant", curve->variant, "points", points);
}

static json_t *machine_json(const struct machine_rates *rates)
{
    json_t *curves = json_array();
    for (int i = 0; i < rates->rates.n_curves; i++)
        json_push(&curves, curve_json(&rates->curves[i]));
    return json_pack("{s: f, s: f, s: o}", "flops", rates->rates.flops, "bytes", rates->rates.bytes,
                     "curves", curves);
}

static enum snug_status write_machine(const char *path, const char *name,
                                      const struct machine_rates *rates, struct snug_error *err)
{
    json_t *all;
    TRY(read_file(path, &all, err));
    json_t *machines = json_object_get(all, "machines");
    machines = json_is_object(machines) ? json_incref(machines) : json_object();
    json_put(&machines, name, machine_json(rates));
    json_put(&all, "machines", machines);
    enum snug_status status = json_write(path, all, NULL, err);
    json_decref(all);
    return status;
}

enum snug_status rates_save(int threads, const struct cpu_isa *isa,
                            const struct machine_rates *rates, char **path, struct snug_error *err)
{
    char *folder, *name;
    enum snug_status status = find_file(threads, isa, &folder, path, &name, err);
    if (status == SNUG_OK && *path == NULL)
        status = snug_fail(err, SNUG_IO_ERROR,
                           "cannot save the measured rates: set XDG_CACHE_HOME or HOME");
    if (status == SNUG_OK)
        status = cache_make_folder(folder, err);
    if (status == SNUG_OK)
        status = write_machine(*path, name, rates, err);
    if (status != SNUG_OK) {
        free(*path);
        *path = NULL;
    }
    free(folder);
    free(name);
    return status;
}
