/* The commands `pasta` and `pasta-preload` (PASTA_ENTRY is the function that each calls).
 *
 * They start PASTA's Python with -I, so that PYTHONHOME, PYTHONPATH and the current directory of the
 * profiled program do not reach it, and pass the environment on unchanged. A script would not do: its
 * interpreter reads these variables before our code runs, and a shell changes the environment (dash
 * drops names that are no identifiers, such as exported functions of bash).
 *
 * The interpreter is the one of the virtual environment that the command is in, or else the one
 * that the installer wrote into the script `pasta-python` beside it. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define REINSTALL "pip install --force-reinstall pasta-profiler"

/* Runs as `python -I -c CODE PREFIX ARGUMENTS...`; PREFIX is the directory above the command's.
 * Installations that -I does not look into are those of --user, --prefix and --target. */
static const char CODE[] =
    "import sys\n"
    "prefix, place = sys.argv.pop(1), 'python%d.%d/site-packages' % sys.version_info[:2]\n"
    "try:\n"
    "    from pasta_entry import " PASTA_ENTRY " as entry\n"
    "except ModuleNotFoundError:\n"
    "    import site\n"
    "    for each in (prefix + '/lib/' + place, prefix + '/lib64/' + place, prefix):\n"
    "        site.addsitedir(each)\n"
    "    try:\n"
    "        from pasta_entry import " PASTA_ENTRY " as entry\n"
    "    except ModuleNotFoundError:\n"
    "        sys.exit('pasta: PASTA is not installed in %s or %s: " REINSTALL "'\n"
    "                 % (sys.prefix, prefix))\n"
    "entry()\n";

static void fail(const char *what, const char *why, const char *remedy) {
    fprintf(stderr, "pasta: %s: %s%s%s\n", what, why, remedy ? ": " : "", remedy ? remedy : "");
    exit(1);
}

/* Cuts `path` at its last slash. */
static void to_parent(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
}

/* The word at `text`, quoted or up to a space, ends there; NULL for one that a shell would expand. */
static char *word(char *text) {
    const char quote = *text == '"' || *text == '\'' ? *text++ : ' ';
    text[strcspn(text, quote == ' ' ? " \t\r\n" : (const char[]){quote, 0})] = 0;
    return strchr(text, '$') ? NULL : text;
}

/* The interpreter of a script: `#!/python`, or for paths that are long or have spaces
 * `#!/bin/sh` and a line `'''exec' "/python" "$0" "$@"`. NULL if it names none. */
static char *interpreter(const char *script, char *line, int size) {
    static const char EXEC[] = "'''exec' ";
    FILE *file = fopen(script, "r");
    char *found = NULL;
    if (!file) return NULL;
    if (fgets(line, size, file) && !strncmp(line, "#!", 2)) {
        found = word(line + 2 + strspn(line + 2, " \t"));
        if (found && !strcmp(found, "/bin/sh")) {
            found = fgets(line, size, file) && !strncmp(line, EXEC, sizeof EXEC - 1)
                        ? word(line + sizeof EXEC - 1)
                        : NULL;
        }
    }
    fclose(file);
    return found;
}

int main(int count, char **arguments) {
    static char directory[PATH_MAX], prefix[PATH_MAX], path[PATH_MAX + 16], line[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", directory, sizeof directory - 1);
    if (length < 0 && !realpath((const char *)getauxval(AT_EXECFN), directory)) /* no /proc */
        fail("the path of this command", strerror(errno), "mount /proc");
    to_parent(directory);
    strcpy(prefix, directory);
    to_parent(prefix);

    snprintf(path, sizeof path, "%s/pyvenv.cfg", prefix);
    int in_venv = !access(path, F_OK);
    snprintf(path, sizeof path, "%s/%s", directory, in_venv ? "python" : "pasta-python");
    char *python = in_venv ? path : interpreter(path, line, sizeof line);
    if (!python) fail(path, "cannot be read, or names no Python", REINSTALL);

    char **command = calloc((size_t)count + 5, sizeof *command);
    if (!command) fail(python, strerror(errno), NULL);
    char *const first[] = {python, "-I", "-c", (char *)CODE, prefix};
    memcpy(command, first, sizeof first);
    memcpy(command + 5, arguments + 1, (size_t)(count > 0 ? count - 1 : 0) * sizeof *command);
    execv(python, command);
    fail(python, strerror(errno), "install PASTA again, its Python is gone: " REINSTALL);
}
