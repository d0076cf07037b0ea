/*
 * process_memory.h -- memory use and memory limits of this process.
 */
#ifndef SNUG_BASE_PROCESS_MEMORY_H
#define SNUG_BASE_PROCESS_MEMORY_H

#include <stdint.h>

int64_t process_resident_bytes(void);
int64_t process_peak_bytes(void);
void process_give_back(void); /* returns freed memory to the operating system */
/* The memory of this machine, or the cgroup limit of this process if that is smaller. */
int64_t machine_bytes(void);
/* The smallest memory limit of the control groups listed in `own` (/proc/self/cgroup), below `root`
 * (/sys/fs/cgroup); INT64_MAX if there is no limit. */
int64_t control_group_limit(const char *root, const char *own);

#endif
