/* SPDX-License-Identifier: Apache-2.0 */
#include "source/settle.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/util.h"

#include <bsd/sys/queue.h>
#include <errno.h>
#include <fcntl.h>

#define PATIENCE_NS 50000000ll /* what an open may wait */

struct job {
        STAILQ_ENTRY(job) link;
        int fd; /* a duplicate */
        struct file_version version;
        unsigned refs; /* who asked, and the thread */
        bool done, same;
};

struct settler {
        pthread_mutex_t lock; /* all of it, jobs included */
        pthread_cond_t work, done;
        pthread_t thread;
        STAILQ_HEAD(, job) jobs;
        int64_t busy_since; /* 0: idle */
        bool stopping;
};

static void job_unref(struct job *j) {
        if (--j->refs > 0)
                return;
        close(j->fd);
        free(j);
}

/* To be on its way is enough: a page under write-back is write-protected, so that the next store moves the times.  First
 * those that are on their way already: one that was dirtied again meanwhile would be left out. */
static bool write_back(int fd, const struct file_version *v) {
        struct stat st;

        /* What knows no write-back has no dirty pages either. */
        if (sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE) < 0 && errno == EIO)
                return false;
        if (fstat(fd, &st) < 0)
                return false;
        struct file_version now = file_version_of(&st);
        return file_version_equal(&now, v);
}

/* Called and returns with the lock; gives it up meanwhile. */
static void run_job(struct settler *s, struct job *j) {
        s->busy_since = monotonic_ns();
        pthread_mutex_unlock(&s->lock);
        bool same = write_back(j->fd, &j->version);
        pthread_mutex_lock(&s->lock);
        s->busy_since = 0;
        j->same = same;
        j->done = true;
        pthread_cond_broadcast(&s->done);
        job_unref(j);
}

static void *settle(void *arg) {
        struct settler *s = arg;
        struct job *j;

        pthread_mutex_lock(&s->lock);
        while (!s->stopping) {
                if ((j = STAILQ_FIRST(&s->jobs))) {
                        STAILQ_REMOVE_HEAD(&s->jobs, link);
                        run_job(s, j);
                } else {
                        pthread_cond_wait(&s->work, &s->lock);
                }
        }
        pthread_mutex_unlock(&s->lock);
        return NULL;
}

int settler_new(struct settler **ret) {
        struct settler *s = calloc(1, sizeof *s);
        pthread_condattr_t attr;

        if (!s)
                return -ENOMEM;
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->work, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&s->done, &attr);
        pthread_condattr_destroy(&attr);
        STAILQ_INIT(&s->jobs);
        int r = thread_start(&s->thread, "hs-settle", settle, s);
        if (r < 0) {
                free(s);
                return r;
        }
        *ret = s;
        return 0;
}

struct settler *settler_free(struct settler *s) {
        struct job *j;

        if (!s)
                return NULL;
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        bool busy = s->busy_since != 0;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        if (busy)
                return NULL;
        pthread_join(s->thread, NULL);
        while ((j = STAILQ_FIRST(&s->jobs))) {
                STAILQ_REMOVE_HEAD(&s->jobs, link);
                job_unref(j);
        }
        free(s);
        return NULL;
}

static struct job *job_new(int fd, const struct file_version *v) {
        struct job *j = malloc(sizeof *j);
        int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);

        if (!j || own < 0) {
                closep(&own);
                free(j);
                return NULL;
        }
        *j = (struct job){ .fd = own, .version = *v, .refs = 2 };
        return j;
}

static void wait_for(struct settler *s, const struct job *j) {
        int64_t until = monotonic_ns() + PATIENCE_NS;
        const struct timespec t = { until / 1000000000, until % 1000000000 };

        while (!j->done && pthread_cond_timedwait(&s->done, &s->lock, &t) == 0)
                ;
}

bool settler_write_back(struct settler *s, int fd, const struct file_version *v) {
        struct job *j = job_new(fd, v);

        if (!j)
                return false;
        pthread_mutex_lock(&s->lock);
        if (s->busy_since != 0 && monotonic_ns() - s->busy_since > PATIENCE_NS) {
                j->refs--; /* the thread will not see it */
        } else {
                STAILQ_INSERT_TAIL(&s->jobs, j, link);
                pthread_cond_signal(&s->work);
                wait_for(s, j);
        }
        bool same = j->done && j->same;
        job_unref(j);
        pthread_mutex_unlock(&s->lock);
        return same;
}
