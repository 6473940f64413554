/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util.h"
#include "cli/cli.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct command {
        const char *name, *args, *doc;
        int (*run)(int argc, char **argv);
} commands[] = {
        { "mount", "SOURCE MOUNTPOINT [-o OPTION[,OPTION...]] [-f]",
          "mount over a slow directory; SOURCE may be the MOUNTPOINT itself", cmd_mount },
        { "status", "[MOUNTPOINT] [--json]", "what the mounts do: hits, misses, what is in the cache, what is wrong", cmd_status },
};

int cli_fail(int code, const char *fmt, ...) {
        va_list ap;

        fputs("hotset: ", stderr);
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        fputc('\n', stderr);
        return code;
}

static void help(FILE *f) {
        fputs("hotset: make slow model storage feel like NVMe.\n\n", f);
        for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
                fprintf(f, "  hotset %s %s\n      %s\n", commands[i].name, commands[i].args, commands[i].doc);
        fputs("  umount MOUNTPOINT\n      end a mount; the cache is kept for the next one\n\n"
              "  hotset COMMAND --help, hotset --version\n\n"
              "Exit codes: 0 done, 1 usage, 2 system error or incomplete, 32 mount failed.\n", f);
}

/* A file of ours must never become somebody's standard output. */
static void fill_standard_fds(void) {
        int fd;

        do
                fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        while (fd >= 0 && fd < 3);
        closep(&fd);
}

int main(int argc, char **argv) {
        const char *name = argc > 1 ? argv[1] : "";

        fill_standard_fds();

        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
                help(stdout);
                return 0;
        }
        if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
                printf("hotset %s\n", HOTSET_VERSION);
                return 0;
        }
        for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
                if (strcmp(commands[i].name, name) == 0)
                        return commands[i].run(argc - 1, argv + 1);
        if (argc < 2) {
                help(stderr);
                return EXIT_USAGE;
        }
        return cli_fail(EXIT_USAGE, "unknown command '%s'; see 'hotset --help'", name);
}
