/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request that is answered later, from another thread, and whose program must be killable until then.
 *
 * Who answers first owns the request: the thread that has the answer, or whoever interrupts.  Interrupting is for
 * programs that are being killed: any signal interrupts, but a read of a file goes on for those that do not kill.
 *
 * Threads: waited_begin in the request's own thread; claim and put from anywhere, once each.
 */
#pragma once

#include <bsd/sys/queue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct fs;
struct fuse_req;
struct kill_watch;

/* The first member of something from malloc, which is freed with its last holder. */
struct waited {
        struct fuse_req *req;
        struct kill_watch *watch;
        LIST_ENTRY(waited) link; /* watch->waiting, while `listed` */
        bool listed;
        pid_t thread; /* who waits, or 0: not known in our pid namespace */
        unsigned age; /* ticks of the watch */
        _Atomic bool answered;
        _Atomic int holders; /* who has the answer, and the interrupter */
        pthread_t registrar; /* meaningful while registering */
        bool registering, interrupted;
};

void waited_begin(struct waited *w, struct fuse_req *req);
/* True: the request is ours to answer now; false: it was interrupted, and answered. */
bool waited_claim(struct waited *w);
/* After the claim, and the answer. */
void waited_put(struct waited *w);

int kill_watch_start(struct fs *fs);
void kill_watch_stop(struct fs *fs);
