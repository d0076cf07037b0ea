/*
 * kernel_choice.h -- a backend's answer to pass/book.c: the kernel for an op, and what that kernel
 * needs from the plan.
 */
#ifndef SNUG_IR_KERNEL_CHOICE_H
#define SNUG_IR_KERNEL_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

struct kernel_choice {
    int kernel; /* index in the backend's kernel table, from 1; 0 if the backend has no kernel */
    size_t workspace_bytes;
    bool no_alias; /* output 0 must not alias an input, even where ops.def allows it */
};

#endif
