// A tensor file (.dlpw), read in the contract's three steps: open, read, verify.

#ifndef INTEROP_FILE_H_
#define INTEROP_FILE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "index.h"
#include "wire.h"

namespace interop {

struct StoredTensor {
  Header header;
  Bytes data;
};

class File {
 public:
  // open: finds the live generation (F18). `bytes` must outlive the file.
  explicit File(Bytes bytes);
  File(const File&) = delete;  // its parts point at each other
  File& operator=(const File&) = delete;

  // Every name that an entry of the live chain has, with the newest such entry (F16). That may be a removal's.
  const std::map<Bytes, const Entry*>& names() const { return names_; }

  // read: the tensor of an entry of `names`, nothing if the entry removes its names. Compares no payload sums.
  std::optional<StoredTensor> read(const Entry& entry) const;

  // verify: every byte of the file (F19).
  void verify() const;

  // The live chain, newest first, and where its generation ends: a writer cuts off what is behind.
  const std::vector<Index>& chain() const { return chain_; }
  uint64_t end() const { return end_; }

 private:
  void load_chain(uint64_t newest, uint64_t end);
  void find_live_generation();
  void order_extents();
  void check_gap_before(const Entry& entry) const;
  void verify_index(uint64_t begin, const std::vector<uint64_t>& records,
                    const std::map<uint64_t, uint64_t>& indexes) const;

  Bytes bytes_;
  uint64_t end_ = 0;
  std::vector<Index> chain_;
  std::vector<const Entry*> extents_;  // the chain's entries by position
  std::map<Bytes, const Entry*> names_;
};

// The payload's sum, and rules on elements: what F14 asks for before a payload may be believed.
void check_payload(const StoredTensor& tensor);

}  // namespace interop

#endif  // INTEROP_FILE_H_
