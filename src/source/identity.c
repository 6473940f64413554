/* SPDX-License-Identifier: Apache-2.0 */
#include "source/identity.h"

#include "base/util.h"
#include "source/mountinfo.h"

#include <errno.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <xxhash.h>

/* Kinds by their statfs magic; linux/magic.h lacks half of them on the distributions that we build on. */
static const struct {
        uint32_t magic;
        bool stable_inodes, stable_fsid;
} kinds[] = {
        { 0x0000ef53, true, true },   /* ext2, ext3, ext4: fsid from the UUID */
        { 0x9123683e, true, true },   /* btrfs: fsid from the UUID and the subvolume */
        { 0x65735546, false, false }, /* FUSE */
        { 0x01021997, false, false }, /* 9p */
        { 0x00004d44, false, false }, /* vfat */
        { 0x2011bab0, false, false }, /* exfat */
        { 0x794c7630, false, false }, /* overlay */
        { 0xff534d42, false, false }, /* cifs */
        { 0xfe534d42, false, false }, /* smb3 */
};

int file_key_cmp(const struct file_key *a, const struct file_key *b) {
        if (a->fs != b->fs)
                return a->fs < b->fs ? -1 : 1;
        if (a->inode != b->inode)
                return a->inode < b->inode ? -1 : 1;
        return a->path == b->path ? 0 : a->path < b->path ? -1 : 1;
}

bool file_version_equal(const struct file_version *a, const struct file_version *b) {
        return a->size == b->size && a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

bool file_version_settled(const struct file_version *v) {
        struct timespec now;

        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        return v->ctime_ns <= (now.tv_sec - 2) * 1000000000ll + now.tv_nsec;
}

static int64_t to_ns(struct timespec t) { return t.tv_sec * 1000000000ll + t.tv_nsec; }

struct file_version file_version_of(const struct stat *st) {
        return (struct file_version){
                .size = (uint64_t)st->st_size,
                .mtime_ns = to_ns(st->st_mtim),
                .ctime_ns = to_ns(st->st_ctim),
        };
}

/* Bind mounts show the same st_dev with other roots, so only what all of them share may count: type and source. */
static int hash_of_mount(dev_t dev, uint64_t *ret) {
        struct mount_entry m;
        int r = mountinfo_find_dev(dev, &m);

        if (r < 0)
                return r;
        *ret = XXH3_64bits(m.type, strlen(m.type));
        *ret = XXH3_64bits_withSeed(m.source, strlen(m.source), *ret);
        mount_entry_clear(&m);
        return 0;
}

int fs_identity_of(int fd, struct fs_identity *ret) {
        struct fs_identity id = { .stable_inodes = true };
        struct statfs sf;
        struct stat st;

        if (fstatfs(fd, &sf) < 0 || fstat(fd, &st) < 0)
                return -errno;
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                if (kinds[i].magic != (uint32_t)sf.f_type)
                        continue;
                id.stable_inodes = kinds[i].stable_inodes;
                if (kinds[i].stable_fsid)
                        id.fs = XXH3_64bits(&sf.f_fsid, sizeof sf.f_fsid);
        }
        if (id.fs == 0) {
                int r = hash_of_mount(st.st_dev, &id.fs);
                if (r < 0)
                        return r;
        }
        id.dev = st.st_dev;
        *ret = id;
        return 0;
}

struct identity identity_of(const struct fs_identity *fs, const struct stat *st, const char *path) {
        struct identity id = { .key.fs = fs->fs, .version = file_version_of(st) };

        if (fs->stable_inodes)
                id.key.inode = st->st_ino;
        else
                id.key.path = XXH3_64bits(path, strlen(path));
        return id;
}
