/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the control socket: one thread, several clients, none of which it waits for: a silent one, or one
 * that does not read its answer, holds up nobody.
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
