/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity: what makes two opens, maybe years and boots apart, the same version of the same file.
 *
 * The key (file system, inode or path) names the file; the version (size, mtime, ctime) its content.  The file system
 * is f_fsid where that survives a reboot and tells subvolumes apart (ext4, btrfs, zfs), else its UUID.  What lives
 * elsewhere (network, FUSE, overlay) is named by type, source and layers from mountinfo: st_dev changes from boot to
 * boot.  A device without a UUID (squashfs, vfat, tmpfs) may show another image tomorrow: its name is drawn anew for
 * each mount, and nothing of it is found again.
 *
 * Where inode numbers are not stable (FUSE, 9p, vfat, overlay ...) the path takes their place: rclone counts inodes
 * anew with every mount, so an inode in the key would empty the cache at each reboot, and a recycled number would be
 * worse.  There two hard links are two files to us where nobody holds them open: double space.  (While a file is open,
 * the cache goes by its device and inode.)
 *
 * This is the one place where identity is computed.  A content digest (Hugging Face blobs, OCI) could replace the key
 * here, after the content was hashed; nothing above would notice.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct file_key {
        uint64_t fs;    /* hash of what names the file system */
        uint64_t inode; /* the inode number, or 0 where that is not stable */
        uint64_t path;  /* hash of the path relative to the mount, or 0 where the inode is stable */
};
struct file_version {
        uint64_t size;
        int64_t mtime_ns, ctime_ns;
};
struct identity {
        struct file_key key;
        struct file_version version;
        bool lasting; /* another run finds the file by this key again */
        bool local;   /* nobody changes it but through this kernel */
};

/* -1, 0, 1: an order for trees. */
int file_key_cmp(const struct file_key *a, const struct file_key *b);
bool file_version_equal(const struct file_version *a, const struct file_version *b);
struct file_version file_version_of(const struct stat *st);
/* Is the ctime at least 2 s old?  A younger one, or one in the future, does not yet tell two versions apart: another
 * change within the same tick of the file system's clock would not show. */
bool file_version_settled(const struct file_version *v);

/* What a mounted file system contributes; asked once per mount. */
struct fs_identity {
        uint64_t fs;
        bool stable_inodes, lasting, local;
};
/* `fd` lies on the file system.  Reads /proc/self/mountinfo; never resolves a path below the mount. */
int fs_identity_of(int fd, struct fs_identity *ret);

/* `path`: relative to the mount. */
struct identity identity_of(const struct fs_identity *fs, const struct stat *st, const char *path);
