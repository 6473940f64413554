/* SPDX-License-Identifier: Apache-2.0 */
#include "io/engine.h"

#include "base/util.h"

#include <errno.h>
#include <time.h>

enum { ATTEMPTS = 16 }; /* of one transfer; who answers like this for ever means it */

int io_engine_new(enum io_backend backend, struct io_engine **ret) {
        static const struct io_backend_ops *const backends[] = { &io_uring_backend, &io_threads_backend };
        struct io_engine *e = calloc(1, sizeof *e);
        int r = -ENOMEM;

        if (!e)
                return -ENOMEM;
        for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
                if ((backend == IO_URING && i != 0) || (backend == IO_THREADS && i != 1))
                        continue;
                e->ops = backends[i];
                if ((r = e->ops->start(e)) == 0) {
                        *ret = e;
                        return 0;
                }
        }
        free(e);
        return r;
}

int io_engine_free(struct io_engine *e, unsigned seconds) {
        if (!e)
                return 0;
        for (unsigned i = 0; e->in_flight > 0; i++) {
                if (i >= seconds * 100)
                        return -ETIMEDOUT;
                nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
        }
        e->ops->stop(e);
        free(e);
        return 0;
}

bool io_engine_idle(const struct io_engine *e) { return !e || e->in_flight == 0; }

const char *io_engine_name(const struct io_engine *e) { return e->ops->name; }

void io_submit(struct io_engine *e, struct io_op *op) {
        op->moved = 0;
        op->attempts = 0;
        e->in_flight++;
        e->ops->submit(e, op);
}

static void end(struct io_engine *e, struct io_op *op, ssize_t result) {
        op->done(op, result);
        e->in_flight--; /* last: io_engine_free waits for the callbacks too */
}

/*
 * Nothing came of the transfer, and nobody wanted that.  The kernel interrupts or cancels what a thread asked of io_uring
 * when that thread ends; we cancel nothing, and the thread that asks again is the engine's.
 */
static bool try_again(struct io_op *op, ssize_t res) {
        return (res == -EINTR || res == -EAGAIN || res == -ECANCELED) && ++op->attempts < ATTEMPTS;
}

void io_progress(struct io_engine *e, struct io_op *op, ssize_t res) {
        if (try_again(op, res)) {
                e->ops->submit(e, op);
        } else if (res == -EOPNOTSUPP && op->flags) {
                op->flags = 0;
                e->ops->submit(e, op);
        } else if (res < 0) {
                end(e, op, res);
        } else {
                op->moved += (size_t)res;
                op->attempts = 0;
                if (res == 0 || op->moved >= op->len)
                        end(e, op, (ssize_t)op->moved);
                else
                        e->ops->submit(e, op);
        }
}

ssize_t io_read(int fd, void *buf, size_t len, uint64_t off) {
        size_t done = 0;

        while (done < len) {
                ssize_t n = pread(fd, (char *)buf + done, len - done, (off_t)(off + done));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                done += (size_t)n;
        }
        return (ssize_t)done;
}

ssize_t io_write(int fd, const void *buf, size_t len, uint64_t off) {
        size_t done = 0;

        while (done < len) {
                ssize_t n = pwrite(fd, (const char *)buf + done, len - done, (off_t)(off + done));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return -EIO;
                done += (size_t)n;
        }
        return (ssize_t)done;
}
