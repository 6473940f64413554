/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has the source written back, within the time that an open may wait?
 *
 * A thread of its own does it, one file after another: a file of which gigabytes are dirty, or a source that hangs,
 * holds up whoever asks for a moment only, and while it does so nobody waits at all.
 *
 * Threads: settler_write_back from anywhere.
 */
#pragma once

#include "source/identity.h"

struct settler;

int settler_new(struct settler **ret);
struct settler *settler_free(struct settler *s); /* where the source hangs, its thread is left to it */

/* True: every page of the file that was dirty is on its way to the disk, and the file still has this version. */
bool settler_write_back(struct settler *s, int fd, const struct file_version *v);
