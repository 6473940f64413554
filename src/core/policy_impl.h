/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the policy share: its parts, and who tells whom.
 *
 *   policy.c         life, configuration, statistics, what a restart keeps
 *   policy_access.c  a read is heard of: contest -> (moved) -> real lists
 *   policy_real.c    bytes come, are committed, and go
 *
 * Threads: the policy's lock.
 */
#pragma once

#include "core/contest.h"
#include "core/known.h"
#include "core/policy.h"
#include "core/real.h"

struct policy {
        struct charge_rule rule;
        struct contest contest;
        struct real real;
        struct known known;
        uint64_t clock; /* bytes requested */
        uint64_t readmitted;
};

#define POLICY_BLOCK 4096u
#define POLICY_OFF_MAX ((uint64_t)INT64_MAX & ~(uint64_t)(POLICY_BLOCK - 1))

static inline uint64_t block_down(uint64_t off) {
        return off & ~(uint64_t)(POLICY_BLOCK - 1);
}

static inline uint64_t block_up(uint64_t off) {
        return off >= POLICY_OFF_MAX ? POLICY_OFF_MAX : block_down(off + POLICY_BLOCK - 1);
}

static inline uint64_t end_of(uint64_t off, uint64_t len) {
        return len > POLICY_OFF_MAX || off > POLICY_OFF_MAX - len ? POLICY_OFF_MAX : off + len;
}

/* The real cache follows the contest's leader from now on. */
void policy_follow(struct policy *p);
/* Pins or the budget changed: what remains for the shadows. */
void policy_refit(struct policy *p);
