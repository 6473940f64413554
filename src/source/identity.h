/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity: what makes two opens, maybe years and boots apart, the same version of the same file.
 *
 * The key (file system, inode or path) names the file; the version (size, mtime, ctime) its content.  The file system
 * is f_fsid where that survives a reboot and tells subvolumes apart (ext4, btrfs); elsewhere type, source and root
 * from mountinfo, since XFS's f_fsid is a device number, FUSE's is 0 and st_dev changes from boot to boot.
 *
 * Where inode numbers are not stable (FUSE, 9p, vfat, overlay ...) the path takes their place: rclone counts inodes
 * anew with every mount, so an inode in the key would empty the cache at each reboot, and a recycled number would be
 * worse.  There two hard links are two files to us: double space; and a write by one name is seen by a holder of
 * the other at its next open only.
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
};

/* -1, 0, 1: an order for trees. */
int file_key_cmp(const struct file_key *a, const struct file_key *b);
bool file_version_equal(const struct file_version *a, const struct file_version *b);
struct file_version file_version_of(const struct stat *st);
/* Is the ctime at least 2 s old?  A younger one, or one in the future, does not yet tell two versions apart: another
 * change within the same tick of the file system's clock would not show. */
bool file_version_settled(const struct file_version *v);

/* What a mounted file system contributes; asked once per st_dev. */
struct fs_identity {
        uint64_t fs;
        bool stable_inodes;
        dev_t dev; /* of the descriptor that was asked */
};
/* `fd` lies on the file system.  Reads /proc/self/mountinfo; never resolves a path below the mount. */
int fs_identity_of(int fd, struct fs_identity *ret);

/* `path`: relative to the mount. */
struct identity identity_of(const struct fs_identity *fs, const struct stat *st, const char *path);
