/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points: named places at which a test makes the n-th call fail, or kills the daemon.
 *
 * HOTSET_FAULTS="mirror_write=ENOSPC@3,index_commit=kill@2": from the 3rd call on mirror_write fails with ENOSPC; the
 * 2nd index_commit ends the process as SIGKILL would.  "@3x1" fails the 3rd call only.  Names are in fault.c, an
 * unknown one is refused at start.  Without the variable a fault point is one load of a flag.  Thread-safe.
 */
#pragma once

#include <stdbool.h>

enum fault_point {
        FAULT_SOURCE_READ,
        FAULT_MIRROR_READ,
        FAULT_MIRROR_WRITE,
        FAULT_MIRROR_PUNCH,
        FAULT_SUMS_READ,
        FAULT_SUMS_WRITE,
        FAULT_INDEX_COMMIT,
        FAULT_BUFFER,
        FAULT_POINTS
};

extern bool fault_armed;
int fault_setup(const char *spec, const char **ret_bad); /* -EINVAL names the part that is wrong */
int fault_check_slow(enum fault_point p);
/* 0, or the negative errno this call has to fail with. */
static inline int fault_check(enum fault_point p) { return fault_armed ? fault_check_slow(p) : 0; }
