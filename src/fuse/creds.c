/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files made through the mount belong to their maker: the thread takes the request's file system uid and gid for the
 * one call.  The kernel has checked the permissions on our side (default_permissions), supplementary groups included,
 * which we do not have; so the capabilities that override them are kept.
 */
#include "fuse/fs.h"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static void raise_override(void) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2];

        if (syscall(SYS_capget, &head, data) < 0)
                return;
        data[0].effective |= data[0].permitted & (1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_MKNOD);
        syscall(SYS_capset, &head, data);
}

struct creds creds_assume(fuse_req_t req) {
        const struct fuse_ctx *ctx = fuse_req_ctx(req);
        struct creds c = { .changed = geteuid() == 0 && (ctx->uid != 0 || ctx->gid != 0) };

        if (!c.changed)
                return c;
        /* Both are per thread; the gid first, while we may. */
        setfsgid(ctx->gid);
        setfsuid(ctx->uid);
        if (ctx->uid != 0)
                raise_override();
        return c;
}

void creds_restore(const struct creds *c) {
        if (!c->changed)
                return;
        setfsuid(0); /* back to 0, the kernel raises the file system capabilities again */
        setfsgid(0);
}
