/* SPDX-License-Identifier: Apache-2.0 */
#include "source/identity.h"

#include "base/sys.h"
#include "base/util.h"
#include "source/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <xxhash.h>

/* Kinds by their statfs magic; linux/magic.h lacks half of them on the distributions that we build on. */
static const struct kind {
        uint32_t magic;
        bool stable_inodes;
        enum { BY_UUID, BY_FSID, BY_SOURCE } name;
} kinds[] = {
        { 0x0000ef53, true, BY_FSID },    /* ext2, ext3, ext4: fsid from the UUID */
        { 0x9123683e, true, BY_FSID },    /* btrfs: fsid from the UUID and the subvolume */
        { 0x2fc12fc1, true, BY_FSID },    /* zfs: fsid from the data set's own number */
        { 0x65735546, false, BY_SOURCE }, /* FUSE */
        { 0x01021997, false, BY_SOURCE }, /* 9p */
        { 0x794c7630, false, BY_SOURCE }, /* overlay */
        { 0xff534d42, false, BY_SOURCE }, /* cifs */
        { 0xfe534d42, false, BY_SOURCE }, /* smb3 */
        { 0x00006969, true, BY_SOURCE },  /* nfs */
        { 0x00c36400, true, BY_SOURCE },  /* ceph */
        { 0x6b414653, true, BY_SOURCE },  /* afs, in the kernel */
        { 0x0bd00bd0, true, BY_SOURCE },  /* lustre */
        { 0x00004d44, false, BY_UUID },   /* vfat */
        { 0x2011bab0, false, BY_UUID },   /* exfat */
};
static const struct kind any_kind = { .stable_inodes = true, .name = BY_UUID };

/* Linux 6.9, where the file system has a UUID; the headers that we build with may be older. */
struct uuid_of_fs {
        uint8_t len, uuid[16];
};
#define GET_FS_UUID _IOR(0x15, 0, struct uuid_of_fs)
/* XFS told its own from the beginning. */
struct xfs_geometry {
        uint32_t sizes[8];
        uint64_t counts[4];
        uint8_t uuid[16];
        uint32_t rest[7];
};
#define GET_XFS_GEOMETRY _IOR('X', 100, struct xfs_geometry)
#define XFS_MAGIC 0x58465342u

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

static uint64_t hash_text(const char *text, uint64_t seed) { return XXH3_64bits_withSeed(text, strlen(text), seed); }

/* Bind mounts show the same st_dev with other roots, so only what all of them share may count.  0: it has no such name,
 * or one that says nothing about what is there: a device's. */
static uint64_t hash_of_source(dev_t dev) {
        struct mount_entry m;
        uint64_t hash = 0;

        if (mountinfo_find_dev(dev, &m) < 0)
                return 0;
        if (major(dev) == 0 && strncmp(m.source, "/dev/", 5) != 0) {
                hash = hash_text(m.source, hash_text(m.type, 0));
                if (strcmp(m.type, "overlay") == 0)
                        hash = hash_text(m.super_options, hash); /* its layers */
        }
        mount_entry_clear(&m);
        return hash;
}

/* An ioctl needs a descriptor that is open, and the one at hand may be a mere path. */
static uint64_t hash_of_uuid(int fd, uint32_t magic) {
        static const uint8_t none[16];
        _cleanup_close_ int open_fd = open(path_of_fd(fd).text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct xfs_geometry xfs;
        struct uuid_of_fs own;

        if (open_fd < 0)
                return 0;
        if (ioctl(open_fd, GET_FS_UUID, &own) == 0 && own.len > 0 && own.len <= sizeof own.uuid)
                return XXH3_64bits_withSeed(own.uuid, own.len, magic);
        if (magic == XFS_MAGIC && ioctl(open_fd, GET_XFS_GEOMETRY, &xfs) == 0 && memcmp(xfs.uuid, none, sizeof none) != 0)
                return XXH3_64bits_withSeed(xfs.uuid, sizeof xfs.uuid, magic);
        return 0;
}

static uint64_t drawn(void) {
        uint64_t x = 0;

        while (x == 0 && getrandom(&x, sizeof x, 0) == (ssize_t)sizeof x)
                ;
        return x ? x : 1;
}

int fs_identity_of(int fd, struct fs_identity *ret) {
        const struct kind *k = &any_kind;
        uint64_t fs = 0;
        struct statfs sf;
        struct stat st;

        if (fstatfs(fd, &sf) < 0 || fstat(fd, &st) < 0)
                return -errno;
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
                if (kinds[i].magic == (uint32_t)sf.f_type)
                        k = &kinds[i];
        switch (k->name) {
        case BY_FSID: fs = XXH3_64bits(&sf.f_fsid, sizeof sf.f_fsid); break;
        case BY_SOURCE: fs = hash_of_source(st.st_dev); break;
        case BY_UUID: fs = hash_of_uuid(fd, (uint32_t)sf.f_type); break;
        }
        *ret = (struct fs_identity){ .fs = fs ? fs : drawn(), .stable_inodes = k->stable_inodes, .lasting = fs != 0,
                                      .local = k->name != BY_SOURCE };
        return 0;
}

struct identity identity_of(const struct fs_identity *fs, const struct stat *st, const char *path) {
        struct identity id = { .key.fs = fs->fs, .version = file_version_of(st), .lasting = fs->lasting,
                               .local = fs->local };

        if (fs->stable_inodes)
                id.key.inode = st->st_ino;
        else
                id.key.path = XXH3_64bits(path, strlen(path));
        return id;
}
