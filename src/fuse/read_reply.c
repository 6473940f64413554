/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read's answer.  One that waits for the source must end when its program is killed, so it becomes a waited request;
 * the source read goes on for others.  An answer that is there at once (a hit) needs none of this, and no memory.
 */
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/waited.h"

#include <errno.h>

struct direct_reply {
        struct read_sink sink;
        fuse_req_t req;
};

struct waited_reply {
        struct waited waited;
        struct read_sink sink;
};

static struct waited_reply *of_sink(struct read_sink *s) { return container_of(s, struct waited_reply, sink); }

static void waited_reply(struct read_sink *s, const struct iovec *iov, int count) {
        struct waited *w = &of_sink(s)->waited;

        if (waited_claim(w))
                fuse_reply_iov(w->req, iov, count);
        waited_put(w);
}

static void waited_fail(struct read_sink *s, int error) {
        struct waited *w = &of_sink(s)->waited;

        if (waited_claim(w))
                fuse_reply_err(w->req, error);
        waited_put(w);
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
        waited_begin(&w->waited, req);
        return &w->sink;
}

void reply_read(fuse_req_t req, struct cache_handle *h, uint64_t off, size_t size) {
        struct direct_reply d = { { direct_reply, direct_fail, begin_waiting }, req };

        cache_read(h, off, size, &d.sink);
}
