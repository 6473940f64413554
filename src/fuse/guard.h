/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard: a small process that ends the connection where the daemon could not.
 *
 * A thread of ours may wait in the kernel for a page that only this daemon can fill.  Killed at that moment, the thread
 * cannot die, so the descriptor of the connection is never closed, and whoever is inside the mount, or syncs the
 * machine's file systems, hangs for good.  The guard is told by the kernel that its parent's main thread is gone, and
 * aborts the connection, unless it was dismissed before.
 *
 * Threads: all functions from the main thread; guard_start before there is any other.
 */
#pragma once

#include <sys/types.h>

struct guard {
        pid_t pid;
        int fd;
};

int guard_start(struct guard *ret);
/* What there is to abort.  Without fusectl (/sys/fs/fuse/connections) it unmounts by force, if that mount is still ours. */
void guard_tell(struct guard *g, unsigned minor, int mount_id, const char *mountpoint);
/* A descriptor to which "1" is written to abort.  To be opened while the connection lives: after its end the descriptor
 * does nothing, whoever has the number then. */
int guard_open_abort(unsigned minor);
void guard_dismiss(struct guard *g); /* waits for its end */
