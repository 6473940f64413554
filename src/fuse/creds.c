/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files made through the mount belong to their maker, and what is written counts against the writer's share: the thread
 * takes the request's file system uid and gid for the one call.  The kernel has checked the permissions on our side
 * (default_permissions), supplementary groups included, which we do not have; so the capabilities that override them
 * are kept, and the one that keeps a setgid bit which the kernel has let pass (FSETID).
 *
 * The umask is the request's too, applied by the source's file system: where a default ACL decides, it does not count.
 * It belongs to the process, so each thread leaves what it shares of that first.
 */
#include "base/sys.h"
#include "fuse/fs.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

bool creds_have_umask(void) {
        static _Thread_local enum { ASK, YES, NO } own;

        if (own == ASK)
                own = unshare(CLONE_FS) == 0 ? YES : NO;
        return own == YES;
}

struct creds creds_assume(fuse_req_t req) {
        const struct fuse_ctx *ctx = fuse_req_ctx(req);
        struct creds c = { .changed = geteuid() == 0 && (ctx->uid != 0 || ctx->gid != 0) };

        if (ctx->umask != 0 && creds_have_umask()) {
                umask(ctx->umask);
                c.masked = true;
        }
        if (!c.changed)
                return c;
        /* Both are per thread; the gid first, while we may. */
        setfsgid(ctx->gid);
        setfsuid(ctx->uid);
        if (ctx->uid != 0)
                capabilities_change(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER | 1u << CAP_FSETID |
                                    1u << CAP_MKNOD, 0);
        return c;
}

void creds_restore(const struct creds *c) {
        if (c->masked)
                umask(0);
        if (!c->changed)
                return;
        setfsuid(0); /* back to 0, the kernel raises the file system capabilities again */
        setfsgid(0);
}
