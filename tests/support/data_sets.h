/*
 * data_sets.h -- helpers for tests of data sets.
 */
#ifndef TESTS_SUPPORT_DATA_SETS_H
#define TESTS_SUPPORT_DATA_SETS_H

#include "data/data.h"

/* Opens `spec` with a request that is otherwise `like`, or fails the test with the library's message. */
struct data *open_data(const char *spec, const struct data_request *like);

#endif
