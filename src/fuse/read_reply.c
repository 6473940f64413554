/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read's answer, and its interruption.
 *
 * A read that waits for the source must end when its program is killed, so INTERRUPT is answered with EINTR while the
 * source read goes on for others.  Who answers first owns the request: `answered` decides, and after libfuse's own
 * lock is passed once (fuse_req_interrupt_func with NULL) the other side can no longer be inside.
 *
 * An answer that is there at once (a hit) needs none of this, and no memory.
 */
#include "fuse/fs.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct direct_reply {
        struct read_sink sink;
        fuse_req_t req;
};

struct waited_reply {
        struct read_sink sink;
        fuse_req_t req;
        _Atomic bool answered;
        _Atomic int holders; /* the reader, and the interrupter */
        pthread_t registrar; /* meaningful while registering */
        bool registering, interrupted;
};

static void put(struct waited_reply *w) {
        if (--w->holders == 0)
                free(w);
}

static void answer_interrupted(struct waited_reply *w) {
        if (!atomic_exchange(&w->answered, true)) {
                fuse_reply_err(w->req, EINTR);
                put(w);
        }
}

static void on_interrupt(fuse_req_t req, void *data) {
        struct waited_reply *w = data;

        (void)req;
        /* Called from inside our own fuse_req_interrupt_func, the request has to outlive that. */
        if (w->registering && pthread_equal(w->registrar, pthread_self()))
                w->interrupted = true;
        else
                answer_interrupted(w);
}

/* True: the request is ours to answer, and no interrupt will touch it or `w` any more. */
static bool claim(struct waited_reply *w) {
        if (atomic_exchange(&w->answered, true))
                return false;
        fuse_req_interrupt_func(w->req, NULL, NULL);
        put(w); /* the interrupter's share: it will never come */
        return true;
}

static void waited_reply(struct read_sink *s, const struct iovec *iov, int count) {
        struct waited_reply *w = (struct waited_reply *)s;

        if (claim(w))
                fuse_reply_iov(w->req, iov, count);
        put(w);
}

static void waited_fail(struct read_sink *s, int error) {
        struct waited_reply *w = (struct waited_reply *)s;

        if (claim(w))
                fuse_reply_err(w->req, error);
        put(w);
}

static void direct_reply(struct read_sink *s, const struct iovec *iov, int count) {
        fuse_reply_iov(((struct direct_reply *)s)->req, iov, count);
}
static void direct_fail(struct read_sink *s, int error) { fuse_reply_err(((struct direct_reply *)s)->req, error); }

static void lost_reply(struct read_sink *s, const struct iovec *iov, int count) { (void)s, (void)iov, (void)count; }
static void lost_fail(struct read_sink *s, int error) { (void)s, (void)error; }

static struct read_sink *begin_waiting(struct read_sink *s) {
        static struct read_sink nobody = { lost_reply, lost_fail, NULL };
        fuse_req_t req = ((struct direct_reply *)s)->req;
        struct waited_reply *w = calloc(1, sizeof *w);

        if (!w) {
                fuse_reply_err(req, ENOMEM);
                return &nobody;
        }
        w->sink = (struct read_sink){ waited_reply, waited_fail, NULL };
        w->req = req;
        w->holders = 2;
        w->registrar = pthread_self();
        w->registering = true;
        fuse_req_interrupt_func(req, on_interrupt, w);
        w->registering = false;
        if (w->interrupted)
                answer_interrupted(w);
        return &w->sink;
}

void reply_read(fuse_req_t req, struct cache_handle *h, uint64_t off, size_t size) {
        struct direct_reply d = { { direct_reply, direct_fail, begin_waiting }, req };

        cache_read(h, off, size, &d.sink);
}
