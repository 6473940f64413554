/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that are answered later.
 *
 *        read --(held?)--> held queue --(hold ends)--+
 *          |                                         |
 *          +-----------------------------------------+--> model: due time --> due queue --> reply
 *
 * No thread sleeps for one request, so any number of reads can be held or queued at a disk while the file system
 * answers everything else.  One thread waits for the earliest due time and for the end of a hold; the end is polled,
 * because a control file that a shell script creates and removes is worth more here than a wakeup.
 *
 * The bytes are read from the backing when the request arrives, inside the time that the model asks for.
 *
 * Other requests know no model: parked --(hold ends)--> done and answered.
 */
#include "slowfs.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#define NSEC_PER_SEC UINT64_C(1000000000)
#define POLL_NS UINT64_C(5000000)

struct waiting {
        TAILQ_ENTRY(waiting) link;
        struct slowfs_read r;
        char *buf;
        ssize_t got;  /* bytes in buf, or -errno */
        uint64_t due; /* in the due queue, which is ordered by it */
};
TAILQ_HEAD(waiting_queue, waiting);
TAILQ_HEAD(later_queue, slowfs_later);

static struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        pthread_t thread;
        bool stopping;
        struct diskmodel model;
        struct waiting_queue due, held;
        struct later_queue parked;
        uint64_t reads, read_bytes, opens, failed, was_held;
        FILE *log;
} W = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint64_t now_ns(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

static bool exists(const char *control) { return control && access(control, F_OK) == 0; }

static void reply(struct waiting *w) {
        if (w->got < 0)
                fuse_reply_err(w->r.req, (int)-w->got);
        else
                fuse_reply_buf(w->r.req, w->buf, (size_t)w->got);
        free(w->buf);
        free(w);
}

static void reply_error(struct waiting *w, int err) {
        w->got = -err;
        reply(w);
}

/* Count it and ask the model.  Needs the lock. */
static void schedule(struct waiting *w) {
        const struct slowfs_read *r = &w->r;
        const uint64_t now = now_ns();

        if (r->may_fail && exists(slowfs_options.fail)) {
                W.failed++;
                w->got = -EIO;
                w->due = now;
                return;
        }
        W.reads++;
        W.read_bytes += r->len;
        if (W.log)
                fprintf(W.log, "%llu %llu %lld %zu\n", (unsigned long long)now, (unsigned long long)r->file,
                        (long long)r->off, r->len);
        w->due = diskmodel_read(&W.model, now, r->file, (uint64_t)r->off, r->len);
}

static void fetch(struct waiting *w) {
        if (w->got < 0)
                return;
        w->got = pread(w->r.fd, w->buf, w->r.len, w->r.off);
        if (w->got < 0)
                w->got = -errno;
}

/* Into the due queue.  New requests are mostly the last ones due, so search from the end.  Needs the lock. */
static void enqueue(struct waiting *w) {
        struct waiting *before = TAILQ_LAST(&W.due, waiting_queue);

        while (before && before->due > w->due)
                before = TAILQ_PREV(before, waiting_queue, link);
        if (before)
                TAILQ_INSERT_AFTER(&W.due, before, w, link);
        else
                TAILQ_INSERT_HEAD(&W.due, w, link);
        if (TAILQ_FIRST(&W.due) == w)
                pthread_cond_signal(&W.wake);
}

/* Needs the lock. */
static bool hold(struct waiting *w) {
        if (!w->r.may_hold || !(slowfs_options.hold_ops & HOLD_READ) || !exists(slowfs_options.hold))
                return false;
        W.was_held++;
        TAILQ_INSERT_TAIL(&W.held, w, link);
        pthread_cond_signal(&W.wake);
        return true;
}

static struct waiting *waiting_new(const struct slowfs_read *r) {
        struct waiting *w = calloc(1, sizeof(*w));

        if (!w)
                return NULL;
        w->r = *r;
        w->buf = malloc(r->len + 1);
        if (w->buf)
                return w;
        free(w);
        return NULL;
}

void slowfs_read(const struct slowfs_read *r) {
        struct waiting *w = waiting_new(r);
        bool held;

        if (!w) {
                fuse_reply_err(r->req, ENOMEM);
                return;
        }
        pthread_mutex_lock(&W.lock);
        held = hold(w);
        if (!held)
                schedule(w);
        pthread_mutex_unlock(&W.lock);
        if (held)
                return;
        fetch(w);
        if (w->due <= now_ns()) {
                reply(w);
                return;
        }
        pthread_mutex_lock(&W.lock);
        enqueue(w);
        pthread_mutex_unlock(&W.lock);
}

/*
 * Take one read off the held queue that may go on, or whose reader was killed.  Needs the lock.
 */
static struct waiting *next_released(void) {
        const bool over = !exists(slowfs_options.hold);
        struct waiting *w;

        TAILQ_FOREACH (w, &W.held, link)
                if (over || fuse_req_interrupted(w->r.req)) {
                        TAILQ_REMOVE(&W.held, w, link);
                        if (over)
                                schedule(w);
                        else
                                w->got = -EINTR;
                        return w;
                }
        return NULL;
}

bool slowfs_park(unsigned kind, bool matches, const struct slowfs_later *l) {
        struct slowfs_later *copy;

        if (!matches || !(slowfs_options.hold_ops & kind) || !exists(slowfs_options.hold))
                return false;
        copy = malloc(sizeof(*copy));
        if (!copy)
                return false;
        *copy = *l;
        pthread_mutex_lock(&W.lock);
        W.was_held++;
        TAILQ_INSERT_TAIL(&W.parked, copy, link);
        pthread_cond_signal(&W.wake);
        pthread_mutex_unlock(&W.lock);
        return true;
}

static void later_end(struct slowfs_later *l, int err) {
        if (err)
                fuse_reply_err(l->req, err);
        else
                l->go(l);
        free(l->data);
        free(l);
}

/* As next_released.  Needs the lock. */
static struct slowfs_later *next_unparked(int *ret_err) {
        const bool over = !exists(slowfs_options.hold);
        struct slowfs_later *l;

        TAILQ_FOREACH (l, &W.parked, link)
                if (over || fuse_req_interrupted(l->req)) {
                        TAILQ_REMOVE(&W.parked, l, link);
                        *ret_err = over ? 0 : EINTR;
                        return l;
                }
        return NULL;
}

static struct waiting *next_due(void) {
        struct waiting *w = TAILQ_FIRST(&W.due);

        if (!w || w->due > now_ns())
                return NULL;
        TAILQ_REMOVE(&W.due, w, link);
        return w;
}

/* Until something is due, a hold may have ended, or somebody signals.  Needs the lock. */
static void wait_for_work(void) {
        const struct waiting *w = TAILQ_FIRST(&W.due);
        uint64_t until = w ? w->due : UINT64_MAX;

        if (!(TAILQ_EMPTY(&W.held) && TAILQ_EMPTY(&W.parked)) && now_ns() + POLL_NS < until)
                until = now_ns() + POLL_NS;
        if (until == UINT64_MAX) {
                pthread_cond_wait(&W.wake, &W.lock);
        } else {
                const struct timespec t = { .tv_sec = (time_t)(until / NSEC_PER_SEC),
                                            .tv_nsec = (long)(until % NSEC_PER_SEC) };

                pthread_cond_timedwait(&W.wake, &W.lock, &t);
        }
}

static void *run(void *unused) {
        struct slowfs_later *l;
        struct waiting *w;
        int err;

        (void)unused;
        /* The default slack of 50 us is half of what a 128 KiB transfer takes on a fast modelled volume. */
        prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
        pthread_mutex_lock(&W.lock);
        while (!W.stopping) {
                if ((w = next_due())) {
                        pthread_mutex_unlock(&W.lock);
                        reply(w);
                        pthread_mutex_lock(&W.lock);
                } else if (!TAILQ_EMPTY(&W.held) && (w = next_released())) {
                        pthread_mutex_unlock(&W.lock);
                        fetch(w);
                        pthread_mutex_lock(&W.lock);
                        enqueue(w);
                } else if (!TAILQ_EMPTY(&W.parked) && (l = next_unparked(&err))) {
                        pthread_mutex_unlock(&W.lock);
                        later_end(l, err);
                        pthread_mutex_lock(&W.lock);
                } else {
                        wait_for_work();
                }
        }
        pthread_mutex_unlock(&W.lock);
        return NULL;
}

static void fail_all(struct waiting_queue *q) {
        struct waiting *w;

        while ((w = TAILQ_FIRST(q))) {
                TAILQ_REMOVE(q, w, link);
                reply_error(w, EIO);
        }
}

static int open_log(void) {
        if (!slowfs_options.log)
                return 0;
        W.log = fopen(slowfs_options.log, "we");
        if (!W.log)
                return -errno;
        setvbuf(W.log, NULL, _IOLBF, 0);
        return 0;
}

/* Every signal is the signal thread's. */
static int start_thread(void) {
        sigset_t all, old;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&W.thread, NULL, run, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        return -r;
}

int slowfs_wait_start(void) {
        pthread_condattr_t attr;
        int r;

        r = diskmodel_init(&W.model, &slowfs_options.disk);
        if (r < 0)
                return r;
        TAILQ_INIT(&W.due);
        TAILQ_INIT(&W.held);
        TAILQ_INIT(&W.parked);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&W.wake, &attr);
        pthread_condattr_destroy(&attr);
        r = open_log();
        return r < 0 ? r : start_thread();
}

