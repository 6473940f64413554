/* SPDX-License-Identifier: Apache-2.0 */
/* `status` as JSON (DESIGN section 7 lists the names) and, from that, for people. */
#pragma once

#include "control/server.h"

#include <jansson.h>
#include <stdio.h>

json_t *status_to_json(const struct control_config *cfg);
void status_print(FILE *f, const json_t *status);
