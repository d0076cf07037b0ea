/*
 * rates.h -- how long an op takes on a declared device: its work over a rate.
 *
 * Work is flops of a matmul and moved bytes of everything else.  Where the device was measured,
 * a curve gives the rate of that kind of op at its size; elsewhere a few numbers stand for the device.
 * docs/time-model.md says where they come from.
 */
#ifndef SNUG_PLAN_RATES_H
#define SNUG_PLAN_RATES_H

#include "ir/program.h"

enum { RATE_POINTS_MAX = 12 };

struct rate_point {
    double size, rate; /* of op_size; work a second */
};

struct rate_curve {
    enum op_kind kind;
    enum dtype dtype;
    int variant; /* of op_variant */
    int n_points;
    struct rate_point points[RATE_POINTS_MAX]; /* by size, rising */
};

/* How far an op of a declared device stays below the device's rates, whatever its size. */
struct op_share {
    enum op_kind kind;
    int variant;       /* of op_variant */
    double share;      /* of the rate that the device has for matmuls or for memory */
    double n_launches; /* kernels that one op starts, one after the other */
};

struct device_rates {
    double flops, bytes; /* matmuls of fp32, memory: a second */
    double bf16_flops;   /* matmuls of bf16, f16; 0: as fp32 */
    double f16_flops;
    const struct op_share *shares; /* of a declared device; kinds that are not listed reach all */
    int n_shares;
    double half_size;        /* a matmul whose least dimension this is runs at half its rate */
    double launch_seconds;   /* of every op */
    double pool_bytes_per_s; /* to and from the offload pool, a second */
    bool pool_is_duplex;     /* at that rate each way at once; else one way after the other */
    double network_bytes;    /* from a rank to the others, a second; and back at the same time */
    double message_seconds;  /* of every message, however short */
    const struct rate_curve *curves; /* of a device that was measured */
    int n_curves;
};

/* What a curve goes by: the least dimension of a matmul, the length of attention, else the bytes
 * moved. */
double op_size(const struct program *prog, const struct op *op);
enum dtype op_dtype(const struct program *prog,
                    const struct op *op); /* its first float operand's */
int op_variant(
    const struct op *op); /* of update: its state bits, and 100 if rounded stochastically */
double op_work(const struct program *prog, const struct op *op);

/* Of one execution. */
double op_seconds(const struct program *prog, const struct op *op,
                  const struct device_rates *rates);

/* Of an op that ranks carry out together (ir/collective_options.h). */
double collective_seconds(const struct program *prog, const struct op *op,
                          const struct device_rates *rates);

/* Of a message between two ranks: the one that receives it waits for it. */
double message_seconds(const struct program *prog, const struct op *op,
                       const struct device_rates *rates);

#endif
