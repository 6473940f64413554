/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring back end: one ring, any thread submits under a short lock, one thread reaps.
 *
 * Operations go to the kernel's workers (IOSQE_ASYNC) because a buffered read that finds its pages copies them inside
 * io_uring_enter, and a megabyte copied under our lock would queue every other submitter behind it.
 */
#include "base/thread.h"
#include "io/engine.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

enum { RING_ENTRIES = 256, MAX_WORKERS = 64 };

struct ring {
        struct io_uring uring;
        pthread_mutex_t lock; /* the submission side */
        pthread_t reaper;
        struct io_engine *engine;
};

static void uring_submit(struct io_engine *e, struct io_op *op) {
        struct ring *ring = e->state;
        struct io_uring_sqe *sqe;
        char *buf = (char *)op->buf + op->moved;
        unsigned len = (unsigned)(op->len - op->moved);

        pthread_mutex_lock(&ring->lock);
        while (!(sqe = io_uring_get_sqe(&ring->uring)))
                io_uring_submit(&ring->uring);
        if (op->write)
                io_uring_prep_write(sqe, op->fd, buf, len, op->off + op->moved);
        else
                io_uring_prep_read(sqe, op->fd, buf, len, op->off + op->moved);
        sqe->rw_flags = op->flags;
        sqe->flags |= IOSQE_ASYNC;
        io_uring_sqe_set_data(sqe, op);
        /* A full completion queue (-EBUSY) leaves the entry queued; the reaper submits it with the next one. */
        io_uring_submit(&ring->uring);
        pthread_mutex_unlock(&ring->lock);
}

static void *reap(void *arg) {
        struct ring *ring = arg;
        struct io_uring_cqe *cqe;

        for (;;) {
                if (io_uring_wait_cqe(&ring->uring, &cqe) < 0)
                        continue;
                struct io_op *op = io_uring_cqe_get_data(cqe);
                ssize_t res = cqe->res;
                io_uring_cqe_seen(&ring->uring, cqe);
                if (!op)
                        return NULL;
                io_progress(ring->engine, op, res);
                if (io_uring_sq_ready(&ring->uring) > 0) {
                        pthread_mutex_lock(&ring->lock);
                        io_uring_submit(&ring->uring);
                        pthread_mutex_unlock(&ring->lock);
                }
        }
}

static void uring_stop(struct io_engine *e) {
        struct ring *ring = e->state;
        struct io_uring_sqe *sqe;

        pthread_mutex_lock(&ring->lock);
        while (!(sqe = io_uring_get_sqe(&ring->uring)))
                io_uring_submit(&ring->uring);
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, NULL);
        io_uring_submit(&ring->uring);
        pthread_mutex_unlock(&ring->lock);
        pthread_join(ring->reaper, NULL);
        io_uring_queue_exit(&ring->uring);
        pthread_mutex_destroy(&ring->lock);
        free(ring);
}

static int uring_start(struct io_engine *e) {
        unsigned workers[2] = { MAX_WORKERS, 0 }; /* reads of files are "bounded" work; the default is 4 a core */
        struct ring *ring = calloc(1, sizeof *ring);
        int r;

        if (!ring)
                return -ENOMEM;
        if ((r = io_uring_queue_init(RING_ENTRIES, &ring->uring, 0)) < 0)
                goto fail;
        io_uring_register_iowq_max_workers(&ring->uring, workers);
        pthread_mutex_init(&ring->lock, NULL);
        ring->engine = e;
        e->state = ring;
        if ((r = thread_start(&ring->reaper, "hs-reap", reap, ring)) < 0) {
                io_uring_queue_exit(&ring->uring);
                goto fail;
        }
        return 0;
fail:
        free(ring);
        return r;
}

const struct io_backend_ops io_uring_backend = {
        .name = "io_uring",
        .start = uring_start,
        .submit = uring_submit,
        .stop = uring_stop,
};
