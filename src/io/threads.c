/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fallback back end: a queue and a fixed pool of threads that call preadv2/pwritev2.
 */
#include "base/thread.h"
#include "base/util.h"
#include "io/engine.h"

#include <errno.h>
#include <sys/uio.h>

enum { POOL_THREADS = 32 };

struct pool {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        struct io_op *head, **tail;
        bool stopping;
        unsigned count;
        pthread_t threads[POOL_THREADS];
        struct io_engine *engine;
};

static void threads_submit(struct io_engine *e, struct io_op *op) {
        struct pool *p = e->state;

        op->next = NULL;
        pthread_mutex_lock(&p->lock);
        *p->tail = op;
        p->tail = &op->next;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
}

static struct io_op *take(struct pool *p) {
        pthread_mutex_lock(&p->lock);
        while (!p->head && !p->stopping)
                pthread_cond_wait(&p->wake, &p->lock);
        struct io_op *op = p->head;
        if (op && !(p->head = op->next))
                p->tail = &p->head;
        pthread_mutex_unlock(&p->lock);
        return op;
}

static void *work(void *arg) {
        struct pool *p = arg;
        struct io_op *op;

        while ((op = take(p))) {
                struct iovec iov = { (char *)op->buf + op->moved, op->len - op->moved };
                off_t off = (off_t)(op->off + op->moved);
                ssize_t n = op->write ? pwritev2(op->fd, &iov, 1, off, op->flags)
                                      : preadv2(op->fd, &iov, 1, off, op->flags);
                io_progress(p->engine, op, n < 0 ? -errno : n);
        }
        return NULL;
}

static void threads_stop(struct io_engine *e) {
        struct pool *p = e->state;

        pthread_mutex_lock(&p->lock);
        p->stopping = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (unsigned i = 0; i < p->count; i++)
                pthread_join(p->threads[i], NULL);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->wake);
        free(p);
}

static int threads_start(struct io_engine *e) {
        struct pool *p = calloc(1, sizeof *p);
        int r = 0;

        if (!p)
                return -ENOMEM;
        pthread_mutex_init(&p->lock, NULL);
        pthread_cond_init(&p->wake, NULL);
        p->tail = &p->head;
        p->engine = e;
        e->state = p;
        for (; p->count < POOL_THREADS; p->count++)
                if ((r = thread_start(&p->threads[p->count], "hs-read", work, p)) < 0)
                        break;
        if (p->count > 0)
                return 0;
        threads_stop(e);
        return r;
}

const struct io_backend_ops io_threads_backend = {
        .name = "threads",
        .start = threads_start,
        .submit = threads_submit,
        .stop = threads_stop,
};
