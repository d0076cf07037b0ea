/*
 * device_rates.c -- rates of devices that need not be present: plan for an A100 on a laptop.
 *
 * The figures of the cards are the vendors' peaks for dense matmuls and for memory.  A training
 * step is assumed to reach the same share of the peak on all cards.  docs/time-model.md has the
 * table and its sources.
 */
#include "compile/device_rates.h"

#include <stdio.h>
#include <string.h>

/* One core with 256-bit FMA, and two memory channels. */
static const double cpu_flops_per_thread = 80e9;
static const double cpu_bytes_per_s = 24e9;

static const double gemm_share = 0.72, memory_share = 0.8, bus_share = 0.8;
static const double card_half_size = 128, cpu_half_size = 16;
static const double card_launch_seconds = 4e-6, cpu_launch_seconds = 2e-6;

/* Ops that stay below those shares on an H200 (bench/results/cuda-2026-11.md), assumed to do so on
 * all cards.  A time is a * work + b, fitted over micro-batches of 2, 4 and 16; b is given in
 * kernel launches.  The variant of an update is its state bits (0: 32), plus 100 with stochastic
 * rounding. */
static const struct op_share card_shares[] = {
    {OP_attention, 0, 0.45, 2}, {OP_attention_grad, 0, 0.31, 6}, {OP_layernorm_grad, 0, 0.95, 7},
    {OP_update, 0, 0.76, 1},    {OP_update, 100, 0.44, 1},       {OP_update, 8, 0.19, 1},
    {OP_update, 4, 0.14, 1},    {OP_update, 108, 0.11, 1},       {OP_update, 104, 0.11, 1},
};
static const struct op_share cpu_shares[] = {
    {OP_attention, 0, 0.5, 1},
    {OP_attention_grad, 0, 0.5, 1},
};

static const double file_bytes_per_s = 3e9; /* past the page cache: docs/offload.md */

static const struct card {
    const char *name;
    double f32, bf16, f16, bytes; /* peak flops and bytes per second */
    double host_bytes;            /* to and from pinned memory, each way with both in use */
    double memory_gib;
} cards[N_TARGETS] = {
    [TARGET_v100] = {"V100 32G", 15.7e12, 15.7e12, 125e12, 900e9, 10e9, 31.5},
    [TARGET_a100] = {"A100 80G", 19.5e12, 312e12, 312e12, 2039e9, 20e9, 79},
    [TARGET_h100] = {"H100 80G", 67e12, 989e12, 989e12, 3350e9, 50e9, 79},
    [TARGET_h200] = {"H200", 67e12, 989e12, 989e12, 4800e9, 50e9, 139},
    [TARGET_4090] = {"RTX 4090", 82.6e12, 165.2e12, 165.2e12, 1008e9, 20e9, 23.5},
};

struct device_rates rates_generic_cpu(int threads)
{
    return (struct device_rates){.flops = cpu_flops_per_thread * threads,
                                 .bytes = cpu_bytes_per_s,
                                 .shares = cpu_shares,
                                 .n_shares = sizeof cpu_shares / sizeof *cpu_shares,
                                 .half_size = cpu_half_size,
                                 .launch_seconds = cpu_launch_seconds,
                                 .pool_bytes_per_s = file_bytes_per_s};
}

static struct device_rates rates_of_card(const struct card *card)
{
    return (struct device_rates){.flops = gemm_share * card->f32,
                                 .bytes = memory_share * card->bytes,
                                 .bf16_flops = gemm_share * card->bf16,
                                 .f16_flops = gemm_share * card->f16,
                                 .shares = card_shares,
                                 .n_shares = sizeof card_shares / sizeof *card_shares,
                                 .half_size = card_half_size,
                                 .launch_seconds = card_launch_seconds,
                                 .pool_bytes_per_s = bus_share * card->host_bytes,
                                 .pool_is_duplex = true};
}

/* Assumed bits per second in each direction, and latency of a message. */
static const double link_share = 0.8;
static const struct link {
    double bits, message_seconds;
} links[NETWORKS] = {
    [NETWORK_1G] = {1e9, 50e-6},       [NETWORK_10G] = {10e9, 20e-6},
    [NETWORK_25G] = {25e9, 10e-6},     [NETWORK_100G] = {100e9, 5e-6},
    [NETWORK_200G] = {200e9, 5e-6},    [NETWORK_400G] = {400e9, 5e-6},
    [NETWORK_nvlink] = {3600e9, 3e-6},
};

static void set_network(const struct snug_recipe *recipe, struct device_rates *rates)
{
    const struct link *link = &links[recipe->network];
    rates->network_bytes = link_share * link->bits / 8;
    rates->message_seconds = link->message_seconds;
}

int64_t rates_card_memory(enum target target, const char **name)
{
    *name = cards[target].name;
    return (int64_t)(cards[target].memory_gib * (1 << 30));
}

enum snug_status rates_check_target(const struct snug_recipe *recipe, struct snug_error *err)
{
    struct text target = {0};
    bool is_gpu = target_is_gpu((enum target)recipe->target);
    if (recipe->target == TARGET_here || is_gpu == (recipe->device == DEVICE_cuda))
        return SNUG_OK;
    recipe_get(recipe, "target", &target);
    snug_fail(err, SNUG_BAD_ARGUMENT, "--target %s is a %s, but --device is %s: leave --device out",
              target.data == NULL ? "" : target.data, is_gpu ? "GPU" : "CPU",
              is_gpu ? "cpu" : "cuda");
    text_free(&target);
    return SNUG_BAD_ARGUMENT;
}

enum snug_status rates_of_recipe(const struct snug_recipe *recipe, int threads,
                                 const struct cpu_isa *isa, struct machine_rates *rates,
                                 struct snug_error *err)
{
    bool measured = false;
    bool is_some_gpu = recipe->device == DEVICE_cuda && recipe->target == TARGET_here;
    const struct card *card = &cards[is_some_gpu ? TARGET_h100 : recipe->target];
    if (card->name == NULL && recipe->target == TARGET_here)
        TRY(rates_load(threads, isa, rates, &measured, err));
    if (card->name != NULL) {
        rates->rates = rates_of_card(card);
        snprintf(rates->origin, sizeof rates->origin,
                 is_some_gpu ? "for an assumed %s" : "for the %s", card->name);
    } else if (!measured) {
        rates->rates = rates_generic_cpu(threads);
        snprintf(rates->origin, sizeof rates->origin, "for a generic CPU, %d thread%s", threads,
                 threads == 1 ? "" : "s");
    } else {
        rates->rates.pool_bytes_per_s = file_bytes_per_s;
    }
    set_network(recipe, &rates->rates);
    return SNUG_OK;
}
