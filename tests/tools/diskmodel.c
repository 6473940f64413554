/* SPDX-License-Identifier: Apache-2.0 */
/* See diskmodel.h for the idea. */
#include "diskmodel.h"

#include <errno.h>
#include <string.h>

#define NSEC_PER_SEC UINT64_C(1000000000)

int diskmodel_init(struct diskmodel *m, const struct diskmodel_params *p) {
        if (p->disks > DISKMODEL_MAX_DISKS || (p->disks > 0 && (p->rate == 0 || p->stripe == 0)))
                return -EINVAL;
        memset(m, 0, sizeof(*m));
        m->p = *p;
        return 0;
}

void diskmodel_reset(struct diskmodel *m) {
        m->busy_ns = 0;
        m->seeks = 0;
}

/* The disk that holds unit 0 of a file: neighbouring inode numbers are spread by a multiplicative hash. */
static unsigned first_disk(const struct diskmodel *m, uint64_t file) {
        return (unsigned)((file * UINT64_C(0x9e3779b97f4a7c15) >> 32) % m->p.disks);
}

static uint64_t transfer_ns(const struct diskmodel *m, uint64_t len) {
        return (uint64_t)((double)len * (double)NSEC_PER_SEC / (double)m->p.rate);
}

/* Does the drive's buffer hold all of it, because the arm passed over it?  Then it leaves the buffer. */
static bool take_passed(struct disk_arm *a, uint64_t file, uint64_t pos, uint64_t len) {
        if (!a->placed || a->file != file || pos < a->passed_from || pos + len > a->passed_to)
                return false;
        if (pos == a->passed_from)
                a->passed_from = pos + len;
        else
                a->passed_to = pos;
        return true;
}

/* What it takes the arm to come to the position, and what it passes over on the way. */
static uint64_t approach_ns(struct diskmodel *m, struct disk_arm *a, uint64_t file, uint64_t pos) {
        uint64_t turned;

        if (a->placed && a->file == file && pos >= a->pos) {
                const uint64_t skip_ns = transfer_ns(m, pos - a->pos);

                if (pos == a->pos)
                        return 0;
                if (skip_ns < m->p.seek_ns) {
                        a->passed_from = a->pos;
                        a->passed_to = pos;
                        return skip_ns;
                }
        }
        turned = (uint64_t)((double)m->p.seek_ns / 2 * (double)m->p.rate / (double)NSEC_PER_SEC);
        a->passed_from = turned < pos ? pos - turned : 0;
        a->passed_to = pos;
        m->seeks++;
        return m->p.seek_ns;
}

/* One stretch on one disk; returns when the arm has read it. */
static uint64_t arm_read(struct diskmodel *m, struct disk_arm *a, uint64_t now, uint64_t file, uint64_t pos,
                         uint64_t len) {
        uint64_t cost, start = a->free_at > now ? a->free_at : now;

        if (take_passed(a, file, pos, len))
                return start;
        cost = approach_ns(m, a, file, pos) + transfer_ns(m, len);
        a->placed = true;
        a->file = file;
        a->pos = pos + len;
        a->free_at = start + cost;
        m->busy_ns += cost;
        return a->free_at;
}

uint64_t diskmodel_read(struct diskmodel *m, uint64_t now, uint64_t file, uint64_t off, uint64_t len) {
        const uint64_t stripe = m->p.stripe;
        uint64_t done = now;

        while (m->p.disks > 0 && len > 0) {
                const uint64_t unit = off / stripe, within = off % stripe;
                const uint64_t n = len < stripe - within ? len : stripe - within;
                const uint64_t slot = unit % m->p.disks;
                struct disk_arm *a = &m->arms[(first_disk(m, file) + slot) % m->p.disks];
                const uint64_t at = arm_read(m, a, now, file, unit / m->p.disks * stripe + within, n);

                if (at > done)
                        done = at;
                off += n;
                len -= n;
        }
        return done + m->p.latency_ns;
}
