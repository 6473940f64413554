/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sys.h"

#include <linux/capability.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fd_path path_of_fd(int fd) {
        struct fd_path p;

        snprintf(p.text, sizeof p.text, "/proc/self/fd/%d", fd);
        return p;
}

void capabilities_change(uint32_t raise, uint32_t drop) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2];

        if (syscall(SYS_capget, &head, data) < 0)
                return;
        data[0].permitted &= ~drop;
        data[0].effective = (data[0].effective & ~drop) | (data[0].permitted & raise);
        syscall(SYS_capset, &head, data);
}
