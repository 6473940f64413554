/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `answered` decides who answers, and after libfuse's own lock is passed once (fuse_req_interrupt_func with NULL) the
 * other side can no longer be inside.
 *
 * The kernel sends no INTERRUPT for O_DIRECT reads, which it makes in the background and waits for unkillably.  So
 * while requests wait, a thread looks once a second whether their programs have a SIGKILL pending (every fatal signal
 * becomes one), and interrupts those itself.
 */
#include "fuse/waited.h"

#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct kill_watch {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        LIST_HEAD(, waited) waiting;
        bool stopping;
        pthread_t thread;
};

static void list(struct waited *w, bool on) {
        pthread_mutex_lock(&w->watch->lock);
        if (on && !w->listed) {
                if (LIST_EMPTY(&w->watch->waiting))
                        pthread_cond_signal(&w->watch->wake);
                LIST_INSERT_HEAD(&w->watch->waiting, w, link);
        } else if (!on && w->listed) {
                LIST_REMOVE(w, link);
        }
        w->listed = on;
        pthread_mutex_unlock(&w->watch->lock);
}

void waited_put(struct waited *w) {
        if (--w->holders == 0)
                free(w);
}

/* Does the thread have a SIGKILL pending?  The words are "SigPnd:\t" and 16 hexadecimal digits. */
static bool is_killed(pid_t thread) {
        char path[40], text[4096];
        uint64_t pending = 0;

        snprintf(path, sizeof path, "/proc/%d/status", (int)thread);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (n <= 0)
                return false;
        text[n] = '\0';
        const char *own = strstr(text, "SigPnd:"), *shared = strstr(text, "ShdPnd:");
        uint64_t bits;
        if (own && sscanf(own, "SigPnd: %" SCNx64, &bits) == 1)
                pending |= bits;
        if (shared && sscanf(shared, "ShdPnd: %" SCNx64, &bits) == 1)
                pending |= bits;
        return pending & (1ull << (SIGKILL - 1));
}

/* Also the interrupter's last touch: `w` may be gone after it. */
static void answer_interrupted(struct waited *w) {
        if (!atomic_exchange(&w->answered, true)) {
                fuse_reply_err(w->req, EINTR);
                waited_put(w);
        }
}

static void on_interrupt(fuse_req_t req, void *data) {
        struct waited *w = data;

        (void)req;
        /* A kill that comes later is the watch's. */
        if (w->thread != 0 && !is_killed(w->thread))
                return;
        /* Called from inside our own fuse_req_interrupt_func, the request has to outlive that. */
        if (pthread_equal(w->registrar, pthread_self()) && w->registering)
                w->interrupted = true;
        else
                answer_interrupted(w);
}

/* True: no interrupt will touch it or `w` any more. */
static bool claim(struct waited *w) {
        if (atomic_exchange(&w->answered, true))
                return false;
        fuse_req_interrupt_func(w->req, NULL, NULL);
        waited_put(w); /* the interrupter's share: it will never come */
        return true;
}

bool waited_claim(struct waited *w) {
        list(w, false);
        return claim(w);
}

void waited_begin(struct waited *w, fuse_req_t req) {
        *w = (struct waited){ .req = req, .watch = fs_of(req)->kills, .thread = fs_thread(req), .holders = 2,
                              .registrar = pthread_self(), .registering = true };
        fuse_req_interrupt_func(req, on_interrupt, w);
        w->registering = false;
        if (w->interrupted)
                answer_interrupted(w);
        else if (w->thread != 0)
                list(w, true);
}

/* ---- the watch ---- */

/* Under the lock.  Listed replies are not answered yet, or about to be: their memory is there until they leave. */
static void interrupt_killed(struct kill_watch *kw) {
        struct waited *w, *next;

        for (w = LIST_FIRST(&kw->waiting); w; w = next) {
                next = LIST_NEXT(w, link);
                if (w->age++ == 0 || !is_killed(w->thread))
                        continue;
                LIST_REMOVE(w, link);
                w->listed = false;
                if (claim(w)) /* past libfuse's lock: its own interrupt is not inside `w` */
                        fuse_reply_err(w->req, EINTR);
        }
}

static void *watch_kills(void *arg) {
        struct kill_watch *kw = arg;

        pthread_mutex_lock(&kw->lock);
        while (!kw->stopping) {
                if (LIST_EMPTY(&kw->waiting)) {
                        pthread_cond_wait(&kw->wake, &kw->lock);
                        continue;
                }
                struct timespec t;
                clock_gettime(CLOCK_REALTIME, &t);
                t.tv_sec++;
                pthread_cond_timedwait(&kw->wake, &kw->lock, &t);
                interrupt_killed(kw);
        }
        pthread_mutex_unlock(&kw->lock);
        return NULL;
}

int kill_watch_start(struct fs *fs) {
        struct kill_watch *kw = calloc(1, sizeof *kw);

        if (!kw)
                return -ENOMEM;
        pthread_mutex_init(&kw->lock, NULL);
        pthread_cond_init(&kw->wake, NULL);
        LIST_INIT(&kw->waiting);
        int r = thread_start(&kw->thread, "hs-kills", watch_kills, kw);
        if (r < 0) {
                free(kw);
                return r;
        }
        fs->kills = kw;
        return 0;
}

void kill_watch_stop(struct fs *fs) {
        struct kill_watch *kw = fs->kills;

        if (!kw)
                return;
        pthread_mutex_lock(&kw->lock);
        kw->stopping = true;
        pthread_cond_signal(&kw->wake);
        pthread_mutex_unlock(&kw->lock);
        pthread_join(kw->thread, NULL);
        free(kw);
        fs->kills = NULL;
}
