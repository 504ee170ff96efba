#include "vectors.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "error.h"
#include "file.h"
#include "mapping.h"
#include "metadata.h"
#include "tensor.h"

namespace interop {
namespace {

using Json = nlohmann::json;

Json load(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot open " + path);
  return Json::parse(stream);
}

// Hex, or a list of [hex, times]; numbers of 64 bits are decimal strings.
std::string bytes_of(const Json& json) {
  std::string bytes;
  if (json.is_string()) {
    if (!from_hex(json.get<std::string>(), bytes)) throw std::runtime_error("a vector with bad hex");
    return bytes;
  }
  for (const Json& part : json) {
    const std::string piece = bytes_of(part[0]);
    for (int i = part[1].get<int>(); i > 0; --i) bytes += piece;
  }
  return bytes;
}

// True if `data` is what a vector says, which may be too large to be built.
bool is_same(Bytes data, const Json& json) {
  if (json.is_string()) return data == bytes_of(json);
  for (const Json& part : json) {
    const std::string piece = bytes_of(part[0]);
    for (int64_t i = part[1].get<int64_t>(); i > 0; --i) {
      if (data.substr(0, piece.size()) != piece) return false;
      data.remove_prefix(piece.size());
    }
  }
  return data.empty();
}

Json hexed(const std::map<Bytes, Bytes>& metadata) {
  Json json = Json::object();
  for (const auto& [key, value] : metadata) json[std::string(key)] = to_hex(std::string(value));
  return json;
}

// A file of zeros with parts written into it, removed at the end.
class SparseFile {
 public:
  explicit SparseFile(const Json& json) : path_(std::filesystem::temp_directory_path() / "interop-sparse.dlpw") {
    std::ofstream(path_, std::ios::binary | std::ios::trunc);
    std::filesystem::resize_file(path_, std::stoull(json["size"].get<std::string>()));
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    for (const Json& part : json["parts"]) {
      file.seekp(static_cast<std::streamoff>(std::stoull(part[0].get<std::string>())));
      file << bytes_of(part[1]);
    }
  }
  ~SparseFile() { std::filesystem::remove(path_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

char letter_of(const Json& error) {
  const std::string name = error.get<std::string>();
  if (name == "truncated") return 'T';
  if (name == "checksum error") return 'C';
  if (name == "limit error") return 'L';
  if (name == "unsupported") return 'U';
  if (name == "decode error") return 'D';
  throw std::runtime_error("a vector with an unknown error class: " + name);
}

// Every class is a kind of D.
bool is_kind_of(char letter, char wanted) { return letter == wanted || (wanted == 'D' && letter != '-'); }

// What a vector says of a tensor, from the tensor that was read.
Json describe(const Tensor& tensor) {
  const Header& header = tensor.header;
  const auto strings = [](const std::vector<int64_t>& values) {
    Json list = Json::array();
    for (int64_t value : values) list.push_back(std::to_string(value));
    return list;
  };
  Json json;
  json["dtype"] = {{"code", header.dtype->code}, {"bits", header.dtype->bits}, {"lanes", header.dtype->lanes}};
  json["shape"] = strings(header.shape);
  json["strides"] = header.strides.empty() ? Json() : strings(header.strides);
  json["byte_offset"] = std::to_string(header.byte_offset);
  json["byte_order"] = header.byte_order;
  json["flags"] = std::to_string(header.flags);
  json["device"] = header.device ? Json{{"device_type", header.device->type}, {"device_id", header.device->id}} : Json();
  json["version"] = header.version ? Json{{"major", header.version->major}, {"minor", header.version->minor}} : Json();
  json["checksum"] = header.data_sum ? Json(std::to_string(*header.data_sum)) : Json();
  json["payload"] = to_hex(std::string(tensor.data));
  json["elements"] = to_hex(elements(header, tensor.data));
  return json;
}

class Report {
 public:
  void differs(const std::string& name, const std::string& how) {
    ++differences_;
    std::cout << "DIFFERS " << name << ": " << how << "\n";
  }
  int differences() const { return differences_; }

 private:
  int differences_ = 0;
};

void check_valid(const Json& vector, Report& report) {
  const std::string name = vector["name"];
  const std::string wire = bytes_of(vector["wire"]);
  try {
    const Tensor tensor = parse_tensor(wire);
    const Json found = describe(tensor);
    for (const auto& [key, value] : found.items()) {
      const Json wanted =
          key == "payload" || key == "elements" ? Json(to_hex(bytes_of(vector[key]))) : vector[key];
      if (value != wanted) report.differs(name, key + " " + value.dump() + ", not " + wanted.dump());
    }
    if (vector["written"] && tensor_bytes(tensor.header, tensor.data) != wire) report.differs(name, "written otherwise");
  } catch (const Error& error) {
    report.differs(name, std::string("refused: ") + error.letter() + ", " + error.what());
  }
}

void check_invalid(const Json& vector, Report& report) {
  const char wanted = letter_of(vector["error"]);
  char letter = '-';
  std::string says = "accepted";
  try {
    parse_tensor(bytes_of(vector["wire"]));
  } catch (const Error& error) {
    letter = error.letter();
    says = error.what();
  }
  if (!is_kind_of(letter, wanted)) report.differs(vector["name"], std::string(1, letter) + ", " + says);
}

// What read gives of a file, against what the vector says.
void check_contents(const File& file, const std::string& name, const Json& vector, Report& report) {
  Json missing = vector["tensors"];
  Json metadata = Json::object();
  for (const auto& [key, entry] : file.names()) {
    const std::optional<StoredTensor> tensor = file.read(*entry);
    if (!tensor) continue;
    const std::string text(key);
    if (!missing.contains(text) || !is_same(tensor->data, missing[text])) report.differs(name, "tensor " + text);
    missing.erase(text);
    const Json elements_of = vector.value("elements", Json::object());
    if (elements_of.contains(text) && elements(tensor->header, tensor->data) != bytes_of(elements_of[text])) {
      report.differs(name, "elements of " + text);
    }
    const Json values = hexed(metadata_values(parse_entry_fields(*entry).label.metadata));
    if (!values.empty()) metadata[text] = values;
  }
  if (!missing.empty()) report.differs(name, "without " + missing.dump());
  if (metadata != vector.value("tensor_metadata", Json::object())) report.differs(name, "tensor_metadata");
  Json of_file = Json::object();
  for (auto index = file.chain().rbegin(); index != file.chain().rend(); ++index) {
    of_file.update(hexed(metadata_values(index->metadata)));
  }
  if (of_file != vector.value("metadata", Json::object())) report.differs(name, "metadata");
}

// The step that fails, with its class; what is read is compared on the way.
void check_file(const std::string& path, const std::string& name, const Json& vector, Report& report) {
  const Mapping mapping(path);
  std::string step = "open";
  std::string found = "-";
  std::string says;
  char letter = '-';
  try {
    const File file(mapping.bytes());
    step = "read";
    if (vector["error"].is_null()) {
      check_contents(file, name, vector, report);
    } else {
      for (const auto& [key, entry] : file.names()) file.read(*entry);
    }
    step = "verify";
    file.verify();
    step = "-";
  } catch (const Error& error) {
    letter = error.letter();
    says = error.what();
  }
  const bool torn = name.rfind("valid-torn", 0) == 0;  // valid, but not for verify
  const std::string wanted_step = torn ? "verify" : vector["at"].is_null() ? "-" : vector["at"].get<std::string>();
  const char wanted = torn ? 'D' : vector["error"].is_null() ? '-' : letter_of(vector["error"]);
  if (step != wanted_step || !is_kind_of(letter, wanted)) {
    report.differs(name, "at " + step + " " + letter + ", not at " + wanted_step + " " + wanted + "; " + says);
  }
}

}  // namespace

std::string to_hex(const std::string& bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (char byte : bytes) {
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[byte & 0xf];
  }
  return hex;
}

bool from_hex(const std::string& hex, std::string& bytes) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  bytes.clear();
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    if (digit(hex[i]) < 0 || digit(hex[i + 1]) < 0) return false;
    bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  return hex.size() % 2 == 0;
}

int check_vectors(const std::string& directory) {
  Report report;
  const Json valid = load(directory + "/vectors/valid.json");
  for (const Json& vector : valid) check_valid(vector, report);
  const Json invalid = load(directory + "/vectors/invalid.json");
  for (const Json& vector : invalid) check_invalid(vector, report);
  const Json files = load(directory + "/files/files.json");
  for (const auto& [name, vector] : files.items()) {
    if (vector.contains("sparse")) {
      check_file(SparseFile(vector["sparse"]).path(), name, vector, report);
    } else {
      check_file(directory + "/files/" + name, name, vector, report);
    }
  }
  std::cout << valid.size() << " valid messages, " << invalid.size() << " invalid messages, " << files.size()
            << " files: " << report.differences() << " differences\n";
  return report.differences();
}

}  // namespace interop
