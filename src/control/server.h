/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the control socket: one thread, one request at a time, short time limits, so that no client can
 * hold it up for long.
 */
#pragma once

#include "cache/cache.h"

struct control_server;

struct control_config {
        const struct options *options; /* alive as long as the server */
        struct cache *cache;
        const char *mountpoint, *source;
        unsigned minor;
};
int control_start(const struct control_config *cfg, struct control_server **ret);
struct control_server *control_stop(struct control_server *s); /* returns NULL; NULL is ignored */
