/*
 * rope_angles.h -- the frequencies of the op rope.
 *
 * Pair i of a head of D elements turns by f_i = theta^(-2 i / D) per position.  Llama 3 stretches
 * the long wavelengths, which its pretraining on rope_length positions has not seen in full:
 *
 *     wavelength w = 2 pi / f
 *     w < rope_length / high_freq      f
 *     w > rope_length / low_freq       f / rope_factor
 *     between                          (1 - s) f / rope_factor + s f,
 *                                      s = (rope_length / w - low_freq) / (high_freq - low_freq)
 *
 * rope_length 0 means no scaling.
 */
#ifndef SNUG_IR_ROPE_ANGLES_H
#define SNUG_IR_ROPE_ANGLES_H

#include <math.h>

#include "ir/op.h"

static inline double rope_frequency(const struct rope_attrs *rope, int64_t depth, int64_t i)
{
    const double two_pi = 6.283185307179586;
    double f = pow(rope->theta, -2.0 * (double)i / (double)depth);
    if (rope->rope_length == 0)
        return f;
    double length = (double)rope->rope_length, wavelength = two_pi / f;
    if (wavelength < length / rope->high_freq)
        return f;
    if (wavelength > length / rope->low_freq)
        return f / rope->rope_factor;
    double s = (length / wavelength - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1 - s) * f / rope->rope_factor + s * f;
}

#endif
