/* SPDX-License-Identifier: Apache-2.0 */
/* The clock for time limits and ages: it never goes back, and counts from no particular moment. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline int64_t monotonic_ns(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000ll + t.tv_nsec;
}
