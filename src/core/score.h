/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hotness as one number: a sum of 2^-(age/h) over all uses, in the log domain.
 *
 * Idea.  Instead of ageing every score, let the clock rise: a use at clock c is
 * worth 2^c for ever, and a score S is the log2 of the sum.  S - c is then the
 * decayed sum as of now, the order of scores never changes while time passes,
 * and nothing overflows, since only differences are raised to a power.
 *
 * The clock counts half-lives.  It is advanced by bytes/h, not computed as t/h,
 * so that a new half-life (the budget changed) leaves every S - c as it was and
 * no score needs rewriting.
 */
#pragma once

#include <math.h>

/* Nothing known.  Finite, so that something may rank below it (see shadow.c). */
#define SCORE_NONE (-1e6)

static inline double score_used(double score, double clock) {
        double hi = score > clock ? score : clock, lo = score > clock ? clock : score;

        return hi + log2(1 + exp2(lo - hi));
}
