/*
 * booked.c -- see booked.h.
 */
#include "support/booked.h"

#include "pass/pass.h"
#include "support/training.h"

struct device_asked {
    const struct backend *backend;
    const struct device_facts *facts;
};

static struct kernel_choice choose_kernel(const void *device, const struct program *prog,
                                          const struct op *op)
{
    const struct device_asked *asked = device;
    return backend_choice(asked->backend, prog, op, asked->facts);
}

void book_kernels(struct program *prog, const struct backend *backend,
                  const struct device_facts *facts)
{
    struct snug_error err = {0};
    struct arena scratch = {0};
    struct device_asked asked = {backend, facts};
    struct pass_env env = {.scratch = &scratch,
                           .err = &err,
                           .device.choose_kernel = choose_kernel,
                           .device.handle = &asked};
    must(pass_book(prog, &env), &err);
    arena_free(&scratch);
}
