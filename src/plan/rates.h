/*
 * rates.h -- the time model: the seconds of an op are its work divided by a rate of the device.
 *
 * Work is flops for a matmul and bytes moved for every other op.  A measured device has a curve for
 * each kind of op, which gives the rate by size.  A declared device is described by a few
 * constants. docs/time-model.md explains where they come from.
 */
#ifndef SNUG_PLAN_RATES_H
#define SNUG_PLAN_RATES_H

#include "ir/program.h"

enum { RATE_POINTS_MAX = 12 };

struct rate_point {
    double size, rate; /* op_size; work per second */
};

struct rate_curve {
    enum op_kind kind;
    enum dtype dtype;
    int variant; /* op_variant */
    int n_points;
    struct rate_point points[RATE_POINTS_MAX]; /* sizes ascending */
};

/* The fraction of a declared device's rates that one kind of op reaches. */
struct op_share {
    enum op_kind kind;
    int variant;       /* op_variant */
    double share;      /* of the device's flops for a matmul, else of its memory bandwidth */
    double n_launches; /* kernels that one op launches, one after the other */
};

/* All rates are per second. */
struct device_rates {
    double flops, bytes;          /* fp32 matmuls; memory bandwidth */
    double bf16_flops, f16_flops; /* 16-bit matmuls; 0 if the same as fp32 */
    /* Declared device: kinds that are not listed reach the full rate. */
    const struct op_share *shares;
    int n_shares;
    double half_size;        /* a matmul whose smallest dimension is this runs at half its rate */
    double launch_seconds;   /* per op */
    double pool_bytes_per_s; /* to and from the offload pool */
    bool pool_is_duplex;     /* both directions at that rate at the same time */
    double network_bytes;    /* from one rank to the others, in both directions at the same time */
    double message_seconds;  /* latency of a message */
    const struct rate_curve *curves; /* measured device */
    int n_curves;
};

/* All functions below are in time.c.
 *
 * The size that a curve is indexed by: the smallest dimension of a matmul, the sequence length of
 * attention, else the bytes moved. */
double op_size(const struct program *prog, const struct op *op);
/* The dtype of the first float operand. */
enum dtype op_dtype(const struct program *prog, const struct op *op);
/* For update: its state bits, plus 100 with stochastic rounding.  0 for all other ops. */
int op_variant(const struct op *op);
double op_work(const struct program *prog, const struct op *op);

/* The seconds of one run of a compute op. */
double op_seconds(const struct program *prog, const struct op *op,
                  const struct device_rates *rates);

/* The seconds of a collective (ir/collective_options.h). */
double collective_seconds(const struct program *prog, const struct op *op,
                          const struct device_rates *rates);

/* The seconds that a recv waits for its message; 0 for send. */
double p2p_seconds(const struct program *prog, const struct op *op,
                   const struct device_rates *rates);

#endif