void slowfs_wait_stop(void) {
        struct slowfs_later *l;

        pthread_mutex_lock(&W.lock);
        W.stopping = true;
        pthread_cond_signal(&W.wake);
        pthread_mutex_unlock(&W.lock);
        pthread_join(W.thread, NULL);
        fail_all(&W.due);
        fail_all(&W.held);
        while ((l = TAILQ_FIRST(&W.parked))) {
                TAILQ_REMOVE(&W.parked, l, link);
                later_end(l, EIO);
        }
        if (W.log)
                fclose(W.log);
        W.log = NULL;
}

void slowfs_count_open(void) {
        pthread_mutex_lock(&W.lock);
        W.opens++;
        pthread_mutex_unlock(&W.lock);
}

void slowfs_reset(void) {
        pthread_mutex_lock(&W.lock);
        W.reads = W.read_bytes = W.opens = W.failed = W.was_held = 0;
        diskmodel_reset(&W.model);
        pthread_mutex_unlock(&W.lock);
}

static unsigned queue_length(const struct waiting_queue *q) {
        const struct waiting *w;
        unsigned n = 0;

        TAILQ_FOREACH (w, q, link)
                n++;
        return n;
}

int slowfs_stats_json(char *buf, size_t size) {
        const struct slowfs_later *l;
        unsigned parked = 0;
        int n;

        pthread_mutex_lock(&W.lock);
        TAILQ_FOREACH (l, &W.parked, link)
                parked++;
        n = snprintf(buf, size,
                     "{\"reads\": %llu, \"read_bytes\": %llu, \"busy_s\": %.6f, \"seeks\": %llu, \"opens\": %llu, "
                     "\"failed\": %llu, \"was_held\": %llu, \"held_now\": %u, \"queued_now\": %u}",
                     (unsigned long long)W.reads, (unsigned long long)W.read_bytes, (double)W.model.busy_ns / 1e9,
                     (unsigned long long)W.model.seeks, (unsigned long long)W.opens, (unsigned long long)W.failed,
                     (unsigned long long)W.was_held, queue_length(&W.held) + parked, queue_length(&W.due));
        pthread_mutex_unlock(&W.lock);
        return n;
}
