/* A preloaded library that makes one chosen write, sync, rename, unlink or truncate below a folder fail or stop.
 *
 * fault_arm(folder, at, mode) counts the calls that change something below the folder, from 1. Call number `at` does
 *   'e'  nothing, and fails with EIO
 *   'a'  what it should, and fails with EIO all the same, as a sync does whose error comes late
 *   'f'  nothing, and fails with ENOSPC; so do all later ones that need space, until the file `reserve` is removed:
 *        the disk is full, but for that
 *   'd'  nothing, and fails with EIO; so do all later writes and syncs
 *   'b'  nothing: the process is killed before it
 *   'k'  what it should, and the process is killed behind it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static atomic_long count, chosen, has_room;
static char mode;

void fault_arm(const char *path, long at, char how) {
  snprintf(folder, sizeof folder, "%s", path);
  atomic_store(&count, 0);
  atomic_store(&has_room, 0);
  mode = how;
  atomic_store(&chosen, at);
}

long fault_count(void) { return atomic_load(&count); }

static int is_below(const char *path) {
  size_t length = strlen(folder);
  return length && strncmp(path, folder, length) == 0;
}

static int is_file_below(int fd) {
  char link[64], path[PATH_MAX];
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}

enum { WRITES = 1, TAKES_MUCH = 2, SYNCS = 3 };

/* Returns what to do with a call: 0 as usual, 'a' and 'k' afterwards, -1 it has failed. */
static int fate(int below, int kind) {
  if (!below) return 0;
  long now = atomic_fetch_add(&count, 1) + 1, at = atomic_load(&chosen);
  int room = kind == WRITES && atomic_load(&has_room);
  if (mode == 'f' && at && now >= at && (kind == WRITES || kind == TAKES_MUCH) && !room) {
    errno = ENOSPC;
    return -1;
  }
  if (mode == 'd' && at && now >= at && kind) {
    errno = EIO;
    return -1;
  }
  if (now != at || mode == 'f') return 0;
  if (mode == 'b') kill(getpid(), SIGKILL);
  if (mode == 'e') {
    errno = EIO;
    return -1;
  }
  return mode;
}

static long ended(int how, long result) {
  if (how == 'k') kill(getpid(), SIGKILL);
  if (how == 'a') {
    errno = EIO;
    return -1;
  }
  return result;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP(result, name, below, kind, parameters, arguments)        \
  result name parameters {                                            \
    int how = fate(below, kind);                                      \
    if (how < 0) return -1;                                           \
    return (result)ended(how, REAL(name) arguments);                  \
  }

WRAP(ssize_t, write, is_file_below(fd), WRITES, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(ssize_t, pwrite, is_file_below(fd), WRITES, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite64, is_file_below(fd), WRITES, (int fd, const void *data, size_t size, off64_t at),
     (fd, data, size, at))
WRAP(int, fsync, is_file_below(fd), SYNCS, (int fd), (fd))
WRAP(int, fdatasync, is_file_below(fd), SYNCS, (int fd), (fd))
WRAP(int, ftruncate, is_file_below(fd), 0, (int fd, off_t size), (fd, size))
WRAP(int, ftruncate64, is_file_below(fd), 0, (int fd, off64_t size), (fd, size))
WRAP(int, rename, is_below(to), 0, (const char *from, const char *to), (from, to))
WRAP(int, renameat, is_below(to), 0, (int a, const char *from, int b, const char *to), (a, from, b, to))

static int is_reserve(const char *path) {
  size_t length = strlen(path);
  return is_below(path) && length > 8 && strcmp(path + length - 8, "/reserve") == 0;
}

int unlink(const char *path) {
  int how = fate(is_below(path), 0);
  if (how < 0) return -1;
  if (is_reserve(path)) atomic_store(&has_room, 1);
  return (int)ended(how, REAL(unlink)(path));
}

WRAP(int, unlinkat, is_below(path), 0, (int at, const char *path, int flags), (at, path, flags))

/* Their error is the result, not errno. */
#define WRAP_FALLOCATE(name, offset)                     \
  int name(int fd, offset at, offset size) {             \
    int how = fate(is_file_below(fd), TAKES_MUCH);       \
    if (how < 0) return errno;                           \
    int result = REAL(name)(fd, at, size);               \
    return ended(how, result) < 0 ? EIO : result;        \
  }

WRAP_FALLOCATE(posix_fallocate, off_t)
WRAP_FALLOCATE(posix_fallocate64, off64_t)
