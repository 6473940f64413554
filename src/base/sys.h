/* SPDX-License-Identifier: Apache-2.0 */
/* What the C library has no call for.  No state; both functions act for the calling thread. */
#pragma once

#include <stdint.h>

/* The kernel's way to a file by descriptor where a call takes only a path.  Resolves no path of a mount. */
struct fd_path {
        char text[32];
};
struct fd_path path_of_fd(int fd);

/* Bits are 1 << CAP_...: makes those of `raise` effective that are permitted, gives up those of `drop` for good.  What
 * the kernel refuses stays as it is. */
void capabilities_change(uint32_t raise, uint32_t drop);
