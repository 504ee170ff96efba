#include "mapping.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace interop {

Mapping::Mapping(const std::string& path) {
  const auto fail = [&] { throw std::system_error(errno, std::generic_category(), path); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail();
  struct stat status {};
  void* address = nullptr;
  const bool known = ::fstat(fd, &status) == 0;
  const auto size = static_cast<size_t>(status.st_size);
  // An empty file cannot be mapped, and need not be.
  if (known && size > 0) address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);  // a mapping outlives its descriptor
  errno = error;
  if (!known || address == MAP_FAILED) fail();
  if (address != nullptr) bytes_ = Bytes(static_cast<const char*>(address), size);
}

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace interop
