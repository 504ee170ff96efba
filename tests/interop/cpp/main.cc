// The second implementation of the contract, as a command line tool for the tests.

#include <cstdio>
#include <iostream>

#include "error.h"
#include "file.h"
#include "mapping.h"
#include "sample.h"
#include "scenario.h"
#include "sum.h"
#include "tensor.h"
#include "vectors.h"

namespace {

using namespace interop;

// One message in hex a line; answers a line each.
int run_messages() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string bytes;
    if (!from_hex(line, bytes)) {
      std::cerr << "a line that is no hex\n";
      return 2;
    }
    try {
      const Tensor tensor = parse_tensor(bytes);
      const Dtype& dtype = *tensor.header.dtype;
      std::string shape;
      for (int64_t extent : tensor.header.shape) shape += (shape.empty() ? "" : "x") + std::to_string(extent);
      if (shape.empty()) shape = "-";
      char sum[17];
      std::snprintf(sum, sizeof sum, "%016llx", static_cast<unsigned long long>(xxh3(tensor.data)));
      std::cout << "ok " << dtype.code << ' ' << dtype.bits << ' ' << dtype.lanes << ' ' << shape << ' ' << sum << '\n';
    } catch (const Error& error) {
      std::cout << error.letter() << '\n';
    }
  }
  return 0;
}

// One path a line; answers a line each.
int run_files() {
  for (std::string path; std::getline(std::cin, path);) {
    const Mapping mapping(path);
    const char* step = "open";
    try {
      const File file(mapping.bytes());
      step = "read";
      int count = 0;
      for (const auto& [name, entry] : file.names()) {
        if (const auto tensor = file.read(*entry)) {
          check_payload(*tensor);
          ++count;
        }
      }
      step = "verify";
      file.verify();
      std::cout << "ok " << count << '\n';
    } catch (const Error& error) {
      std::cout << step << ' ' << error.letter() << '\n';
    }
  }
  return 0;
}

int usage() {
  std::cerr << "interop vectors DIR | messages | files | write PATH | client ADDRESS\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  try {
    if (command == "vectors" && argc == 3) return interop::check_vectors(argv[2]) == 0 ? 0 : 1;
    if (command == "messages" && argc == 2) return run_messages();
    if (command == "files" && argc == 2) return run_files();
    if (command == "write" && argc == 3) {
      interop::write_sample(argv[2]);
      return 0;
    }
    if (command == "client" && argc == 3) {
      try {
        interop::run_scenario(argv[2]);
        return 0;
      } catch (const std::runtime_error& error) {
        std::cout << "FAILED " << error.what() << '\n';
        return 1;
      }
    }
    return usage();
  } catch (const std::exception& error) {
    std::cerr << "interop: " << error.what() << '\n';
    return 2;
  }
}
