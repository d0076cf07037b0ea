/*
 * signals.h -- for tests whose children may die.
 */
#ifndef TESTS_SUPPORT_SIGNALS_H
#define TESTS_SUPPORT_SIGNALS_H

void signals_leave_alone(void); /* those that cmocka catches end the process again */

#endif
