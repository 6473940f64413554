/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of spinning disks behind a striped volume: when would this read be complete?
 *
 *        file  | unit 0 | unit 1 | unit 2 | unit 3 | unit 4 | ...      a unit is `stripe` bytes
 *                  |        |        |        |        |
 *        disk      a       a+1      a+2      a+3       a               a: where this file starts, so that small
 *                                                                         files do not all lie on the first disk
 *
 * Each disk has one arm that serves its requests in the order of their arrival.  An arm that does not stand where a
 * request begins seeks, unless the gap lies ahead and passing over it is cheaper than a seek.  What it passed over,
 * there or while the disk turned under it at the end of a seek, is in the drive's buffer, so two neighbours that
 * arrive in the wrong order cost what they cost in the right one.
 *
 * Left out: outer and inner tracks, the length of a seek, the elevator, the drive's cache of what was read.
 * Pure: the caller brings the time, in nanoseconds of any clock, and its own lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define DISKMODEL_MAX_DISKS 64

struct diskmodel_params {
        unsigned disks;      /* 0: no delay but the latency */
        uint64_t seek_ns;    /* of one seek; half of it is the wait for the rotation */
        uint64_t rate;       /* bytes per second that pass under one arm */
        uint64_t stripe;     /* bytes */
        uint64_t latency_ns; /* added to each request: bus, network; does not occupy an arm */
};

struct disk_arm {
        bool placed;   /* it has read something */
        uint64_t file; /* where it stands: the file and the position in this disk's part of it */
        uint64_t pos;
        uint64_t passed_from; /* [passed_from, passed_to) was passed over and not yet asked for */
        uint64_t passed_to;
        uint64_t free_at; /* when it has served all that came so far */
};

struct diskmodel {
        struct diskmodel_params p;
        struct disk_arm arms[DISKMODEL_MAX_DISKS];
        uint64_t busy_ns; /* all arms together */
        uint64_t seeks;
};

/* 0, or -EINVAL when the parameters make no disk. */
int diskmodel_init(struct diskmodel *m, const struct diskmodel_params *p);

/* When a read of [off, off + len) of `file` that arrives at `now` is complete.  Arrivals must not go back in time. */
uint64_t diskmodel_read(struct diskmodel *m, uint64_t now, uint64_t file, uint64_t off, uint64_t len);

/* Zero the counters; the arms stay where they are. */
void diskmodel_reset(struct diskmodel *m);
