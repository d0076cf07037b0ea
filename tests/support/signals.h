/*
 * signals.h -- for tests whose child processes may die.
 */
#ifndef TESTS_SUPPORT_SIGNALS_H
#define TESTS_SUPPORT_SIGNALS_H

void signals_leave_alone(void); /* restores the default action of the signals that cmocka catches */

#endif
