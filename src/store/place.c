/* SPDX-License-Identifier: Apache-2.0 */
/* Where the cache directory lies: warnings about storage that cannot help. */
#include "base/util.h"
#include "source/mountinfo.h"
#include "store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

static const struct {
        uint32_t magic;
        const char *what;
} slow_kinds[] = {
        { 0x00006969, "on a network (nfs)" },   { 0xff534d42, "on a network (cifs)" },
        { 0xfe534d42, "on a network (smb3)" },  { 0x00c36400, "on a network (ceph)" },
        { 0x6b414653, "on a network (afs)" },   { 0x5346414f, "on a network (afs)" },
        { 0x01021997, "on a 9p device" },       { 0x65735546, "on a FUSE file system" },
        { 0x01021994, "on tmpfs, in memory" },  { 0x858458f6, "on ramfs, in memory" },
};

/* The block device's numbers; btrfs shows a device of its own, so there the mount's source is asked. */
static bool block_device(int fd, dev_t *ret) {
        struct mount_entry m;
        struct stat st, dev;
        bool found = false;

        if (fstat(fd, &st) < 0)
                return false;
        *ret = st.st_dev;
        if (major(st.st_dev) != 0)
                return true;
        if (mountinfo_find_dev(st.st_dev, &m) < 0)
                return false;
        if (m.source[0] == '/' && stat(m.source, &dev) == 0 && S_ISBLK(dev.st_mode)) {
                *ret = dev.st_rdev;
                found = true;
        }
        mount_entry_clear(&m);
        return found;
}

static bool is_rotating(dev_t dev) {
        static const char *const places[] = { "", "../" }; /* a partition's queue is its disk's */
        char path[96], value = '0';

        for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
                snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%squeue/rotational", major(dev), minor(dev), places[i]);
                _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd >= 0 && read(fd, &value, 1) == 1)
                        return value == '1';
        }
        return false;
}

void store_warnings(struct store *s, int source_root, void (*warn)(void *ctx, const char *text), void *ctx) {
        struct statfs sf;
        struct stat mine, theirs;
        char text[128];
        dev_t dev;

        if (fstatfs(s->dir, &sf) == 0)
                for (size_t i = 0; i < ARRAY_SIZE(slow_kinds); i++)
                        if (slow_kinds[i].magic == (uint32_t)sf.f_type) {
                                snprintf(text, sizeof text, "the cache is %s; hits may be no faster than the source",
                                         slow_kinds[i].what);
                                warn(ctx, text);
                        }
        if (block_device(s->dir, &dev) && is_rotating(dev))
                warn(ctx, "the cache is on a rotating device; hits may be no faster than the source");
        if (fstat(s->dir, &mine) == 0 && fstat(source_root, &theirs) == 0 && mine.st_dev == theirs.st_dev)
                warn(ctx, "the cache is on the source's own device; it cannot be faster than the source");
}
