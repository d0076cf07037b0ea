/*
 * kernel_choice.h -- what a device says of an op when a step is compiled: which kernel runs it, and what that
 * kernel asks of the plan.
 */
#ifndef SNUG_IR_KERNEL_CHOICE_H
#define SNUG_IR_KERNEL_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

struct kernel_choice {
    int kernel; /* its number in the backend's table, from 1; 0: the backend has none */
    size_t workspace_bytes;
    bool no_alias; /* output 0 may lie on no input, whatever the op allows */
};

#endif
