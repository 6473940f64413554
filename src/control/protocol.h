/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: one line of JSON as the request ({"command": ...}), one JSON text as the answer, then it closes.
 * An answer with "error" says what went wrong.  Where it is: /run/hotset/MINOR.sock, MINOR being that of the mount's
 * st_dev, which a client knows from mountinfo without touching the mount; a daemon that may not write there (not
 * root) uses $XDG_RUNTIME_DIR/hotset.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#define CONTROL_PATH_MAX 108 /* sun_path */
#define CONTROL_REQUEST_MAX 65536

/* The n-th place where the socket of a mount may be; -ENOENT beyond the last. */
int control_path(unsigned minor, unsigned nth, char ret[CONTROL_PATH_MAX]);

/* Client: sends `request`, waits for the answer at most `seconds`.  0 and a JSON value to decref; -ECONNREFUSED or
 * -ENOENT: no daemon; -ETIMEDOUT. */
int control_call(unsigned minor, const json_t *request, unsigned seconds, json_t **ret);
