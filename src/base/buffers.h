/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded pool of I/O buffers, aligned to 4 KiB (what O_DIRECT asks for), in powers of two from 4 KiB to 2 MiB.
 *
 * The bound is on memory held, idle buffers included, so that the daemon's memory does not depend on what is read.
 * buffer_get never waits: whoever gets NULL has a plan without a buffer (queue the read, drop the admission).
 * Thread-safe by its own lock, which is never held while another is taken.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define BUFFER_MAX (1024u * 1024u)  /* of one read */
#define BUFFER_LARGEST (2 * BUFFER_MAX) /* with a block on either side */

struct buffer_pool;

int buffer_pool_new(size_t bound, struct buffer_pool **ret);
struct buffer_pool *buffer_pool_free(struct buffer_pool *p); /* every buffer must be back; returns NULL */
size_t buffer_room(size_t size); /* what a buffer of this size really takes */
void *buffer_get(struct buffer_pool *p, size_t size);        /* size <= BUFFER_LARGEST; NULL: the bound is reached */
void buffer_put(struct buffer_pool *p, void *buf, size_t size); /* the size it was asked with; NULL is ignored */
size_t buffer_pool_held(struct buffer_pool *p);
