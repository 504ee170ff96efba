#include "name.h"

#include <unordered_set>

#include "error.h"

namespace interop {
namespace {

constexpr size_t kMostNameBytes = 4096;
constexpr size_t kMostAliases = 64;

}  // namespace

bool is_utf8(Bytes text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    int more;
    uint32_t least;  // smaller values have a shorter form, which alone is allowed
    uint32_t value;
    if (lead >> 5 == 0x6) {
      more = 1, least = 0x80, value = lead & 0x1f;
    } else if (lead >> 4 == 0xe) {
      more = 2, least = 0x800, value = lead & 0x0f;
    } else if (lead >> 3 == 0x1e) {
      more = 3, least = 0x10000, value = lead & 0x07;
    } else {
      return false;
    }
    for (; more > 0; --more, ++i) {
      if (i == text.size() || static_cast<uint8_t>(text[i]) >> 6 != 0x2) return false;
      value = value << 6 | (static_cast<uint8_t>(text[i]) & 0x3f);
    }
    const bool surrogate = value >= 0xd800 && value <= 0xdfff;
    if (value < least || value > 0x10ffff || surrogate) return false;
  }
  return true;
}

bool Names::take(const Field& field) {
  if (field.number != 1 && field.number != 2) return false;
  require(field.wire == Wire::length, "a name of another wire type");
  const Bytes name = field.content;
  require(!name.empty(), "an empty name written out");
  if (name.size() > kMostNameBytes) fail(Class::limit, "a name of more than 4096 bytes");
  require(is_utf8(name), "a name that is not UTF-8");
  require(name.find('\0') == Bytes::npos, "a name with NUL");
  if (field.number == 1) {
    require(!named_ && aliases_.empty(), "a name written twice or behind an alias");
    named_ = true;
    name_ = name;
  } else {
    if (aliases_.size() == kMostAliases) fail(Class::limit, "more than 64 aliases");
    aliases_.push_back(name);
  }
  return true;
}

void Names::check() const {
  require(named_ || aliases_.empty(), "aliases without a name");
  const std::vector<Bytes> names = all();
  require(std::unordered_set<Bytes>(names.begin(), names.end()).size() == names.size(), "a name twice in a record");
}

std::vector<Bytes> Names::all() const {
  std::vector<Bytes> names{name_};
  names.insert(names.end(), aliases_.begin(), aliases_.end());
  return names;
}

}  // namespace interop
