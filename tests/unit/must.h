/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions for long random walks.  check's own report every success over a pipe, which is too slow where everything
 * is compared after every step.
 */
#pragma once

#include <check.h>

#define must(what) ((what) ? (void)0 : ck_abort_msg("%s", #what))
#define must_eq(a, b) must((a) == (b))
