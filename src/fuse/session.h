/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount: made, served until somebody ends it, and taken away only if it is still ours.
 *
 * Never unmounts by path alone: after `umount -l` the path shows what lay below, and that must stay.
 */
#pragma once

#include "cache/cache.h"

struct session;

struct session_config {
        const struct options *options;
        struct source *source;
        struct cache *cache;
        const char *source_path, *mountpoint; /* absolute */
};
#define SESSION_ERROR_MAX 512

/* Mounts.  Until session_run nobody answers.  -errno and a sentence in `error`. */
int session_mount(const struct session_config *cfg, struct session **ret, char *error);
unsigned session_minor(const struct session *s);
int session_mount_id(const struct session *s); /* of the mount's st_dev */
/* Serves until unmount, SIGTERM, SIGINT or SIGHUP, all of which must be blocked in every thread. */
int session_run(struct session *s);
/* After cache_free, so that no answer is under way any more. */
struct session *session_free(struct session *s);
