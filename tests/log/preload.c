/* System calls on files below one folder that fail: at one call, or from one call on until it is healed.
 *
 * Loaded before the C library (LD_PRELOAD), so that also reads, and calls of libraries that are not Python, can fail.
 * tests/log/preloaded.py sets the fault and asks for the number of calls. One thread at a time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define HANDLES 65536
static unsigned char ours[HANDLES];
static char root[4096];
static size_t root_size;
static long calls, fail_at = -1;
static int fault, lasting;
static char last[64];

void fault_root(const char *path) {
    snprintf(root, sizeof root, "%s", path);
    root_size = strlen(root);
}

void fault_set(long at, int error, int lasts) {
    calls = 0;
    fail_at = at;
    fault = error;
    lasting = lasts;
    last[0] = 0;
}

long fault_calls(void) { return calls; }
const char *fault_hit(void) { return last; }

/* Return whether this call is to fail; an error of 0 means that it is to do only a part. */
static int due(const char *what) {
    long number = calls++;
    if (fail_at < 0 || (lasting ? number < fail_at : number != fail_at)) return 0;
    if (!last[0]) snprintf(last, sizeof last, "%s (call %ld)", what, number);
    errno = fault;
    return 1;
}

static int below(const char *path) { return root_size && path && strncmp(path, root, root_size) == 0; }
static int mine(int handle) { return handle >= 0 && handle < HANDLES && ours[handle]; }

#define REAL(result, name, ...)                                   \
    static result (*real)(__VA_ARGS__);                           \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN(name)                                                       \
    int name(const char *path, int flags, ...) {                         \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        int mode = va_arg(rest, int);                                    \
        va_end(rest);                                                    \
        REAL(int, #name, const char *, int, ...);                        \
        int here = below(path);                                          \
        if (here && due("open") && fault) return -1;                     \
        int handle = real(path, flags, mode);                            \
        if (handle >= 0 && handle < HANDLES) ours[handle] = here;        \
        return handle;                                                   \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                     \
    int name(int folder, const char *path, int flags, ...) {             \
        va_list rest;                                                    \
        va_start(rest, flags);                                           \
        int mode = va_arg(rest, int);                                    \
        va_end(rest);                                                    \
        REAL(int, #name, int, const char *, int, ...);                   \
        int here = below(path);                                          \
        if (here && due("open") && fault) return -1;                     \
        int handle = real(folder, path, flags, mode);                    \
        if (handle >= 0 && handle < HANDLES) ours[handle] = here;        \
        return handle;                                                   \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int handle) {
    REAL(int, "close", int);
    if (handle >= 0 && handle < HANDLES) ours[handle] = 0;
    return real(handle);
}

#define PART(size) ((size) > 1 ? (size) / 2 : (size))

ssize_t read(int handle, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (mine(handle) && due("read")) return fault ? -1 : real(handle, data, PART(size));
    return real(handle, data, size);
}

#define PREAD(name)                                                                            \
    ssize_t name(int handle, void *data, size_t size, off64_t at) {                            \
        REAL(ssize_t, #name, int, void *, size_t, off64_t);                                    \
        if (mine(handle) && due("read")) return fault ? -1 : real(handle, data, PART(size), at); \
        return real(handle, data, size, at);                                                   \
    }
PREAD(pread)
PREAD(pread64)

ssize_t write(int handle, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (mine(handle) && due("write")) return fault ? -1 : real(handle, data, PART(size));
    return real(handle, data, size);
}

#define PWRITE(name)                                                                             \
    ssize_t name(int handle, const void *data, size_t size, off64_t at) {                        \
        REAL(ssize_t, #name, int, const void *, size_t, off64_t);                                \
        if (mine(handle) && due("write")) return fault ? -1 : real(handle, data, PART(size), at); \
        return real(handle, data, size, at);                                                     \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define PWRITEV(name)                                                                        \
    ssize_t name(int handle, const struct iovec *parts, int count, off64_t at) {             \
        REAL(ssize_t, #name, int, const struct iovec *, int, off64_t);                       \
        if (mine(handle) && due("write")) return fault ? -1 : real(handle, parts, 1, at);    \
        return real(handle, parts, count, at);                                               \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name)                                                                           \
    ssize_t name(int handle, const struct iovec *parts, int count, off64_t at, int flags) {      \
        REAL(ssize_t, #name, int, const struct iovec *, int, off64_t, int);                      \
        if (mine(handle) && due("write")) return fault ? -1 : real(handle, parts, 1, at, flags); \
        return real(handle, parts, count, at, flags);                                            \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define ON_HANDLE(name)                                          \
    int name(int handle) {                                       \
        REAL(int, #name, int);                                   \
        if (mine(handle) && due(#name) && fault) return -1;      \
        return real(handle);                                     \
    }
ON_HANDLE(fsync)
ON_HANDLE(fdatasync)

#define TRUNCATE(name)                                            \
    int name(int handle, off64_t size) {                          \
        REAL(int, #name, int, off64_t);                           \
        if (mine(handle) && due("truncate") && fault) return -1;  \
        return real(handle, size);                                \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define MMAP(name)                                                                       \
    void *name(void *where, size_t size, int protection, int flags, int handle, off64_t at) { \
        REAL(void *, #name, void *, size_t, int, int, int, off64_t);                     \
        if (mine(handle) && due("mmap") && fault) return MAP_FAILED;                     \
        return real(where, size, protection, flags, handle, at);                         \
    }
MMAP(mmap)
MMAP(mmap64)

int rename(const char *old, const char *new) {
    REAL(int, "rename", const char *, const char *);
    if (below(new) && due("rename") && fault) return -1;
    return real(old, new);
}

#define ON_PATH(name)                                        \
    int name(const char *path) {                             \
        REAL(int, #name, const char *);                      \
        if (below(path) && due(#name) && fault) return -1;   \
        return real(path);                                   \
    }
ON_PATH(unlink)
ON_PATH(rmdir)

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    if (below(path) && due("mkdir") && fault) return -1;
    return real(path, mode);
}
