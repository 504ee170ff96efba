// The contract's five classes of error.

#ifndef INTEROP_ERROR_H_
#define INTEROP_ERROR_H_

#include <stdexcept>
#include <string>

namespace interop {

enum class Class : char { decode = 'D', truncated = 'T', checksum = 'C', limit = 'L', unsupported = 'U' };

class Error : public std::runtime_error {
 public:
  Error(Class of, const std::string& says) : std::runtime_error(says), class_(of) {}
  char letter() const { return static_cast<char>(class_); }

 private:
  Class class_;
};

[[noreturn]] inline void fail(Class of, const std::string& says) { throw Error(of, says); }

inline void require(bool holds, const char* says) {
  if (!holds) fail(Class::decode, says);
}

}  // namespace interop

#endif  // INTEROP_ERROR_H_
