/*
 * process_memory.h -- what the operating system says: how much this process holds, how much it may.
 */
#ifndef SNUG_BASE_PROCESS_MEMORY_H
#define SNUG_BASE_PROCESS_MEMORY_H

#include <stdint.h>

int64_t process_resident_bytes(void);
int64_t process_peak_bytes(void);
void process_give_back(void); /* returns freed memory to the operating system */
/* All that this machine has, or the limit of this process if that is less. */
int64_t machine_bytes(void);
/* The least limit of memory among the control groups in which `own` (/proc/self/cgroup) says that this
 * process is, below `root` (/sys/fs/cgroup); INT64_MAX: none. */
int64_t control_group_limit(const char *root, const char *own);

#endif
