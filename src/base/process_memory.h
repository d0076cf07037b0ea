/*
 * process_memory.h -- what the operating system says: how much this process holds, how much it may.
 */
#ifndef SNUG_BASE_PROCESS_MEMORY_H
#define SNUG_BASE_PROCESS_MEMORY_H

#include <stdint.h>

int64_t process_resident_bytes(void);
int64_t process_peak_bytes(void);
void process_give_back(void); /* returns freed memory to the operating system */
int64_t machine_bytes(void);  /* all that this machine or container has */

#endif
