/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a policy after every operation, for the policy's tests.
 */
#pragma once

#include <stddef.h>

#include "core/policy_impl.h"
#include "must.h"

/* Every sum against the ranges it is a sum of, every list and heap against the rule that says who is in it. */
void policy_check(const struct policy *p, struct range_map *maps, size_t count);
